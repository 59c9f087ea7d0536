//! What a host does about its cards beyond starting and ending tasks: how a card was given back, what was noted of a
//! task on the way, why the host itself asked for a task's end, and the rule for cards that are held and not used.

use crate::job::{AttemptEnd, EndReason};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One step of giving a card back. They come in this order; the next begins when the one before is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReleaseStep {
    /// The attempt's last process is gone, and the driver lists none on the card.
    Processes,
    /// Nothing that began with the attempt or later holds the card's device node open.
    Nodes,
    /// Its memory is at what it is when the card is idle.
    Memory,
    /// It was scrubbed.
    Scrub,
    /// It was looked at again after that.
    Verify,
}

impl fmt::Display for ReleaseStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Processes => "processes gone",
            Self::Nodes => "nodes closed",
            Self::Memory => "memory back",
            Self::Scrub => "scrubbed",
            Self::Verify => "verified",
        })
    }
}

/// How an attempt's cards were given back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Release {
    /// Steps that were proven, in the order in which they were.
    pub steps: Vec<ReleaseStep>,
    /// From the end of the last process to the last of the steps, in ms of the host's clock.
    pub took_ms: u64,
    /// Why the cards were taken out of service instead.
    pub dirty: Option<String>,
}

/// Why a host asks for the end of an attempt that it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HostCause {
    /// It used more of a shared card's memory than it asked for.
    Vram {
        /// In MiB.
        asked_mib: u64,
        /// In MiB.
        used_mib: u64,
    },
    /// The service through which it shared its card died.
    SharedFault,
    /// It held its cards and did nothing with them, and was warned.
    Idle {
        /// For how long, in ms.
        idle_ms: u64,
    },
}

impl HostCause {
    /// What the host tells the task.
    #[must_use]
    pub fn reason(self) -> EndReason {
        match self {
            Self::Vram { .. } => EndReason::Vram,
            Self::SharedFault => EndReason::SharedFault,
            Self::Idle { .. } => EndReason::Idle,
        }
    }

    /// How the attempt has then ended.
    #[must_use]
    pub fn end(self) -> AttemptEnd {
        match self {
            Self::Vram { asked_mib, used_mib } => AttemptEnd::VramLimit { asked_mib, used_mib },
            Self::SharedFault => AttemptEnd::SharedFault,
            Self::Idle { idle_ms } => AttemptEnd::Idle { idle_ms },
        }
    }
}

/// What is kept of all that beside an attempt. Nearly all attempts have none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Care {
    /// How its cards were given back, where the host can tell.
    pub release: Option<Release>,
    /// Words for its owner, oldest first; at most [`NOTES_MAX`].
    pub notes: Vec<String>,
    /// Why its host asked for its end.
    pub cause: Option<HostCause>,
    /// Card-milliseconds that it held and did not use.
    pub idle_gpu_ms: u64,
}

/// Most notes kept of one attempt; older ones go first.
pub const NOTES_MAX: usize = 4;

/// What becomes of work that holds cards and does nothing with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub enum IdleMode {
    /// It is told in reports.
    #[default]
    Report,
    /// Its owner is warned too.
    Warn,
    /// It is ended after the warnings.
    End,
}

/// A queue's rule for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdleRule {
    /// What happens.
    pub mode: IdleMode,
    /// How long nothing must have happened, in ms.
    pub window_ms: u64,
    /// Warnings before the end, one in each window; at least 1.
    pub warnings: u8,
}

/// Window of a queue that says none: an hour without any sign of work is not a pause between two steps.
pub const IDLE_WINDOW_MS_DEFAULT: u64 = 3_600_000;
/// Shortest window: below this the signs are noise.
pub const IDLE_WINDOW_MS_MIN: u64 = 60_000;
/// Longest window: a week.
pub const IDLE_WINDOW_MS_MAX: u64 = 7 * 24 * 3_600_000;

impl Default for IdleRule {
    fn default() -> Self {
        Self { mode: IdleMode::Report, window_ms: IDLE_WINDOW_MS_DEFAULT, warnings: 2 }
    }
}
