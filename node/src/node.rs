//! The handles that live as long as the agent: agreement, network, shims, leases, and the doors of the actors.
//!
//! Not an actor and no logic: whoever needs a neighbour finds it here, so that actors can be restarted one by one.

use crate::actors::door::Door;
use crate::actors::{
    api, auditor, certifier, devices, gossip, health, leases, meter, raft, reconciler, renewer, scheduler,
    warden,
};
use crate::config::AgentConfig;
use crate::data::Data;
use crate::io::clock;
use crate::lead::Serving;
use crate::logic::container::Executor;
use crate::logic::dirt::Dirt;
use crate::logic::health::Faults;
use crate::logic::lease_book::LeaseBook;
use crate::logic::reconcile::LocalState;
use crate::members::Membership;
use crate::net::{Identity, Net};
use crate::relay::Relay;
use crate::shim::ShimHost;
use crate::warden::mps::Mps;
use crate::warden::series::JobSeries;
use rota_consensus::Consensus;
use rota_core::state::host::HostLife;
use rota_protocol::device::{DeviceReading, HostFacts};
use rota_protocol::gossip::StatusDigest;
use rota_protocol::ids::{BootId, ClusterId, DeviceUuid, HostId, LeaseEpoch, Token};
use rota_protocol::job::AttemptEnd;
use rota_protocol::members::DataLife;
use rota_protocol::trust::Print;
use rota_protocol::view::DoctorRow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::oneshot;

/// One way in for each actor.
#[derive(Default)]
pub struct Doors {
    /// Membership and address book.
    pub raft: Door<raft::Msg>,
    /// Plans.
    pub scheduler: Door<scheduler::Msg>,
    /// Expiry.
    pub leases: Door<leases::Msg>,
    /// This host's own lease.
    pub renewer: Door<renewer::Msg>,
    /// Desired against running.
    pub reconciler: Door<reconciler::Msg>,
    /// Devices.
    pub devices: Door<devices::Msg>,
    /// Health of devices.
    pub health: Door<health::Msg>,
    /// Gossip.
    pub gossip: Door<gossip::Msg>,
    /// This host's certificate.
    pub certifier: Door<certifier::Msg>,
    /// Gauges.
    pub meter: Door<meter::Msg>,
    /// Who is on the cards.
    pub warden: Door<warden::Msg>,
    /// Both sides compared.
    pub auditor: Door<auditor::Msg>,
    /// The unix socket.
    pub api: Door<api::Msg>,
}

/// What gossip last said of the other hosts.
#[derive(Debug, Default)]
pub struct Seen {
    /// Newest status of each host.
    pub status: BTreeMap<HostId, StatusDigest>,
    /// `alive`, `suspect` or `down`.
    pub states: BTreeMap<HostId, &'static str>,
}

/// Renewals that wait for a quorum confirmation, by ticket.
#[derive(Debug, Default)]
pub struct Renewals {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<bool>>>,
}

impl Renewals {
    /// A ticket, and where its answer comes.
    pub fn open(&self) -> (u64, oneshot::Receiver<bool>) {
        let (sender, receiver) = oneshot::channel();
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(ticket, sender);
        (ticket, receiver)
    }

    /// Answers tickets.
    pub fn answer(&self, tickets: &[u64], renewed: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for ticket in tickets {
            if let Some(sender) = waiting.remove(ticket) {
                // The caller may have given up; its renewal then counts for nothing, which is safe.
                let _ = sender.send(renewed);
            }
        }
    }
}

/// The agent.
pub struct Node {
    /// Its settings.
    pub config: AgentConfig,
    /// Who it is.
    pub identity: Arc<Identity>,
    /// This host.
    pub host: HostId,
    /// The cluster.
    pub cluster: ClusterId,
    /// This boot of the machine.
    pub boot: BootId,
    /// Grows with each start of the agent.
    pub incarnation: u64,
    /// Agreement.
    pub consensus: Consensus,
    /// Links to the other hosts.
    pub net: Arc<Net>,
    /// Running attempts.
    pub shims: ShimHost,
    /// Blobs.
    pub data: Arc<Data>,
    /// The container runtime of this host.
    pub containers: Option<Executor>,
    /// Ways to the actors.
    pub doors: Doors,
    /// This host's hardware, once it was looked at.
    pub facts: Mutex<Option<HostFacts>>,
    /// This host's own lease, once it is registered.
    pub lease: Mutex<Option<renewer::OwnLease>>,
    leases: Mutex<LeaseBook>,
    /// Renewals under way, when this peer leads.
    pub renewals: Renewals,
    /// Renewals of other hosts on their way to the leader.
    pub relay: Relay,
    /// Attempts whose devices or programs are known to have failed.
    pub faults: Mutex<Faults>,
    /// What gossip said.
    pub seen: RwLock<Seen>,
    /// This host's own newest readings.
    pub own_readings: RwLock<Vec<DeviceReading>>,
    dirt: Mutex<Dirt>,
    /// Cards that must not be granted although the driver finds them well, and why; the warden's word.
    pub marks: Mutex<BTreeMap<DeviceUuid, String>>,
    /// Cards of which the driver tells who is on them. Only grows: one that falls silent is not let go unseen.
    pub watched: RwLock<BTreeSet<DeviceUuid>>,
    /// What jobs use of cards.
    pub job_series: RwLock<JobSeries>,
    /// Attempts by their processes on cards, as of the warden's last look.
    pub on_cards: Mutex<BTreeSet<(Token, DeviceUuid)>>,
    /// Daemons through which jobs share cards.
    pub mps: tokio::sync::Mutex<Mps>,
    /// Calls of clients under way.
    pub serving: Serving,
    /// An authority that was made here and is in no file yet: SHA-256 of its certificate, and its key.
    pub next_authority: Mutex<Option<(Print, String)>>,
    /// Membership.
    pub membership: Membership,
    closing: AtomicBool,
}

