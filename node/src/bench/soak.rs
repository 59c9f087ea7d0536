//! A steady life for minutes or hours: short jobs, a twentieth of them sent twice under one request id, a fifth
//! cancelled, a tenth of such priority that they push others off their cards. What must not grow: memory beyond what is
//! kept of jobs, open files, the folder of the log.

use super::BenchLab;
use super::figures::Figures;
use crate::cli::ops::BenchSoakArgs;
use crate::client::Client;
use crate::io::usage::rss_kib;
use crate::lab::{Lab, LabError, Peer, new_request};
use crate::lab_work::{true_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{JobId, RequestId};
use rota_protocol::job::JobSpec;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Calls that are under way at most.
const CALLS_MAX: usize = 256;
/// How long a job lives before it is cancelled.
const CANCEL_AFTER: Duration = Duration::from_millis(300);
/// How often a call is made whose answer was lost, and the pause between.
const TRIES: u32 = 50;
const TRY_PAUSE: Duration = Duration::from_millis(100);
/// Samples over the whole time.
const SAMPLES: u32 = 40;

/// What was done.
#[derive(Debug, Default)]
struct Tally {
    submitted: u64,
    repeated: u64,
    /// Repetitions that were answered by another job: must stay 0.
    parted: u64,
    cancelled: u64,
    pushing: u64,
    busy: u64,
}

/// What all peers have at one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at_s: f64,
    rss_mib: f64,
    files: u64,
    log_mib: f64,
}

/// Runs for `minutes`.
///
/// # Errors
/// The cluster does not start, or refuses something other than for want of time.
pub async fn run(args: &BenchSoakArgs) -> Result<Figures, LabError> {
    let mut bench = BenchLab::start(args.peers, |options| options.cpus = Some("256".into())).await?;
    let lab = bench.lab();
    let mut clients = Vec::new();
    for peer in &lab.peers {
        clients.push(Arc::new(peer.client().await?));
    }
    let term = lab.cluster().await?.term;
    // Every card is held by somebody who can be pushed off it.
    for _ in 0..args.peers * 4 {
        let filler = JobSpec { priority: 10, ..with_gpus(sleeper(), 1) };
        submit(&clients[0], new_request(), filler).await?;
    }
    let started = Instant::now();
    let time = Duration::from_secs(args.minutes * 60);
    let (mut samples, mut tally) = (vec![sample(lab, 0.0)], Tally::default());
    let mut running: JoinSet<Result<Tally, PublicError>> = JoinSet::new();
    let room = Arc::new(Semaphore::new(CALLS_MAX));
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / args.rate.max(1) as f64));
    for number in 0_u64.. {
        ticks.tick().await;
        let at = started.elapsed();
        if at >= time {
            break;
        }
        if at >= time * samples.len() as u32 / SAMPLES {
            samples.push(sample(lab, at.as_secs_f64()));
        }
        while let Some(joined) = running.try_join_next() {
            tally.add(&joined.map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))??);
        }
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { break };
        let client = Arc::clone(&clients[number as usize % clients.len()]);
        running.spawn(async move {
            let _permit = permit;
            step(&client, number).await
        });
    }
    while let Some(joined) = running.join_next().await {
        tally.add(&joined.map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))??);
    }
    samples.push(sample(lab, started.elapsed().as_secs_f64()));
    let mut figures = Figures::default();
    tell(&mut figures, &tally, &samples, args.peers);
    figures.count("elections", lab.cluster().await?.term - term);
    Ok(figures)
}

