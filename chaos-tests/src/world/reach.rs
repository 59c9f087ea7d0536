//! What a run has really hit (fault I23): a sweep that never met a fault says nothing about it.

use std::collections::BTreeMap;

/// What a whole sweep must have met.
pub const MUST: [&str; 39] = [
    "lease expired",
    "fenced",
    "attempt adopted",
    "requeued after loss",
    "same request id answered again",
    "cancel while pending",
    "cancel while granted",
    "cancel while running",
    "cancel while ending",
    "cancel after the end",
    "stale epoch refused",
    "plan refused at commit",
    "snapshot read back",
    "leader changed",
    "quorum not confirmed",
    "renewal relayed",
    "renewal saved a due lease",
    "entry inherited from a deposed leader",
    "proposed again to the next leader",
    "message delivered twice",
    "host restarted",
    "agent frozen",
    "whole cluster restarted",
    "leader cut off with a host",
    "children left behind",
    "launch failed",
    "late start refused",
    "impossible job explained",
    "gang started",
    "card shared",
    "evicted to preempt",
    "evicted to drain",
    "evicted to move",
    "evicted to reclaim",
    "evicted to ceiling",
    "asked to be queued again",
    "warning heeded",
    "dependency not met",
    "deadline missed",
];

/// Counts by name.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    counts: BTreeMap<&'static str, u64>,
}

impl Reach {
    /// Once more.
    pub fn hit(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    /// How often.
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.counts.iter().map(|(what, count)| (*what, *count))
    }

    /// What a sweep should have met and did not.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        MUST.into_iter().filter(|what| self.count(what) == 0).collect()
    }
}
