//! Whole peers in one process, over the memory link, on real files.

mod churn;
mod copies;
mod failover;
mod feed;
mod files;
mod golden;
mod lead;
mod membership;
mod offline;
mod proposals;
mod reads;
mod snapshots;
mod suite;
mod versions;

use crate::config::Tuning;
use crate::memory_link::Hub;
use crate::{Consensus, ConsensusConfig, MemberChange, StartError, Timings, start};
use rota_protocol::PublicError;
use rota_protocol::ask::Ask;
use rota_protocol::command::{Command, Outcome, Proposal, TokenUse};
use rota_protocol::ids::{ClusterId, HostId, JobId, RequestId};
use rota_protocol::job::{Actor, JobSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const CLUSTER: ClusterId = ClusterId(0xc1);
/// Longest that anything here may take; only a failed test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

const TIMINGS: Timings = Timings { heartbeat_ms: 40, election_min_ms: 150, election_max_ms: 300 };

/// Peers that know each other.
pub(crate) struct Cluster {
    pub hub: Hub,
    dir: TempDir,
    pub tuning: Tuning,
    pub timings: Timings,
    pub peers: BTreeMap<HostId, Consensus>,
    requests: AtomicU64,
}

impl Cluster {
    /// One founder.
    pub(crate) async fn found() -> Self {
        Self::found_with(Tuning { segment_bytes: 1 << 20, ..Tuning::default() }).await
    }

    pub(crate) async fn found_with(tuning: Tuning) -> Self {
        let mut cluster = Self {
            hub: Hub::new(),
            dir: tempfile::tempdir().expect("a directory"),
            tuning,
            timings: TIMINGS,
            peers: BTreeMap::new(),
            requests: AtomicU64::new(1),
        };
        cluster.start(HostId(1)).await.expect("starts");
        cluster.peer(1).found(create(CLUSTER)).await.expect("founds");
        cluster
    }

    /// So many hosts, all admitted and following; one, three or five vote.
    pub(crate) async fn of(hosts: u64) -> Self {
        let mut cluster = Self::found().await;
        cluster.grow(hosts).await;
        cluster
    }

    pub(crate) async fn grow(&mut self, hosts: u64) {
        for id in self.peers.len() as u64 + 1..=hosts {
            assert_eq!(self.admit(id).await, HostId(id));
            self.start(HostId(id)).await.expect("starts");
        }
        self.settle().await;
    }

    pub(crate) fn path(&self, id: HostId) -> PathBuf {
        self.dir.path().join(format!("host-{id}")).join("raft")
    }

    pub(crate) async fn start(&mut self, id: HostId) -> Result<(), StartError> {
        let config =
            ConsensusConfig { host: id, cluster: CLUSTER, dir: self.path(id), timings: self.timings };
        let peer = start::start(config, self.tuning.clone(), self.hub.link(id)).await?;
        self.hub.put(id, peer.clone());
        self.peers.insert(id, peer);
        Ok(())
    }

    pub(crate) async fn stop(&mut self, id: HostId) {
        self.hub.remove(id);
        if let Some(peer) = self.peers.remove(&id) {
            peer.shutdown().await;
        }
    }

    pub(crate) fn peer(&self, id: u64) -> &Consensus {
        &self.peers[&HostId(id)]
    }

    pub(crate) fn ids(&self) -> Vec<HostId> {
        self.peers.keys().copied().collect()
    }

    /// The peer that leads now, waited for among these.
    pub(crate) async fn leader_among(&self, ids: &[HostId]) -> HostId {
        let waits = ids.iter().map(|id| {
            let mut leadership = self.peers[id].leadership();
            Box::pin(async move {
                leadership.wait_for(|now| now.leading).await.expect("runs");
                *id
            })
        });
        let first = futures_util::future::select_all(waits);
        tokio::time::timeout(PATIENCE, first).await.expect("a leader").0
    }

    pub(crate) async fn leader(&self) -> HostId {
        self.leader_among(&self.ids()).await
    }

    pub(crate) fn others(&self, id: HostId) -> Vec<HostId> {
        self.ids().into_iter().filter(|other| *other != id).collect()
    }

    /// Lets all admitted hosts follow, and one, three or five of them vote, the lowest numbers first.
    pub(crate) async fn settle(&self) {
        let until = async {
            loop {
                let leader = &self.peers[&self.leader().await];
                let members = leader.members();
                let hosts: BTreeSet<HostId> =
                    leader.read(|state| state.hosts().map(|host| host.id).collect());
                let known: BTreeSet<HostId> = members.voters.union(&members.learners).copied().collect();
                let wanted = [1, 1, 1, 3, 3, 5][hosts.len().min(5)];
                let ready = members.lag.iter().filter(|(_, lag)| lag.is_some_and(|lag| lag < 256));
                let mut voters = members.voters.clone();
                voters.extend(ready.map(|(id, _)| *id).take(wanted));
                let done = if known != hosts {
                    leader
                        .change_members(&MemberChange::Follow(hosts.difference(&known).copied().collect()))
                        .await
                } else if members.settled && members.voters.len() == wanted {
                    return;
                } else if voters.len() == wanted {
                    leader.change_members(&MemberChange::Vote(voters)).await
                } else {
                    Ok(false)
                };
                if !done.expect("changes") {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        tokio::time::timeout(PATIENCE, until).await.expect("settles");
    }

    pub(crate) fn request(&self) -> RequestId {
        RequestId(u128::from(self.requests.fetch_add(1, Ordering::Relaxed)) << 32)
    }

    pub(crate) async fn admit(&self, n: u64) -> HostId {
        let token = [n as u8; 32];
        let usage = TokenUse::Join { host_name: None };
        let mint = Command::MintToken { token, usage, expires_at_ms: u64::MAX };
        let admit = Command::AdmitHost { token, host_name: format!("h{n}"), addr: format!("127.0.0.1:{n}") };
        let proposals = [mint, admit]
            .map(|command| Proposal { request: self.request(), actor: Actor::system(), command })
            .to_vec();
        let leader = self.leader().await;
        let outcomes = self.peers[&leader].propose(proposals, PATIENCE).await.expect("admits");
        match &outcomes[..] {
            [Outcome::Done, Outcome::HostAdmitted { host }] => *host,
            other => panic!("not admitted: {other:?}"),
        }
    }

    /// Submits a job at a peer.
    pub(crate) async fn submit(&self, at: HostId, request: RequestId) -> Result<JobId, PublicError> {
        let outcomes = self.peers[&at].propose(vec![job(request)], PATIENCE).await?;
        match &outcomes[..] {
            [Outcome::Submitted { job }] => Ok(*job),
            other => panic!("not submitted: {other:?}"),
        }
    }

    /// Waits until these peers have applied the same index, and compares their states there.
    pub(crate) async fn assert_equal(&self, ids: &[HostId]) {
        let leader = self.leader_among(ids).await;
        let index = self.peers[&leader].read_barrier(PATIENCE).await.expect("a quorum");
        let mut prints = BTreeSet::new();
        for id in ids {
            let mut applied = self.peers[id].applied();
            let reached = applied.wait_for(|done| *done >= index);
            tokio::time::timeout(PATIENCE, reached).await.expect("catches up").expect("runs");
            prints.insert(self.peers[id].fingerprint());
        }
        assert_eq!(prints.len(), 1, "states differ: {prints:?}");
    }
}

pub(crate) fn create(cluster: ClusterId) -> Proposal {
    Proposal {
        request: RequestId::NONE,
        actor: Actor::system(),
        command: Command::CreateCluster {
            cluster,
            name: "test".into(),
            host_name: "h1".into(),
            addr: "127.0.0.1:1".into(),
        },
    }
}

pub(crate) fn job(request: RequestId) -> Proposal {
    let spec = JobSpec {
        name: "job".into(),
        argv: vec![b"true".to_vec()],
        env: Vec::new(),
        workdir: b"/".to_vec(),
        ask: Ask::default(),
        array: None,
        priority: 50,
        time_limit_ms: None,
        grace_ms: None,
        retries: 0,
        uid_gid: None,
        ..JobSpec::default()
    };
    Proposal { request, actor: Actor::system(), command: Command::Submit { spec } }
}
