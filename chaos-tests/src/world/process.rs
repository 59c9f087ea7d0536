//! The beginning and the end of an agent's process: what it finds on disk and among the shims, what it leaves.

use super::host::Agent;
use super::log::{Place, apply_place};
use super::oracle::Law;
use super::params::Profile;
use super::plant::Plant;
use super::queue::Own;
use super::sim::World;
use rota_core::{State, snapshot};
use rota_node::logic::lease::LeaseHolder;
use rota_node::logic::outbox::Outbox;
use rota_protocol::HostId;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::plan::Move;
use std::collections::BTreeMap;

/// How long a restarted replica may stay behind, at most.
const REPLAY_MS_MAX: u64 = 2_500;

impl World {
    /// The service manager starts the agent's process: the replica comes from its disk, attempts from their shims.
    pub(super) fn start_agent(&mut self, id: HostId) {
        if !self.host(id).up || self.host(id).agent.is_some() {
            return;
        }
        let state = self.replica_from_disk(id);
        let (params, faults) = (self.params.lease, Plant::logic(self.params.plant));
        let local = self.adopt(id);
        let slow = self.rng.chance(500) && self.params.profile != Profile::Quiet;
        let replay_ms = if slow { self.rng.range(50, REPLAY_MS_MAX) } else { 0 };
        let host = self.host_mut(id);
        host.life += 1;
        host.frozen = false;
        host.held.clear();
        host.agent = Some(Box::new(Agent {
            known: state.applied_index(),
            state,
            applying: false,
            replay_ms,
            term: 0,
            leader: None,
            holder: LeaseHolder::with_faults(params, faults),
            registered: false,
            granted: None,
            registering: None,
            heard: true,
            local,
            outbox: Outbox::new(),
            calls: BTreeMap::new(),
            lead: None,
        }));
        self.note(|| format!("the agent of host {id} starts"));
        self.own_after(id, 1, Own::Tick);
    }

    /// The log on disk replayed from its start, or from a snapshot: up to what was known, or less.
    fn replica_from_disk(&mut self, id: HostId) -> State {
        let mut state = State::new().with_faults(Plant::core(self.params.plant));
        if let Some(bytes) = self.host(id).snapshot.clone().filter(|_| self.rng.chance(700)) {
            match snapshot::decode(&bytes) {
                Ok(decoded) => {
                    state = decoded.with_faults(Plant::core(self.params.plant));
                    self.reach.hit("snapshot read back");
                }
                Err(error) => self.oracle.broken(
                    self.now,
                    Law::I8,
                    format!("host {id} cannot read its snapshot: {error}"),
                ),
            }
        }
        let mut upto = self.rng.range(state.applied_index(), self.log.last());
        if self.rng.chance(500) {
            // Most telling is a replica that has just seen a grant to this host, whatever became of it since.
            // Above all one that was never launched: nothing on disk remembers it.
            let all = state.applied_index() + 1..=self.log.last();
            let grants: Vec<u64> = all.filter(|index| self.grants_to(id, *index)).collect();
            let on_disk = |index: &u64| self.host(id).used.iter().any(|token| token.log_index() == *index);
            let unknown: Vec<u64> = grants.iter().copied().filter(|index| !on_disk(index)).collect();
            let grants = if unknown.is_empty() { grants } else { unknown };
            upto = self.rng.pick(&grants).unwrap_or(upto);
        }
        while state.applied_index() < upto {
            let next = state.applied_index() + 1;
            match self.log.place(next) {
                Some(Place::Blank) => apply_place(&mut state, next, &Place::Blank),
                Some(place) => apply_place(&mut state, next, &place.clone()),
                None => break,
            }
        }
        state
    }

    fn grants_to(&self, id: HostId, index: u64) -> bool {
        let Some(Place::Normal(entry)) = self.log.place(index) else { return false };
        let names = |one: &Move| match one {
            Move::Place { host, .. } => *host == id,
            Move::Start { parts, .. } => parts.iter().any(|part| part.host == id),
            _ => false,
        };
        let plans =
            |p: &Proposal| matches!(&p.command, Command::CommitPlan { plan } if plan.moves.iter().any(names));
        entry.proposals.iter().any(plans)
    }

    /// The process is gone; shims and disk stay.
    pub(super) fn kill_agent(&mut self, id: HostId) {
        let keep_snapshot = self.rng.chance(300);
        let host = self.host_mut(id);
        let Some(agent) = host.agent.take() else { return };
        host.frozen = false;
        host.held.clear();
        if keep_snapshot {
            host.snapshot = Some(snapshot::encode(&agent.state));
        }
        self.note(|| format!("the agent of host {id} dies"));
        self.lose_unborn_shims(id);
    }
}
