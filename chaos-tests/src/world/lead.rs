//! What the leader does besides agreeing: it keeps the lease book, lets leases go, plans, and writes proposals. The
//! decisions are `lease_book` and `placement`; this is their pump, as the actors are in the product.

use super::net::{Asker, LeaseAnswer, Msg};
use super::propose;
use super::queue::{Confirm, Own};
use super::sim::World;
use rota_core::placement::{self, PlanConfig, View};
use rota_core::state::host::HostLife;
use rota_node::logic::lease::Renewal;
use rota_node::logic::lease_book::{LeaseBook, Receipt, RoundEnd};
use rota_protocol::command::{Command, Proposal};
use rota_protocol::job::Actor;
use rota_protocol::plan::Plan;
use rota_protocol::{HostId, LeaseEpoch, RequestId};
use std::collections::{BTreeMap, VecDeque};

/// How often leases and the queue are looked at.
const TICK_MS: u64 = 50;
/// Pause of the log writer while it has no majority.
const NO_MAJORITY_MS: u64 = 50;
/// Most items in one entry.
const ENTRY_ITEMS_MAX: usize = 8;
/// A confirmation that no quorum answers is given up after this.
const CONFIRM_GIVES_UP_MS: (u64, u64) = (100, 600);

/// Rounds in which another planner says its mind too, per mille.
const MEDDLE_PERMILLE: u64 = 300;

/// What waits to be written.
#[derive(Debug, Clone)]
pub struct Item {
    /// Who hears of it.
    pub from: HostId,
    /// In which of its calls.
    pub call: u64,
    /// What.
    pub proposals: Vec<Proposal>,
    /// True time of its coming.
    pub at_ms: u64,
}

/// The leader's memory, of one term.
#[derive(Debug)]
pub struct Lead {
    /// Which.
    pub term: u64,
    /// The leases.
    pub book: LeaseBook,
    /// What waits to be written.
    pub queue: VecDeque<Item>,
    asked: BTreeMap<u64, (Asker, Renewal)>,
    next_ticket: u64,
    confirming: bool,
    expiring: bool,
    plans: u32,
    rounds: u64,
    draining: bool,
}

impl World {
    /// Elected: the replica applies all that earlier leaders committed, then the term begins.
    pub(super) fn take_the_lead(&mut self, host: HostId, term: u64) {
        if !self.leads(host, term) {
            return;
        }
        self.append_blank();
        self.apply_to(host, self.log.last());
        let (now_local, faults) = (self.local_ms(host), super::plant::Plant::logic(self.params.plant));
        let mut book = LeaseBook::with_faults(self.params.lease, faults);
        let Some(agent) = self.agent_mut(host) else { return };
        book.on_elected(lease_holders(&agent.state), now_local);
        agent.lead = Some(Box::new(Lead {
            term,
            book,
            queue: VecDeque::new(),
            asked: BTreeMap::new(),
            next_ticket: 0,
            confirming: false,
            expiring: false,
            plans: 0,
            rounds: 0,
            draining: false,
        }));
        agent.term = term;
        agent.leader = Some(host);
        self.own_after(host, TICK_MS, Own::LeadTick(term));
        self.tell_committed();
        self.route_calls(host);
    }

    /// Learned of a later term: it leads no more.
    pub(super) fn step_down(&mut self, host: HostId) {
        let Some(mut lead) = self.agent_mut(host).and_then(|agent| agent.lead.take()) else {
            return;
        };
        for ticket in lead.book.on_deposed() {
            if let Some((asker, renewal)) = lead.asked.remove(&ticket) {
                self.answer_renewal(host, asker, renewal, LeaseAnswer::Refused);
            }
        }
        for item in lead.queue {
            self.send(host, item.from, Msg::Proposed { call: item.call, outcomes: None });
        }
    }

    pub(super) fn lead_mut(&mut self, host: HostId, term: u64) -> Option<&mut Lead> {
        self.agent_mut(host)?.lead.as_deref_mut().filter(|lead| lead.term == term)
    }

    /// Proposals that this peer is to write; none of its business when it does not lead.
    pub(super) fn take_proposals(&mut self, host: HostId, from: HostId, call: u64, proposals: Vec<Proposal>) {
        let at_ms = self.now;
        let disk = self.disk_ms();
        let Some(lead) = self.agent_mut(host).and_then(|agent| agent.lead.as_mut()) else {
            self.send(host, from, Msg::Proposed { call, outcomes: None });
            return;
        };
        lead.queue.push_back(Item { from, call, proposals, at_ms });
        if !std::mem::replace(&mut lead.draining, true) {
            let term = lead.term;
            self.own_after(host, disk, Own::Drain(term));
        }
    }

