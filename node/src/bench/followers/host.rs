//! One host of the bench: an identity, a port, a follower of the log without a state, and a lease.

use super::arrivals::Arrivals;
use super::sorted;
use crate::lab::free_port;
use crate::net::{ApiStream, LinkError, Net, NetConfig, PeerHandler, PeerLink, admitted};
use crate::relay::{Above, Relay, ask_in_turn, gather};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rota_consensus::follow::light::{LightFollower, LightLog, LightSite};
use rota_consensus::follow::{FAN_OUT, Following};
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::device::{HostFacts, HostNotes, HostRegistration};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{BootId, HostId, LeaseEpoch, RequestId};
use rota_protocol::job::Actor;
use rota_protocol::members::{DataLife, MemberChange, PeerLife};
use rota_protocol::peer::{JoinReply, JoinRequest, PeerReply, PeerRequest, RaftCall, Renewal};
use rota_protocol::version;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How long a registration may take to commit.
const REGISTER_TIME: Duration = Duration::from_secs(5);
/// Between two tries of it.
const AGAIN: Duration = Duration::from_millis(500);

/// What all hosts of the bench share.
pub(super) struct Site {
    pub(super) log: LightLog,
    pub(super) arrivals: Arrivals,
    voters: BTreeMap<HostId, String>,
    renew_ms: u64,
    others: RwLock<BTreeMap<HostId, String>>,
}

impl Site {
    pub(super) fn new(voters: impl Iterator<Item = (HostId, String)>, renew_ms: u64) -> Self {
        Self {
            log: LightLog::default(),
            arrivals: Arrivals::default(),
            voters: voters.collect(),
            renew_ms,
            others: RwLock::default(),
        }
    }

    /// All hosts that are there now.
    pub(super) fn know(&self, hosts: &[SimHost]) {
        let all = hosts.iter().map(|host| (host.id, host.addr.clone())).collect();
        *self.others.write().unwrap_or_else(PoisonError::into_inner) = all;
    }

    fn all(&self) -> BTreeMap<HostId, String> {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.voters.clone().into_iter().chain(others).collect()
    }
}

/// One host.
pub(super) struct SimHost {
    pub(super) id: HostId,
    addr: String,
    site: Arc<Site>,
    net: Arc<Net>,
    life: PeerLife,
    core: Arc<Core>,
    tasks: Vec<JoinHandle<()>>,
}

/// What answers others: a follower whose view of the cluster may be made anew.
struct Core {
    me: HostId,
    life: PeerLife,
    renew_ms: u64,
    net: OnceLock<Arc<Net>>,
    follower: RwLock<Arc<LightFollower>>,
    relay: Relay,
    kept: AtomicU64,
    /// Renewals that failed, by what the last one that was asked had to say.
    failed: Mutex<BTreeMap<&'static str, u64>>,
    times: Mutex<Vec<Duration>>,
}

