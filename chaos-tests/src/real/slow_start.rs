//! An agent that takes longer to come back than its lease lasts (fault P6 on a busy machine): what runs on its host goes on,
//! because the lease is renewed as soon as agreement is up, and not first when all else is.

use super::Bench;
use super::report::Report;
use rota_node::actors::failpoint::STALL_ENV;
use rota_node::lab::lives::Lives;
use rota_node::lab::{LabError, wait_for};
use rota_node::lab_work::{Stubborn, as_array, shell_job, with_gpus};
use rota_protocol::job::JobState;
use rustix::process::Signal;
use std::time::Duration;

/// How long the start takes longer: more than the lease of 5 s.
const STALL_MS: u64 = 7_000;
/// Beats of each task, a tenth of a second apart: it outlives the start.
const BEATS: u32 = 100;

/// P6-slow: a follower's agent is killed, and the next one stands still between agreement and its shims.
pub(super) async fn slower_than_its_lease(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("P6-slow", 3, |_| {}).await?;
    let mut violations = Vec::new();
    let (mut client, dir) = (Stubborn::new(&lab, 0), bench.dir.join("P6-slow"));
    for round in 0..bench.rounds {
        let lives = Lives::new(&dir, &format!("lives-{round}"));
        // One task on each host, by its four cards.
        let spec = as_array(with_gpus(shell_job("lives", &lives.times(BEATS)), 4), 3);
        let job = client.submit(spec).await?;
        wait_for("three tasks", Duration::from_secs(20), async || {
            (lives.judge().attempts == 3).then_some(())
        })
        .await?;
        let victim = (lab.leader().await? + 1) % lab.peers.len();
        lab.surround(&[(STALL_ENV, &format!("shims:{STALL_MS}"))]);
        lab.signal(victim, Signal::KILL)?;
        lab.spawn(victim)?;
        lab.surround(&[]);
        let rows = client.until_done(&[job], Duration::from_secs(60), |_, _| {}).await?;
        let state = rows.iter().find(|row| row.job == job).map(|row| row.state);
        let lived = lives.judge();
        if state != Some(JobState::Succeeded) || lived.attempts != 3 {
            violations.push(format!("round {round}: the job is {state:?} after {} attempts", lived.attempts));
        }
        violations.extend(lived.overlaps.iter().map(|what| format!("round {round}: I1: {what}")));
        lab.until_back(victim).await?;
    }
    Ok(Report::of("P6-slow", bench.rounds, &violations).figure("start_longer_by_ms", STALL_MS, None))
}
