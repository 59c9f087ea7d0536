//! What changed lately, entry by entry: a ring beside the state machine that every peer fills alike, because it follows
//! from the log. A feed that begins after an index is gap-free, or refused.

use rota_protocol::change::{Changes, StateChange};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Changes that are kept: at a thousand jobs a second that change three times each, the last twenty seconds.
const KEPT_MAX: usize = 65_536;
/// Changes in one piece; an entry is never split, so a piece may be longer by what its last entry changed.
const PIECE_MAX: usize = 1_024;

/// Why a feed cannot begin where it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FeedFault {
    /// What followed is not kept any more.
    #[error("changes are known here after log index {kept_after} only: list the jobs, and follow from there")]
    Forgotten {
        /// Everything after this index is there.
        kept_after: u64,
    },
}

/// The ring.
#[derive(Debug)]
pub(crate) struct Ring(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    /// Everything after this index is in the ring.
    after: u64,
    /// The last entry that was looked at.
    upto: u64,
    changes: VecDeque<StateChange>,
}

impl Ring {
    /// An empty one: nothing is known of what led to the entry of this index.
    pub(crate) fn after(index: u64) -> Self {
        Self(Mutex::new(Kept { after: index, upto: index, changes: VecDeque::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it holds this lock half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry was applied.
    pub(crate) fn add(&self, index: u64, changes: impl Iterator<Item = StateChange>) {
        let mut kept = self.lock();
        kept.changes.extend(changes);
        kept.upto = index;
        while kept.changes.len() > KEPT_MAX {
            // An entry is forgotten as a whole.
            let Some(oldest) = kept.changes.pop_front() else { return };
            kept.after = oldest.index;
            while kept.changes.front().is_some_and(|next| next.index == oldest.index) {
                kept.changes.pop_front();
            }
        }
    }

    /// The state was replaced by a snapshot of this index.
    pub(crate) fn forget(&self, index: u64) {
        *self.lock() = Kept { after: index, upto: index, changes: VecDeque::new() };
    }

    /// What followed after an index.
    pub(crate) fn since(&self, after: u64) -> Result<Changes, FeedFault> {
        let kept = self.lock();
        if after < kept.after {
            return Err(FeedFault::Forgotten { kept_after: kept.after });
        }
        let from = kept.changes.partition_point(|change| change.index <= after);
        let mut changes: Vec<StateChange> = Vec::new();
        for change in kept.changes.range(from..) {
            if changes.len() >= PIECE_MAX && changes.last().is_some_and(|last| last.index != change.index) {
                let upto = changes.last().map_or(after, |last| last.index);
                return Ok(Changes { upto, changes });
            }
            changes.push(*change);
        }
        Ok(Changes { upto: kept.upto.max(after), changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::ids::JobId;
    use rota_protocol::job::JobState;

    fn change(index: u64, job: u64) -> StateChange {
        StateChange { index, job: JobId(job), state: JobState::Running }
    }

    #[test]
    fn a_feed_has_every_change_once_in_order_and_no_entry_is_split() {
        let ring = Ring::after(10);
        for index in 11..=60 {
            ring.add(index, (0..70).filter(|_| index % 2 == 0).map(|job| change(index, job)));
        }
        ring.add(61, std::iter::empty());
        let (mut after, mut seen, mut pieces) = (10, Vec::new(), 0);
        loop {
            let piece = ring.since(after).unwrap();
            if piece.upto == after {
                break;
            }
            pieces += 1;
            assert!(piece.changes.iter().all(|change| change.index > after && change.index <= piece.upto));
            seen.extend(piece.changes);
            after = piece.upto;
        }
        assert_eq!((after, pieces), (61, 2));
        let all: Vec<_> =
            (11..=60).filter(|i| i % 2 == 0).flat_map(|i| (0..70).map(move |j| change(i, j))).collect();
        assert_eq!(seen, all);
        assert_eq!(ring.since(1_000), Ok(Changes { upto: 1_000, changes: Vec::new() }));
    }

    #[test]
    fn what_is_forgotten_is_refused_and_never_skipped() {
        let ring = Ring::after(5);
        assert_eq!(ring.since(4), Err(FeedFault::Forgotten { kept_after: 5 }));
        for index in 6..=5 + KEPT_MAX as u64 / 2 + 1 {
            ring.add(index, [change(index, 1), change(index, 2)].into_iter());
        }
        assert_eq!(ring.since(5), Err(FeedFault::Forgotten { kept_after: 6 }), "the oldest entry went whole");
        assert_eq!(ring.since(6).unwrap().changes[0], change(7, 1));
        ring.forget(99_999);
        assert_eq!(ring.since(6), Err(FeedFault::Forgotten { kept_after: 99_999 }));
        assert_eq!(ring.since(99_999), Ok(Changes { upto: 99_999, changes: Vec::new() }));
    }
}
