//! Putting one peer together: files first, then openraft, then the tasks around it.

use crate::compare::Comparer;
use crate::config::{ConsensusConfig, Raft, SNAPSHOT_ENTRIES_TIMES, Tuning, raft_config};
use crate::follow;
use crate::handing::{BYTES_MORE, ENTRIES_TIMES, Handing};
use crate::inbound::Inbound;
use crate::leadership::{self, Watched};
use crate::link::PeerLink;
use crate::log::header::Owner;
use crate::log::store::LogStore;
use crate::log::{self, LogConfig, LogError};
use crate::machine::{Machine, Shared};
use crate::network::Network;
use crate::offline;
use crate::propose::Proposer;
use crate::read::{Fresh, Reader, Rounds, confirm_local, confirm_remote};
use crate::room::Room;
use crate::runtime::{blocking, spawn};
use crate::snapshot_file::SnapshotFault;
use crate::turn::{Heard, take_turns};
use crate::{Consensus, Inner};
use rota_protocol::{ClusterId, HostId};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Why a peer does not take part.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting.
    #[error("{0}")]
    Config(String),
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotFault),
    /// openraft found log and snapshot to contradict each other.
    #[error("the log and the snapshot do not fit: {0}")]
    Raft(String),
}

pub(crate) async fn start(
    config: ConsensusConfig,
    tuning: Tuning,
    link: Arc<dyn PeerLink>,
) -> Result<Consensus, StartError> {
    let ConsensusConfig { host, cluster, dir, timings } = config;
    let raft_config = raft_config(cluster, timings, &tuning).map_err(StartError::Config)?;
    let watched = Arc::new(Watched::new());
    let log = open_log(&dir, Owner { cluster, host }, &tuning, &watched).await?;
    let machine = open_machine(dir.clone(), cluster, &tuning).await?;
    let shared = machine.0.clone();
    offline::check_joined(log.0.memory().purged.as_ref(), shared.snapshot_index())?;
    let room = Arc::new(Room::default());
    let handing = Arc::new(Handing::default());
    let network = Network::new(host, link.clone(), timings, room.clone(), handing.clone());
    let raft = Raft::new(host.0, raft_config, network, log.clone(), machine)
        .await
        .map_err(|e| StartError::Raft(e.to_string()))?;

    let lease = Duration::from_millis(timings.election_max_ms);
    let heard = Arc::new(Heard::default());
    let follow = leadership::follow(raft.clone(), host, lease, watched.clone(), heard.clone());
    let turns = take_turns(raft.clone(), host, timings, heard.clone(), log.clone());
    let mut tasks = vec![spawn(follow), spawn(turns)];
    let proposer = Proposer {
        raft: raft.clone(),
        me: host,
        link: link.clone(),
        log: log.clone(),
        room,
        machine: shared.clone(),
        leadership: watched.leadership.subscribe(),
        failed: watched.failed.subscribe(),
        wall_ms: tuning.wall_ms.clone(),
    };
    let (proposals, task) = proposer.start();
    tasks.push(task);
    let period = Duration::from_millis(tuning.compare_ms);
    let (own, to) = ((host, shared.clone()), (raft.clone(), link.clone()));
    let comparer = Comparer::new(own, to, watched.clone(), period);
    tasks.extend((!tuning.faults.blind).then(|| spawn(comparer.watch())));
    let (reader, readers) = reader(&raft, host, link, lease, &watched, &shared, log.clone());
    tasks.extend(readers);
    let surroundings = (tuning.disk.clone(), tuning.faults.trusting);
    let short = keep_log_short(raft.clone(), log.clone(), shared.clone(), handing.clone(), tuning);
    tasks.push(spawn(short));
    let inbound = Inbound::new(raft.clone(), log.clone(), cluster, &dir, heard.clone(), surroundings);
    let inbound = Arc::new(inbound);
    let own = follow::Own::new(host, &raft, (&log, &shared), &inbound, (&heard, &watched), timings);
    let own = Arc::new(own);
    Ok(Consensus(Arc::new(Inner {
        host,
        timings,
        inbound,
        follow: follow::Server::new(own.clone(), handing),
        own,
        raft,
        log,
        machine: shared,
        watched,
        heard,
        proposals,
        reader,
        changing: tokio::sync::Mutex::new(()),
        tasks: Mutex::new(tasks),
    })))
}

