//! Pauses before another attempt: of services, and between the retries of a task that fails by its own doing. What ends
//! at once again and again is started ever more slowly; what ran for a while before it ended begins anew. Ends that are a
//! host's fault, and evictions, are none.
//!
//! A plain job, a service and a gang pause as a whole. Of an array only the task that failed rests; the others go on.

use super::Job;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// First pause of a service whose process ends at once, and pause before the second retry of a task: the first one comes
/// at once. Each further one doubles it.
pub const PAUSE_MS_MIN: u64 = 1_000;
/// Longest pause.
pub const PAUSE_MS_MAX: u64 = 300_000;
/// What ran this long ended by chance, not at once.
pub const STEADY_MS: u64 = 60_000;

/// Tasks of an array that failed and are to be tried again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Rests {
    /// By ordinal; only tasks that are not over.
    of: BTreeMap<u32, Rest>,
    /// Those that wait, by the end of their pause.
    due: BTreeSet<(u64, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Rest {
    until_ms: u64,
    /// Failures one soon after the other.
    failures: u32,
}

impl Job {
    /// A service ended.
    pub(crate) fn pause_service(&mut self, ran_ms: u64, now_ms: u64) {
        self.pauses = if ran_ms >= STEADY_MS { 0 } else { self.pauses.saturating_add(1) };
        self.pause_until_ms = now_ms.saturating_add(pause_ms(self.pauses));
    }

    /// A task, or a gang, failed by its own doing and is to be tried again.
    pub(crate) fn rest(&mut self, ordinal: u32, ran_ms: u64, now_ms: u64) {
        let next = |failures: u32| if ran_ms >= STEADY_MS { 1 } else { failures.saturating_add(1) };
        let until = |failures: u32| now_ms.saturating_add(pause_ms(failures - 1));
        if self.spec.array.is_none() {
            self.pauses = next(self.pauses);
            self.pause_until_ms = until(self.pauses);
            return;
        }
        let rests = self.rests.get_or_insert_default();
        let rest = rests.of.entry(ordinal).or_default();
        rest.failures = next(rest.failures);
        rest.until_ms = until(rest.failures);
        rests.due.insert((rest.until_ms, ordinal));
    }

    /// A task waits no more: it starts, or is over.
    pub(crate) fn end_rest(&mut self, ordinal: u32, is_over: bool) {
        let Some(rests) = &mut self.rests else {
            return;
        };
        if let Some(rest) = rests.of.get(&ordinal) {
            rests.due.remove(&(rest.until_ms, ordinal));
        }
        if is_over {
            rests.of.remove(&ordinal);
        }
        if rests.of.is_empty() {
            self.rests = None;
        }
    }

    /// Until when a task of an array rests; 0 if it does not.
    #[must_use]
    pub fn rests_until_ms(&self, ordinal: u32) -> u64 {
        self.rests.as_ref().and_then(|rests| rests.of.get(&ordinal)).map_or(0, |rest| rest.until_ms)
    }

    /// Until when all that waits of it pauses or rests; a time that has passed if something may start.
    #[must_use]
    pub fn pauses_until_ms(&self) -> u64 {
        let all = self.rests.as_ref().filter(|rests| rests.due.len() >= self.pending.len() as usize);
        let first_ms = all.and_then(|rests| rests.due.first()).map_or(0, |(until_ms, _)| *until_ms);
        self.pause_until_ms.max(first_ms)
    }

    /// When the next of its resting tasks goes on, and how many rest at `now_ms`.
    #[must_use]
    pub fn resting(&self, now_ms: u64) -> Option<(u64, usize)> {
        let rests = self.rests.as_ref()?;
        let mut later = rests.due.range((now_ms.saturating_add(1), 0)..);
        let (first_ms, _) = later.next()?;
        Some((*first_ms, 1 + later.count()))
    }

    /// Tasks that wait and do not rest, in order.
    pub fn rested(&self, now_ms: u64) -> impl Iterator<Item = u32> + '_ {
        let waiting = self.pending.ranges().flat_map(|(start, end)| start..end);
        waiting.filter(move |ordinal| self.rests_until_ms(*ordinal) <= now_ms)
    }

    /// Nothing of it waits any more.
    pub(crate) fn end_rests(&mut self) {
        self.rests = None;
    }

    /// Who rests waits, and rests as long as is noted.
    pub(crate) fn rests_are_sound(&self) -> bool {
        let Some(rests) = &self.rests else {
            return true;
        };
        let noted = |(until_ms, ordinal): &(u64, u32)| {
            rests.of.get(ordinal).is_some_and(|rest| rest.until_ms == *until_ms)
                && self.pending.contains(*ordinal)
        };
        rests.due.iter().all(noted)
    }
}

/// The pause after so many ends one soon after the other.
fn pause_ms(ends: u32) -> u64 {
    match ends.checked_sub(1) {
        Some(doublings) => (PAUSE_MS_MIN << doublings.min(16)).min(PAUSE_MS_MAX),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound() {
        let pauses: Vec<u64> = (0..12).map(pause_ms).collect();
        let s = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300];
        assert_eq!(pauses, s.map(|s| s * 1_000));
        assert_eq!(pause_ms(u32::MAX), PAUSE_MS_MAX);
    }
}
