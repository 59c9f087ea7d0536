//! The leases of all hosts, leader's side: who renewed when, whose renewal may be acknowledged, whose lease ran out.
//! The argument why this is safe stands in `lease`.
//!
//! Driving it: a renewal comes in -> [`LeaseBook::on_receipt`]; the driver begins a quorum confirmation with
//! [`LeaseBook::round_begin`] and ends it with [`LeaseBook::round_end`], which says whom to answer; one round serves
//! all renewals that came before it began. For expiry: [`LeaseBook::due`], then drain the queue of renewals, confirm
//! the quorum, then [`LeaseBook::still_due`]; only what that returns is proposed.

use super::Faults;
use super::lease::LeaseParams;
use rota_protocol::{HostId, LeaseEpoch};
use std::collections::BTreeMap;

/// Most leases that are let go at once, in one log entry (fault C6).
pub const EXPIRIES_MAX: usize = 100;

/// What happens to a renewal that came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// It waits for a quorum confirmation that begins from now on.
    Waits,
    /// Acknowledge now (only with a planted bug).
    Acknowledge,
    /// This peer does not lead, the host holds no lease, or its lease is being let go: the holder registers again.
    NotHere,
    /// The epoch is not the host's: its lease expired or it was replaced; it must register again.
    WrongEpoch {
        /// The epoch in force.
        current: LeaseEpoch,
    },
}

/// How a quorum confirmation came out for the renewals that waited for it, named by their tickets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoundEnd {
    /// Acknowledge these.
    Acknowledge(Vec<u64>),
    /// Refuse these: this peer could not confirm that it leads.
    Refuse(Vec<u64>),
}

/// A lease that seems to have run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueLease {
    /// Whose.
    pub host: HostId,
    /// The epoch that ends with it.
    pub epoch: LeaseEpoch,
    heard_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    epoch: LeaseEpoch,
    heard_ms: u64,
    /// Its expiry may be on its way to the log: no renewal is taken any more, or the holder would run on under a
    /// lease that the log has let go.
    condemned: bool,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: u64,
    round: Option<u64>,
}

/// The leader's book. A peer that does not lead keeps an empty one.
#[derive(Debug, Clone)]
pub struct LeaseBook {
    params: LeaseParams,
    faults: Faults,
    leads: bool,
    hosts: BTreeMap<HostId, Held>,
    waiting: Vec<Waiting>,
    next_round: u64,
}

impl LeaseBook {
    /// The book of a peer that does not lead.
    #[must_use]
    pub fn new(params: LeaseParams) -> Self {
        Self::with_faults(params, Faults::default())
    }

    #[doc(hidden)]
    #[must_use]
    pub fn with_faults(params: LeaseParams, faults: Faults) -> Self {
        Self { params, faults, leads: false, hosts: BTreeMap::new(), waiting: Vec::new(), next_round: 0 }
    }

    /// This peer leads since now: every lease counts from here, because a predecessor may have acknowledged anything
    /// up to now.
    pub fn on_elected(&mut self, hosts: impl IntoIterator<Item = (HostId, LeaseEpoch)>, now_ms: u64) {
        self.hosts.clear();
        self.leads = true;
        self.set_hosts(hosts, now_ms);
    }

    /// This peer leads no longer. Returns the tickets of renewals to be refused.
    pub fn on_deposed(&mut self) -> Vec<u64> {
        self.leads = false;
        self.hosts.clear();
        self.waiting.drain(..).map(|w| w.ticket).collect()
    }

    /// The hosts of the state that hold leases (all that are not lost) and their epochs. New ones, and those with a
    /// new epoch, count from now; those that left are forgotten.
    pub fn set_hosts(&mut self, hosts: impl IntoIterator<Item = (HostId, LeaseEpoch)>, now_ms: u64) {
        if !self.leads {
            return;
        }
        let mut next = BTreeMap::new();
        for (host, epoch) in hosts {
            let held = match self.hosts.get(&host) {
                Some(held) if held.epoch == epoch => *held,
                _ => Held { epoch, heard_ms: now_ms, condemned: false },
            };
            next.insert(host, held);
        }
        self.hosts = next;
    }