    /// Writes what waits, as one entry, if this peer really leads.
    pub(super) fn drain(&mut self, host: HostId, term: u64) {
        if self.lead_mut(host, term).is_none() {
            return;
        }
        let really = self.leads(host, term);
        if !really && self.params.plant == Some(super::plant::Plant::ExpireWithoutQuorum) {
            self.leak_expiries(host, term);
        }
        if !really || !self.has_majority(host) {
            self.own_after(host, NO_MAJORITY_MS, Own::Drain(term));
            return;
        }
        let Some(lead) = self.lead_mut(host, term) else { return };
        let count = lead.queue.len().min(ENTRY_ITEMS_MAX);
        let items: Vec<Item> = lead.queue.drain(..count).collect();
        lead.draining = !lead.queue.is_empty();
        if lead.draining {
            let disk = self.disk_ms();
            self.own_after(host, disk, Own::Drain(term));
        }
        if items.is_empty() {
            return;
        }
        let all = items.iter().flat_map(|item| item.proposals.clone()).collect();
        let mut outcomes = self.append(host, all).into_iter();
        let index = self.log.last();
        self.apply_to(host, index);
        for item in items {
            let own = outcomes.by_ref().take(item.proposals.len()).collect();
            self.send(host, item.from, Msg::Proposed { call: item.call, outcomes: Some((index, own)) });
        }
        self.tell_committed();
        self.compare(host);
    }

    /// The planted defect's other half: an expiry that a deposed leader made is written by whoever leads now.
    fn leak_expiries(&mut self, host: HostId, term: u64) {
        let Some(leader) = self.log.leader.filter(|leader| self.net.open(host, *leader)) else {
            return;
        };
        let Some(lead) = self.lead_mut(host, term) else { return };
        let is_expiry =
            |item: &Item| matches!(item.proposals[..], [Proposal { command: Command::Expire { .. }, .. }]);
        let leaked: Vec<Item> = lead.queue.iter().filter(|item| is_expiry(item)).cloned().collect();
        lead.queue.retain(|item| !is_expiry(item));
        for item in leaked {
            self.send(host, leader, Msg::Propose { from: host, call: item.call, proposals: item.proposals });
        }
    }

    /// A renewal came to this peer: the leader notes it, another one relays it once.
    pub(super) fn take_renewal(&mut self, host: HostId, from: Asker, renewal: Renewal) {
        let now_local = self.local_ms(host);
        let Some(agent) = self.agent_mut(host) else { return };
        let Some(lead) = agent.lead.as_mut() else {
            let leader =
                agent.leader.filter(|leader| *leader != host && from.via.is_none() && from.host != host);
            match leader {
                Some(leader) => {
                    self.reach.hit("renewal relayed");
                    let from = Asker { via: Some(host), ..from };
                    self.send(host, leader, Msg::Renew { from, renewal });
                }
                None => self.answer_renewal(host, from, renewal, LeaseAnswer::Refused),
            }
            return;
        };
        let ticket = lead.next_ticket;
        lead.next_ticket += 1;
        match lead.book.on_receipt(from.host, renewal.epoch, ticket, now_local) {
            Receipt::Waits => {
                lead.asked.insert(ticket, (from, renewal));
                self.confirm_renewals(host);
            }
            Receipt::Acknowledge => self.answer_renewal(host, from, renewal, LeaseAnswer::Renewed),
            // As the product answers both: register again.
            Receipt::NotHere | Receipt::WrongEpoch { .. } => {
                self.reach.hit("stale epoch refused");
                self.answer_renewal(host, from, renewal, LeaseAnswer::WrongEpoch);
            }
        }
    }

    fn confirm_renewals(&mut self, host: HostId) {
        let Some(lead) = self.agent_mut(host).and_then(|agent| agent.lead.as_mut()) else { return };
        if lead.confirming {
            return;
        }
        let Some(round) = lead.book.round_begin() else { return };
        lead.confirming = true;
        let term = lead.term;
        self.begin_confirmation(host, term, Confirm::Renewals(round));
    }

    fn begin_confirmation(&mut self, host: HostId, term: u64, what: Confirm) {
        let after = self.round_trip_ms();
        self.own_after(host, after, Own::Sample(term, what));
    }

    /// The moment at which a majority has answered, if it does: whoever was elected before it would have been known
    /// to one of them.
    pub(super) fn sample(&mut self, host: HostId, term: u64, what: Confirm) {
        if self.lead_mut(host, term).is_none() {
            return;
        }
        let confirmed = self.leads(host, term) && self.has_majority(host);
        let (low, high) = CONFIRM_GIVES_UP_MS;
        let after = if confirmed { self.rng.range(0, 3) } else { self.rng.range(low, high) };
        if !confirmed {
            self.reach.hit("quorum not confirmed");
        }
        self.own_after(host, after, Own::Confirmed(term, what, confirmed));
    }

