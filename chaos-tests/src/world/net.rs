//! Messages between agents: delay, loss, duplicates, links that are cut in one or both directions.

use super::queue::Ev;
use super::sim::World;
use rota_node::logic::lease::Renewal;
use rota_protocol::HostId;
use rota_protocol::command::{Outcome, Proposal};
use std::collections::{BTreeMap, BTreeSet};

/// One of this many messages, per mille, takes long.
const SLOW_PERMILLE: u64 = 20;
/// How long such a one may take, in ms: less than any reboot, as for real packets.
const SLOW_MS_MAX: u64 = 500;

/// Between agents.
#[derive(Debug, Clone)]
pub enum Msg {
    /// The leader of `term` says how far the log is committed.
    Committed {
        /// Its term.
        term: u64,
        /// The leader.
        leader: HostId,
        /// Up to here.
        index: u64,
    },
    /// Proposals for the leader.
    Propose {
        /// Who asks.
        from: HostId,
        /// Which of its calls.
        call: u64,
        /// What.
        proposals: Vec<Proposal>,
    },
    /// What came of it; none if that peer does not lead.
    Proposed {
        /// Which call.
        call: u64,
        /// In order, and the index of their entry.
        outcomes: Option<(u64, Vec<Outcome>)>,
    },
    /// A renewal, straight or through a relay.
    Renew {
        /// From whose process.
        from: Asker,
        /// Which.
        renewal: Renewal,
    },
    /// The answer to a renewal.
    Renewed {
        /// For whose process.
        to: Asker,
        /// Which.
        renewal: Renewal,
        /// What.
        answer: LeaseAnswer,
    },
}

/// The process that asked for a renewal: another life of the same host does not take its answers.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    /// The host.
    pub host: HostId,
    /// Its process.
    pub life: u64,
    /// Through whom.
    pub via: Option<HostId>,
}

/// What a renewal is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// Extended.
    Renewed,
    /// The epoch is over.
    WrongEpoch,
    /// Not here, not now.
    Refused,
}

/// The links.
#[derive(Debug, Default)]
pub struct Net {
    cut: BTreeSet<(HostId, HostId)>,
    /// Lost on top of the usual, per mille.
    pub storm_permille: u64,
    /// Added to each delay, in ms.
    pub lag_ms: u64,
    /// Added to the delay of what goes to a host, in ms.
    pub slow_to: BTreeMap<HostId, u64>,
}

impl Net {
    /// Bytes get from one to the other.
    #[must_use]
    pub fn open(&self, from: HostId, to: HostId) -> bool {
        from == to || !self.cut.contains(&(from, to))
    }

    /// Both ways.
    #[must_use]
    pub fn both(&self, a: HostId, b: HostId) -> bool {
        self.open(a, b) && self.open(b, a)
    }

    /// Replaces all cuts.
    pub fn set_cuts(&mut self, cut: BTreeSet<(HostId, HostId)>) {
        self.cut = cut;
    }
}

impl World {
    /// Sends a message, or loses it. What left before a link was cut still arrives.
    pub(super) fn send(&mut self, from: HostId, to: HostId, msg: Msg) {
        if from == to {
            self.queue.push(self.now, Ev::Deliver(to, msg));
            return;
        }
        let loss = self.params.loss_permille + self.net.storm_permille;
        if !self.net.open(from, to) || self.rng.chance(loss) {
            return;
        }
        let twice = self.rng.chance(self.params.twice_permille);
        if twice {
            self.reach.hit("message delivered twice");
            let at = self.now + self.delay_ms(to);
            self.queue.push(at, Ev::Deliver(to, msg.clone()));
        }
        let at = self.now + self.delay_ms(to);
        self.queue.push(at, Ev::Deliver(to, msg));
    }

    fn delay_ms(&mut self, to: HostId) -> u64 {
        let (low, high) = self.params.delay_ms;
        let slow = self.net.slow_to.get(&to).copied().unwrap_or(0);
        let mut delay = self.rng.range(low, high) + self.net.lag_ms + slow;
        if self.params.loss_permille > 0 && self.rng.chance(SLOW_PERMILLE) {
            delay += self.rng.range(1, SLOW_MS_MAX);
        }
        delay
    }

    /// A peer's process that answers.
    pub(super) fn answers(&self, host: HostId) -> bool {
        let host = self.host(host);
        host.agent.is_some() && !host.frozen
    }

    /// A host whose process has a majority of answering peers, itself included.
    pub(super) fn has_majority(&self, host: HostId) -> bool {
        let linked = |peer: &HostId| self.answers(*peer) && self.net.both(host, *peer);
        self.answers(host) && self.ids().filter(linked).count() * 2 > self.hosts.len()
    }
}
