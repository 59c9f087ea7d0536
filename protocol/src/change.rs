//! The feed of changes: what state a job was in after an entry of the log. The log's index orders it, so that a reader
//! goes on at any peer where it has left off at another.

use crate::ids::JobId;
use crate::job::JobState;
use serde::{Deserialize, Serialize};

/// A job's row changed by this entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateChange {
    /// The entry's log index.
    pub index: u64,
    /// Which job.
    pub job: JobId,
    /// Its state afterwards.
    pub state: JobState,
}

/// A piece of the feed: all changes of the entries after the one that was asked for, up to `upto`, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// To be asked after next.
    pub upto: u64,
    /// What changed.
    pub changes: Vec<StateChange>,
}
