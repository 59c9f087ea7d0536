//! Acknowledged submits per second: each is in a quorum's fsynced logs before it counts. What a job costs beside time:
//! processor time of all peers together, bytes and fsyncs of their logs, memory while it waits.
//!
//! Clients ask the leader alone, and all peers in turn; the faster way counts, as it does for etcd beside it. Many clients
//! share a connection, in both: requests of Rota on a stream of frames, those of etcd on one of HTTP/2.
//!
//! The jobs ask a label that no host has, so that they queue and nothing runs: this measures acceptance, not tasks.

use super::BenchLab;
use super::etcd;
use super::figures::{Figures, percentile_ms};
use super::load::{self, Done, Load};
use super::usage::Usage;
use crate::cli::ops::BenchSubmitArgs;
use crate::lab::{Lab, LabError, new_request};
use crate::lab_work::{as_array, true_job};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::command::{Command, Proposal};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::job::{Actor, JobSpec};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Load before anything counts.
const WARM_UP: Duration = Duration::from_millis(500);

/// Runs each number of clients, spread over the peers, each client with one call of `batch` jobs under way.
///
/// # Errors
/// A cluster does not start, or refuses a submit.
pub async fn run(args: &BenchSubmitArgs) -> Result<Figures, LabError> {
    let mut figures = Figures::default();
    let beside = match &args.beside_etcd {
        Some(program) => {
            let dir = std::env::temp_dir().join(format!("rota-bench-etcd-{}", std::process::id()));
            Some(etcd::measure(program, &dir, &job_bytes()?, &args.clients, args.seconds).await?)
        }
        None => None,
    };
    figures.count("peers", args.peers as u64);
    figures.count("batch", args.batch as u64);
    let mut totals = Totals::default();
    let mut rows = Vec::new();
    for clients in &args.clients {
        let prefix = if args.clients.len() > 1 { format!("c{clients}_") } else { String::new() };
        let row = faster(*clients, args, &mut totals).await?;
        row.tell(&mut figures, &prefix);
        rows.push(row);
    }
    figures.count("accepted", totals.accepted);
    figures.count("lost", totals.lost);
    let per_peer = (totals.accepted.max(1) * args.peers as u64) as f64;
    figures.value("pending_kib_per_job", totals.grown_kib as f64 / per_peer);
    figures.value("peer_rss_mib", totals.rss_kib_max as f64 / 1_024.0 / args.peers as f64);
    if args.array > 0 {
        let mut bench = BenchLab::start(args.peers, |_| {}).await?;
        array(bench.lab(), args.array, &mut figures).await?;
    }
    if let Some(found) = &beside {
        compare(&mut figures, &rows, found, args.per_connection);
    } else if args.clients.len() > 1 {
        heading(&mut figures, "");
        rows.iter().for_each(|row| figures.line(row.line()));
        rest(&mut figures);
    }
    Ok(figures)
}

/// One number of clients.
struct Row {
    /// Who was asked: `leader` or `all`.
    asked: &'static str,
    clients: usize,
    batch: usize,
    done: Done,
    took: Duration,
    used: Usage,
}

/// What came of all measurements.
#[derive(Default)]
struct Totals {
    accepted: u64,
    lost: u64,
    /// By which the memory of all peers grew.
    grown_kib: u64,
    /// Memory of all peers of one cluster, at most.
    rss_kib_max: u64,
}

/// Asks in both ways.
async fn faster(clients: usize, args: &BenchSubmitArgs, totals: &mut Totals) -> Result<Row, LabError> {
    let mut best = measure("leader", clients, args, totals).await?;
    if args.peers > 1 {
        let other = measure("all", clients, args, totals).await?;
        if other.per_s() > best.per_s() {
            best = other;
        }
    }
    Ok(best)
}

/// On a cluster of its own: what is accepted waits, and a cluster lets a million wait.
async fn measure(
    asked: &'static str,
    clients: usize,
    args: &BenchSubmitArgs,
    totals: &mut Totals,
) -> Result<Row, LabError> {
    let mut bench = BenchLab::start(args.peers, |_| {}).await?;
    let lab = bench.lab();
    let all: Vec<PathBuf> = lab.peers.iter().map(crate::lab::Peer::socket).collect();
    let sockets = if asked == "all" { all } else { vec![all[lab.leader().await?].clone()] };
    let load = Load {
        clients,
        per_connection: args.per_connection,
        batch: args.batch,
        time: WARM_UP,
        job: queued_job(),
        token: None,
    };
    let known_before: u64 = lab.cluster().await?.jobs.values().sum();
    let idle = Usage::of(lab).await?;
    let warm = load::run(&sockets, &load).await?.accepted;
    let before = Usage::of(lab).await?;
    let started = Instant::now();
    let mut done = load::run(&sockets, &Load { time: Duration::from_secs(args.seconds), ..load }).await?;
    let took = started.elapsed();
    let after = Usage::of(lab).await?;
    let known: u64 = lab.cluster().await?.jobs.values().sum();
    let accepted = warm + done.accepted;
    totals.accepted += accepted;
    totals.lost += (known_before + accepted).saturating_sub(known);
    totals.grown_kib += after.since(&idle).rss_kib;
    totals.rss_kib_max = totals.rss_kib_max.max(after.rss_kib);
    done.times.sort_unstable();
    Ok(Row { asked, clients, batch: args.batch, done, took, used: after.since(&before) })
}

