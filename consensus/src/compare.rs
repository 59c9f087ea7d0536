//! Whether all copies of the state are one (I8, fault R8). Each peer asks the voters now and then what their state was
//! after an entry that it has applied itself. The copy that a majority contradicts stops, and says from which entry on
//! it differs; the others say who differs.
//!
//! Two hashes are compared. The rolling one covers what every entry answered and is kept for each entry, so the first
//! that differs is found by halving. The whole one covers all tables and costs as much as the state is large, so it is
//! taken at entries whose index is a multiple of a step, and the step grows with that cost: steps are powers of two, so
//! peers of unlike speed still have entries in common. It is compared among peers of one build alone, because another
//! build may write the same state in other bytes.
//!
//! Not here: repair. A restart applies snapshot and log anew.

use crate::config::{Raft, Tuning};
use crate::leadership::Watched;
use crate::link::PeerLink;
use crate::machine::Shared;
use crate::runtime::{blocking, spawn};
use crate::{Consensus, watch, wire};
use openraft::async_runtime::watch::WatchReceiver;
use rota_core::State;
use rota_protocol::PublicError;
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};
use rota_protocol::version::NEWEST;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Rolling hashes that are kept: a peer that is further behind than this is compared later.
const ROLLING_KEPT: usize = 2_048;
/// Whole hashes that are kept.
const WHOLE_KEPT: usize = 16;
/// A whole hash may take one part in so many of the time between two of them.
const COST_PART: u32 = 100;
/// The step stops growing here.
const STEP_MAX: u64 = 1 << 20;
/// How long a voter may take to answer.
const TTL: Duration = Duration::from_millis(1_000);

/// An index, and the hash of the state after that entry.
type Mark = (u64, u64);

/// Copies that are not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The first entry after which they differ; where only whole states do, the first at which that was seen.
    pub index: u64,
    /// The rolling hashes are the same: the same answers, and other tables.
    pub whole: bool,
    /// Voters whose copy is another than this peer's.
    pub others: BTreeSet<HostId>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.others.iter().map(ToString::to_string).collect();
        let (hosts, index) = (hosts.join(", "), self.index);
        let from = if self.whole { "at the latest after" } else { "from" };
        write!(f, "the state here is not that of the hosts {hosts} {from} the entry at {index}")
    }
}

/// What a peer remembers of its own copy.
#[derive(Default)]
pub(crate) struct Marks {
    kept: Mutex<Kept>,
    step: AtomicU64,
    hashing: AtomicBool,
}

#[derive(Default)]
struct Kept {
    rolling: VecDeque<Mark>,
    whole: VecDeque<Mark>,
    hashed: Option<Instant>,
}

impl Kept {
    fn at(&self, index: u64) -> Option<u64> {
        let (first, _) = self.rolling.front()?;
        let place = usize::try_from(index.checked_sub(*first)?).ok()?;
        self.rolling.get(place).filter(|(at, _)| *at == index).map(|(_, hash)| *hash)
    }

    fn whole_at(&self, index: u64) -> Option<u64> {
        self.whole.iter().find(|(at, _)| *at == index).map(|(_, hash)| *hash)
    }
}

impl Marks {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        Self { step: AtomicU64::new(tuning.whole_entries.next_power_of_two()), ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry was applied, and left this state. Gives a copy of it where the whole of it is to be hashed.
    pub(crate) fn took(&self, index: u64, state: &State) -> Option<State> {
        self.applied(index, state.rolling_hash()).then(|| state.clone())
    }

    fn applied(&self, index: u64, rolling: u64) -> bool {
        let mut kept = self.lock();
        if kept.rolling.back().is_some_and(|(last, _)| last + 1 != index) {
            kept.rolling.clear();
        }
        if kept.rolling.len() >= ROLLING_KEPT {
            kept.rolling.pop_front();
        }
        kept.rolling.push_back((index, rolling));
        index.is_multiple_of(self.step.load(Ordering::Relaxed)) && !self.hashing.load(Ordering::Relaxed)
    }

    /// Another state has taken the place of this one.
    pub(crate) fn forget(&self) {
        let mut kept = self.lock();
        kept.rolling.clear();
        kept.whole.clear();
    }