    /// A confirmation is over.
    pub(super) fn confirmed(&mut self, host: HostId, term: u64, what: Confirm, confirmed: bool) {
        let Some(lead) = self.lead_mut(host, term) else { return };
        match what {
            Confirm::Renewals(round) => {
                lead.confirming = false;
                let (tickets, answer) = match lead.book.round_end(round, confirmed) {
                    RoundEnd::Acknowledge(tickets) => (tickets, LeaseAnswer::Renewed),
                    RoundEnd::Refuse(tickets) => (tickets, LeaseAnswer::Refused),
                };
                let asked: Vec<_> = tickets.iter().filter_map(|ticket| lead.asked.remove(ticket)).collect();
                for (asker, renewal) in asked {
                    self.answer_renewal(host, asker, renewal, answer);
                }
                self.confirm_renewals(host);
            }
            Confirm::Expiry(due) => {
                let expired = lead.book.still_due(&due, confirmed);
                lead.expiring = !expired.is_empty();
                if expired.len() < due.len() && confirmed {
                    self.reach.hit("renewal saved a due lease");
                }
                for (of, epoch) in expired {
                    self.note(|| format!("host {host} finds the lease {epoch} of host {of} over"));
                    self.call_bound(
                        host,
                        super::agent::CallKind::Expiry,
                        Command::Expire { host: of, epoch },
                    );
                }
            }
        }
        if !confirmed && !self.params.stubborn && !self.leads(host, term) {
            self.step_down(host);
        }
    }

    fn answer_renewal(&mut self, host: HostId, to: Asker, renewal: Renewal, answer: LeaseAnswer) {
        let next = to.via.filter(|via| *via != host).unwrap_or(to.host);
        self.send(host, next, Msg::Renewed { to, renewal, answer });
    }

    /// Leases and planning.
    pub(super) fn lead_tick(&mut self, host: HostId, term: u64) {
        let now_local = self.local_ms(host);
        let Some(agent) = self.agent_mut(host) else { return };
        let Some(lead) = agent.lead.as_mut().filter(|lead| lead.term == term) else { return };
        lead.book.set_hosts(lease_holders(&agent.state), now_local);
        let due = lead.book.due(now_local);
        let expire = !due.is_empty() && !std::mem::replace(&mut lead.expiring, true);
        if due.is_empty() {
            lead.expiring = false;
        }
        if expire {
            self.begin_confirmation(host, term, Confirm::Expiry(due));
        }
        self.plan(host, term);
        self.own_after(host, TICK_MS, Own::LeadTick(term));
    }

    fn plan(&mut self, host: HostId, term: u64) {
        let (now_local, wall_ms) = (self.local_ms(host), self.wall_ms(host));
        // Now and then a second round does not wait for the first: its plan is behind the state when it comes.
        let most = 1 + u32::from(self.rng.chance(100));
        let Some(agent) = self.agent_mut(host) else { return };
        let Some(lead) = agent.lead.as_mut() else { return };
        if lead.plans >= most {
            return;
        }
        lead.rounds += 1;
        let state = agent.state.clone();
        let avoid_hosts = lead.book.suspected(now_local).into_iter().collect();
        let config = PlanConfig { avoid_hosts, ..PlanConfig::default() };
        // Once the faults are over the real planner has to bring everything to rest by itself.
        let more = if self.healed || !self.rng.chance(MEDDLE_PERMILLE) {
            Vec::new()
        } else {
            propose::moves(&state, &config.avoid_hosts, wall_ms, &mut self.rng)
        };
        let mut plan = Plan { seen_index: state.applied_index(), moves: Vec::new() };
        if state.wants_planning(wall_ms) {
            plan = placement::plan(&View::of(&state, wall_ms), &config, wall_ms);
        }
        // First: whoever comes first takes the cards.
        plan.moves.splice(0..0, more);
        let Some(lead) = self.lead_mut(host, term) else { return };
        if plan.moves.is_empty() {
            return;
        }
        lead.plans += 1;
        let after = self.rng.range(1, 20);
        self.own_after(host, after, Own::Planned(term, plan));
    }

    /// A plan goes to the log.
    pub(super) fn planned(&mut self, host: HostId, term: u64, plan: Plan) {
        if self.lead_mut(host, term).is_some() {
            self.call_bound(host, super::agent::CallKind::Plan, Command::CommitPlan { plan });
        }
    }

    /// A plan or an expiry came to its end.
    pub(super) fn bound_call_over(&mut self, host: HostId, expiry: bool) {
        if let Some(lead) = self.agent_mut(host).and_then(|agent| agent.lead.as_mut()) {
            if expiry {
                lead.expiring = false;
            } else {
                lead.plans = lead.plans.saturating_sub(1);
            }
        }
    }

    fn disk_ms(&mut self) -> u64 {
        let (low, high) = self.params.disk_ms;
        self.rng.range(low, high) + self.disk_lag_ms
    }

    fn round_trip_ms(&mut self) -> u64 {
        let (low, high) = self.params.delay_ms;
        self.rng.range(low, 2 * high) + self.net.lag_ms
    }
}

/// By Rota itself, idempotent by content.
pub(super) fn by_rota(command: Command) -> Proposal {
    Proposal { request: RequestId::NONE, actor: Actor::system(), command }
}

fn lease_holders(state: &rota_core::State) -> Vec<(HostId, LeaseEpoch)> {
    state.hosts().filter(|host| host.life == HostLife::Up).map(|host| (host.id, host.epoch)).collect()
}