impl Row {
    fn per_s(&self) -> f64 {
        self.done.accepted as f64 / self.took.as_secs_f64()
    }

    fn per_job(&self, sum: u64) -> f64 {
        sum as f64 / self.done.accepted.max(1) as f64
    }

    fn tell(&self, figures: &mut Figures, prefix: &str) {
        figures.count(&format!("{prefix}clients"), self.clients as u64);
        figures.text(&format!("{prefix}asked"), self.asked);
        figures.value(&format!("{prefix}jobs_per_s"), self.per_s());
        for (name, permille) in [("p50_ms", 500), ("p99_ms", 990), ("max_ms", 1_000)] {
            figures.value(&format!("{prefix}{name}"), percentile_ms(&self.done.times, permille));
        }
        figures.value(&format!("{prefix}cpu_us_per_job"), self.per_job(self.used.cpu_ms * 1_000));
        figures.value(&format!("{prefix}log_bytes_per_job"), self.per_job(self.used.log_bytes));
        figures.value(&format!("{prefix}fsyncs_per_job"), self.per_job(self.used.fsyncs));
        figures.count(&format!("{prefix}busy"), self.done.busy);
    }

    fn line(&self) -> String {
        format!(
            "{:>7} x {:<5} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>6}",
            self.clients,
            self.batch,
            self.per_s(),
            percentile_ms(&self.done.times, 500),
            percentile_ms(&self.done.times, 990),
            self.per_job(self.used.cpu_ms * 1_000),
            self.asked,
        )
    }
}

fn heading(figures: &mut Figures, more: &str) {
    figures.line(format!("clients x batch    jobs/s   p50 ms   p99 ms   CPU us  asked{more}"));
}

/// What belongs to no number of clients, by name.
fn rest(figures: &mut Figures) {
    let named = ["accepted", "lost", "pending_kib_per_job", "peer_rss_mib", "array_"];
    for (name, value) in figures.select(&named) {
        figures.line(format!("  {name}  {value}"));
    }
}

/// The table of both, and etcd's figures by name.
fn compare(figures: &mut Figures, rows: &[Row], found: &etcd::Found, per_connection: usize) {
    figures.line(format!("beside etcd {}, three members, no TLS, the same disk", found.version));
    figures.line(format!(
        "clients on one connection: {per_connection} of Rota (unix socket, frames), {} of etcd (TCP, HTTP/2)",
        etcd::CLIENTS_PER_CONNECTION
    ));
    heading(figures, "  |    puts/s   p50 ms   p99 ms   CPU us  asked  | jobs/puts");
    for (row, puts) in rows.iter().zip(&found.loads) {
        let (p50, p99) = (percentile_ms(&puts.times, 500), percentile_ms(&puts.times, 990));
        let ratio = row.per_s() / puts.per_s.max(1.0);
        figures.line(format!(
            "{}  | {:>9.0} {p50:>8.2} {p99:>8.2} {:>8.1} {:>6}  | {ratio:>6.2}",
            row.line(),
            puts.per_s,
            puts.cpu_us,
            puts.asked,
        ));
        let name = |what: &str| format!("etcd_c{}_{what}", puts.clients);
        figures.value(&name("puts_per_s"), puts.per_s);
        figures.value(&name("p50_ms"), p50);
        figures.value(&name("p99_ms"), p99);
        figures.value(&name("cpu_us_per_put"), puts.cpu_us);
        figures.text(&name("asked"), puts.asked);
        figures.value(&format!("c{}_ratio_to_etcd", puts.clients), ratio);
    }
    figures.count("etcd_rss_mib", found.rss_kib / 1_024);
    rest(figures);
}

/// One array: how long until it is accepted, and what each of its elements costs while it waits.
async fn array(lab: &Lab, elements: u32, figures: &mut Figures) -> Result<(), LabError> {
    let client = lab.peers[0].client().await?;
    let before = Usage::of(lab).await?;
    let asked = Instant::now();
    let jobs = vec![(new_request(), as_array(queued_job(), elements))];
    match client.call(ApiRequest::Submit { jobs }).await? {
        ApiReply::Submitted(results) => results.into_iter().try_for_each(|result| result.map(drop))?,
        other => return Err(PublicError::new(ErrorCode::Internal, format!("unexpected {other:?}")).into()),
    }
    figures.value("array_accept_ms", asked.elapsed().as_secs_f64() * 1_000.0);
    // What planning makes of it is part of its cost.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = Usage::of(lab).await?.since(&before);
    let per_peer = f64::from(elements) * lab.peers.len() as f64;
    figures.value("array_kib_per_element", used.rss_kib as f64 / per_peer);
    figures.value("array_log_bytes_per_element", used.log_bytes as f64 / per_peer);
    Ok(())
}

/// A job as the log has it, with its author and its request id.
fn job_bytes() -> Result<Vec<u8>, LabError> {
    let proposal = Proposal {
        request: new_request(),
        actor: Actor::system(),
        command: Command::Submit { spec: queued_job() },
    };
    let bytes = rota_protocol::codec::encode(&proposal);
    Ok(bytes.map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))?)
}

pub(super) fn queued_job() -> JobSpec {
    let mut spec = true_job("bench");
    spec.ask.labels.insert("bench".into(), "no-host-has-this".into());
    spec
}