/// What reads need, with the tasks of their rounds.
fn reader(
    raft: &Raft,
    me: HostId,
    link: Arc<dyn PeerLink>,
    lease: Duration,
    watched: &Watched,
    shared: &Shared,
    log: LogStore,
) -> (Reader, [JoinHandle<()>; 2]) {
    let core = raft.clone();
    let (local, at_home) = Rounds::start(move || {
        let core = core.clone();
        async move { confirm_local(&core).await }
    });
    let leader = watched.leadership.subscribe();
    let (remote, abroad) = Rounds::start(move || {
        let (link, mut leader) = (link.clone(), leader.clone());
        // A leader answers within its lease, or it is none.
        async move { confirm_remote(&link, &mut leader, me, lease * 2).await }
    });
    let reader = Reader {
        me,
        leadership: watched.leadership.subscribe(),
        failed: watched.failed.subscribe(),
        applied: shared.applied(),
        log,
        local,
        remote,
        fresh: Fresh::default(),
    };
    (reader, [at_home, abroad])
}

async fn open_machine(dir: PathBuf, cluster: ClusterId, tuning: &Tuning) -> Result<Machine, StartError> {
    let tuning = tuning.clone();
    let opened = blocking(move || Machine::open(&dir, cluster, &tuning)).await;
    Ok(opened.map_err(|e| StartError::Raft(e.to_string()))??)
}

async fn open_log(
    dir: &std::path::Path,
    owner: Owner,
    tuning: &Tuning,
    watched: &Arc<Watched>,
) -> Result<LogStore, StartError> {
    let watched = watched.clone();
    let config = LogConfig {
        dir: dir.to_owned(),
        owner,
        segment_bytes: tuning.segment_bytes,
        disk: tuning.disk.clone(),
        on_failure: Box::new(move |error| {
            watched.failed.send_replace(Some(format!("the log's disk failed: {error}")));
        }),
    };
    let opened = blocking(move || log::open(config)).await;
    Ok(opened.map_err(|e| StartError::Raft(e.to_string()))??)
}

/// Takes snapshots, and keeps the log's weight in memory bounded. A log that is too heavy is first cut up to the last
/// snapshot, and then, if that was not enough, a new snapshot is taken.
async fn keep_log_short(
    raft: Raft,
    log: LogStore,
    shared: Arc<Shared>,
    handing: Arc<Handing>,
    tuning: Tuning,
) {
    let mut applied = shared.applied();
    let mut next_snapshot_at = 0;
    while applied.changed().await.is_ok() {
        let index = *applied.borrow_and_update();
        let (covered, weight) = (shared.snapshot_index(), shared.snapshot_bytes());
        // A snapshot costs as much as the state is large, so a large state makes them rarer.
        let limit = tuning.snapshot_log_bytes.max(usize::try_from(weight).unwrap_or(usize::MAX));
        // Whoever takes one now goes on with what is behind it.
        let (more, times) = if handing.any() { (BYTES_MORE, ENTRIES_TIMES) } else { (0, 1) };
        let limit = limit.saturating_add(more);
        let (bytes, first) = {
            let memory = log.0.memory();
            (memory.bytes(), memory.first_index())
        };
        let many = index.saturating_sub(covered.unwrap_or(0)) >= entries_max(&tuning, weight) * times;
        let asked = if bytes >= limit && covered.is_some() && covered >= first {
            raft.trigger().purge_log(covered.unwrap_or(0)).await
        } else if (bytes >= limit || many) && index >= next_snapshot_at {
            next_snapshot_at = index + tuning.keep_entries.max(1);
            raft.trigger().snapshot().await
        } else {
            Ok(())
        };
        if asked.is_err() {
            return;
        }
    }
}

/// Entries after which a snapshot is due: one for each KiB of the last, within bounds.
fn entries_max(tuning: &Tuning, snapshot_bytes: u64) -> u64 {
    (snapshot_bytes >> 10).clamp(tuning.snapshot_entries, tuning.snapshot_entries * SNAPSHOT_ENTRIES_TIMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_state_makes_snapshots_rarer_within_bounds() {
        let tuning = Tuning { snapshot_entries: 100, ..Tuning::default() };
        assert_eq!(entries_max(&tuning, 0), 100);
        assert_eq!(entries_max(&tuning, 300 << 10), 300);
        assert_eq!(entries_max(&tuning, 1 << 30), 100 * SNAPSHOT_ENTRIES_TIMES);
    }
}
