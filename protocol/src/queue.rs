//! Queues: who shares, and by what rules. A queue's name is a path (`research/vision`); its parent is the path before
//! the last slash. A tenant without a queue of its own gets one of its name at its first job.

use crate::care::IdleRule;
use crate::limits::{NAME_BYTES_MAX, QUEUE_DEPTH_MAX};
use crate::pace::Turns;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A queue's number, handed out by the log and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct QueueId(pub u64);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Amounts of what is scarce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Amounts {
    /// GPUs in thousandths of a card; slices and shares count by their part.
    pub gpu_milli: u64,
    /// CPU in thousandths of a core.
    pub cpus_milli: u64,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// GPU memory in MiB.
    pub vram_mib: u64,
}

impl Amounts {
    /// All four, for loops over them.
    #[must_use]
    pub fn parts(&self) -> [u64; 4] {
        [self.gpu_milli, self.cpus_milli, self.mem_mib, self.vram_mib]
    }

    fn from_parts([gpu_milli, cpus_milli, mem_mib, vram_mib]: [u64; 4]) -> Self {
        Self { gpu_milli, cpus_milli, mem_mib, vram_mib }
    }

    /// Both together; stays at the largest number instead of wrapping.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// What is left after the other is taken away; never below zero.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    /// This many times.
    #[must_use]
    pub fn times(&self, count: u64) -> Self {
        Self::from_parts(self.parts().map(|part| part.saturating_mul(count)))
    }

    /// Part by part.
    #[must_use]
    pub fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let (a, b) = (self.parts(), other.parts());
        Self::from_parts([f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])])
    }

    /// No part is larger than the other's.
    #[must_use]
    pub fn within(&self, other: &Self) -> bool {
        self.parts().iter().zip(other.parts()).all(|(a, b)| *a <= b)
    }
}

/// Most of each part; none is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Ceiling {
    /// GPUs in thousandths of a card.
    pub gpu_milli: Option<u64>,
    /// CPU in thousandths of a core.
    pub cpus_milli: Option<u64>,
    /// Memory in MiB.
    pub mem_mib: Option<u64>,
    /// GPU memory in MiB.
    pub vram_mib: Option<u64>,
}

impl Ceiling {
    /// As amounts, the largest number where there is no bound.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        Amounts {
            gpu_milli: self.gpu_milli.unwrap_or(u64::MAX),
            cpus_milli: self.cpus_milli.unwrap_or(u64::MAX),
            mem_mib: self.mem_mib.unwrap_or(u64::MAX),
            vram_mib: self.vram_mib.unwrap_or(u64::MAX),
        }
    }
}

/// What becomes of work that runs above a ceiling that was just lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub enum Excess {
    /// It runs to its end; nothing new starts above the ceiling.
    #[default]
    LetEnd,
    /// The youngest attempts are ended and wait again until the rest is within the ceiling.
    RequeueYoungest,
}

/// The rules of one queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Its path.
    pub name: String,
    /// Its part of what its parent has, against the other children; at least 1.
    pub weight: u32,
    /// What it gets back from borrowers whenever it asks for it.
    pub guarantee: Amounts,
    /// What it never exceeds, borrowed or not.
    pub ceiling: Ceiling,
    /// What no single user of it exceeds.
    pub user_ceiling: Ceiling,
    /// It may use what others leave idle, beyond its guarantee. Without this its guarantee is its ceiling.
    pub borrows: bool,
    /// Tenants whose jobs may enter it; empty: the tenant of the name of its first path element.
    pub tenants: Vec<String>,
    /// Limit of jobs that name none, in ms; none: no limit.
    pub time_limit_default_ms: Option<u64>,
    /// What happens to work above a lowered ceiling.
    pub excess: Excess,
    /// What happens to work that holds cards and does nothing with them.
    #[serde(default)]
    pub idle: IdleRule,
    /// Which of its jobs take turns.
    #[serde(default)]
    pub turns: Turns,
    /// The highest priority that submitters may ask for its jobs; none: what the queue above it says, and the default
    /// where none does.
    #[serde(default)]
    pub priority_max: Option<u16>,
    /// How long an attempt of it runs before it may be ended to make room for others, from its grant, in ms; none: what
    /// the queue above it says, and nothing where none does. It counts for attempts that are granted from then on.
    #[serde(default)]
    pub min_runtime_ms: Option<u64>,
}

impl QueueSpec {
    /// A queue without bounds or guarantee.
    #[must_use]
    pub fn open(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            weight: 1,
            guarantee: Amounts::default(),
            ceiling: Ceiling::default(),
            user_ceiling: Ceiling::default(),
            borrows: true,
            tenants: Vec::new(),
            time_limit_default_ms: None,
            excess: Excess::LetEnd,
            idle: IdleRule::default(),
            turns: Turns::default(),
            priority_max: None,
            min_runtime_ms: None,
        }
    }
}

/// The path of a queue's parent.
#[must_use]
pub fn parent_of(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(parent, _)| parent)
}

/// A path is one to [`QUEUE_DEPTH_MAX`] elements of letters, digits, `-`, `_`, `.` or `@`, apart by single slashes.
#[must_use]
pub fn is_queue_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "-_.@".contains(c);
    name.len() <= NAME_BYTES_MAX
        && name.split('/').count() <= QUEUE_DEPTH_MAX
        && name.split('/').all(|element| !element.is_empty() && element.chars().all(plain))
}
