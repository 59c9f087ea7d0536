//! An agent's process: it registers, renews, compares what the log wants with what is here, tells what became of it,
//! and passes on what clients ask. The decisions are the product's `logic`; this is their pump, as the actors are in
//! the product.

use super::host::Call;
use super::lead::by_rota;
use super::net::{Asker, LeaseAnswer, Msg};
use super::plant::Plant;
use super::queue::{Ev, Note, Outside, Own};
use super::sim::World;
use rota_node::logic::gang;
use rota_node::logic::lease::Renewal;
use rota_node::logic::reconcile::{Action, Desired, Local, LocalState, reconcile};
use rota_protocol::HostId;
use rota_protocol::command::{Command, Outcome, Proposal};

/// How often an agent looks around although nothing happened.
const TICK_MS: u64 = 100;
/// How long a call may take.
const CALL_MS: u64 = 3_000;

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// Registering the host.
    Register,
    /// Facts about attempts.
    Report,
    /// A client's request, by its number.
    Client(usize),
    /// The leader's plan: of this term or never.
    Plan,
    /// The leader's expiry: of this term or never.
    Expiry,
}

impl CallKind {
    fn is_bound(self) -> bool {
        matches!(self, Self::Plan | Self::Expiry)
    }
}

impl World {
    /// Time has passed, or something happened.
    pub(super) fn tick(&mut self, id: HostId) {
        self.own_after(id, TICK_MS, Own::Tick);
        self.route_calls(id);
        self.register(id);
        self.take_epoch(id);
        self.renew(id);
        self.compare(id);
    }

    fn register(&mut self, id: HostId) {
        let registration = self.host(id).registration();
        let Some(agent) = self.agent_mut(id) else { return };
        if agent.registered || agent.registering.is_some() {
            return;
        }
        let command = Command::RegisterHost { host: id, registration };
        let call = self.call(id, CallKind::Register, vec![by_rota(command)]);
        if let Some(agent) = self.agent_mut(id) {
            agent.registering = Some(call);
        }
    }

    /// Renews when it is time: straight to the leader, or through any peer when that did not help.
    fn renew(&mut self, id: HostId) {
        let (now_local, life) = (self.local_ms(id), self.host(id).life);
        let peers: Vec<HostId> = self.ids().filter(|peer| *peer != id).collect();
        let any = self.rng.pick(&peers);
        let Some(agent) = self.agent_mut(id) else { return };
        if agent.holder.next_send_ms().is_none_or(|at| now_local < at) {
            return;
        }
        let leader = agent.leader.filter(|_| agent.heard);
        let Some(renewal) = agent.holder.send(now_local) else { return };
        agent.heard = false;
        if let Some(to) = leader.or(any) {
            let from = Asker { host: id, life, via: None };
            self.send(id, to, Msg::Renew { from, renewal });
        }
    }

    fn renewed(&mut self, id: HostId, renewal: Renewal, answer: LeaseAnswer) {
        let now_local = self.local_ms(id);
        let Some(agent) = self.agent_mut(id) else { return };
        match answer {
            LeaseAnswer::Renewed => {
                agent.heard = true;
                let Some(deadline) = agent.holder.ack(renewal, now_local) else { return };
                let file = self.host_mut(id).leases.entry(renewal.epoch).or_insert(0);
                let back = deadline < *file;
                *file = deadline.max(*file);
                // A process that is new on this host may begin with an earlier deadline; the file keeps the later one.
                if back {
                    self.reach.hit("lease file kept the later deadline");
                }
                self.compare(id);
            }
            LeaseAnswer::WrongEpoch => {
                if agent.holder.epoch() == Some(renewal.epoch) {
                    agent.registered = false;
                    self.register(id);
                }
            }
            LeaseAnswer::Refused => {}
        }
    }

    /// A message for the process.
    pub(super) fn deliver(&mut self, id: HostId, msg: Msg) {
        let life = self.host(id).life;
        match msg {
            Msg::Committed { term, leader, index } => self.hear_leader(id, term, leader, index),
            Msg::Propose { from, call, proposals } => self.take_proposals(id, from, call, proposals),
            Msg::Proposed { call, outcomes } => self.proposed(id, call, outcomes),
            Msg::Renew { from, renewal } => self.take_renewal(id, from, renewal),
            Msg::Renewed { to, renewal, answer } if to.host == id => {
                if to.life == life {
                    self.renewed(id, renewal, answer);
                }
            }
            Msg::Renewed { to, renewal, answer } => {
                self.send(id, to.host, Msg::Renewed { to, renewal, answer })
            }
        }
    }

