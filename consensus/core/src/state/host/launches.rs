//! The memory of launch failures, and the suspensions that follow from it.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Why a host is left alone for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// Until this log time.
    pub until_ms: u64,
    /// The last launch failure's words.
    pub reason: String,
}

/// The memory of launch failures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LaunchRecord {
    /// Times of the newest failures.
    pub(crate) failures: VecDeque<u64>,
    /// How often it was suspended since a launch last worked. Above zero the host is on probation: one launch at a
    /// time, and one failure suspends it again.
    pub(crate) level: u32,
    /// The newest suspension; over once its time has come.
    pub(crate) suspension: Option<Suspension>,
}

impl LaunchRecord {
    /// When the newest suspension ends, or ended.
    #[must_use]
    pub fn suspended_until_ms(&self) -> Option<u64> {
        self.suspension.as_ref().map(|suspension| suspension.until_ms)
    }
}