fn tell(figures: &mut Figures, tally: &Tally, samples: &[Sample], peers: usize) {
    figures.count("submitted", tally.submitted);
    figures.count("repeated", tally.repeated);
    figures.count("repeated_as_another_job", tally.parted);
    figures.count("cancelled", tally.cancelled);
    figures.count("pushing", tally.pushing);
    figures.count("busy", tally.busy);
    // The first quarter fills pools and tables.
    let settled = &samples[samples.len() / 4..];
    let (Some(first), Some(last)) = (settled.first(), samples.last()) else { return };
    let hours = ((last.at_s - first.at_s) / 3_600.0).max(1e-9);
    figures.value("rss_mib_per_peer", last.rss_mib / peers as f64);
    figures.value("rss_mib_per_peer_and_hour", (last.rss_mib - first.rss_mib) / peers as f64 / hours);
    figures.value(
        "rss_kib_per_job",
        (last.rss_mib - samples[0].rss_mib) * 1_024.0 / peers as f64 / tally.submitted.max(1) as f64,
    );
    figures.count("files_first", first.files);
    figures.count("files_last", last.files);
    figures.value("log_mib_first", first.log_mib);
    figures.value("log_mib_last", last.log_mib);
}

/// One job of the mixture.
async fn step(client: &Client, number: u64) -> Result<Tally, PublicError> {
    let mut tally = Tally { submitted: 1, ..Tally::default() };
    let request = new_request();
    let is_pushing = number % 10 == 2;
    let is_cancelled = number % 5 == 1;
    let spec = match (is_cancelled, is_pushing) {
        (true, _) => sleeper(),
        (_, true) => JobSpec { priority: 90, ..with_gpus(true_job("pushes"), 1) },
        _ => true_job("short"),
    };
    let Some(job) = submit(client, request, spec.clone()).await? else {
        return Ok(Tally { busy: 1, ..Tally::default() });
    };
    tally.pushing += u64::from(is_pushing);
    if number.is_multiple_of(20) {
        tally.repeated += 1;
        tally.parted += u64::from(submit(client, request, spec).await?.is_some_and(|again| again != job));
    }
    if is_cancelled {
        tokio::time::sleep(CANCEL_AFTER).await;
        ask(client, ApiRequest::Cancel { request: new_request(), job, index: None }).await?;
        tally.cancelled += 1;
    }
    Ok(tally)
}

/// None when it was told to come back.
async fn submit(client: &Client, request: RequestId, spec: JobSpec) -> Result<Option<JobId>, PublicError> {
    match ask(client, ApiRequest::Submit { jobs: vec![(request, spec)] }).await {
        Ok(ApiReply::Submitted(mut results)) => results.pop().transpose(),
        Err(error) if error.code == ErrorCode::Busy => Ok(None),
        Err(error) => Err(error),
        Ok(other) => Err(PublicError::new(ErrorCode::Internal, format!("unexpected {other:?}"))),
    }
}

/// Asks again, with the same request id, while the answer is only late or a leader is missing.
async fn ask(client: &Client, request: ApiRequest) -> Result<ApiReply, PublicError> {
    for _ in 1..TRIES {
        match client.call(request.clone()).await {
            Err(error) if matches!(error.code, ErrorCode::Unknown | ErrorCode::NoLeader) => {
                tokio::time::sleep(TRY_PAUSE).await;
            }
            answered => return answered,
        }
    }
    client.call(request).await
}

fn sleeper() -> JobSpec {
    JobSpec { argv: vec![b"/bin/sleep".to_vec(), b"36000".to_vec()], ..true_job("sleeps") }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.repeated += other.repeated;
        self.parted += other.parted;
        self.cancelled += other.cancelled;
        self.pushing += other.pushing;
        self.busy += other.busy;
    }
}

fn sample(lab: &Lab, at_s: f64) -> Sample {
    let mut sample = Sample { at_s, rss_mib: 0.0, files: 0, log_mib: 0.0 };
    for (peer, pid) in lab.peers.iter().filter_map(|peer| Some((peer, Peer::pid(peer)?))) {
        sample.rss_mib += rss_kib(pid).unwrap_or(0) as f64 / 1_024.0;
        sample.files += std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |fds| fds.count() as u64);
        sample.log_mib += folder_bytes(&peer.dir.join("raft")) as f64 / f64::from(1 << 20);
    }
    sample
}

fn folder_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}
