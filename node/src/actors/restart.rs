//! Counts deaths and says how long to wait before a restart. Pure: time enters as data.

use crate::boot::{RESTART_PAUSE_MS, RESTART_WINDOW_MS, RESTARTS_MAX};
use std::collections::VecDeque;

/// What to do about a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Start it again after this pause, in ms.
    RestartAfter(u64),
    /// Too many: the process should end.
    GiveUp,
}

/// The deaths of one kind of actor within the window.
#[derive(Debug, Default)]
pub struct Deaths(VecDeque<u64>);

impl Deaths {
    /// Notes a death at `now_ms` of any monotonic clock.
    pub fn note(&mut self, now_ms: u64) -> Verdict {
        while self.0.front().is_some_and(|at| now_ms.saturating_sub(*at) > RESTART_WINDOW_MS) {
            self.0.pop_front();
        }
        self.0.push_back(now_ms);
        if self.0.len() > RESTARTS_MAX {
            return Verdict::GiveUp;
        }
        Verdict::RestartAfter(RESTART_PAUSE_MS << (self.0.len() - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_the_sixth_death_in_a_minute_is_too_many() {
        let mut deaths = Deaths::default();
        let verdicts: Vec<_> = (0..6).map(|i| deaths.note(i * 1_000)).collect();
        assert_eq!(verdicts[0], Verdict::RestartAfter(5));
        assert_eq!(verdicts[4], Verdict::RestartAfter(80));
        assert_eq!(verdicts[5], Verdict::GiveUp);
    }

    #[test]
    fn deaths_long_ago_are_forgiven() {
        let mut deaths = Deaths::default();
        for minute in 0..100 {
            assert_eq!(deaths.note(minute * (RESTART_WINDOW_MS + 1)), Verdict::RestartAfter(5));
        }
    }
}