/// Renewals so far.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    pub(super) kept: u64,
    /// By reason.
    pub(super) failed: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Of all hosts together.
    pub(super) fn of(hosts: &[SimHost]) -> Self {
        let mut counts = Self { kept: 0, failed: BTreeMap::new() };
        for SimHost { core, .. } in hosts {
            counts.kept += core.kept.load(Ordering::Relaxed);
            for (why, count) in &*core.failed.lock().unwrap_or_else(PoisonError::into_inner) {
                *counts.failed.entry(why).or_default() += count;
            }
        }
        counts
    }

    pub(super) fn since(mut self, before: &Self) -> Self {
        self.kept -= before.kept;
        for (why, count) in &mut self.failed {
            *count -= before.failed.get(why).copied().unwrap_or(0);
        }
        self
    }

    /// Forgets how long renewals took so far.
    pub(super) fn begin_times(hosts: &[SimHost]) {
        for host in hosts {
            host.core.times.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// How long each renewal took, sorted.
    pub(super) fn times(hosts: &[SimHost]) -> Vec<Duration> {
        let of = |host: &SimHost| host.core.times.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut times: Vec<Duration> = hosts.iter().flat_map(of).collect();
        times.sort_unstable();
        times
    }
}

fn follower(id: HostId, site: &Arc<Site>) -> LightFollower {
    let told = Arc::clone(site);
    let known = LightSite {
        members: site.voters.keys().copied().collect::<BTreeSet<_>>(),
        hosts: sorted(site.all().into_keys()),
        fan_out: FAN_OUT,
    };
    LightFollower::new(
        id,
        site.log.clone(),
        known,
        Box::new(move |first, last| told.arrivals.note(first, last)),
    )
}

impl SimHost {
    /// Joins the cluster as any host does. It is silent until it begins.
    pub(super) async fn join(
        site: Arc<Site>,
        number: usize,
        via: &str,
        token: &str,
    ) -> Result<Self, PublicError> {
        let failed = |error: String| PublicError::new(ErrorCode::Internal, error);
        let addr = format!("127.0.0.1:{}", free_port().map_err(|e| failed(e.to_string()))?);
        let name = format!("f{number}");
        let joined = admitted(Path::new("/nowhere"), token, via, &name, &addr).await;
        let identity = Arc::new(joined.map_err(|e| failed(e.to_string()))?);
        let id = identity.host;
        let life = DataLife { data: u128::from(id.0) << 8, starts: 1, session: u128::from(id.0) << 8 | 1 };
        let life = PeerLife { life, machine: "bench".into(), addr: addr.clone() };
        let core = Arc::new(Core {
            me: id,
            life: life.clone(),
            renew_ms: site.renew_ms,
            net: OnceLock::new(),
            follower: RwLock::new(Arc::new(follower(id, &site))),
            relay: Relay::default(),
            kept: AtomicU64::new(0),
            failed: Mutex::default(),
            times: Mutex::default(),
        });
        let listen: SocketAddr = addr.parse().map_err(|_| failed(format!("{addr} is no address")))?;
        let net = Net::start(NetConfig::new(identity, listen), Arc::new(Handler(Arc::clone(&core)))).await;
        let net = net.map_err(|e| failed(e.to_string()))?;
        // Set once, here.
        let _ = core.net.set(Arc::clone(&net));
        Ok(Self { id, addr, site, net, life, core, tasks: Vec::new() })
    }

    /// Follows, registers and renews from now on, with all hosts in view that the site knows.
    pub(super) fn begin(&mut self) {
        for (host, addr) in self.site.all() {
            if host != self.id {
                self.net.set_peer(host, addr);
            }
        }
        if let Some(following) = self.tasks.first() {
            following.abort();
        }
        let fresh = Arc::new(follower(self.id, &self.site));
        let following = fresh.follow(Arc::clone(&self.net) as Arc<dyn PeerLink>);
        *self.core.follower.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        if self.tasks.is_empty() {
            let (core, life) = (Arc::clone(&self.core), self.life.clone());
            let (net, addr) = (Arc::clone(&self.net), self.addr.clone());
            let leasing = tokio::spawn(async move { core.live(&net, &life, &addr).await });
            self.tasks = vec![following, leasing];
        } else {
            self.tasks[0] = following;
        }
    }

    pub(super) fn following(&self) -> Following {
        self.core.follower().following()
    }

    pub(super) fn faults(&self) -> u64 {
        self.core.follower().faults()
    }
}

impl Drop for SimHost {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.net.close();
    }
}

