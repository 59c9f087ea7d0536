//! A cluster in one process: founded, grown, watched, and what scenarios do to it.

use super::air::Air;
use super::client::Clients;
use super::history::History;
use super::laws::Laws;
use super::peer::{CLUSTER, Door, Doors, Ground, Peer, Way};
use super::plant::Plant;
use super::steward;
use super::streams::Streams;
use super::trace::Trace;
use crate::world::rng::Rng;
use rota_consensus::{Consensus, StartError, Timings, Tuning};
use rota_node::net::{Identity, family};
use rota_protocol::command::{Command, Outcome, Proposal, TokenUse};
use rota_protocol::job::Actor;
use rota_protocol::{HostId, PublicError, RequestId};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Certificates are made once for all runs of a process: making them takes longer than a run.
static FAMILY: OnceLock<Arc<Vec<Arc<Identity>>>> = OnceLock::new();
/// Hosts that any run has.
const HOSTS_MAX: u64 = 9;
/// How often the checkers look, in ms.
const LOOK_MS: u64 = 20;
/// Whole states are small here, so copies are compared often.
const WHOLE_ENTRIES: u64 = 64;
const COMPARE_MS: u64 = 1_000;

/// What a run is made of.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) hosts: u64,
    pub(super) way: Way,
    pub(super) plant: Option<Plant>,
    pub(super) talks: bool,
    /// Entries after which a snapshot is taken, and those kept behind it.
    pub(super) snapshot_entries: (u64, u64),
    pub(super) segment_bytes: u64,
}

impl Plan {
    pub(super) fn new(seed: u64, hosts: u64, way: Way) -> Self {
        Self {
            seed,
            hosts,
            way,
            plant: None,
            talks: false,
            snapshot_entries: (2_000, 500),
            segment_bytes: 64 << 10,
        }
    }
}

/// The cluster.
pub(super) struct Lab {
    pub(super) rng: Rng,
    pub(super) ground: Ground,
    pub(super) peers: BTreeMap<HostId, Peer>,
    pub(super) clients: Clients,
    running: Vec<JoinHandle<()>>,
    watching: Vec<JoinHandle<()>>,
    requests: u64,
    _files: TempDir,
}

/// Why a run could not be set up or did not get where it should.
pub(super) type Failure = String;

impl Lab {
    /// Founds a cluster and lets it grow to its size.
    pub(super) async fn of(plan: &Plan) -> Result<Self, Failure> {
        let mut lab = Self::empty(plan)?;
        lab.start(HostId(1)).await.map_err(|error| error.to_string())?;
        let create = Command::CreateCluster {
            cluster: CLUSTER,
            name: "paused".into(),
            host_name: "h1".into(),
            addr: "10.0.0.1:4600".into(),
        };
        let door = lab.door(HostId(1))?;
        let create = Proposal { request: RequestId::NONE, actor: Actor::system(), command: create };
        door.chance.scope(door.peer.found(create)).await.map_err(|error| error.to_string())?;
        lab.watching.push(tokio::spawn(steward(lab.ground.doors.clone())));
        let laws = lab.ground.laws.clone();
        lab.watching.push(tokio::spawn(watch(lab.ground.doors.clone(), laws, lab.ground.trace.clone())));
        for host in 2..=plan.hosts {
            lab.admit(HostId(host)).await?;
        }
        lab.settled(Duration::from_secs(20)).await?;
        Ok(lab)
    }

    fn empty(plan: &Plan) -> Result<Self, Failure> {
        let files = folder().map_err(|error| error.to_string())?;
        let air = Air::new(plan.seed);
        let trace = Trace::new(plan.seed, plan.talks);
        let family = match FAMILY.get() {
            Some(family) => family.clone(),
            None => {
                let made = family(CLUSTER, HOSTS_MAX).map_err(|error| error.to_string())?;
                FAMILY.get_or_init(|| Arc::new(made.into_iter().map(Arc::new).collect())).clone()
            }
        };
        let tuning = Tuning {
            segment_bytes: plan.segment_bytes,
            snapshot_entries: plan.snapshot_entries.0,
            keep_entries: plan.snapshot_entries.1,
            whole_entries: WHOLE_ENTRIES,
            compare_ms: COMPARE_MS,
            ..Tuning::default()
        };
        let doors = Doors::default();
        let ground = Ground {
            seed: plan.seed,
            way: plan.way,
            plant: plan.plant,
            air,
            trace: trace.clone(),
            laws: Laws::default(),
            streams: Streams::default(),
            sockets: Default::default(),
            desks: Default::default(),
            doors: doors.clone(),
            disordered: Arc::default(),
            family,
            timings: Timings::CHAOS,
            tuning,
            dir: files.path().to_owned(),
        };
        let clients = Clients {
            doors,
            history: History::default(),
            trace,
            plant: plan.plant,
            over: Arc::new(AtomicBool::new(false)),
            keys: Arc::default(),
            only: Vec::new(),
            gap_ms: (5, 60),
        };
        Ok(Self {
            rng: Rng::new(plan.seed),
            ground,
            peers: BTreeMap::new(),
            clients,
            running: Vec::new(),
            watching: Vec::new(),
            requests: 0,
            _files: files,
        })
    }

