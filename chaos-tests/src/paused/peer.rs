//! One peer over all its lives: started, crashed, started again from what its disk kept.

use super::air::Air;
use super::desk::{Counter, Desk};
use super::direct::{Desks, Direct};
use super::disk::{FaultDisk, Paced};
use super::laws::Laws;
use super::plant::{Hasty, Plant};
use super::socket::{Socket, Sockets, address};
use super::streams::Streams;
use super::trace::Trace;
use rota_consensus::disk::Step;
use rota_consensus::runtime::Chance;
use rota_consensus::{Consensus, ConsensusConfig, Faults, PeerLink, StartError, Timings, Tuning, watch};
use rota_node::net::{Identity, Net, NetConfig, NetTimings};
use rota_protocol::{ClusterId, HostId};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The cluster of all runs.
pub(super) const CLUSTER: ClusterId = ClusterId(0xc1a0_5000);
/// The wall clock at the beginning of a run, in ms.
const EPOCH_MS: u64 = 1_790_000_000_000;

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The product's own QUIC with mutual TLS over datagrams in memory.
    Quic,
    /// Whole messages in their real encoding.
    Direct,
}

/// What all lives of all peers share.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) seed: u64,
    pub(super) way: Way,
    pub(super) plant: Option<Plant>,
    pub(super) air: Air,
    pub(super) trace: Trace,
    pub(super) laws: Laws,
    pub(super) streams: Streams,
    pub(super) sockets: Sockets,
    pub(super) desks: Desks,
    pub(super) doors: Doors,
    /// The host whose next life applies without an order, by its number; 0 for none.
    pub(super) disordered: Arc<AtomicU64>,
    pub(super) family: Arc<Vec<Arc<Identity>>>,
    pub(super) timings: Timings,
    pub(super) tuning: Tuning,
    pub(super) dir: PathBuf,
}

/// What a client needs of a peer that is on.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) host: HostId,
    pub(super) peer: Consensus,
    pub(super) chance: Chance,
    /// True once the machine is off.
    pub(super) ended: watch::Receiver<bool>,
}

/// The doors of all peers that are on.
#[derive(Clone, Default)]
pub(super) struct Doors(Arc<Mutex<BTreeMap<HostId, Door>>>);

impl Doors {
    pub(super) fn all(&self) -> Vec<Door> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn at(&self, host: HostId) -> Option<Door> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&host).cloned()
    }

    fn put(&self, door: Door) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(door.host, door);
    }

    fn remove(&self, host: HostId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&host);
    }
}

/// The product's network on a socket in memory.
type Port = (Arc<Net>, Arc<Socket>);

/// A life under way.
struct Life {
    door: Door,
    disk: Arc<FaultDisk>,
    desk: Arc<Desk>,
    net: Option<Port>,
    dead: Arc<AtomicBool>,
    ended: watch::Sender<bool>,
}

/// One host.
pub(super) struct Peer {
    pub(super) host: HostId,
    ground: Ground,
    lives: u32,
    life: Option<Life>,
    /// What its wall clock is off, in ms.
    pub(super) skew_ms: Arc<AtomicI64>,
}

impl Peer {
    pub(super) fn new(host: HostId, ground: Ground) -> Self {
        Self { host, ground, lives: 0, life: None, skew_ms: Arc::default() }
    }

    /// Where the files of its next life lie, or those of the one under way.
    pub(super) fn root(&self) -> PathBuf {
        self.ground.dir.join(format!("host-{}", self.host)).join(format!("life-{}", self.lives))
    }

    /// The disk of the life under way.
    pub(super) fn disk(&self) -> Option<&Arc<FaultDisk>> {
        self.life.as_ref().map(|life| &life.disk)
    }

    /// It is on, and its process has not died of itself.
    pub(super) fn lives(&self) -> bool {
        self.life.as_ref().is_some_and(|life| !life.disk.died())
    }

    /// Its network, over QUIC.
    pub(super) fn net(&self) -> Option<&Arc<Net>> {
        self.life.as_ref()?.net.as_ref().map(|(net, _)| net)
    }

    /// What hears for it.
    pub(super) fn desk(&self) -> Option<&Arc<Desk>> {
        self.life.as_ref().map(|life| &life.desk)
    }

    fn faults(&self) -> Faults {
        let mut faults = Plant::faults(self.ground.plant);
        faults.disorder |= self.ground.disordered.load(Ordering::Relaxed) == self.host.0;
        faults
    }

    fn wall_ms(&self) -> Arc<dyn Fn() -> u64 + Send + Sync> {
        let (trace, skew) = (self.ground.trace.clone(), self.skew_ms.clone());
        Arc::new(move || (EPOCH_MS + trace.now_ms()).saturating_add_signed(skew.load(Ordering::Relaxed)))
    }