    /// A renewal came in; `ticket` is the driver's name for whom to answer.
    pub fn on_receipt(&mut self, host: HostId, epoch: LeaseEpoch, ticket: u64, now_ms: u64) -> Receipt {
        let Some(held) = self.hosts.get_mut(&host) else {
            return Receipt::NotHere;
        };
        if held.epoch != epoch {
            return Receipt::WrongEpoch { current: held.epoch };
        }
        if held.condemned {
            return Receipt::NotHere;
        }
        held.heard_ms = held.heard_ms.max(now_ms);
        if self.faults.ack_renewal_at_once {
            return Receipt::Acknowledge;
        }
        self.waiting.push(Waiting { ticket, round: None });
        Receipt::Waits
    }

    /// A quorum confirmation is about to begin: it will serve every renewal that came in so far. None when none waits.
    pub fn round_begin(&mut self) -> Option<u64> {
        let round = self.next_round;
        let mut any = false;
        for waiting in self.waiting.iter_mut().filter(|w| w.round.is_none()) {
            waiting.round = Some(round);
            any = true;
        }
        if any {
            self.next_round += 1;
        }
        any.then_some(round)
    }

    /// The confirmation has ended. Rounds may overlap; a later one also serves those of earlier ones.
    pub fn round_end(&mut self, round: u64, confirmed: bool) -> RoundEnd {
        let mut tickets = Vec::new();
        self.waiting.retain(|w| {
            let mine = match w.round {
                Some(r) if confirmed => r <= round,
                Some(r) => r == round,
                None => false,
            };
            if mine {
                tickets.push(w.ticket);
            }
            !mine
        });
        if confirmed { RoundEnd::Acknowledge(tickets) } else { RoundEnd::Refuse(tickets) }
    }

    /// Leases that seem to have run out, the first hundred: the others may still be renewed until it is their turn. Before any of them is expired the driver feeds in every renewal that it has
    /// queued, confirms its quorum, and asks [`Self::still_due`].
    #[must_use]
    pub fn due(&self, now_ms: u64) -> Vec<DueLease> {
        let expiry_ms = self.params.expiry_ms();
        self.hosts
            .iter()
            .filter(|(_, held)| now_ms.saturating_sub(held.heard_ms) > expiry_ms)
            .map(|(host, held)| DueLease { host: *host, epoch: held.epoch, heard_ms: held.heard_ms })
            .take(EXPIRIES_MAX)
            .collect()
    }

    /// Of leases that were due before a quorum confirmation, those that are to be proposed for expiry now, by the
    /// leader of this term or by nobody. From here on their renewals are refused: the proposal may be committed at any
    /// later time. As long as it is not, they stay due and are returned again.
    #[must_use]
    pub fn still_due(&mut self, due: &[DueLease], confirmed: bool) -> Vec<(HostId, LeaseEpoch)> {
        if !confirmed && !self.faults.expire_without_quorum {
            return Vec::new();
        }
        let mut expired = Vec::new();
        for d in due {
            let held = self.hosts.get_mut(&d.host);
            if let Some(held) = held.filter(|held| held.epoch == d.epoch && held.heard_ms == d.heard_ms) {
                held.condemned = true;
                expired.push((d.host, d.epoch));
            }
        }
        expired
    }

    /// Hosts silent for so long that nothing new is placed there.
    #[must_use]
    pub fn suspected(&self, now_ms: u64) -> Vec<HostId> {
        let suspect_ms = self.params.suspect_ms();
        self.hosts
            .iter()
            .filter(|(_, held)| now_ms.saturating_sub(held.heard_ms) > suspect_ms)
            .map(|(host, _)| *host)
            .collect()
    }

    /// The earliest time at which [`Self::due`] may change, in ms.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        let expiry_ms = self.params.expiry_ms();
        self.hosts.values().map(|held| held.heard_ms.saturating_add(expiry_ms + 1)).min()
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