    /// Virtual time, in ms.
    pub(super) fn now_ms(&self) -> u64 {
        self.ground.trace.now_ms()
    }

    pub(super) fn ids(&self) -> Vec<HostId> {
        self.peers.keys().copied().collect()
    }

    pub(super) fn others(&self, host: HostId) -> Vec<HostId> {
        self.ids().into_iter().filter(|other| *other != host).collect()
    }

    pub(super) fn door(&self, host: HostId) -> Result<Door, Failure> {
        self.ground.doors.at(host).ok_or_else(|| format!("host {host} is not on"))
    }

    /// Begins a host's next life.
    pub(super) async fn start(&mut self, host: HostId) -> Result<(), StartError> {
        let ground = &self.ground;
        self.peers.entry(host).or_insert_with(|| Peer::new(host, ground.clone())).start().await
    }

    /// Ends a host's life at once.
    pub(super) fn crash(&mut self, host: HostId) -> Result<(), Failure> {
        let peer = self.peers.get_mut(&host).ok_or("no such host")?;
        peer.crash().map_err(|error| format!("the lab failed: {error}"))
    }

    /// Where the files of the next life of a host that is off lie.
    pub(super) fn files(&self, host: HostId) -> PathBuf {
        self.peers.get(&host).map(Peer::root).unwrap_or_default().join("raft")
    }

    /// One more host, admitted and started.
    pub(super) async fn admit(&mut self, host: HostId) -> Result<(), Failure> {
        let token = [host.0 as u8; 32];
        let usage = TokenUse::Join { host_name: None };
        let mint = Command::MintToken { token, usage, expires_at_ms: u64::MAX };
        let (host_name, addr) = (format!("h{host}"), format!("10.0.0.{host}:4600"));
        let admit = Command::AdmitHost { token, host_name, addr };
        let proposals = [mint, admit].map(|command| self.by_rota(command)).to_vec();
        let leader = self.leader(Duration::from_secs(20)).await?;
        let outcomes = self.propose(leader, proposals).await.map_err(|error| error.to_string())?;
        match &outcomes[..] {
            [_, Outcome::HostAdmitted { host: given }] if *given == host => {}
            other => return Err(format!("host {host} was not admitted: {other:?}")),
        }
        self.start(host).await.map_err(|error| error.to_string())
    }

    fn by_rota(&mut self, command: Command) -> Proposal {
        self.requests += 1;
        Proposal { request: RequestId(u128::from(self.requests)), actor: Actor::system(), command }
    }

    /// Proposes at a host, with the lab's own patience.
    pub(super) async fn propose(
        &self,
        at: HostId,
        proposals: Vec<Proposal>,
    ) -> Result<Vec<Outcome>, PublicError> {
        let Some(door) = self.ground.doors.at(at) else {
            return Err(PublicError::new(rota_protocol::ErrorCode::NoLeader, "it is off"));
        };
        door.chance.scope(door.peer.propose(proposals, Duration::from_secs(5))).await
    }

    /// Waits for somebody who leads.
    pub(super) async fn leader(&self, patience: Duration) -> Result<HostId, Failure> {
        self.leader_among(&self.ids(), patience).await
    }

    /// The newest of those among these who lead with a quorum, waited for.
    pub(super) async fn leader_among(&self, hosts: &[HostId], patience: Duration) -> Result<HostId, Failure> {
        let leads = || {
            let doors = self.ground.doors.all();
            let leading = doors.iter().filter(|door| hosts.contains(&door.host)).filter_map(|door| {
                let now = *door.peer.leadership().borrow();
                now.leading.then_some((now.term, door.host))
            });
            leading.max().map(|(_, host)| host)
        };
        self.until(patience, "a leader", leads).await
    }