    /// Begins a life.
    pub(super) async fn start(&mut self) -> Result<(), StartError> {
        let ground = self.ground.clone();
        let (host, root) = (self.host, self.root());
        let lab = |error: io::Error| StartError::Config(format!("the lab failed: {error}"));
        std::fs::create_dir_all(&root).map_err(lab)?;
        let seed = ground.seed ^ (host.0 << 32) ^ (u64::from(self.lives) << 40);
        let disk =
            FaultDisk::new(&root, host, seed, ground.air.clone(), ground.trace.clone()).map_err(lab)?;
        disk.ail(|ills| ills.forgets_votes = ground.plant == Some(Plant::VoteNotSynced));
        let chance = Chance::new(seed);
        let desk = Desk::new(host, chance.clone(), ground.laws.clone());
        let dead = Arc::new(AtomicBool::new(false));
        ground.air.off(host, false);
        let (link, net) = self.link(&desk, &dead, seed).await?;
        let tuning = Tuning {
            disk: Arc::new(Paced(disk.clone())),
            wall_ms: self.wall_ms(),
            faults: self.faults(),
            ..ground.tuning.clone()
        };
        let config =
            ConsensusConfig { host, cluster: CLUSTER, dir: root.join("raft"), timings: ground.timings };
        let started = chance.scope(Consensus::start_in(config, tuning, link)).await;
        let peer = match started {
            Ok(peer) => peer,
            Err(error) => {
                ground.desks.remove(host);
                ground.air.off(host, true);
                return Err(error);
            }
        };
        desk.open(peer.clone());
        ground.laws.reborn(host, &peer);
        ground.streams.listen(host, &peer);
        let (ended, watched) = watch::channel(false);
        let door = Door { host, peer, chance, ended: watched };
        ground.doors.put(door.clone());
        ground.trace.note(format_args!("host {host} begins life {}", self.lives));
        self.life = Some(Life { door, disk, desk, net, dead, ended });
        Ok(())
    }

    async fn link(
        &self,
        desk: &Arc<Desk>,
        dead: &Arc<AtomicBool>,
        seed: u64,
    ) -> Result<(Arc<dyn PeerLink>, Option<Port>), StartError> {
        let ground = &self.ground;
        let (link, net): (Arc<dyn PeerLink>, _) = match ground.way {
            Way::Direct => {
                ground.desks.put(desk.clone());
                let (air, desks, trace) = (ground.air.clone(), ground.desks.clone(), ground.trace.clone());
                (Arc::new(Direct { me: self.host, air, desks, trace, dead: dead.clone() }), None)
            }
            Way::Quic => {
                let (air, trace) = (ground.air.clone(), ground.trace.clone());
                let socket = ground.sockets.bind(self.host, air, trace);
                let identity = ground.family[(self.host.0 - 1) as usize].clone();
                let config = NetConfig {
                    timings: NetTimings::fast(),
                    socket: Some(socket.clone()),
                    rng_seed: Some(seed),
                    ..NetConfig::new(identity, address(self.host))
                };
                let net = Net::start(config, Arc::new(Counter(desk.clone())))
                    .await
                    .map_err(|error| StartError::Config(error.to_string()))?;
                for other in (1..=ground.family.len() as u64).map(HostId) {
                    net.set_peer(other, address(other).to_string());
                }
                (net.clone(), Some((net, socket)))
            }
        };
        let hasty = ground.plant == Some(Plant::AckBeforeQuorum);
        Ok((if hasty { Arc::new(Hasty(link)) } else { link }, net))
    }

    /// The machine goes off at once. What it kept is there for its next life.
    pub(super) fn crash(&mut self) -> io::Result<()> {
        let Some(life) = self.life.take() else { return Ok(()) };
        let ground = &self.ground;
        life.disk.kill();
        life.dead.store(true, Ordering::Relaxed);
        ground.doors.remove(self.host);
        ground.desks.remove(self.host);
        life.ended.send_replace(true);
        if let Some((net, socket)) = life.net {
            socket.close();
            net.close();
        }
        self.lives += 1;
        let lost = life.disk.survive(&self.root())?;
        ground.trace.met(lost, 1);
        for (step, times) in life.disk.met() {
            ground.trace.met(step_met(step), times);
        }
        ground.trace.note(format_args!("host {} is off, {lost}", self.host));
        // The rest of it can change nothing any more; it is let go at leisure.
        tokio::spawn(async move { life.door.chance.scope(life.door.peer.shutdown()).await });
        Ok(())
    }
}

/// What runs should meet, by the step that shows it.
pub(super) fn step_met(step: Step) -> &'static str {
    match step {
        Step::Vote => "vote written",
        Step::Append => "entry written",
        Step::Truncate => "log cut back",
        Step::Purge => "log purged",
        Step::Spare => "spare made",
        Step::Activate => "segment opened",
        Step::Recycle => "segment recycled",
        Step::Mark => "host marked",
        Step::Export => "snapshot taken",
        Step::Import => "snapshot installed",
        Step::Promote => "snapshot put in place",
        Step::Read => "file read at start",
    }
}
