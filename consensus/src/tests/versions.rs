//! Peers of two versions in one cluster (faults O2, R7; report R068). The older one is today's build that reads nothing newer
//! than version 2, and stops where such a build would.

use super::{Cluster, HostId, PATIENCE};
use crate::StartError;
use crate::config::Tuning;
use crate::snapshot_file::SnapshotFault;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::device::{HostFacts, HostNotes, HostRegistration};
use rota_protocol::ids::{BootId, RequestId};
use rota_protocol::job::Actor;
use rota_protocol::trust::TrustChange;
use rota_protocol::version::{FIRST, NEWEST};
use rota_protocol::{ErrorCode, PublicError};

const OLD: u16 = FIRST;

impl Cluster {
    /// Starts a peer as a build that reads so much, and registers it as that.
    async fn start_as(&mut self, id: HostId, newest: u16) {
        self.tuning.newest = newest;
        self.start(id).await.expect("starts");
        let outcome = self.register(id, newest).await;
        assert!(matches!(outcome, Outcome::HostRegistered { .. }), "{outcome:?}");
    }

    async fn restart_as(&mut self, id: HostId, newest: u16) {
        self.stop(id).await;
        self.start_as(id, newest).await;
    }

    async fn register(&self, host: HostId, reads: u16) -> Outcome {
        let facts = HostFacts {
            cpus_milli: 1_000,
            mem_mib: 1_024,
            devices: Vec::new(),
            labels: Default::default(),
            version: format!("test {reads}"),
            notes: HostNotes { reads, ..HostNotes::default() },
        };
        let registration = HostRegistration { boot: BootId(1), addr: format!("127.0.0.1:{host}"), facts };
        self.command(host, Command::RegisterHost { host, registration }).await
    }

    async fn command(&self, at: HostId, command: Command) -> Outcome {
        self.try_command(at, command).await.expect("an outcome")
    }

    async fn try_command(&self, at: HostId, command: Command) -> Result<Outcome, PublicError> {
        let proposal = Proposal { request: RequestId::NONE, actor: Actor::system(), command };
        self.peers[&at].propose(vec![proposal], PATIENCE).await.map(|mut outcomes| outcomes.remove(0))
    }

    /// Why a peer can take no further part.
    async fn why_failed(&self, id: HostId) -> String {
        let mut failed = self.peers[&id].failed();
        let told = tokio::time::timeout(PATIENCE, failed.wait_for(Option::is_some)).await;
        told.expect("in time").expect("told").clone().unwrap_or_default()
    }
}

async fn of_old_builds() -> Cluster {
    let tuning = Tuning { segment_bytes: 1 << 20, newest: OLD, ..Tuning::default() };
    let mut cluster = Cluster::found_with(tuning).await;
    cluster.grow(3).await;
    for id in cluster.ids() {
        cluster.register(id, OLD).await;
    }
    cluster
}

fn key(host: HostId) -> Command {
    Command::Trust { change: TrustChange::Key { host, key: [7; 32] } }
}

/// Up one host at a time, down again half-way, up again: work goes on, and what only the new build reads is refused, not
/// written. Once all read it the version is raised; then the old build stops by itself, and says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o2_upgrade_downgrade_and_upgrade_again() {
    let mut cluster = of_old_builds().await;
    let ids = cluster.ids();
    for (id, newest) in
        [(ids[0], NEWEST), (ids[1], NEWEST), (ids[0], OLD), (ids[0], NEWEST), (ids[2], NEWEST)]
    {
        // Whoever leads by now is restarted like any other.
        cluster.restart_as(id, newest).await;
        let leader = cluster.leader().await;
        cluster.submit(leader, cluster.request()).await.expect("work goes on");
        let mixed = cluster.peers[&leader].read(|state| !state.behind_in_version(NEWEST).is_empty());
        if mixed {
            // It never becomes an entry: a host that cannot read it would stop there.
            let refused = cluster.try_command(leader, key(id)).await.expect_err("not yet");
            assert_eq!(refused.code, ErrorCode::Version, "{refused}");
            let early = cluster.command(leader, Command::RaiseVersion { to: NEWEST }).await;
            assert!(
                matches!(&early, Outcome::Refused(e) if e.message.contains("needs all hosts")),
                "{early:?}"
            );
        }
        cluster.assert_equal(&ids).await;
    }
    let leader = cluster.leader().await;
    assert_eq!(cluster.command(leader, Command::RaiseVersion { to: NEWEST }).await, Outcome::Done);
    assert_eq!(cluster.command(leader, key(ids[0])).await, Outcome::Done);
    cluster.assert_equal(&ids).await;
    let down = cluster.others(leader)[0];
    cluster.stop(down).await;
    cluster.tuning.newest = OLD;
    // At the latest when it hears how far the others are.
    let why = match cluster.start(down).await {
        Err(error) => error.to_string(),
        Ok(()) => cluster.why_failed(down).await,
    };
    assert!(why.contains("version 3") && why.contains("install the version"), "{why}");
    let others = cluster.others(down);
    cluster.submit(cluster.leader_among(&others).await, cluster.request()).await.expect("the others go on");
    cluster.stop(down).await;
    cluster.start_as(down, NEWEST).await;
    cluster.assert_equal(&ids).await;
}

/// A snapshot of a newer version is refused at the start, and left as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_newer_version_is_refused_and_left_alone() {
    let tuning = Tuning { segment_bytes: 1 << 20, ..Tuning::default() };
    let mut cluster = Cluster::found_with(tuning).await;
    let id = HostId(1);
    cluster.register(id, NEWEST).await;
    assert_eq!(cluster.command(id, Command::RaiseVersion { to: NEWEST }).await, Outcome::Done);
    cluster.peer(1).0.raft.trigger().snapshot().await.expect("taken");
    let file = cluster.path(id).join("snapshot.snap");
    let until = async {
        while !file.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, until).await.expect("written");
    cluster.stop(id).await;
    let before = std::fs::read(&file).expect("there");
    cluster.tuning.newest = OLD;
    let refused = cluster.start(id).await.expect_err("too new");
    assert!(
        matches!(refused, StartError::Snapshot(SnapshotFault::Newer { found: 3, newest: 2 })),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("install the version"), "{refused}");
    assert_eq!(std::fs::read(&file).expect("there"), before);
    cluster.tuning.newest = NEWEST;
    cluster.start(id).await.expect("the new build goes on");
}