    fn hear_leader(&mut self, id: HostId, term: u64, leader: HostId, index: u64) {
        let lag = self.host(id).apply_lag_ms;
        let wait = self.rng.range(0, 5 + lag);
        let Some(agent) = self.agent_mut(id) else { return };
        if term < agent.term {
            return;
        }
        let wait = wait + std::mem::take(&mut agent.replay_ms);
        agent.known = agent.known.max(index);
        let apply =
            agent.known > agent.state.applied_index() && !std::mem::replace(&mut agent.applying, true);
        let news = term > agent.term || agent.leader != Some(leader);
        (agent.term, agent.leader) = (term, Some(leader));
        let deposed = agent.lead.as_ref().is_some_and(|lead| lead.term < term);
        if deposed {
            self.step_down(id);
        }
        if apply {
            self.own_after(id, wait, Own::Apply);
        }
        if news {
            self.route_calls(id);
        }
    }

    /// The state machine catches up.
    pub(super) fn catch_up(&mut self, id: HostId) {
        let Some(agent) = self.agent_mut(id) else { return };
        agent.applying = false;
        let known = agent.known;
        self.apply_to(id, known);
        self.take_epoch(id);
        self.compare(id);
    }

    /// Opens a call of proposals.
    pub(super) fn call(&mut self, id: HostId, kind: CallKind, proposals: Vec<Proposal>) -> u64 {
        self.calls += 1;
        let call = self.calls;
        if let Some(agent) = self.agent_mut(id) {
            agent.calls.insert(call, Call { kind, proposals, sent: None });
        }
        self.own_after(id, CALL_MS, Own::CallDue(call));
        self.route_calls(id);
        call
    }

    /// Opens a call that only this peer, as the leader of this term, may write.
    pub(super) fn call_bound(&mut self, id: HostId, kind: CallKind, command: Command) {
        self.calls += 1;
        let call = self.calls;
        let proposals = vec![by_rota(command)];
        let term = self.host(id).agent.as_ref().map_or(0, |agent| agent.term);
        if let Some(agent) = self.agent_mut(id) {
            agent.calls.insert(call, Call { kind, proposals: proposals.clone(), sent: Some((id, term)) });
        }
        self.own_after(id, CALL_MS, Own::CallDue(call));
        self.take_proposals(id, id, call, proposals);
    }

    /// Sends what was never sent to the leader of this term: a second application does no harm.
    pub(super) fn route_calls(&mut self, id: HostId) {
        let Some(agent) = self.agent_mut(id) else { return };
        let Some(leader) = agent.leader else { return };
        let route = (leader, agent.term);
        let mut open = Vec::new();
        for (call, what) in
            agent.calls.iter_mut().filter(|(_, c)| !c.kind.is_bound() && c.sent != Some(route))
        {
            open.push((*call, what.proposals.clone(), what.sent.is_some()));
            what.sent = Some(route);
        }
        for (call, proposals, again) in open {
            if again {
                self.reach.hit("proposed again to the next leader");
            }
            self.send(id, leader, Msg::Propose { from: id, call, proposals });
        }
    }

    fn proposed(&mut self, id: HostId, call: u64, outcomes: Option<(u64, Vec<Outcome>)>) {
        let Some(agent) = self.agent_mut(id) else { return };
        match outcomes {
            Some(outcomes) => {
                if let Some(done) = agent.calls.remove(&call) {
                    self.call_done(id, done.kind, Some(outcomes));
                }
            }
            None => match agent.calls.get_mut(&call) {
                // Not the leader: asked again at the next tick.
                Some(open) if !open.kind.is_bound() => open.sent = None,
                Some(_) => self.call_due(id, call),
                None => {}
            },
        }
    }

    /// Nobody answered in time: it may or may not be in the log.
    pub(super) fn call_due(&mut self, id: HostId, call: u64) {
        if let Some(open) = self.agent_mut(id).and_then(|agent| agent.calls.remove(&call)) {
            self.call_done(id, open.kind, None);
        }
    }

    fn call_done(&mut self, id: HostId, kind: CallKind, outcomes: Option<(u64, Vec<Outcome>)>) {
        let (index, mut all) = outcomes.unwrap_or_default();
        let first = if all.is_empty() { None } else { Some(all.swap_remove(0)) };
        match kind {
            CallKind::Register => self.registered(id, index, first),
            CallKind::Report => self.reported(id, first.is_some()),
            CallKind::Client(request) => {
                if let Some(outcome) = first {
                    let at = self.now + self.rng.range(1, 10);
                    self.queue.push(at, Ev::Outside(Outside::Answer(request, outcome)));
                }
            }
            CallKind::Plan => self.bound_call_over(id, false),
            CallKind::Expiry => self.bound_call_over(id, true),
        }
    }

