//! `rota agent`: puts the parts together in the order in which they need each other, runs until told to stop, and
//! takes them apart so that attempts live on.
//!
//! Order: lock the data directory, identity, network, agreement, shims, actors, HTTP, and only then tell systemd.

use crate::actors::root::{Root, end_process};
use crate::actors::{early, failpoint, reconciler, renewer, root};
use crate::address_book;
use crate::config::{AgentConfig, ConfigError};
use crate::devices::host::boot_id;
use crate::elections::Chosen;
use crate::http::{self, Health, HttpState, MetricsToken};
use crate::io::clock;
use crate::lead;
use crate::machine::{self, MachineError};
use crate::members::{door, life};
use crate::meters::Meters;
use crate::net::{
    Identity, IdentityError, Net, NetConfig, NetError, NetTimings, keep_keys_out_of_dumps, stamp,
};
use crate::node::{Node, Parts};
use crate::notify::Notify;
use crate::peer_handler::Handler;
use crate::shim::{self, ShimError, ShimHost, ShimNote};
use ractor::Actor;
use rota_consensus::{Consensus, ConsensusConfig, PeerLink, StartError, Timings, fsync_pace};
use rota_protocol::command::{Command, Proposal};
use rota_protocol::health::HealthReport;
use rota_protocol::ids::HostId;
use rota_protocol::ids::RequestId;
use rota_protocol::job::Actor as Author;
use rota_protocol::members::PeerLife;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Notes of shims that may wait for the reconciler.
const SHIM_NOTES_MAX: usize = 4_096;
/// How often the event loop shows that it turns, where systemd does not say.
const ALIVE_DEFAULT: Duration = Duration::from_secs(30);
/// How long the log may take to hear that this agent stops on purpose.
const SAY_STOPPING: Duration = Duration::from_millis(500);
/// How long clients that have asked already may wait for their answers.
const ANSWERS: Duration = Duration::from_millis(500);
/// How long the first entries of a cluster may take.
const FIRST_VERSION: Duration = Duration::from_secs(10);
/// How long a leader may take to hand over before it leaves.
const HAND_OVER: Duration = Duration::from_millis(1_500);

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another agent uses the data directory.
    #[error("another agent runs on {0}: one data directory serves one agent")]
    Locked(String),
    /// The data directory cannot be used.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// Who this host is cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The data directory is another machine's.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The network cannot be used.
    #[error(transparent)]
    Net(#[from] NetError),
    /// This host was removed from its cluster.
    #[error("{0}")]
    Removed(String),
    /// The data directory cannot speak for this host.
    #[error(transparent)]
    Life(#[from] life::LifeError),
    /// Agreement cannot start.
    #[error(transparent)]
    Consensus(#[from] StartError),
    /// Attempts cannot be kept.
    #[error(transparent)]
    Shim(#[from] ShimError),
    /// The actor tree did not come up.
    #[error("the actor tree did not start: {0}")]
    Actors(String),
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> AgentError {
    let what = what.into();
    move |error| AgentError::Io(what, error)
}

/// A running agent.
pub struct Running {
    /// Its handles.
    pub node: Arc<Node>,
    root: ractor::ActorRef<root::Msg>,
    /// Held for as long as the agent lives.
    _lock: File,
}

/// Starts an agent; it serves when this returns, though its host may still be registering.
///
/// # Errors
/// Anything that keeps it from serving, named with what to do.
pub async fn start(config: AgentConfig) -> Result<Running, AgentError> {
    config.check()?;
    let meters = Meters::install().map_err(|e| AgentError::Actors(e.to_string()))?;
    tokio::spawn(meters.clone().upkeep());
    let lock = lock(&config.data_dir)?;
    if let Ok(why) = std::fs::read_to_string(crate::members::removed_path(&config.data_dir)) {
        return Err(AgentError::Removed(why.trim().to_owned()));
    }
    machine::check(&config.data_dir)?;
    let life = config.certificates.life().map_err(|e| ConfigError::Rule(e.to_string()))?;
    let (identity, renewed) = Identity::load_or_renew(&config.data_dir, life)?;
    if renewed {
        tell_renewed();
    }
    let identity = Arc::new(identity);
    let boot = boot_id().unwrap_or_default();
    // What ended the agent before is no news any more.
    let _ = std::fs::remove_file(door::note_path(&config.data_dir));
    let life = life::next(&config.data_dir, &identity)?;
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let handler = Arc::new(Handler::new(PeerLife { life, machine, addr: config.advertised() }));
    let net = Net::start(net_config(&config, &identity), Arc::clone(&handler) as Arc<_>).await?;
    let consensus_config = ConsensusConfig {
        host: identity.host,
        cluster: identity.cluster,
        dir: config.data_dir.join("raft"),
        timings: timings(&config).await?,
    };
    for (host, addr) in address_book::load(&config.data_dir) {
        net.set_peer(host, addr);
    }
    let link = Arc::clone(&net) as Arc<dyn PeerLink>;
    let consensus = Consensus::start_as(consensus_config, config.reads(), Arc::clone(&link)).await?;
    // As long as the leader feeds this host, nobody is asked.
    consensus.follow(seeds(&config, &identity), link);
    life::save(&config.data_dir, &identity, &life)?;
    handler.set_consensus(consensus.clone());
    let early = early::renew(consensus.clone(), Arc::clone(&net), (identity.host, boot), config.clone());
    let renewals = tokio::spawn(early);
    if identity.host == HostId(1) {
        tokio::spawn(found(consensus.clone(), Arc::clone(&identity), config.advertised(), config.reads()));
    }
    let (notes, from_shims) = mpsc::channel(SHIM_NOTES_MAX);
    let exe = std::env::current_exe().map_err(io("cannot tell which program this is"))?;
    let (cages, offer) = (config.cages(), config.offer()?);
    failpoint::stall("shims").await;
    let (shims, adopted) = ShimHost::start_caged(&exe, &config.data_dir, (&cages, offer), notes).await?;
    shims.keep_by(config.output.rules());
    let place = shims.place();
    tracing::info!("isolation of tasks: {place}");
    metrics::gauge!(crate::meters::ISOLATION).set(f64::from(place.effective() as u8));
    shim::tell_adopted(&adopted);
    let node = Arc::new(Node::new(Parts { config, identity, boot, consensus, net, shims, life }));
    handler.set_node(Arc::clone(&node));
    let (root, _) =
        Actor::spawn(None, Root, Arc::clone(&node)).await.map_err(|e| AgentError::Actors(e.to_string()))?;
    renewals.abort();
    tokio::spawn(pass_on(from_shims, Arc::clone(&node)));
    keep_watch(&node);
    if let Some(addr) = node.config.http_listen {
        let listener =
            tokio::net::TcpListener::bind(addr).await.map_err(io(format!("cannot listen on {addr}")))?;
        tokio::spawn(serve_http(listener, http_state(&node, meters)?));
    }
    Ok(Running { node, root, _lock: lock })
}

/// What looks around by itself for as long as the agent runs.
fn keep_watch(node: &Arc<Node>) {
    tokio::spawn(crate::storage::watch(Arc::downgrade(node)));
    tokio::spawn(crate::clocks::watch(Arc::downgrade(node)));
    tokio::spawn(lead::watch(Arc::downgrade(node)));
    tokio::spawn(crate::data::watch(Arc::downgrade(node)));
}

/// Whom to ask for the log while it is empty: hosts that were there when this one joined.
fn seeds(config: &AgentConfig, identity: &Identity) -> Vec<HostId> {
    let told = identity.seeds.iter().map(|(host, _)| *host);
    let known = address_book::load(&config.data_dir).into_iter().map(|(host, _)| host);
    told.chain(known).filter(|host| *host != identity.host).collect::<BTreeSet<_>>().into_iter().collect()
}

fn tell_renewed() {
    tracing::warn!(
        now = stamp(i64::try_from(clock::wall_ms() / 1_000).unwrap_or(0)),
        "the certificate had run out by this host's clock, and was renewed with the host's own key; if other hosts refuse \
         it, check that clock"
    );
}

fn net_config(config: &AgentConfig, identity: &Arc<Identity>) -> NetConfig {
    let idle = Duration::from_millis(config.profile.idle_timeout_ms());
    NetConfig {
        timings: NetTimings { idle, ..NetTimings::default() },
        newest: config.reads(),
        anybody: config.peers.clone(),
        ..NetConfig::new(Arc::clone(identity), config.listen)
    }
}

/// The times that this host's disk bears, unless they are written in the settings.
async fn timings(config: &AgentConfig) -> Result<Timings, AgentError> {
    let dir = config.data_dir.clone();
    let pace = if config.elections.is_written() {
        Duration::ZERO
    } else {
        let measured = tokio::task::spawn_blocking(move || fsync_pace(&dir)).await;
        measured.map_err(std::io::Error::other).and_then(|measured| measured).unwrap_or_else(|error| {
            // A full disk cannot be measured; whether one can start on it is the log's to say.
            tracing::warn!(%error, "cannot measure the disk: elections wait as for a quick one");
            Duration::ZERO
        })
    };
    let chosen = config.elections.chosen(config.profile, pace);
    let chosen = chosen.map_err(|e| ConfigError::Rule(e.to_string()))?;
    match chosen {
        Chosen::TooSlow(..) => {
            tracing::warn!(?chosen, "the disk is slower than any election wait that a lease bears")
        }
        _ => tracing::info!(?chosen, "election waits"),
    }
    Ok(chosen.timings())
}

/// Runs an agent until a signal asks it to stop. Attempts go on under their shims.
///
/// # Errors
/// See [`start`].
pub async fn run(config: AgentConfig) -> Result<(), AgentError> {
    if let Err(error) = keep_keys_out_of_dumps() {
        tracing::warn!(%error, "a core dump of this process could show keys");
    }
    if let Err(error) = be_spared() {
        tracing::warn!(%error, "the kernel may choose this process when memory runs out");
    }
    let running = start(config).await?;
    let node = &running.node;
    tracing::info!(host = %node.host, cluster = %node.cluster, listen = %node.config.listen, "the agent runs");
    let systemd = Notify::from_env();
    systemd.status(&format!("host {} of cluster {}", node.host, node.cluster));
    systemd.ready();
    // A peer that agreement has given up is not alive, so the watchdog is fed by the event loop alone: when the
    // loop stalls for longer than systemd allows, the agent is started anew and adopts its attempts.
    let mut alive = tokio::time::interval(systemd.alive_every().unwrap_or(ALIVE_DEFAULT));
    let mut term = signal(SignalKind::terminate()).map_err(io("cannot take signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io("cannot take signals"))?;
    loop {
        tokio::select! {
            _ = term.recv() => break,
            _ = interrupt.recv() => break,
            _ = alive.tick() => systemd.alive(),
        }
    }
    systemd.stopping();
    stop(running).await;
    Ok(())
}

/// Leaves in order: hand over the lead, close the doors. Attempts go on.
pub async fn stop(running: Running) {
    let node = &running.node;
    node.close();
    let renewed = tokio::time::timeout(SAY_STOPPING, renewer::renew_last(node));
    let (_, _) = tokio::join!(say_stopping(node), renewed);
    if node.consensus.leadership().borrow().leading {
        match tokio::time::timeout(HAND_OVER, lead::before_stop(node)).await {
            Ok(Ok(moved)) => {
                tracing::info!(to = %moved.to, took_ms = moved.took.as_millis(), "handed over the lead")
            }
            other => tracing::info!(?other, "nobody took over the lead"),
        }
    }
    // What clients asked is answered by the new leader; then they are let go.
    node.serving.close(ANSWERS).await;
    running.root.stop(Some("the agent stops".into()));
    node.consensus.shutdown().await;
    node.net.close();
    // Renewed a moment ago: what runs here is ended before others may have its place.
    let lease = node.config.profile.lease();
    let lease_ms = lease.ttl_ms.saturating_sub(lease.kill_budget_ms);
    tracing::info!(
        "the agent has stopped; attempts go on until the lease ends, in {lease_ms} ms, unless it starts again"
    );
}

/// Tells the log that this stop is somebody's plan: should the host stay away for longer than its lease, that is no
/// fault of the jobs that ran here.
async fn say_stopping(node: &Node) {
    let report = HealthReport { findings: Vec::new(), stopping: true };
    let command = Command::Health { host: node.host, report };
    let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
    if let Err(error) = node.consensus.propose(vec![proposal], SAY_STOPPING).await {
        tracing::info!(%error, "the log did not hear that this agent stops on purpose");
    }
}

/// The first host commits the first entry of the cluster, once in its life. On later starts the entry is in the log
/// and there is nothing to do; in between a crash may have come, so it is tried until the cluster is there.
async fn found(consensus: Consensus, identity: Arc<Identity>, addr: String, newest: u16) {
    while consensus.read(|state| state.cluster().is_none()) {
        let command = Command::CreateCluster {
            cluster: identity.cluster,
            name: identity.cluster_name.clone(),
            host_name: identity.host_name.clone(),
            addr: addr.clone(),
        };
        let create = Proposal { request: RequestId::NONE, actor: Author::system(), command };
        match consensus.found(create).await {
            Ok(()) => begin_with(&consensus, newest).await,
            Err(error) => tracing::info!(%error, "waiting for the cluster's first entry"),
        }
    }
}

/// A new cluster begins with the newest version that its founder reads; an older one is raised by hand.
async fn begin_with(consensus: &Consensus, newest: u16) {
    let command = Command::RaiseVersion { to: newest };
    let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
    if let Err(error) = consensus.propose(vec![proposal], FIRST_VERSION).await {
        tracing::warn!(%error, "the new cluster is of the first version; `rota cluster version --raise` raises it");
    }
}

fn http_state(node: &Arc<Node>, meters: Meters) -> Result<HttpState, AgentError> {
    let watched = Arc::downgrade(node);
    let health = move || {
        let node = watched.upgrade();
        Health {
            leader_known: node
                .as_ref()
                .is_some_and(|node| node.consensus.leadership().borrow().leader.is_some()),
            applied: node.as_ref().map_or(0, |node| *node.consensus.applied().borrow()),
        }
    };
    let token = MetricsToken::open(&node.config.data_dir)
        .map_err(|e| AgentError::Io("cannot keep the metrics token".into(), std::io::Error::other(e)))?;
    let jobs_of = Arc::downgrade(node);
    let jobs = move || {
        let Some(node) = jobs_of.upgrade() else { return String::new() };
        let series = node.job_series.read().unwrap_or_else(PoisonError::into_inner);
        series.render()
    };
    Ok(HttpState {
        meters,
        jobs: Arc::new(jobs),
        health: Arc::new(health),
        token,
        metrics_open_on_loopback: node.config.metrics_open_on_loopback,
    })
}

async fn serve_http(listener: tokio::net::TcpListener, state: HttpState) {
    if let Err(error) = http::serve(listener, state, std::future::pending()).await {
        tracing::error!(%error, "the metrics server ended");
    }
}

async fn pass_on(mut notes: mpsc::Receiver<ShimNote>, node: Arc<Node>) {
    while let Some(note) = notes.recv().await {
        // While the reconciler restarts nobody listens: its successor asks the shims themselves.
        node.doors.reconciler.send(reconciler::Msg::Shim(note));
    }
    if !node.is_closing() {
        end_process("the shims' notes ended");
    }
}

/// A late choice for the kernel when memory runs out (R050), unless the service's file says otherwise. Shims inherit
/// it, tasks do not.
fn be_spared() -> std::io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    const SPARED: &str = "-900";
    if rustix::process::geteuid().is_root() && std::fs::read_to_string(FILE)?.trim() == "0" {
        std::fs::write(FILE, SPARED)?;
    }
    Ok(())
}

/// One data directory serves one agent: the lock goes with the process, however it ends.
pub(crate) fn lock(data_dir: &Path) -> Result<File, AgentError> {
    std::fs::create_dir_all(data_dir).map_err(io(format!("cannot make {}", data_dir.display())))?;
    let taken = crate::io::lock::take(data_dir).map_err(io(format!("cannot lock {}", data_dir.display())))?;
    taken.ok_or_else(|| AgentError::Locked(data_dir.display().to_string()))
}
