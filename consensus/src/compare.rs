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

use crate::config::Raft;
use crate::leadership::Watched;
use crate::link::PeerLink;
use crate::machine::Shared;
use crate::marks::{Mark, Marks};
use crate::{Consensus, watch, wire};
use openraft::async_runtime::watch::WatchReceiver;
use rota_protocol::PublicError;
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};
use rota_protocol::version::NEWEST;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a voter may take to answer.
const TTL: Duration = Duration::from_millis(1_000);

/// Copies that are not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// An entry after which they differ.
    pub index: u64,
    /// It is the first; else they may have differed before, and nobody remembers.
    pub exact: bool,
    /// Voters whose copy is another than this peer's.
    pub others: BTreeSet<HostId>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.others.iter().map(ToString::to_string).collect();
        let (hosts, index) = (hosts.join(", "), self.index);
        let from = if self.exact { "from" } else { "at the latest from" };
        write!(f, "the state here is not that of the hosts {hosts} {from} the entry at {index} on")
    }
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
                let (others, stops) = self.judged(&voters, index, false).await;
                let (index, exact) = self.first_differing(*voter, index).await;
                return Some((Difference { index, exact, others }, stops));
            }
            let differs =
                |(index, own): &&Mark| told.whole.iter().any(|(at, hash)| at == index && hash != own);
            // The newest is judged, because the others still know it, and the oldest is told.
            let (first, last) = (whole.iter().find(differs), whole.iter().rev().find(differs));
            if let (Some((index, _)), Some((last, _)), true) = (first, last, told.build == build()) {
                let (others, stops) = self.judged(&voters, *last, true).await;
                return Some((Difference { index: *index, exact: false, others }, stops));
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

    /// Halves what lies between the oldest entry that both remember and one that differs: the first that does, and
    /// whether the one before it is known not to.
    async fn first_differing(&self, voter: HostId, differs: u64) -> (u64, bool) {
        let oldest = self.shared.marks.lock().rolling.front().map_or(differs, |(index, _)| *index);
        let (mut low, mut high, mut exact) = (oldest, differs, false);
        while low < high {
            let middle = low + (high - low) / 2;
            let told = self.ask(voter, middle).await.and_then(|told| told.at);
            match (told.filter(|(at, _)| *at == middle), self.own(middle)) {
                (Some((_, hash)), Some(own)) if hash != own => high = middle,
                (told, own) => {
                    // What is forgotten meanwhile counts as the same, and is not known to be.
                    exact = told.is_some() && own.is_some();
                    low = middle + 1;
                }
            }
        }
        (high, exact)
    }

    /// Asks all voters about one entry.
    async fn judged(&self, voters: &[HostId], index: u64, whole: bool) -> (BTreeSet<HostId>, bool) {
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
        (others, stops(&copies, votes, leads))
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
    use crate::config::Tuning;

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
        (5_001..=10_000).for_each(|index| {
            marks.applied(index, index * 7);
        });
        let at = |index| marks.lock().at(index);
        assert_eq!((at(4_999), at(10_000 - 8_192)), (Some(34_993), None));
        let told: Told =
            wire::decode(&answer(&marks, &wire::encode(&Ask { index: 99_999 })).unwrap()).unwrap();
        assert_eq!(told.at, Some((10_000, 70_000)), "no further than it is");
        marks.applied(16_000, 1);
        assert_eq!((at(10_000), at(16_000)), (None, Some(1)));
    }
}
