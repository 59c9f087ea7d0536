//! When what waits is told to the log: at once by a host with little to do, in batches by one on which much ends.
//!
//! A batch costs every peer an entry, a plan and a look at each host, whatever it holds. So where ends come one after the
//! other, the next batch waits for more of them: never so many that a notable part of the host is idle meanwhile,
//! and never long. What comes after a pause goes out at once.

/// Least time between two batches while fewer facts wait than [`Gather`] wants, in ms.
const PAUSE_MS: u64 = 20;
/// One part in this many of the host's attempts may wait for others.
const PART: usize = 8;

/// Times the batches of one host.
#[derive(Debug, Clone, Default)]
pub struct Gather {
    told_ms: Option<u64>,
    /// Somebody will look again at this time.
    look_ms: Option<u64>,
}

impl Gather {
    /// How long `waiting` facts of a host with `attempts` attempts are to wait, in ms; 0: they are to be told now.
    #[must_use]
    pub fn pause_ms(&self, waiting: usize, attempts: usize, now_ms: u64) -> u64 {
        if waiting >= attempts / PART {
            return 0;
        }
        let next_ms = self.told_ms.map_or(now_ms, |told_ms| told_ms + PAUSE_MS);
        next_ms.saturating_sub(now_ms)
    }

    /// A batch goes out.
    pub fn told(&mut self, now_ms: u64) {
        self.told_ms = Some(now_ms);
    }

    /// True if nobody looks again by then: the caller is to see to it.
    pub fn looks_again(&mut self, at_ms: u64, now_ms: u64) -> bool {
        let due = self.look_ms.is_some_and(|look_ms| look_ms > now_ms && look_ms <= at_ms);
        if !due {
            self.look_ms = Some(at_ms);
        }
        !due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_host_and_the_first_after_a_pause_wait_for_nothing() {
        let mut gather = Gather::default();
        assert_eq!(gather.pause_ms(1, 64, 1_000), 0);
        gather.told(1_000);
        assert_eq!(gather.pause_ms(1, 15, 1_001), 0, "an eighth of the host would be idle");
        assert_eq!(gather.pause_ms(1, 64, 1_000 + PAUSE_MS), 0);
    }

    #[test]
    fn ends_that_come_thick_are_told_together() {
        let mut gather = Gather::default();
        gather.told(1_000);
        assert_eq!(gather.pause_ms(1, 64, 1_005), PAUSE_MS - 5);
        assert_eq!(gather.pause_ms(7, 64, 1_005), PAUSE_MS - 5);
        assert_eq!(gather.pause_ms(8, 64, 1_005), 0);
    }

    #[test]
    fn one_look_is_enough_and_a_missed_one_is_taken_again() {
        let mut gather = Gather::default();
        assert!(gather.looks_again(1_020, 1_000));
        assert!(!gather.looks_again(1_020, 1_001));
        assert!(gather.looks_again(1_010, 1_001), "an earlier one was not to come");
        assert!(gather.looks_again(1_050, 1_030), "the last one is over");
    }
}