/// What [`Node::new`] is made of.
pub struct Parts {
    /// Its settings.
    pub config: AgentConfig,
    /// Who it is.
    pub identity: Arc<Identity>,
    /// This boot of the machine.
    pub boot: BootId,
    /// Agreement.
    pub consensus: Consensus,
    /// Links to the other hosts.
    pub net: Arc<Net>,
    /// Running attempts.
    pub shims: ShimHost,
    /// This start of the agent.
    pub life: DataLife,
}

impl Node {
    /// Puts the parts together; nothing runs yet.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let mut living = parts.shims.locals();
        living.retain(|_, local| !matches!(local.state, LocalState::Ended(_)));
        let living = living.into_keys().collect();
        let sharing_daemons = Mps::new(&parts.config.data_dir, &parts.config.sharing.mps_control);
        Self {
            host: parts.identity.host,
            cluster: parts.identity.cluster,
            boot: parts.boot,
            incarnation: clock::wall_ms(),
            leases: Mutex::new(LeaseBook::new(parts.config.profile.lease())),
            data: Data::open(&parts.config.data_dir, &parts.config.inputs, &living),
            containers: crate::containers::find(&parts.config.containers),
            config: parts.config,
            identity: parts.identity,
            consensus: parts.consensus,
            net: parts.net,
            shims: parts.shims,
            doors: Doors::default(),
            renewals: Renewals::default(),
            relay: Relay::default(),
            facts: Mutex::new(None),
            lease: Mutex::new(None),
            faults: Mutex::default(),
            seen: RwLock::default(),
            own_readings: RwLock::default(),
            dirt: Mutex::default(),
            marks: Mutex::default(),
            watched: RwLock::default(),
            job_series: RwLock::default(),
            on_cards: Mutex::default(),
            mps: tokio::sync::Mutex::new(sharing_daemons),
            serving: Serving::default(),
            next_authority: Mutex::default(),
            membership: Membership::of(parts.life),
            closing: AtomicBool::new(false),
        }
    }

    /// The key of an authority that this host holds, PEM.
    #[must_use]
    pub fn authority_key(&self, ca: &Print) -> Option<String> {
        let made = self.next_authority.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let made = made.filter(|(of, _)| of == ca).map(|(_, key)| key);
        made.or_else(|| self.net.identity().authority_key(ca))
    }

    /// The leader's book of leases.
    pub fn lease_book(&self) -> MutexGuard<'_, LeaseBook> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why devices of this host are kept out although they are well.
    pub fn dirt(&self) -> MutexGuard<'_, Dirt> {
        self.dirt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hosts that hold leases by the state, and their epochs.
    #[must_use]
    pub fn lease_holders(&self) -> Vec<(HostId, LeaseEpoch)> {
        self.consensus.read(|state| {
            state.hosts().filter(|host| host.life == HostLife::Up).map(|host| (host.id, host.epoch)).collect()
        })
    }

    /// Hosts that were silent too long to be given new work, as far as the leader knows.
    #[must_use]
    pub fn suspected(&self) -> BTreeSet<HostId> {
        self.lease_book().suspected(clock::boottime_ms()).into_iter().collect()
    }

    /// How an attempt ended, given how its process did: what is known of its devices may explain it.
    #[must_use]
    pub fn end_of(&self, token: Token, end: AttemptEnd) -> AttemptEnd {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.end_of(token, end, clock::boottime_ms())
    }

    /// The first of these devices that does not answer as it should just now, and why.
    #[must_use]
    pub fn sick(&self, devices: &[DeviceUuid]) -> Option<String> {
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &facts.as_ref()?.devices;
        devices.iter().find_map(|uuid| {
            let device = known.iter().find(|device| device.uuid == *uuid)?;
            let reason = device.health.reason().filter(|_| !device.health.is_healthy())?;
            Some(format!("{uuid} was not well when it was to start: {reason}"))
        })
    }

    /// The newest readings of all devices in the cluster, own and gossiped.
    #[must_use]
    pub fn readings(&self) -> BTreeMap<DeviceUuid, DeviceReading> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        let own = self.own_readings.read().unwrap_or_else(PoisonError::into_inner);
        seen.status
            .values()
            .flat_map(|status| &status.devices)
            .chain(own.iter())
            .map(|reading| (reading.uuid.clone(), reading.clone()))
            .collect()
    }

    /// What gossip thinks of each host.
    #[must_use]
    pub fn gossip_states(&self) -> BTreeMap<HostId, &'static str> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).states.clone()
    }

    /// The warden's last look: which attempts have processes on which cards.
    pub fn on_cards_now(&self, seen: BTreeSet<(Token, DeviceUuid)>) {
        *self.on_cards.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Those of these devices of which the driver tells who is on them.
    #[must_use]
    pub fn watched_of(&self, devices: &[DeviceUuid]) -> Vec<DeviceUuid> {
        let watched = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        devices.iter().filter(|uuid| watched.contains(*uuid)).cloned().collect()
    }

    /// The agent's own checks.
    pub async fn doctor(&self) -> Vec<DoctorRow> {
        let mut rows = crate::ops::doctor_rows(&self.config).await;
        // This agent knows what it uses; the other row is what could be told without one.
        rows.retain(|row| row.check != crate::doctor::ISOLATION);
        rows.push(crate::doctor::isolation(self.shims.place()));
        rows
    }

    /// The process is going down on purpose: deaths of actors are no longer answered.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// Whether [`Node::close`] was called.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }
}
