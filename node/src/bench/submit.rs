//! Acknowledged submits per second: each is in a quorum's fsynced logs before it counts.
//!
//! The jobs ask a label that no host has, so that they queue and nothing runs: this measures acceptance, not tasks.

use super::BenchLab;
use super::figures::Figures;
use crate::cli::ops::BenchSubmitArgs;
use crate::client::Client;
use crate::io::usage::cpu_ms;
use crate::lab::{LabError, new_request};
use crate::lab_work::true_job;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use std::time::{Duration, Instant};

/// Runs `clients` connections that each submit `batch` jobs at a time, spread over the peers.
///
/// # Errors
/// The cluster does not start, or refuses a submit.
pub async fn run(args: &BenchSubmitArgs) -> Result<Figures, LabError> {
    let mut bench = BenchLab::start(args.peers, |_| {}).await?;
    let sockets: Vec<_> = bench.lab().peers.iter().map(crate::lab::Peer::socket).collect();
    let pids: Vec<_> = bench.lab().peers.iter().filter_map(crate::lab::Peer::pid).collect();
    let cpu_before: u64 = pids.iter().map(|pid| cpu_ms(*pid).unwrap_or(0)).sum();
    let started = Instant::now();
    let deadline = started + Duration::from_secs(args.seconds);
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..args.clients {
        let socket = sockets[number % sockets.len()].clone();
        let batch = args.batch;
        workers.spawn(async move {
            let client = Client::connect_socket(&socket).await?;
            let mut times = Vec::new();
            while Instant::now() < deadline {
                let jobs = (0..batch).map(|_| (new_request(), queued_job())).collect();
                let asked = Instant::now();
                match client.call(ApiRequest::Submit { jobs }).await {
                    Ok(ApiReply::Submitted(results)) => {
                        if let Some(Err(error)) = results.into_iter().find(Result::is_err) {
                            return Err(error);
                        }
                        times.push(asked.elapsed());
                    }
                    // Shed load is no failure of the bench, but it is not counted either.
                    Err(error) if error.code == ErrorCode::Busy => {
                        tokio::time::sleep(Duration::from_millis(u64::from(
                            error.retry_after_ms.unwrap_or(5),
                        )))
                        .await;
                    }
                    Err(error) => return Err(error),
                    Ok(other) => {
                        return Err(PublicError::new(ErrorCode::Internal, format!("unexpected {other:?}")));
                    }
                }
            }
            Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(joined) = workers.join_next().await {
        let worker = joined.map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))?;
        times.extend(worker?);
    }
    let took = started.elapsed();
    let cpu_after: u64 = pids.iter().map(|pid| cpu_ms(*pid).unwrap_or(0)).sum();
    let accepted = (times.len() * args.batch) as u64;
    let lab = bench.lab();
    let known: u64 = lab.cluster().await?.jobs.values().sum();
    let mut figures = Figures::default();
    figures.count("peers", args.peers as u64);
    figures.count("clients", args.clients as u64);
    figures.count("batch", args.batch as u64);
    figures.value("jobs_per_s", accepted as f64 / took.as_secs_f64());
    figures.percentiles("", &mut times);
    figures.count("accepted", accepted);
    figures.count("lost", accepted.saturating_sub(known));
    figures.value("cpu_us_per_job", (cpu_after - cpu_before) as f64 * 1_000.0 / accepted.max(1) as f64);
    Ok(figures)
}

fn queued_job() -> rota_protocol::job::JobSpec {
    let mut spec = true_job("bench");
    spec.ask.labels.insert("bench".into(), "no-host-has-this".into());
    spec
}