impl Core {
    fn follower(&self) -> Arc<LightFollower> {
        self.follower.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whom it hands renewals to: the one that it follows, and if that does not answer, the leader.
    fn above(&self) -> Vec<HostId> {
        let follower = self.follower();
        let mut above: Vec<HostId> =
            follower.following().parent.into_iter().chain(follower.leader()).collect();
        above.dedup();
        above
    }

    /// Registers, and then renews for ever; whoever lost its lease registers anew, as any host does.
    async fn live(self: Arc<Self>, net: &Net, life: &PeerLife, addr: &str) {
        let every = Duration::from_millis(self.renew_ms);
        loop {
            let epoch = loop {
                match self.register(net, life, addr).await {
                    Some(epoch) => break epoch,
                    None => tokio::time::sleep(AGAIN).await,
                }
            };
            if let Some(leader) = self.follower().leader() {
                // It was asked once; a connection that is kept for nothing would be a cost that no host has for long.
                net.cut(leader);
            }
            // Hosts do not renew in step.
            tokio::time::sleep(every.mul_f64((self.me.0 % 97) as f64 / 97.0)).await;
            let mut ticks = tokio::time::interval(every);
            loop {
                ticks.tick().await;
                let over = |error: &PublicError| error.code == ErrorCode::Conflict;
                if matches!(self.renew(net, epoch).await, Some(PeerReply::Refused(error)) if over(&error)) {
                    break;
                }
            }
        }
    }

    async fn register(&self, net: &Net, life: &PeerLife, addr: &str) -> Option<LeaseEpoch> {
        let leader = self.follower().leader()?;
        let facts = HostFacts {
            cpus_milli: 1_000,
            mem_mib: 1_024,
            devices: Vec::new(),
            labels: BTreeMap::new(),
            version: env!("CARGO_PKG_VERSION").into(),
            notes: HostNotes { reads: version::NEWEST, ..HostNotes::default() },
        };
        let registration = HostRegistration { boot: BootId(self.me.0.into()), addr: addr.to_owned(), facts };
        let commands = [
            Command::Members(MemberChange::Started { host: self.me, life: life.life }),
            Command::RegisterHost { host: self.me, registration },
        ];
        let proposal = |command| Proposal { request: RequestId::NONE, actor: Actor::system(), command };
        let request = PeerRequest::Propose { proposals: commands.map(proposal).to_vec() };
        match net.call(leader, request, REGISTER_TIME).await {
            Ok(PeerReply::Proposed { outcomes }) => match outcomes.last() {
                Some(Outcome::HostRegistered { epoch }) => Some(*epoch),
                other => {
                    tracing::warn!(?other, host = %self.me, "not registered");
                    None
                }
            },
            _ => None,
        }
    }

    /// Renews once, as a host does. What was answered last.
    async fn renew(&self, net: &Net, epoch: LeaseEpoch) -> Option<PeerReply> {
        let (began, ttl) = (Instant::now(), Duration::from_millis(self.renew_ms / 2));
        let (mut why, mut answer) = ("nobody_known", None);
        for host in self.above() {
            let request = PeerRequest::Renew { host: self.me, epoch, relayed: false };
            let heard = net.call(host, request, ttl).await;
            why = match &heard {
                Ok(PeerReply::Renewed) => {
                    self.times.lock().unwrap_or_else(PoisonError::into_inner).push(began.elapsed());
                    self.kept.fetch_add(1, Ordering::Relaxed);
                    return heard.ok();
                }
                Ok(PeerReply::NotLeader { .. }) => "no_leader",
                Ok(PeerReply::Refused(error)) if error.code == ErrorCode::NoLeader => "no_leader",
                Ok(_) => "refused",
                Err(LinkError::Timeout) => "late",
                Err(_) => "unreachable",
            };
            answer = heard.ok();
        }
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner).entry(why).or_default() += 1;
        answer
    }

    async fn hand_on(self: Arc<Self>, renewals: Vec<(HostId, LeaseEpoch)>, hops: u8) -> Vec<Renewal> {
        let (core, renew_ms) = (Arc::clone(&self), self.renew_ms);
        let above: Above = Arc::new(move |renewals, hops| {
            let core = Arc::clone(&core);
            async move {
                let Some(net) = core.net.get() else { return Vec::new() };
                ask_in_turn(net, core.above(), renewals, hops).await
            }
            .boxed()
        });
        self.relay.hand_on(above, gather(renew_ms, false), renewals, hops).await
    }
}

/// What the network calls.
struct Handler(Arc<Core>);

impl PeerHandler for Handler {
    fn peer(&self, from: HostId, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
        let (follower, core) = (self.0.follower(), Arc::clone(&self.0));
        async move {
            match request {
                PeerRequest::Raft { call: RaftCall::Follow, body } => {
                    match follower.answer(from, &body).await {
                        Ok(body) => PeerReply::Raft { body },
                        Err(error) => PeerReply::Refused(error),
                    }
                }
                PeerRequest::Renew { host, epoch, .. } => {
                    match core.hand_on(vec![(host, epoch)], 0).await.pop() {
                        Some(Renewal::Renewed) => PeerReply::Renewed,
                        Some(Renewal::Refused(error)) => PeerReply::Refused(error),
                        _ => PeerReply::NotLeader { leader: None },
                    }
                }
                PeerRequest::Renewals { renewals, hops } => {
                    PeerReply::Renewals(core.hand_on(renewals, hops).await)
                }
                _ => PeerReply::Refused(PublicError::new(ErrorCode::Invalid, "a host of a bench")),
            }
        }
        .boxed()
    }

    fn join(&self, _: JoinRequest) -> BoxFuture<'static, JoinReply> {
        let refused = PublicError::new(ErrorCode::Invalid, "a host of a bench admits nobody");
        async move { JoinReply::Refused(refused) }.boxed()
    }

    fn gossip(&self, _: HostId, _: Vec<u8>) {}

    fn hail(&self) -> Option<PeerLife> {
        Some(self.0.life.clone())
    }

    fn api(&self, _: ApiStream) {}
}
