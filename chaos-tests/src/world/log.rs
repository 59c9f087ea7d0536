//! The perfect log: one sequence of entries, one true leader at a time, chosen by the simulator by the rules of raft:
//! a majority that answers, no entry of a deposed leader after its successor's first. Agreement itself is not under
//! test here; what rests on it is.

use super::oracle::Law;
use super::queue::{Ev, Own};
use super::sim::World;
use rota_core::state::State;
use rota_protocol::HostId;
use rota_protocol::command::{Command, Entry, LOG_FORMAT, Outcome, Proposal};

/// Wall time at the start of a run, ms since the epoch.
pub const WALL_START_MS: u64 = 1_790_000_000_000;
/// How often followers judge their leader.
const ELECTION_TICK_MS: u64 = 50;
/// How often a leader tells what is committed.
const HEARTBEAT_MS: u64 = 100;
/// Entries between two comparisons of whole states.
const FULL_HASH_EVERY: u64 = 64;

/// One place of the log.
#[derive(Debug, Clone)]
pub enum Place {
    /// A leader's first.
    Blank,
    /// Proposals.
    Normal(Entry),
}

/// The log and who leads.
#[derive(Debug)]
pub struct Log {
    /// Entry `i` is at `i - 1`.
    pub places: Vec<Place>,
    /// The rolling hash after each.
    pub hashes: Vec<u64>,
    /// The state at the end: what every replica becomes.
    pub head: State,
    /// The present term.
    pub term: u64,
    /// Its leader.
    pub leader: Option<HostId>,
    /// The life of its process: another life of the same host does not lead.
    leader_life: u64,
    /// Since when the leader has no majority.
    lost_since_ms: Option<u64>,
    /// How long the followers wait this time.
    patience_ms: u64,
    /// Sooner than by patience: the leader hands over.
    pub transfer: bool,
}

impl Log {
    /// An empty one.
    #[must_use]
    pub fn new(head: State) -> Self {
        Self {
            places: Vec::new(),
            hashes: Vec::new(),
            head,
            term: 0,
            leader: None,
            leader_life: 0,
            lost_since_ms: Some(0),
            patience_ms: 300,
            transfer: false,
        }
    }

    /// The last index.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.places.len() as u64
    }

    /// What stands at an index.
    #[must_use]
    pub fn place(&self, index: u64) -> Option<&Place> {
        self.places.get(usize::try_from(index.checked_sub(1)?).ok()?)
    }

    /// The rolling hash after an index.
    #[must_use]
    pub fn hash(&self, index: u64) -> Option<u64> {
        self.hashes.get(usize::try_from(index.checked_sub(1)?).ok()?).copied()
    }
}

/// Applies one place to a replica.
pub fn apply_place(state: &mut State, index: u64, place: &Place) {
    match place {
        Place::Blank => state.skip(index),
        Place::Normal(entry) => {
            state.apply(index, entry);
        }
    }
}

impl World {
    /// Commits proposals as one entry, stamped by `leader`'s wall clock, and lets the oracle look.
    pub(super) fn append(&mut self, leader: HostId, proposals: Vec<Proposal>) -> Vec<Outcome> {
        let at_ms = self.wall_ms(leader);
        for proposal in &proposals {
            if let Command::Cancel { job, index: None } = proposal.command {
                self.reach_cancel(job);
            }
        }
        let index = self.log.last() + 1;
        let expired: Vec<HostId> = proposals.iter().filter_map(expires).collect();
        let before: Vec<_> = expired.iter().map(|h| self.log.head.host(*h).map(|h| h.epoch)).collect();
        let entry = Entry { format: LOG_FORMAT, at_ms, proposals };
        let applied = self.log.head.apply(index, &entry);
        for (host, was) in expired.iter().zip(before) {
            if self.log.head.host(*host).map(|h| h.epoch) != was {
                self.reach.hit("lease expired");
            }
        }
        self.note(|| format!("log {index}: {} -> {:?}", brief(&entry), applied.outcomes));
        self.log.hashes.push(self.log.head.rolling_hash());
        self.oracle_committed(&entry, &applied);
        self.log.places.push(Place::Normal(entry));
        applied.outcomes
    }

    /// Followers judge their leader; the next one is elected when it has been without a majority for too long.
    pub(super) fn election(&mut self) {
        self.queue.push(self.now + ELECTION_TICK_MS, Ev::Outside(super::queue::Outside::Election));
        let fine = self
            .log
            .leader
            .is_some_and(|leader| self.leads(leader, self.log.term) && self.has_majority(leader));
        if fine && !self.log.transfer {
            self.log.lost_since_ms = None;
            return;
        }
        let since = *self.log.lost_since_ms.get_or_insert(self.now);
        if !self.log.transfer && self.now - since < self.log.patience_ms {
            return;
        }
        let old = self.log.leader;
        let able: Vec<HostId> =
            self.ids().filter(|h| self.has_majority(*h) && (Some(*h) != old || !fine)).collect();
        let Some(next) = self.rng.pick(&able) else {
            return;
        };
        self.elect(next, since);
    }

