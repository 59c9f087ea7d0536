//! What an idle cluster costs: resident memory and CPU of each agent over some seconds. With `--waiting`, what it costs
//! while every card is taken and that many jobs, no two of which ask the same, wait behind.

use super::BenchLab;
use super::figures::Figures;
use crate::cli::ops::BenchIdleArgs;
use crate::io::usage::{cpu_ms, rss_kib};
use crate::lab::{Lab, LabError, Peer, new_request, wait_for};
use crate::lab_work::{Stubborn, shell_job, true_job, with_gpus};
use rota_protocol::api::ApiRequest;
use rota_protocol::job::JobSpec;
use rota_protocol::limits::ENTRY_PROPOSALS_MAX;
use std::time::Duration;

/// GPUs of one host of a lab.
const CARDS: u32 = 4;
/// How long the cluster may take to accept and to start.
const LIMIT: Duration = Duration::from_secs(60);
/// Joining, accepting and starting are over; memory and timers a little later.
const SETTLE: Duration = Duration::from_secs(2);

/// Lets a cluster idle for `seconds`.
///
/// # Errors
/// The cluster does not start, or does not accept the jobs that wait.
pub async fn run(args: &BenchIdleArgs) -> Result<Figures, LabError> {
    let mut bench = BenchLab::start(args.peers, |options| {
        options.cpus = Some("64".into());
        options.mem = Some("256GiB".into());
    })
    .await?;
    let pids: Vec<_> = bench.lab().peers.iter().filter_map(Peer::pid).collect();
    let waiting = if args.waiting > 0 { fill(bench.lab(), args.waiting).await? } else { 0 };
    tokio::time::sleep(SETTLE).await;
    let before: Vec<_> = pids.iter().map(|pid| cpu_ms(*pid).unwrap_or(0)).collect();
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let mut figures = Figures::default();
    if args.waiting > 0 {
        figures.count("waiting", waiting);
    }
    let (mut rss, mut all) = (0, 0);
    for (number, (pid, before)) in (1..).zip(pids.iter().zip(before)) {
        let spent = cpu_ms(*pid).unwrap_or(0).saturating_sub(before);
        all += spent;
        figures.value(&format!("cpu_percent_n{number}"), percent(spent, args.seconds));
        let kib = rss_kib(*pid).unwrap_or(0);
        figures.value(&format!("rss_mib_n{number}"), kib as f64 / 1_024.0);
        rss = rss.max(kib);
    }
    figures.value("cpu_percent_all", percent(all, args.seconds));
    figures.value("rss_mib_max", rss as f64 / 1_024.0);
    Ok(figures)
}

fn percent(cpu_ms: u64, seconds: u64) -> f64 {
    cpu_ms as f64 / (seconds.max(1) as f64 * 10.0)
}

/// Takes every card, and lets `count` jobs wait for one. Gives how many wait.
async fn fill(lab: &Lab, count: u32) -> Result<u64, LabError> {
    let mut client = Stubborn::new(lab, 0);
    let cards = CARDS * u32::try_from(lab.peers.len()).unwrap_or(u32::MAX);
    for _ in 0..cards {
        client.submit(with_gpus(shell_job("holder", "sleep 600"), 1)).await?;
    }
    let running = |key: &'static str, at_least: u64| {
        async move || {
            let known = lab.cluster().await.ok()?.jobs.get(key).copied().unwrap_or(0);
            (known >= at_least).then_some(known)
        }
    };
    wait_for("a task on every card", LIMIT, running("running", cards.into())).await?;
    let numbers: Vec<u32> = (0..count).collect();
    for batch in numbers.chunks(ENTRY_PROPOSALS_MAX) {
        let jobs = batch.iter().map(|number| (new_request(), distinct(*number))).collect();
        client.ask(ApiRequest::Submit { jobs }, LIMIT).await?;
    }
    wait_for("all that waits", LIMIT, running("pending", count.into())).await
}

/// A job for one card whose ask no other has.
fn distinct(number: u32) -> JobSpec {
    let mut spec = with_gpus(true_job("waiting"), 1);
    spec.ask.cpus_milli = 1_000 + number % 1_000;
    spec.ask.mem_mib = 64 + u64::from(number / 1_000);
    spec
}
