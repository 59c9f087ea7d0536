//! Which rows a list has.

use crate::ids::JobId;
use crate::job::JobState;
use serde::{Deserialize, Serialize};

/// Which jobs to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueFilter {
    /// Only those of this user.
    pub user: Option<String>,
    /// Only those in these states; empty for all that are not terminal.
    pub states: Vec<JobState>,
    /// Also those that reached a terminal state.
    pub all: bool,
    /// Only jobs with a larger number (the next page).
    pub after: Option<JobId>,
    /// At most this many; the server caps it.
    pub limit: Option<u32>,
}
