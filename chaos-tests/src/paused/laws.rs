//! The laws of agreement, looked at from outside and often (I8, I9): one leader a term, one history, nothing that was
//! promised goes back.

use rota_consensus::Consensus;
use rota_consensus::inspect::{Inspection, Mark};
use rota_protocol::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What one peer was last seen at, within one life.
#[derive(Default)]
struct Seen {
    last: Option<Inspection>,
    /// Entries below this were compared.
    compared: u64,
}

#[derive(Default)]
struct Inner {
    /// Who led a term.
    leaders: BTreeMap<u64, HostId>,
    /// Whom each host gave its vote of a term, over all its lives.
    votes: BTreeMap<(HostId, u64), HostId>,
    /// The newest term in which a host gave its vote.
    promised: BTreeMap<HostId, u64>,
    /// Who gave the newest vote.
    newest: Option<HostId>,
    /// Checksums of entries by term and index.
    entries: BTreeMap<Mark, u32>,
    /// Terms and checksums of committed entries, by index.
    committed: BTreeMap<u64, (u64, u32)>,
    /// Hashes of the state, by index.
    hashes: BTreeMap<u64, (HostId, u64)>,
    seen: BTreeMap<HostId, Seen>,
    broken: BTreeSet<String>,
}

/// The checker. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Laws(Arc<Mutex<Inner>>);

impl Laws {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A host granted its vote.
    pub(super) fn granted(&self, host: HostId, term: u64, candidate: HostId) {
        let mut inner = self.lock();
        let first = *inner.votes.entry((host, term)).or_insert(candidate);
        if first != candidate {
            inner.breaks(format!("I9: host {host} voted for {first} and for {candidate} in term {term}"));
        }
        inner.newest = Some(host);
        let promised = inner.promised.entry(host).or_default();
        *promised = term.max(*promised);
    }

    /// Votes that were given so far, and who gave the newest one.
    pub(super) fn votes(&self) -> (usize, Option<HostId>) {
        let inner = self.lock();
        (inner.votes.len(), inner.newest)
    }

    /// A host lives again.
    pub(super) fn reborn(&self, host: HostId, peer: &Consensus) {
        let mut inner = self.lock();
        let term = peer.voted_term();
        let promised = inner.promised.get(&host).copied().unwrap_or(0);
        if term < promised {
            inner.breaks(format!("I9: host {host} voted in term {promised} and came back in term {term}"));
        }
        inner.seen.remove(&host);
    }

    /// Looks at a peer.
    pub(super) fn look(&self, host: HostId, peer: &Consensus) {
        let now = peer.inspect();
        let mut inner = self.lock();
        if let Some(why) = peer.failed().borrow().as_ref().filter(|why| why.contains("core has ended")) {
            inner.breaks(format!("I21: host {host}: {why}, it panicked"));
        }
        inner.order(host, &now);
        if now.leads && now.vote.2 {
            let (term, _, _) = now.vote;
            let first = *inner.leaders.entry(term).or_insert(host);
            if first != host {
                inner.breaks(format!("I9: hosts {first} and {host} both lead term {term}"));
            }
        }
        let from = inner.seen.entry(host).or_default().compared;
        let upto = now.committed.map_or(0, |(_, index)| index);
        for ((term, index), sum) in peer.entries_from(from) {
            inner.entry(host, (term, index), sum, now.committed.is_some() && index <= upto);
        }
        let (index, hash) = peer.read(|state| (state.applied_index(), state.rolling_hash()));
        inner.state(host, index, hash);
        let seen = inner.seen.entry(host).or_default();
        seen.compared = upto;
        seen.last = Some(now);
    }

    /// Compares whole states, which costs more.
    pub(super) fn compare(&self, host: HostId, peer: &Consensus, index: u64) {
        let (at, hash) = peer.fingerprint();
        if at == index {
            // Beside the rolling hashes, which are of the same index.
            self.lock().state(host, u64::MAX - index, hash);
        }
    }

    /// Leaders that were seen, by term.
    pub(super) fn leaders(&self) -> BTreeMap<u64, HostId> {
        self.lock().leaders.clone()
    }

    /// What does not hold.
    pub(super) fn broken(&self) -> Vec<String> {
        self.lock().broken.iter().cloned().collect()
    }
}

impl Inner {
    fn breaks(&mut self, what: String) {
        // One story is enough, however often it is told.
        if self.broken.len() < 20 {
            self.broken.insert(what);
        }
    }

    fn order(&mut self, host: HostId, now: &Inspection) {
        let index = |mark: Option<Mark>| mark.map_or(0, |(_, index)| index);
        let chain = [
            ("purged", index(now.purged)),
            ("snapshot", index(now.snapshot)),
            ("applied", index(now.applied)),
            ("committed", index(now.committed)),
            ("last", now.last),
        ];
        for pair in chain.windows(2) {
            let ((low, a), (high, b)) = (pair[0], pair[1]);
            if a > b {
                self.breaks(format!("R5: host {host}: {low} at {a} is beyond {high} at {b}"));
            }
        }
        let Some(before) = self.seen.get(&host).and_then(|seen| seen.last.clone()) else {
            return;
        };
        let backwards = [
            ("term", before.vote.0, now.vote.0),
            ("committed", index(before.committed), index(now.committed)),
            ("applied", index(before.applied), index(now.applied)),
            ("snapshot", index(before.snapshot), index(now.snapshot)),
            ("purged", index(before.purged), index(now.purged)),
        ];
        for (what, was, is) in backwards {
            if is < was {
                self.breaks(format!("I9: host {host}: {what} went back from {was} to {is}"));
            }
        }
    }

    fn entry(&mut self, host: HostId, mark: Mark, sum: u32, committed: bool) {
        let first = *self.entries.entry(mark).or_insert(sum);
        if first != sum {
            self.breaks(format!("I9: host {host} holds another entry at term and index {mark:?}"));
        }
        if committed {
            let (term, index) = mark;
            let held = *self.committed.entry(index).or_insert((term, sum));
            if held != (term, sum) {
                self.breaks(format!(
                    "I9: host {host} committed {mark:?} where term {} was committed",
                    held.0
                ));
            }
        }
    }

    fn state(&mut self, host: HostId, index: u64, hash: u64) {
        let (other, held) = *self.hashes.entry(index).or_insert((host, hash));
        if held != hash {
            let index = index.min(u64::MAX - index);
            self.breaks(format!("I8: hosts {other} and {host} have different states at index {index}"));
        }
    }
}
