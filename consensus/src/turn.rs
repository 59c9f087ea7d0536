//! Who stands for election first when the leader falls silent. openraft draws each wait by lot, so that no two stand
//! at once; here the voters stand one after the other in the order of their numbers, the first of them half a shortest
//! election wait after the old leader's lease. That saves the rest of the draw, and the lots stay as the second net.
//!
//! Safe whatever happens: all begin with a pre-vote, which nobody grants while it hears a leader, so a turn taken in
//! error changes nothing.
//!
//! A peer that rests (its disk is slow, or its host drained) lets all others go first: it stands only when their turns
//! and their first lots have passed.

use crate::config::{Raft, Timings};
use crate::log::store::LogStore;
use openraft::async_runtime::watch::WatchReceiver;
use rota_protocol::ids::HostId;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What a peer remembers of its leader, and of its own wish to lead.
#[derive(Default)]
pub(crate) struct Heard(Mutex<Memory>);

#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    /// Who spoke last as a leader, and when.
    leader: Option<(HostId, Instant)>,
    /// When somebody led last, this peer included.
    led: Option<Instant>,
    /// Rests from leading until then.
    rests_until: Option<Instant>,
}

impl Heard {
    fn memory(&self) -> Memory {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A leader's message was taken.
    pub(crate) fn leader(&self, leader: HostId) {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (memory.leader, memory.led) = (Some((leader, Instant::now())), Some(Instant::now()));
    }

    /// When somebody led last, this peer included.
    pub(crate) fn led(&self) -> Option<Instant> {
        self.memory().led
    }

    /// This peer leads, or is about to hand over: the silence of an earlier leader means nothing any more.
    pub(crate) fn forget(&self) {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (memory.leader, memory.led) = (None, Some(Instant::now()));
    }

    /// Leaves the lead to others for a while.
    pub(crate) fn rest(&self, time: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).rests_until = Some(Instant::now() + time);
    }
}

/// How long after the last word of a leader the voter at this place of the order stands.
fn turn(timings: Timings, place: usize) -> Duration {
    let place = u64::try_from(place).unwrap_or(u64::MAX).saturating_mul(timings.heartbeat_ms);
    Duration::from_millis(timings.election_max_ms + timings.election_min_ms / 2)
        .saturating_add(Duration::from_millis(place))
}

/// How long a peer that rests waits for others, from the last word of a leader.
fn silence(timings: Timings) -> Duration {
    Duration::from_millis(timings.election_max_ms + timings.election_min_ms * 2)
}

/// Where this peer stands among the voters when their leader is gone; none if it has no vote.
fn place(voters: impl Iterator<Item = u64>, me: HostId, leader: HostId) -> Option<usize> {
    let mut rest: Vec<u64> = voters.filter(|id| *id != leader.0).collect();
    rest.sort_unstable();
    rest.iter().position(|id| *id == me.0)
}

impl Memory {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }
}

/// Whether a peer may stand at all now: one that rests may when nobody has led for this long.
fn may_stand(memory: Memory, now: Instant, silence: Duration) -> bool {
    !memory.rests(now) || memory.led.is_none_or(|at| now.duration_since(at) > silence)
}

/// Takes this peer's turn, until the raft core ends.
pub(crate) async fn take_turns(raft: Raft, me: HostId, timings: Timings, heard: Arc<Heard>, log: LogStore) {
    let step = Duration::from_millis(timings.election_max_ms);
    let silence = silence(timings);
    // When the leader whose silence was answered had spoken last: once is enough, the lots do the rest.
    let mut answered = None;
    loop {
        let (memory, now) = (heard.memory(), Instant::now());
        raft.runtime_config().elect(may_stand(memory, now, silence));
        let metrics = raft.metrics().borrow_watched().clone();
        if metrics.running_state.is_err() {
            return;
        }
        let place = memory
            .leader
            .filter(|(_, at)| answered != Some(*at) && !metrics.state.is_leader())
            .and_then(|(leader, at)| Some((at, place(metrics.membership_config.voter_ids(), me, leader)?)));
        let Some((at, place)) = place else {
            tokio::time::sleep(step).await;
            continue;
        };
        let after_all = if memory.rests(now) { silence - turn(timings, 0) } else { Duration::ZERO };
        let due = at + turn(timings, place) + after_all + Duration::from_millis(1);
        if now < due {
            tokio::time::sleep_until(due).await;
            continue;
        }
        answered = Some(at);
        // A process that stood still missed its turn; others have taken theirs. A full disk can hold a vote, but not
        // what a leader writes.
        let in_time = now < due + step;
        if in_time && may_stand(memory, now, silence) && !log.0.is_full() {
            let Ok(()) = raft.trigger().elect(true).await else { return };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Before any lot that openraft may draw, and far enough apart that the first is elected when the second stands.
    #[test]
    fn voters_stand_in_turn_before_any_lot_falls() {
        for timings in [Timings::PRODUCTION, Timings::CHAOS] {
            let earliest_lot = Duration::from_millis(timings.election_max_ms + timings.election_min_ms);
            assert!(
                turn(timings, 0) > Duration::from_millis(timings.election_max_ms),
                "the lease comes first"
            );
            assert!(turn(timings, 1) < earliest_lot);
            assert_eq!(turn(timings, 1) - turn(timings, 0), Duration::from_millis(timings.heartbeat_ms));
        }
        let voters = [5, 1, 3];
        let place = |me, leader| place(voters.into_iter(), HostId(me), HostId(leader));
        assert_eq!([place(1, 3), place(5, 3), place(3, 3), place(2, 3)], [Some(0), Some(1), None, None]);
        for timings in [Timings::PRODUCTION, Timings::CHAOS] {
            // Five voters, one of them dead: all others have had their turn.
            assert!(turn(timings, 3) < silence(timings));
        }
        assert_eq!(place(5, 9), Some(2), "a leader that votes no more takes no turn");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_rests_stands_only_where_nobody_else_does() {
        let heard = Heard::default();
        heard.leader(HostId(1));
        assert!(may_stand(heard.memory(), Instant::now(), 900 * MS));
        heard.rest(60_000 * MS);
        assert!(!may_stand(heard.memory(), Instant::now(), 900 * MS));
        tokio::time::advance(900 * MS).await;
        assert!(!may_stand(heard.memory(), Instant::now(), 900 * MS));
        tokio::time::advance(MS).await;
        assert!(may_stand(heard.memory(), Instant::now(), 900 * MS), "nobody leads");
        // It came to lead, and lost it: whoever else is there may not be able to.
        heard.forget();
        assert!(!may_stand(heard.memory(), Instant::now(), 900 * MS));
        tokio::time::advance(901 * MS).await;
        assert!(may_stand(heard.memory(), Instant::now(), 900 * MS), "nobody leads again");
        heard.leader(HostId(2));
        tokio::time::advance(58_000 * MS).await;
        heard.leader(HostId(2));
        assert!(!may_stand(heard.memory(), Instant::now(), 900 * MS));
        tokio::time::advance(200 * MS).await;
        assert!(may_stand(heard.memory(), Instant::now(), 900 * MS), "the rest is over");
    }
}