    /// This process is the true leader of the present term.
    pub(super) fn leads(&self, host: HostId, term: u64) -> bool {
        self.log.leader == Some(host) && self.log.leader_life == self.host(host).life && self.log.term == term
    }

    fn elect(&mut self, next: HostId, lost_since_ms: u64) {
        self.inherit(lost_since_ms);
        self.log.term += 1;
        self.log.leader = Some(next);
        self.log.leader_life = self.host(next).life;
        self.log.transfer = false;
        self.log.lost_since_ms = None;
        self.log.patience_ms = self.rng.range(300, 900);
        self.reach.hit("leader changed");
        let (term, at) = (self.log.term, self.now + self.rng.range(1, 60));
        self.note(|| format!("host {next} is elected for term {term}"));
        let life = self.host(next).life;
        self.queue.push(at, Ev::Own(next, life, Own::Lead(term)));
    }

    /// What the deposed leader had written before it lost its majority may or may not be known to its successor; if
    /// it is, it is committed before anything else. What it wrote later is known to nobody.
    fn inherit(&mut self, lost_since_ms: u64) {
        let Some(old) = self.log.leader else {
            return;
        };
        let term = self.log.term;
        let known = |item: &super::lead::Item| item.at_ms < lost_since_ms;
        let Some(lead) = self.agent_mut(old).and_then(|a| a.lead.as_mut()).filter(|l| l.term == term) else {
            return;
        };
        let items: Vec<_> = lead.queue.iter().take_while(|i| known(i)).cloned().collect();
        let reached = self.rng.below(items.len() as u64 + 1);
        for item in items.into_iter().take(usize::try_from(reached).unwrap_or(0)) {
            self.reach.hit("entry inherited from a deposed leader");
            self.append(old, item.proposals);
        }
        if let Some(lead) = self.agent_mut(old).and_then(|a| a.lead.as_mut()) {
            // Committed or lost: either way it does not come from here any more, and nobody hears of it.
            lead.queue.clear();
        }
    }

    /// The leader's first entry of its term.
    pub(super) fn append_blank(&mut self) {
        let index = self.log.last() + 1;
        self.log.places.push(Place::Blank);
        self.log.head.skip(index);
        self.log.hashes.push(self.log.head.rolling_hash());
    }

    /// The leader tells every peer how far the log is committed.
    pub(super) fn heartbeat(&mut self) {
        self.queue.push(self.now + HEARTBEAT_MS, Ev::Outside(super::queue::Outside::Heartbeat));
        self.tell_committed();
    }

    /// As the heartbeat does, at once.
    pub(super) fn tell_committed(&mut self) {
        let (term, index) = (self.log.term, self.log.last());
        let Some(leader) =
            self.log.leader.filter(|leader| self.answers(*leader) && self.leads(*leader, term))
        else {
            return;
        };
        let peers: Vec<HostId> = self.ids().filter(|peer| *peer != leader).collect();
        for peer in peers {
            self.send(leader, peer, super::net::Msg::Committed { term, leader, index });
        }
    }

    /// A replica applies up to `index` and is compared with the log's own state.
    pub(super) fn apply_to(&mut self, host: HostId, index: u64) {
        let index = index.min(self.log.last());
        let Some(mut state) = self.agent_mut(host).map(|agent| std::mem::take(&mut agent.state)) else {
            return;
        };
        while state.applied_index() < index {
            let next = state.applied_index() + 1;
            let Some(place) = self.log.place(next) else {
                break;
            };
            apply_place(&mut state, next, place);
            if Some(state.rolling_hash()) != self.log.hash(next) {
                self.oracle.broken(self.now, Law::I8, format!("host {host} differs at index {next}"));
            }
        }
        let at = state.applied_index();
        if at == self.log.last()
            && at.is_multiple_of(FULL_HASH_EVERY)
            && state.full_hash() != self.log.head.full_hash()
        {
            self.oracle.broken(self.now, Law::I8, format!("host {host} has another state at index {at}"));
        }
        if let Some(agent) = self.agent_mut(host) {
            agent.state = state;
        }
    }
}

fn expires(proposal: &Proposal) -> Option<HostId> {
    match proposal.command {
        Command::Expire { host, .. } => Some(host),
        _ => None,
    }
}

/// A line for a person.
fn brief(entry: &Entry) -> String {
    let one = |p: &Proposal| match &p.command {
        Command::Submit { spec } => format!("submit {} (request {})", spec.name, p.request.0),
        Command::RegisterHost { host, registration } => {
            format!("register host {host} boot {}", registration.boot.0)
        }
        other => format!("{other:?}"),
    };
    entry.proposals.iter().map(one).collect::<Vec<_>>().join("; ")
}
