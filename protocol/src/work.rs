//! The shapes of work beyond one task on one host: gangs, dependencies, warnings, and where parts may lie.

use crate::ids::JobId;
use crate::limits::EVICTION_WARNING_MS_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Parts that run together: all hold their devices at every moment, or none does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GangSpec {
    /// Fewest parts with which it starts and goes on, at least 1.
    pub min: u32,
    /// Most parts; ranks are 0 to `max - 1`. Equal to `min` for a rigid gang, which starts again as a whole when it
    /// loses a part.
    pub max: u32,
}

impl GangSpec {
    /// A gang that may lose parts and find new ones.
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.min < self.max
    }
}

/// Where the tasks of a job lie to one another, and the cards of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Layout {
    /// Wherever the planner finds best.
    #[default]
    Any,
    /// On as few hosts as can be.
    Pack,
    /// On as many hosts as can be.
    Spread,
    /// All on one host, or not at all.
    SameHost,
    /// All in one rack (host label `rack`), or not at all.
    SameRack,
    /// The cards of each task in one island of fast links, or not at all.
    SameIsland,
}

/// How a parent must have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Relation {
    /// It succeeded.
    Ok,
    /// It started and did not succeed: failed, hit its time limit, or was cancelled while it ran.
    NotOk,
    /// It is over, in whatever way.
    Any,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::NotOk => "not-ok",
            Self::Any => "any",
        })
    }
}

/// One job that must be over first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dependency {
    /// The parent.
    pub job: JobId,
    /// How it must have ended.
    pub relation: Relation,
    /// Each task waits only for the parent's task of the same index.
    pub each: bool,
}

/// A signal before the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Warning {
    /// The signal's number, such as 10 for USR1.
    pub signal: u8,
    /// How long before the time limit, in ms. Before an eviction it comes at once, TERM after this time or after
    /// [`EVICTION_WARNING_MS_MAX`], whichever is shorter, and KILL after the grace that follows TERM.
    pub before_ms: u32,
    /// Only to the task's first process instead of all.
    pub leader_only: bool,
}

impl Warning {
    /// From the warning to TERM when it is evicted, in ms.
    #[must_use]
    pub fn eviction_ms(&self) -> u32 {
        self.before_ms.min(EVICTION_WARNING_MS_MAX)
    }
}
