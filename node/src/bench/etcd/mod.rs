//! etcd under the same load in the same run, as the yardstick for accepted jobs: values of a job's size, each put
//! acknowledged after a quorum's fsync, by so many clients at once.
//!
//! What is best for etcd counts: it is asked both at its leader alone and at all members, without TLS, over plain
//! HTTP/2, by a load generator that costs less than a gRPC client. `h2.rs` frames, `puts.rs` load, `members.rs` processes.

mod h2;
mod members;
mod puts;

use crate::lab::LabError;
use members::Members;
use puts::{Load, PutError};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Clients on one connection. With more connections etcd is slower at a thousand clients, with fewer at sixty-four.
pub(super) const CLIENTS_PER_CONNECTION: usize = 32;
/// Puts before anything counts: files are made, the leader is warm.
const WARM_UP: Duration = Duration::from_millis(500);

/// What a load of etcd came to.
#[derive(Debug)]
pub(super) struct Puts {
    /// Clients at once.
    pub(super) clients: usize,
    /// Acknowledged a second.
    pub(super) per_s: f64,
    /// The time of each, shortest first.
    pub(super) times: Vec<Duration>,
    /// Processor time of all members for each, in microseconds.
    pub(super) cpu_us: f64,
    /// Where it was asked: `leader` or `all`.
    pub(super) asked: &'static str,
}

/// All that was found out about etcd.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) version: String,
    pub(super) loads: Vec<Puts>,
    /// Memory of all members at the end, in KiB.
    pub(super) rss_kib: u64,
}

/// Starts three members in `dir` and puts `value` for `seconds` at each number of clients and each way to ask; the
/// faster way counts.
pub(super) async fn measure(
    program: &str,
    dir: &Path,
    value: &[u8],
    clients: &[usize],
    seconds: u64,
) -> Result<Found, LabError> {
    let version = members::version(program)?;
    let members = Members::start(program, dir).await?;
    let lost = || LabError::Late("a leader of etcd".into(), 0);
    let mut first_key = 0;
    let mut loads = Vec::new();
    for clients in clients {
        let leader = vec![members.leader().await.ok_or_else(lost)?];
        let mut best: Option<Puts> = None;
        for (asked, targets) in [("leader", &leader), ("all", &members.clients)] {
            put_for(targets, *clients, value, WARM_UP, &mut first_key).await?;
            let cpu_before = members.cpu_ms();
            let started = Instant::now();
            let mut times =
                put_for(targets, *clients, value, Duration::from_secs(seconds), &mut first_key).await?;
            let took = started.elapsed();
            times.sort_unstable();
            let per_s = times.len() as f64 / took.as_secs_f64();
            let cpu_us = (members.cpu_ms() - cpu_before) as f64 * 1_000.0 / times.len().max(1) as f64;
            if best.as_ref().is_none_or(|best| best.per_s < per_s) {
                best = Some(Puts { clients: *clients, per_s, times, cpu_us, asked });
            }
        }
        loads.extend(best);
    }
    Ok(Found { version, loads, rss_kib: members.rss_kib() })
}

/// Clients spread over connections, connections over targets.
async fn put_for(
    targets: &[std::net::SocketAddr],
    clients: usize,
    value: &[u8],
    time: Duration,
    first_key: &mut u128,
) -> Result<Vec<Duration>, LabError> {
    let deadline = Instant::now() + time;
    let connections = clients.div_ceil(CLIENTS_PER_CONNECTION).max(targets.len().min(clients));
    let mut running = JoinSet::new();
    for number in 0..connections {
        let own = clients / connections + usize::from(number < clients % connections);
        *first_key += 1 << 64;
        running.spawn(puts::run(Load {
            to: targets[number % targets.len()],
            clients: own,
            deadline,
            value: value.to_vec(),
            first_key: *first_key,
        }));
    }
    let mut times = Vec::new();
    while let Some(joined) = running.join_next().await {
        let done = joined.map_err(|e| PutError::Io(std::io::Error::other(e)));
        times.extend(done.flatten().map_err(|e| LabError::Io("etcd".into(), std::io::Error::other(e)))?);
    }
    Ok(times)
}