    fn hashed(&self, mark: Mark, began: Instant, took: Duration) {
        let mut kept = self.lock();
        if kept.whole.len() >= WHOLE_KEPT {
            kept.whole.pop_front();
        }
        kept.whole.push_back(mark);
        let step = self.step.load(Ordering::Relaxed);
        let since = kept.hashed.replace(began).map(|last| began.duration_since(last));
        if since.is_some_and(|since| since < took * COST_PART) {
            self.step.store((step * 2).min(STEP_MAX), Ordering::Relaxed);
        }
    }
}

/// Hashes a whole state beside everything else, if there is one to be hashed.
pub(crate) fn hash_whole(shared: &Arc<Shared>, state: Option<State>) {
    let Some(state) = state else { return };
    if shared.marks.hashing.swap(true, Ordering::AcqRel) {
        return;
    }
    let shared = shared.clone();
    spawn(async move {
        let (began, index) = (Instant::now(), state.applied_index());
        // Ended early: the next step hashes again.
        if let Ok((hash, took)) = blocking(move || (state.full_hash(), began.elapsed())).await {
            shared.marks.hashed((index, hash), began, took);
        }
        shared.marks.hashing.store(false, Ordering::Release);
    });
}

/// What was your state after this entry?
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Ask {
    index: u64,
}

/// What the other peer's copy was.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Told {
    /// At the index that was asked, or at its own last one if that is lower; none if it does not remember.
    at: Option<Mark>,
    /// Who may compare whole states with it.
    build: String,
    whole: Vec<Mark>,
}

/// Builds that write one state in one way.
fn build() -> String {
    format!("{} {NEWEST}", env!("CARGO_PKG_VERSION"))
}

impl Consensus {
    /// `Some` while copies of the state differ and this one goes on, because the others are too few to contradict it.
    #[must_use]
    pub fn differs(&self) -> watch::Receiver<Option<Difference>> {
        self.0.watched.differs.subscribe()
    }
}

/// Answers another peer.
pub(crate) fn reply(marks: &Marks, body: &[u8]) -> PeerReply {
    match answer(marks, body) {
        Ok(body) => PeerReply::Raft { body },
        Err(error) => PeerReply::Refused(error),
    }
}

fn answer(marks: &Marks, body: &[u8]) -> Result<Vec<u8>, PublicError> {
    let ask: Ask = wire::decode(body).map_err(crate::inbound::invalid)?;
    let kept = marks.lock();
    let index = kept.rolling.back().map_or(ask.index, |(last, _)| ask.index.min(*last));
    let at = kept.at(index).map(|hash| (index, hash));
    Ok(wire::encode(&Told { at, build: build(), whole: kept.whole.iter().copied().collect() }))
}

/// One peer's comparing.
pub(crate) struct Comparer {
    me: HostId,
    raft: Raft,
    link: Arc<dyn PeerLink>,
    shared: Arc<Shared>,
    watched: Arc<Watched>,
    period: Duration,
}

/// Where a voter's copy stands to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Same,
    Other,
    Unknown,
}

impl Comparer {
    pub(crate) fn new(
        (me, shared): (HostId, Arc<Shared>),
        (raft, link): (Raft, Arc<dyn PeerLink>),
        watched: Arc<Watched>,
        period: Duration,
    ) -> Self {
        Self { me, raft, link, shared, watched, period }
    }

    /// Until this peer has stopped for it.
    pub(crate) async fn watch(self) {
        loop {
            tokio::time::sleep(self.period).await;
            let found = self.round().await;
            if let Some((difference, true)) = &found {
                let why = format!(
                    "{difference}: this copy must not go on (I8); a restart applies snapshot and log anew"
                );
                tracing::error!(%difference, "halt");
                self.watched.failed.send_if_modified(|held| held.replace(why).is_none());
                return;
            }
            let found = found.map(|(difference, _)| difference);
            self.watched.differs.send_if_modified(|held| std::mem::replace(held, found) != *held);
        }
    }

