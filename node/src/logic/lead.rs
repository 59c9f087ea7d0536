//! When a peer is not fit to lead, and what follows: one that leads hands over, one that does not leaves it to others.

use std::fmt;

/// Fsyncs above the limit that make a disk slow; fewer may be chance.
const SLOW_SYNCS_MIN: usize = 3;
/// One fsync of this length does as well, in ms: writes that wait for it feel it.
const STALL_MS: u64 = 1_000;
/// How long a peer that was slow leaves the lead to others, in ms: it must not come back between two stalls.
const SLOW_REST_MS: u64 = 60_000;
/// How long one that is drained, full or stopping does, in ms; it is looked at again long before.
const REST_MS: u64 = 5_000;
/// How long after a hand-over that failed the next is tried, in ms.
const RETRY_MS: u64 = 2_000;

/// What a peer sees of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Look {
    /// It is going down on purpose.
    pub stopping: bool,
    /// Why its host is drained, if it is.
    pub drained: Option<String>,
    /// Its disk has no room for log entries.
    pub full: bool,
    /// Recent fsyncs above the limit.
    pub slow_syncs: usize,
    /// 99th percentile of recent fsyncs, in ms.
    pub fsync_p99_ms: u64,
    /// The longest of them, or the one under way, in ms.
    pub fsync_worst_ms: u64,
    /// What is slow, in ms: half the longest election wait (fault D8).
    pub slow_ms: u64,
}

/// Why a peer is not fit to lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// It is going down on purpose.
    Stopping,
    /// Its disk is full.
    Full,
    /// Its disk is slow.
    Slow {
        /// 99th percentile of recent fsyncs, in ms.
        p99_ms: u64,
        /// The longest, in ms.
        worst_ms: u64,
        /// The limit, in ms.
        limit_ms: u64,
    },
    /// Its host is drained.
    Drained(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopping => f.write_str("its agent is stopping"),
            Self::Full => f.write_str("storage_full: its disk has no room for log entries"),
            Self::Slow { p99_ms, worst_ms, limit_ms } => {
                write!(
                    f,
                    "its disk is slow: fsync p99 {p99_ms} ms, longest {worst_ms} ms, limit {limit_ms} ms"
                )
            }
            Self::Drained(reason) => write!(f, "its host is drained: {reason}"),
        }
    }
}

impl Unfit {
    /// How long such a peer leaves the lead to others, in ms.
    #[must_use]
    pub fn rest_ms(&self) -> u64 {
        if matches!(self, Self::Slow { .. }) { SLOW_REST_MS } else { REST_MS }
    }
}

impl Look {
    /// Why this peer should not lead; none if it is fit.
    #[must_use]
    pub fn unfit(&self) -> Option<Unfit> {
        let crawls = self.slow_syncs >= SLOW_SYNCS_MIN && self.fsync_p99_ms > self.slow_ms;
        if self.stopping {
            return Some(Unfit::Stopping);
        }
        if self.full {
            return Some(Unfit::Full);
        }
        if crawls || self.fsync_worst_ms >= STALL_MS {
            let (p99_ms, worst_ms, limit_ms) = (self.fsync_p99_ms, self.fsync_worst_ms, self.slow_ms);
            return Some(Unfit::Slow { p99_ms, worst_ms, limit_ms });
        }
        self.drained.clone().map(Unfit::Drained)
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Stay,
    /// Leave the lead to others for so long, in ms.
    Rest(u64),
    /// Hand the lead over, for this reason.
    HandOver(Unfit),
}

/// Decides between looks.
#[derive(Debug, Default)]
pub struct LeadKeeper {
    not_before_ms: u64,
}

impl LeadKeeper {
    /// What follows from a look.
    #[must_use]
    pub fn step(&self, look: &Look, leads: bool, now_ms: u64) -> Step {
        match look.unfit() {
            None => Step::Stay,
            Some(unfit) if !leads => Step::Rest(unfit.rest_ms()),
            Some(unfit) if now_ms >= self.not_before_ms => Step::HandOver(unfit),
            Some(_) => Step::Stay,
        }
    }

    /// Nobody took over.
    pub fn failed(&mut self, now_ms: u64) {
        self.not_before_ms = now_ms + RETRY_MS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(syncs: usize, p99: u64, worst: u64) -> Look {
        Look { slow_syncs: syncs, fsync_p99_ms: p99, fsync_worst_ms: worst, slow_ms: 150, ..Look::default() }
    }

    /// Fault D8: 200 ms each is slow, a single hiccup is not, and a stall is seen while it lasts.
    #[test]
    fn a_disk_is_slow_when_it_crawls_or_stands_still() {
        for (look, is_slow) in [
            (slow(0, 1, 3), false),
            (slow(2, 200, 200), false),
            (slow(3, 200, 210), true),
            (slow(3, 150, 210), false),
            (slow(1, 900, 999), false),
            (slow(1, 5, 1_000), true),
        ] {
            assert_eq!(look.unfit().is_some(), is_slow, "{look:?}");
        }
        let text = slow(3, 200, 2_000).unfit().unwrap().to_string();
        assert!(text.contains("p99 200 ms") && text.contains("limit 150 ms"), "{text}");
    }

    #[test]
    fn who_is_not_fit_hands_over_or_rests_and_does_not_hurry_when_nobody_takes_over() {
        let mut keeper = LeadKeeper::default();
        let drained = Look { drained: Some("new fans".into()), ..Look::default() };
        assert_eq!(keeper.step(&Look::default(), true, 0), Step::Stay);
        assert_eq!(keeper.step(&drained, false, 0), Step::Rest(REST_MS));
        let over = Step::HandOver(Unfit::Drained("new fans".into()));
        assert_eq!(keeper.step(&drained, true, 100), over);
        keeper.failed(100);
        assert_eq!(keeper.step(&drained, true, 2_099), Step::Stay);
        assert_eq!(keeper.step(&drained, true, 2_100), over);
        assert_eq!(keeper.step(&slow(3, 200, 200), false, 0), Step::Rest(SLOW_REST_MS));
    }

    #[test]
    fn the_gravest_reason_is_told() {
        let mut all = Look { drained: Some("x".into()), full: true, stopping: true, ..slow(3, 200, 200) };
        assert_eq!(all.unfit(), Some(Unfit::Stopping));
        all.stopping = false;
        assert_eq!(all.unfit(), Some(Unfit::Full));
        all.full = false;
        assert!(matches!(all.unfit(), Some(Unfit::Slow { .. })));
    }
}