    /// Waits until something is so.
    pub(super) async fn until<T>(
        &self,
        patience: Duration,
        what: &str,
        mut is_so: impl FnMut() -> Option<T>,
    ) -> Result<T, Failure> {
        let waits = async {
            loop {
                if let Some(found) = is_so() {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(patience, waits).await;
        waited.map_err(|_| format!("no {what} within {} ms", patience.as_millis()))
    }

    /// Waits until all that are on agree on the members and hold the same log, applied.
    pub(super) async fn settled(&self, patience: Duration) -> Result<(), Failure> {
        let wanted = steward::voters_wanted(self.peers.len());
        let even = || {
            let doors = self.ground.doors.all();
            let views: Vec<_> = doors.iter().map(|door| (door.peer.status(), door.peer.inspect())).collect();
            let (first, _) = views.first()?;
            let same = views.iter().all(|(status, seen)| {
                status.voters == first.voters
                    && status.voters.len() == wanted
                    && seen.last == first.last_log
                    && seen.applied.map(|(_, index)| index) == Some(first.last_log)
            });
            (same && doors.iter().any(|door| door.peer.leadership().borrow().leading)).then_some(())
        };
        self.until(patience, "even cluster", even).await
    }

    /// Starts so many clients.
    pub(super) fn load(&mut self, clients: u64) {
        for _ in 0..clients {
            let rng = Rng::new(self.rng.bits());
            self.running.push(tokio::spawn(self.clients.clone().run(rng)));
        }
    }

    /// Starts clients that only know these hosts.
    pub(super) fn load_at(&mut self, clients: u64, hosts: &[HostId]) {
        let only = Clients { only: hosts.to_vec(), ..self.clients.clone() };
        for _ in 0..clients {
            let rng = Rng::new(self.rng.bits());
            self.running.push(tokio::spawn(only.clone().run(rng)));
        }
    }

    /// Lets clients finish what they began.
    pub(super) async fn rest(&mut self) {
        self.clients.over.store(true, Ordering::Relaxed);
        for client in std::mem::take(&mut self.running) {
            let _ = client.await;
        }
        self.clients.over.store(false, Ordering::Relaxed);
    }

    /// Mends everything, starts whoever is off.
    pub(super) async fn heal(&mut self) -> Result<(), Failure> {
        self.ground.air.heal();
        for host in self.ids() {
            let died = self.peers.get(&host).is_some_and(|peer| !peer.lives());
            let failed = self.ground.doors.at(host).is_some_and(|door| door.peer.failed().borrow().is_some());
            if died || failed {
                self.crash(host)?;
                self.start(host).await.map_err(|error| format!("host {host} does not start: {error}"))?;
            } else if let Some(disk) = self.peers.get(&host).and_then(Peer::disk) {
                disk.ail(|ills| {
                    *ills = super::disk::Ills { forgets_votes: ills.forgets_votes, ..Default::default() };
                });
            }
        }
        Ok(())
    }

    /// Everything has ended: nothing else runs than was begun by the run itself.
    pub(super) fn end(self) {
        for task in self.watching.iter().chain(&self.running) {
            task.abort();
        }
    }
}

fn folder() -> std::io::Result<TempDir> {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

/// What the raft actor does in the product: the next step of the members, whenever it may be time.
async fn steward(doors: Doors) {
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        for door in doors.all() {
            if door.peer.leadership().borrow().leading {
                let step = door.chance.scope(steward::step(&door));
                let stepped = tokio::time::timeout(Duration::from_secs(2), step).await;
                let _: Option<()> = stepped.ok();
            }
        }
    }
}

/// Looks at everybody, again and again; whole states are compared now and then.
async fn watch(doors: Doors, laws: Laws, trace: Trace) {
    for round in 0_u64.. {
        tokio::time::sleep(Duration::from_millis(LOOK_MS)).await;
        let doors = doors.all();
        for door in &doors {
            laws.look(door.host, &door.peer);
        }
        if round.is_multiple_of(50) {
            whole_states(&doors, &laws);
            for door in &doors {
                trace.note(format_args!("host {} at {:?}", door.host, door.peer.inspect().applied));
            }
        }
    }
}

fn whole_states(doors: &[Door], laws: &Laws) {
    let at = |peer: &Consensus| peer.read(rota_core::State::applied_index);
    for door in doors {
        let index = at(&door.peer);
        if doors.iter().filter(|other| at(&other.peer) == index).count() > 1 {
            laws.compare(door.host, &door.peer, index);
        }
    }
}

/// Runs a future in virtual time, on one thread, from the beginning.
pub(super) fn in_virtual_time<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // A runtime with a clock alone needs nothing that could be refused.
    let runtime = runtime.expect("a runtime without devices");
    runtime.block_on(run)
}
