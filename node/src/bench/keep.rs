//! What many jobs cost that are kept: memory, the snapshot's size and time, how long apply stands still while one is
//! made, and how long a restart takes until it serves. One peer in this process, on the real log and the real disk.

use super::figures::{Figures, percentile_ms};
use super::submit::queued_job;
use crate::cli::ops::BenchKeepArgs;
use crate::io::usage::rss_kib;
use crate::lab::{LabError, new_request};
use crate::lab_work::as_array;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use rota_consensus::memory_link::Hub;
use rota_consensus::{Consensus, ConsensusConfig, Timings};
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{ClusterId, HostId, JobId};
use rota_protocol::job::{Actor, Role};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HOST: HostId = HostId(1);
/// Proposals in one call, and calls at once.
const TOGETHER: usize = 512;
const CALLS: usize = 4;
/// How long one call may take.
const WAIT: Duration = Duration::from_secs(60);
/// Between two looks of whoever watches how long apply stands still.
const PROBE: Duration = Duration::from_millis(2);

/// Keeps `finished` jobs that are over and `pending` ones that wait.
///
/// # Errors
/// The peer does not start, or refuses something.
pub async fn run(args: &BenchKeepArgs) -> Result<Figures, LabError> {
    let dir = std::env::temp_dir().join(format!("rota-bench-keep-{}", std::process::id()));
    let result = keep(args, &dir).await;
    let _ = std::fs::remove_dir_all(&dir);
    result
}

async fn keep(args: &BenchKeepArgs, dir: &Path) -> Result<Figures, LabError> {
    let mut figures = Figures::default();
    let peer = start(dir).await?;
    let create = Command::CreateCluster {
        cluster: ClusterId(7),
        name: "keep".into(),
        host_name: "n1".into(),
        addr: "127.0.0.1:1".into(),
    };
    peer.found(Proposal { request: new_request(), actor: Actor::system(), command: create }).await?;
    let rss = || rss_kib(std::process::id()).unwrap_or(0);
    // What the log keeps for followers is bounded, and no part of what a job costs.
    let held = || rss().saturating_sub(peer.status().log_memory_bytes / 1_024);
    let empty = held();
    let done = Arc::new(AtomicBool::new(false));
    let probe = tokio::spawn(stalls(peer.clone(), Arc::clone(&done)));

    let begun = Instant::now();
    // Those that wait first: they would find room that those which are over have given back.
    fill(&peer, args.pending, false).await?;
    let with_pending = held();
    fill(&peer, args.finished, true).await?;
    let took = begun.elapsed();
    done.store(true, Ordering::Relaxed);
    let mut waits = probe.await.unwrap_or_default();
    waits.sort_unstable();
    let with_all = held();

    figures.count("finished", args.finished as u64);
    figures.count("pending", args.pending as u64);
    figures.value("commands_per_s", (args.finished * 2 + args.pending) as f64 / took.as_secs_f64());
    let per = |kib: u64, count: usize| kib as f64 / count.max(1) as f64;
    figures.value("pending_kib_per_job", per(with_pending.saturating_sub(empty), args.pending));
    figures.value("finished_kib_per_job", per(with_all.saturating_sub(with_pending), args.finished));
    figures.value("rss_mib", rss() as f64 / 1_024.0);
    let status = peer.status();
    figures.value("snapshot_mib", status.snapshot_bytes as f64 / f64::from(1 << 20));
    figures.count("snapshot_ms", status.snapshot_ms);
    figures.value("log_memory_mib", status.log_memory_bytes as f64 / f64::from(1 << 20));
    figures.value("apply_wait_p99_ms", percentile_ms(&waits, 990));
    figures.value("apply_wait_max_ms", percentile_ms(&waits, 1_000));

    if args.array > 0 {
        let before = rss();
        let asked = Instant::now();
        submit(&peer, 1, Some(args.array)).await?;
        figures.value("array_accept_ms", asked.elapsed().as_secs_f64() * 1_000.0);
        figures.value("array_kib_per_element", per(rss().saturating_sub(before), args.array as usize));
    }
    peer.shutdown().await;
    drop(peer);
    let begun = Instant::now();
    let peer = start(dir).await?;
    let served = peer.recovered().wait_for(|recovered| *recovered).await.is_ok();
    figures.value("restart_ms", begun.elapsed().as_secs_f64() * 1_000.0);
    let open = peer.read(|state| state.jobs().filter(|job| !job.state.is_terminal()).count());
    let wanted = args.pending + usize::from(args.array > 0);
    figures.count("lost", if served { wanted.saturating_sub(open) as u64 } else { wanted as u64 });
    peer.shutdown().await;
    Ok(figures)
}

async fn start(dir: &Path) -> Result<Consensus, LabError> {
    let dir = dir.join("raft");
    let config = ConsensusConfig { host: HOST, cluster: ClusterId(7), dir, timings: Timings::PRODUCTION };
    let hub = Hub::new();
    let started = Consensus::start(config, hub.link(HOST)).await;
    Ok(started.map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))?)
}

/// How long the state cannot be read, again and again: apply holds it, or whoever copies it.
async fn stalls(peer: Consensus, done: Arc<AtomicBool>) -> Vec<Duration> {
    let mut waits = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let asked = Instant::now();
        peer.read(rota_consensus::State::applied_index);
        waits.push(asked.elapsed());
        tokio::time::sleep(PROBE).await;
    }
    waits
}

/// Submits `count` jobs, and cancels them again if they are to be over.
async fn fill(peer: &Consensus, count: usize, over: bool) -> Result<(), PublicError> {
    let pieces = (0..count).step_by(TOGETHER).map(|from| TOGETHER.min(count - from));
    let calls = pieces.map(|piece| async move {
        let jobs = submit(peer, piece, None).await?;
        if over {
            let cancel = |job| Command::Cancel { job, index: None };
            propose(peer, jobs.into_iter().map(cancel).collect()).await?;
        }
        Ok::<_, PublicError>(())
    });
    stream::iter(calls).buffer_unordered(CALLS).try_collect().await
}

async fn submit(peer: &Consensus, count: usize, array: Option<u32>) -> Result<Vec<JobId>, PublicError> {
    let spec = || array.map_or_else(queued_job, |elements| as_array(queued_job(), elements));
    let outcomes = propose(peer, (0..count).map(|_| Command::Submit { spec: spec() }).collect()).await?;
    Ok(outcomes
        .into_iter()
        .filter_map(|outcome| match outcome {
            Outcome::Submitted { job } => Some(job),
            _ => None,
        })
        .collect())
}

async fn propose(peer: &Consensus, commands: Vec<Command>) -> Result<Vec<Outcome>, PublicError> {
    let actor = Actor { user: "ann".into(), tenant: "lab".into(), role: Role::Submitter };
    let proposals = commands.into_iter().map(|command| Proposal {
        request: new_request(),
        actor: actor.clone(),
        command,
    });
    let outcomes = peer.propose(proposals.collect(), WAIT).await?;
    match outcomes.iter().find(|outcome| matches!(outcome, Outcome::Refused(_))) {
        Some(Outcome::Refused(error)) => Err(error.clone()),
        _ => Ok(outcomes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_that_was_kept_is_there_after_the_restart() {
        let args = BenchKeepArgs { finished: 600, pending: 100, array: 1_000_000, json: true };
        let figures = run(&args).await.expect("it runs");
        let lost = figures.select(&["lost"]);
        assert_eq!(lost, [("lost".to_owned(), 0.into())]);
    }
}
