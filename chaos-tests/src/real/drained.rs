//! Drained and forgotten (field report R070): what is moved off the only host that fits waits with its reason, also past a change
//! of leader, and runs again by itself when that host takes work again.

use super::Bench;
use super::agent_death::show;
use super::ends::{cancel, until};
use super::report::Report;
use rota_node::lab::{LabError, new_request, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::api::ApiRequest;
use rota_protocol::job::JobState;
use std::time::{Duration, Instant};

/// How long what runs may go on, in ms.
const EVICT_MS: u64 = 1_000;
/// From the end of the drain until it runs again, in ms.
const AGAIN_MS_MAX: u64 = 2_000;
const LIMIT: Duration = Duration::from_secs(30);
/// Only the first host has it.
const FITS: u32 = 4;

/// R070.
pub(super) async fn comes_back(bench: &Bench) -> Result<Report, LabError> {
    let lab = bench.lab("R070", 3, |_| {}).await?;
    let (mut violations, mut slowest) = (Vec::new(), 0);
    for round in 0..bench.rounds {
        let mut client = Stubborn::new(&lab, 0);
        // The two other hosts are busy for good, so that one host alone fits.
        let mut fillers = Vec::new();
        for _ in 0..2 {
            fillers.push(client.submit(with_gpus(shell_job("fills", "exec sleep 600"), FITS)).await?);
        }
        let running = |view: &rota_protocol::view::JobView| {
            view.attempts.iter().any(|a| a.pid.is_some() && a.end.is_none())
        };
        for filler in &fillers {
            until(&mut client, *filler, "a filler", running).await?;
        }
        let mut spec = with_gpus(shell_job("moved", "exec sleep 600"), FITS);
        spec.requeue_status = Some(75);
        let job = client.submit(spec).await?;
        let first = until(&mut client, job, "a run", running).await?;
        let host =
            first.attempts.iter().find(|a| a.end.is_none()).map(|a| a.host_name.clone()).unwrap_or_default();
        let (request, reason) = (new_request(), "new fans".to_owned());
        let drain =
            ApiRequest::DrainWith { request, host: host.clone(), reason, evict_in_ms: Some(EVICT_MS) };
        client.ask(drain, LIMIT).await?;
        let waits =
            until(&mut client, job, "to be moved off", |view| view.row.state == JobState::Pending).await?;
        let leader = lab.leader().await?;
        client.ask(ApiRequest::MoveLead { to: None }, LIMIT).await?;
        let moved =
            wait_for("another leader", LIMIT, async || (lab.leader().await.ok()? != leader).then_some(()))
                .await;
        if moved.is_err() {
            violations.push(format!("round {round}: not exercised, the lead did not move"));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let still = show(&mut client, job).await?;
        if still.row.state != JobState::Pending || still.row.place.is_empty() {
            violations
                .push(format!("round {round}: it is {}, because {:?}", still.row.state, still.row.place));
        }
        client.ask(ApiRequest::Undrain { request: new_request(), host }, LIMIT).await?;
        let began = Instant::now();
        let again = until(&mut client, job, "another run", running).await?;
        slowest = slowest.max(began.elapsed().as_millis() as u64);
        if again.attempts.len() <= waits.attempts.len() {
            violations.push(format!(
                "round {round}: {} attempts, {} before",
                again.attempts.len(),
                waits.attempts.len()
            ));
        }
        for job in fillers.into_iter().chain([job]) {
            cancel(&mut client, job).await?;
            client.until_done(&[job], LIMIT, |_, _| {}).await?;
        }
    }
    Ok(Report::of("R070", bench.rounds, &violations).figure("again_after_ms", slowest, Some(AGAIN_MS_MAX)))
}
