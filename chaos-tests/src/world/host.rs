//! One machine and the agent that runs on it: what dies with the process, what dies with the boot, what stays on disk.

use super::clock::Clock;
use super::lead::Lead;
use super::queue::{Ev, Own};
use super::shim::Shim;
use super::sim::World;
use rota_core::State;
use rota_node::logic::lease::LeaseHolder;
use rota_node::logic::outbox::Outbox;
use rota_node::logic::reconcile::Local;
use rota_protocol::command::Proposal;
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts, HostRegistration};
use rota_protocol::{BootId, DeviceUuid, HostId, LeaseEpoch, Token};
use std::collections::{BTreeMap, BTreeSet};

/// A machine.
#[derive(Debug)]
pub struct Host {
    /// Its number.
    pub id: HostId,
    /// Its boot-time clock.
    pub clock: Clock,
    /// Counts boots; names what belongs to which.
    pub boots: u64,
    /// Power is on and the system is up.
    pub up: bool,
    /// Attempts that left something here: live shims and records on disk.
    pub shims: BTreeMap<Token, Shim>,
    /// Tokens whose records are on the disk.
    pub used: BTreeSet<Token>,
    /// Lease files of this boot: the deadline of each epoch, in local ms.
    pub leases: BTreeMap<LeaseEpoch, u64>,
    /// The agent, while its process lives.
    pub agent: Option<Box<Agent>>,
    /// Counts the agent's processes.
    pub life: u64,
    /// The agent's process is stopped.
    pub frozen: bool,
    /// What waits for it to go on.
    pub held: Vec<Ev>,
    /// A copy of the replica on disk.
    pub snapshot: Option<Vec<u8>>,
    /// Added to the time that applying takes, in ms.
    pub apply_lag_ms: u64,
    /// Its wall clock against true time, in ms.
    pub wall_off_ms: u64,
    /// Its GPUs.
    pub gpus: u32,
}

/// An agent's process.
#[derive(Debug)]
pub struct Agent {
    /// Its replica.
    pub state: State,
    /// The log is committed up to here, as far as it heard.
    pub known: u64,
    /// A catch-up is on the agenda.
    pub applying: bool,
    /// How long reading back its log keeps the replica behind, in ms.
    pub replay_ms: u64,
    /// The newest term it heard of.
    pub term: u64,
    /// Who leads it.
    pub leader: Option<HostId>,
    /// Its lease.
    pub holder: LeaseHolder,
    /// The log knows of this process.
    pub registered: bool,
    /// The epoch given to it, and the index that its replica must reach before anything may start under it.
    pub granted: Option<(LeaseEpoch, u64)>,
    /// The call that is to make it so.
    pub registering: Option<u64>,
    /// The last renewal was answered: no need of a relay.
    pub heard: bool,
    /// Attempts of this host as it knows them.
    pub local: BTreeMap<Token, Local>,
    /// What it has to tell.
    pub outbox: Outbox,
    /// Open calls.
    pub calls: BTreeMap<u64, Call>,
    /// What it remembers as the leader.
    pub lead: Option<Box<Lead>>,
}

/// One call of proposals.
#[derive(Debug, Clone)]
pub struct Call {
    /// What it is for.
    pub kind: super::agent::CallKind,
    /// What.
    pub proposals: Vec<Proposal>,
    /// To whom and in which term it was sent last.
    pub sent: Option<(HostId, u64)>,
}

impl Host {
    /// A machine that is off.
    #[must_use]
    pub fn new(id: HostId, clock: Clock, gpus: u32) -> Self {
        Self {
            id,
            clock,
            boots: 0,
            up: false,
            shims: BTreeMap::new(),
            used: BTreeSet::new(),
            leases: BTreeMap::new(),
            agent: None,
            life: 0,
            frozen: false,
            held: Vec::new(),
            snapshot: None,
            apply_lag_ms: 0,
            wall_off_ms: 0,
            gpus,
        }
    }

    /// The kernel's boot id.
    #[must_use]
    pub fn boot(&self) -> BootId {
        BootId((u128::from(self.id.0) << 64) | u128::from(self.boots))
    }

    /// As it registers.
    #[must_use]
    pub fn registration(&self) -> HostRegistration {
        let device = |index: u32| DeviceFacts {
            uuid: DeviceUuid(format!("GPU-{}-{index}", self.id)),
            kind: DeviceKind::Gpu,
            model: "NVIDIA H100 80GB HBM3".into(),
            vram_mib: Some(81_920),
            bus: None,
            index: Some(index),
            numa: Some(index / 2),
            compute_cap: Some(90),
            island: Some(index / 4),
            health: DeviceHealth::Healthy,
            detail: Default::default(),
        };
        HostRegistration {
            boot: self.boot(),
            addr: format!("10.0.0.{}:4600", self.id),
            facts: HostFacts {
                cpus_milli: 16_000,
                mem_mib: 65_536,
                devices: (0..self.gpus).map(device).collect(),
                labels: BTreeMap::new(),
                version: "chaos".into(),
                notes: Default::default(),
            },
        }
    }
}

impl World {
    /// All hosts' numbers.
    pub(super) fn ids(&self) -> impl Iterator<Item = HostId> + use<> {
        (1..=self.hosts.len() as u64).map(HostId)
    }

    fn at(id: HostId) -> usize {
        usize::try_from(id.0.saturating_sub(1)).unwrap_or(usize::MAX)
    }

    pub(super) fn host(&self, id: HostId) -> &Host {
        &self.hosts[Self::at(id)]
    }

    pub(super) fn host_mut(&mut self, id: HostId) -> &mut Host {
        &mut self.hosts[Self::at(id)]
    }

    pub(super) fn agent_mut(&mut self, id: HostId) -> Option<&mut Agent> {
        self.host_mut(id).agent.as_deref_mut()
    }

    /// The host's boot-time clock now.
    pub(super) fn local_ms(&self, id: HostId) -> u64 {
        self.host(id).clock.local(self.now)
    }

    /// The host's wall clock now.
    pub(super) fn wall_ms(&self, id: HostId) -> u64 {
        super::log::WALL_START_MS + self.now + self.host(id).wall_off_ms
    }

    /// A timer of the host's present process.
    pub(super) fn own_after(&mut self, id: HostId, after_ms: u64, own: Own) {
        let life = self.host(id).life;
        self.queue.push(self.now + after_ms, Ev::Own(id, life, own));
    }
}