    fn voters(&self) -> Vec<HostId> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        metrics.membership_config.membership().voter_ids().map(HostId).collect()
    }

    /// What differs, and whether it is this copy that must stop.
    async fn round(&self) -> Option<(Difference, bool)> {
        let voters = self.voters();
        let (mine, whole) = {
            let kept = self.shared.marks.lock();
            (*kept.rolling.back()?, kept.whole.clone())
        };
        for voter in voters.iter().filter(|voter| **voter != self.me) {
            let Some(told) = self.ask(*voter, mine.0).await else { continue };
            if let Some((index, hash)) = told.at
                && self.own(index).is_some_and(|own| own != hash)
            {
                let first = self.first_differing(*voter, index).await;
                return Some(self.judged(&voters, first, false).await);
            }
            let differs =
                |(index, own): &&Mark| told.whole.iter().any(|(at, hash)| at == index && hash != own);
            if told.build == build()
                && let Some((index, _)) = whole.iter().find(differs)
            {
                return Some(self.judged(&voters, *index, true).await);
            }
        }
        None
    }

    fn own(&self, index: u64) -> Option<u64> {
        self.shared.marks.lock().at(index)
    }

    async fn ask(&self, voter: HostId, index: u64) -> Option<Told> {
        let request = PeerRequest::Raft { call: RaftCall::Compare, body: wire::encode(&Ask { index }) };
        match self.link.call(voter, request, TTL).await {
            Ok(PeerReply::Raft { body }) => wire::decode(&body).ok(),
            // An older build does not know the question.
            _ => None,
        }
    }

    /// Halves what lies between the oldest entry that both remember and one that differs.
    async fn first_differing(&self, voter: HostId, differs: u64) -> u64 {
        let oldest = self.shared.marks.lock().rolling.front().map_or(differs, |(index, _)| *index);
        let (mut low, mut high) = (oldest, differs);
        while low < high {
            let middle = low + (high - low) / 2;
            let told = self.ask(voter, middle).await.and_then(|told| told.at);
            match (told.filter(|(at, _)| *at == middle), self.own(middle)) {
                (Some((_, hash)), Some(own)) if hash != own => high = middle,
                // What is forgotten meanwhile counts as the same: the first that is known to differ is told.
                _ => low = middle + 1,
            }
        }
        high
    }

    /// Asks all voters about one entry.
    async fn judged(&self, voters: &[HostId], index: u64, whole: bool) -> (Difference, bool) {
        let own = {
            let kept = self.shared.marks.lock();
            if whole { kept.whole_at(index) } else { kept.at(index) }
        };
        let (mut copies, mut others) = (Vec::new(), BTreeSet::new());
        for voter in voters.iter().filter(|voter| **voter != self.me) {
            let told = self.ask(*voter, index).await;
            let theirs = told.and_then(|told| match whole {
                true if told.build == build() => told.whole.into_iter().find(|(at, _)| *at == index),
                true => None,
                false => told.at.filter(|(at, _)| *at == index),
            });
            copies.push(match (own, theirs) {
                (Some(own), Some((_, hash))) if own == hash => Side::Same,
                (Some(_), Some(_)) => {
                    others.insert(*voter);
                    Side::Other
                }
                _ => Side::Unknown,
            });
        }
        let votes = voters.contains(&self.me);
        let leads = self.watched.leadership.borrow().leading;
        (Difference { index, whole, others }, stops(&copies, votes, leads))
    }
}

/// Whether this copy stops: a majority of the voters contradicts it; or all have spoken, no majority is of one mind, and
/// it is not the leader's, whose answers clients have seen.
fn stops(copies: &[Side], votes: bool, leads: bool) -> bool {
    let count = |one: Side| copies.iter().filter(|copy| **copy == one).count();
    let all = copies.len() + usize::from(votes);
    let same = count(Side::Same) + usize::from(votes);
    let (other, unknown) = (count(Side::Other), count(Side::Unknown));
    other * 2 > all || (unknown == 0 && other > 0 && same * 2 <= all && !leads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stops_if_a_majority_contradicts_it_and_not_for_one_stray() {
        use Side::{Other, Same, Unknown};
        for (copies, votes, leads, wanted) in [
            (vec![Other, Other], true, true, true),
            (vec![Other, Same], true, false, false),
            (vec![Other, Unknown], true, false, false),
            (vec![Other], true, false, true),
            (vec![Other], true, true, false),
            (vec![Same, Same], true, false, false),
            (vec![Other, Other, Same, Same], true, false, false),
            (vec![Other, Other, Same], false, false, true),
            (vec![Other, Other, Unknown, Same], true, false, false),
            (vec![], true, true, false),
        ] {
            assert_eq!(stops(&copies, votes, leads), wanted, "{copies:?} votes {votes} leads {leads}");
        }
    }

    #[test]
    fn marks_are_found_by_index_and_forgotten_over_a_gap() {
        let marks = Marks::new(&Tuning { whole_entries: 3, ..Tuning::default() });
        let whole: Vec<u64> = (1..=5_000).filter(|index| marks.applied(*index, index * 7)).take(2).collect();
        assert_eq!(whole, [4, 8], "the step is a power of two");
        (9..=5_000).for_each(|index| {
            marks.applied(index, index * 7);
        });
        let at = |index| marks.lock().at(index);
        assert_eq!((at(4_999), at(5_000 - 2_048)), (Some(34_993), None));
        let told: Told =
            wire::decode(&answer(&marks, &wire::encode(&Ask { index: 9_999 })).unwrap()).unwrap();
        assert_eq!(told.at, Some((5_000, 35_000)), "no further than it is");
        marks.applied(6_000, 1);
        assert_eq!((at(5_000), at(6_000)), (None, Some(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn whole_states_that_cost_much_are_hashed_rarely() {
        let marks = Marks::new(&Tuning { whole_entries: 1_024, ..Tuning::default() });
        let took = Duration::from_millis(20);
        for (index, wait_ms, step) in [(1, 0, 1_024), (2, 2_500, 1_024), (3, 1_000, 2_048), (4, 1_900, 4_096)]
        {
            tokio::time::advance(Duration::from_millis(wait_ms)).await;
            marks.hashed((index, 0), Instant::now(), took);
            assert_eq!(marks.step.load(Ordering::Relaxed), step, "{index}");
        }
    }
}
