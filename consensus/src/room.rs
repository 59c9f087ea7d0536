//! Which followers said a moment ago that their disks have no room: a leader that knows this of so many that no majority is
//! left refuses writes by name (`storage_full`), instead of taking what it cannot commit and leaving its callers without an
//! answer (fault D6).
//!
//! A hint, never a proof: what was written before stays in the leader's log, and replication tries it again and again.
//! The first success shows that there is room. Nothing but new writes is refused by it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What was heard longer ago counts for nothing: replication would have asked again meanwhile.
const HEARD_MAX: Duration = Duration::from_secs(2);

/// Followers without room, by number, with the time of their last word of it.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<BTreeMap<u64, Instant>>);

impl Room {
    fn full(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        // Each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It refused entries for want of room.
    pub(crate) fn lacks(&self, host: u64) {
        self.full().insert(host, Instant::now());
    }

    /// It took entries.
    pub(crate) fn has(&self, host: u64) {
        self.full().remove(&host);
    }

    /// Nobody has said so: there is nothing to count.
    pub(crate) fn is_untroubled(&self) -> bool {
        self.full().is_empty()
    }

    /// Whether fewer than a majority of these voters may have room; the leader itself, which is one of them, has.
    pub(crate) fn lacks_majority(&self, voters: impl Iterator<Item = u64>, me: u64) -> bool {
        let full = self.full();
        let now = Instant::now();
        let is_full =
            |id: &u64| *id != me && full.get(id).is_some_and(|at| now.duration_since(*at) < HEARD_MAX);
        let (mut all, mut lacking) = (0_usize, 0_usize);
        for id in voters {
            all += 1;
            lacking += usize::from(is_full(&id));
        }
        (all - lacking) * 2 <= all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn writes_are_refused_only_while_a_majority_lacks_room() {
        let room = Room::default();
        let lacks = |me| room.lacks_majority(1..=3, me);
        assert!(!lacks(1));
        room.lacks(2);
        assert!(!lacks(1), "two of three have room");
        room.lacks(3);
        assert!(lacks(1));
        assert!(!lacks(3), "a leader speaks of itself by its own disk");
        assert!(!room.lacks_majority(1..=5, 1), "three of five have room");
        room.has(2);
        assert!(!lacks(1));
        room.lacks(2);
        tokio::time::advance(HEARD_MAX).await;
        assert!(!lacks(1), "nobody has said so for long");
        room.lacks(4);
        assert!(!lacks(1), "one that has no vote counts for nothing");
    }
}
