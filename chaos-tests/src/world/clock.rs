//! The boot-time clock of one machine: its own origin and its own rate within the drift bound. True time is the
//! simulator's, in ms; nothing under test ever sees it.

/// A rate of exactly one.
pub const RATE_TRUE: u64 = 10_000;

/// Reads local ms at a true time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// True time of its start.
    pub since_ms: u64,
    /// What it showed then.
    pub origin_ms: u64,
    /// Ticks per 10,000 of true time.
    pub rate: u64,
}

impl Clock {
    /// What it shows at a true time.
    #[must_use]
    pub fn local(&self, true_ms: u64) -> u64 {
        self.origin_ms + true_ms.saturating_sub(self.since_ms) * self.rate / RATE_TRUE
    }

    /// The first true time at which it shows `local_ms` or more.
    #[must_use]
    pub fn true_at(&self, local_ms: u64) -> u64 {
        self.since_ms + (local_ms.saturating_sub(self.origin_ms) * RATE_TRUE).div_ceil(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_reached_exactly_when_the_clock_shows_it() {
        for rate in [9_900, 9_973, RATE_TRUE, 10_100] {
            let clock = Clock { since_ms: 77, origin_ms: 5_000, rate };
            for local in [5_000, 5_001, 5_999, 123_456] {
                let at = clock.true_at(local);
                assert!(clock.local(at) >= local);
                assert!(at == 77 || clock.local(at - 1) < local);
            }
        }
    }
}