    fn registered(&mut self, id: HostId, index: u64, outcome: Option<Outcome>) {
        let Some(agent) = self.agent_mut(id) else { return };
        agent.registering = None;
        if let Some(Outcome::HostRegistered { epoch }) = outcome {
            agent.registered = true;
            agent.granted = Some((epoch, index));
            self.take_epoch(id);
        }
    }

    /// The lease begins only when the replica has seen the registration: a restarted one that is behind would start
    /// again what ended long ago. (Seed 392 of an early day: granted, cancelled before it was launched, so no record on
    /// disk; the agent restarts, its replica shows the grant, the lease holds.)
    pub(super) fn take_epoch(&mut self, id: HostId) {
        let no_barrier = matches!(self.params.plant, Some(Plant::StaleReplica | Plant::ForgetTokens));
        let Some(agent) = self.agent_mut(id) else { return };
        let Some((epoch, _)) =
            agent.granted.filter(|(_, at)| no_barrier || agent.state.applied_index() >= *at)
        else {
            return;
        };
        agent.granted = None;
        agent.holder.set_epoch(epoch);
        self.renew(id);
    }

    fn reported(&mut self, id: HostId, told: bool) {
        let Some(agent) = self.agent_mut(id) else { return };
        if told {
            agent.outbox.committed();
        } else {
            agent.outbox.failed();
        }
        self.tell(id);
    }

    fn tell(&mut self, id: HostId) {
        let Some(reports) = self.agent_mut(id).and_then(|agent| agent.outbox.next_batch()) else { return };
        let command = Command::Report { host: id, reports };
        self.call(id, CallKind::Report, vec![by_rota(command)]);
    }

    /// A shim's word.
    pub(super) fn take_note(&mut self, id: HostId, note: Note) {
        let Some(agent) = self.agent_mut(id) else { return };
        match note {
            Note::Started(token, pid) => {
                if let Some(local) = agent.local.get_mut(&token)
                    && local.state == LocalState::Launching
                {
                    local.state = LocalState::Running { pid };
                }
                agent.outbox.started(token, pid);
            }
            Note::Ended(record) => {
                let local = agent.local.entry(record.token);
                let local = local.or_insert(Local { state: LocalState::Launching, end_asked: None });
                if !matches!(local.state, LocalState::Ended(_)) {
                    agent.outbox.ended(record.token, record.end.clone(), record.ran_ms);
                    local.state = LocalState::Ended(record);
                }
            }
        }
        self.compare(id);
    }

    /// Makes what runs here equal to what the log wants here.
    pub(super) fn compare(&mut self, id: HostId) {
        let now_local = self.local_ms(id);
        let Some(agent) = self.agent_mut(id) else { return };
        let desired: Vec<Desired> = agent
            .state
            .attempts_on(id)
            .map(|a| Desired { token: a.token, epoch: a.epoch, state: a.state, end_reason: a.end_reason })
            .collect();
        if desired.is_empty() && agent.local.is_empty() {
            return;
        }
        let actions =
            reconcile(&desired, &agent.local, &agent.holder, agent.state.applied_index(), now_local);
        for action in actions {
            self.carry_out(id, action);
        }
        self.tell(id);
    }

    fn carry_out(&mut self, id: HostId, action: Action) {
        let Some(agent) = self.agent_mut(id) else { return };
        match action {
            Action::Launch(token) => {
                let Some(attempt) = agent.state.attempt(token).cloned() else { return };
                let Some(spec) = agent.state.job(attempt.task.job).map(|job| job.spec.clone()) else {
                    return;
                };
                let meeting = gang::meeting(&agent.state, token);
                agent.local.insert(token, Local { state: LocalState::Launching, end_asked: None });
                if let Some(meeting) = meeting {
                    self.oracle_meets(id, token, &meeting);
                }
                if !self.order(id, &attempt, &spec) {
                    self.agent_mut(id).map(|agent| agent.local.remove(&token));
                }
            }
            Action::End(token, reason) => {
                if let Some(local) = agent.local.get_mut(&token) {
                    local.end_asked = Some(reason);
                }
                self.end_shim(id, token, reason);
            }
            Action::ReportStarted { token, pid } => agent.outbox.started(token, pid),
            Action::ReportEnded(record) => {
                agent.outbox.ended(record.token, record.end.clone(), record.ran_ms);
                agent
                    .local
                    .entry(record.token)
                    .or_insert(Local { state: LocalState::Ended(record), end_asked: None });
            }
            Action::Release(token) => {
                agent.local.remove(&token);
                agent.outbox.forget(token);
                self.host_mut(id).shims.remove(&token);
            }
        }
    }
}
