//! What a job has waited for, and since when.

use super::Job;
use serde::{Deserialize, Serialize};

/// Changes of cause kept for one job, the newest.
const TURNS_KEPT_MAX: usize = 32;

/// What keeps a job waiting, as far as the log knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitCause {
    /// For its turn and for room.
    Room,
    /// For other jobs.
    Dependency,
    /// To be released.
    Hold,
    /// It runs.
    Runs,
}

impl Job {
    /// What it waits for, as far as its own row says.
    #[must_use]
    pub fn wait_cause(&self) -> WaitCause {
        if self.live > 0 {
            WaitCause::Runs
        } else if self.held {
            WaitCause::Hold
        } else if self.pending.is_empty() && !self.blocked.is_empty() {
            WaitCause::Dependency
        } else {
            WaitCause::Room
        }
    }

    /// What it has waited for, each with the log time since when, oldest first.
    pub fn waits(&self) -> impl Iterator<Item = (u64, WaitCause)> + '_ {
        // The first cause follows from the submission; most jobs never wait for anything else.
        let first = (self.turns.len() < TURNS_KEPT_MAX).then(|| (self.submitted_ms, self.first_cause()));
        first.into_iter().chain(self.turns.iter().copied())
    }

    fn first_cause(&self) -> WaitCause {
        if self.spec.hold {
            WaitCause::Hold
        } else if self.spec.after.is_empty() {
            WaitCause::Room
        } else {
            WaitCause::Dependency
        }
    }

    /// Notes what it waits for now, if that is something else than before.
    pub(super) fn note_cause(&mut self, now_ms: u64) {
        let cause = self.wait_cause();
        let last = self.turns.back().map_or_else(|| self.first_cause(), |(_, last)| *last);
        if self.state.is_terminal() || last == cause {
            return;
        }
        if self.turns.len() >= TURNS_KEPT_MAX {
            self.turns.pop_front();
        }
        self.turns.push_back((now_ms, cause));
    }
}
