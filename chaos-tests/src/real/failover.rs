//! Leaders and whole clusters killed (faults P1, P2): nothing accepted is lost, nothing runs twice, no task notices.

use super::Bench;
use super::report::Report;
use rota_node::bench::failover::{FailoverPlan, kill_leaders};
use rota_node::lab::LabError;
use rota_node::lab_work::{Stubborn, Witness, as_array, shell_job};
use rota_protocol::job::JobState;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Longest gap of one failover in the chaos profile, in ms (P1).
const GAP_MS_MAX: u64 = 2_500;
/// Longest time from start to serving after all were killed, in ms (P2).
const SERVES_MS_MAX: u64 = 3_000;

/// P1: the leader is killed again and again under submits, every other time while 100 tasks start, every other
/// while 100 tasks end.
pub(super) async fn leader_killed(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("P1", 3, |options| options.cpus = Some("64".into())).await?;
    let plan = FailoverPlan { kills: bench.rounds, tasks_at_kill: 100 };
    let found = kill_leaders(&mut lab, &bench.dir.join("P1"), &plan).await?;
    let mut violations = Vec::new();
    for (what, count) in [
        ("accepted jobs lost", found.lost),
        ("ids given twice", found.ids_reused),
        ("tasks run twice", found.run_twice),
        ("ends lost", found.ends_lost),
        ("state hashes differ", found.hashes_differ),
    ] {
        if count > 0 {
            violations.push(format!("{count} {what}"));
        }
    }
    let mut gaps = found.gaps_ms.clone();
    gaps.sort_unstable();
    Ok(Report::of("P1", bench.rounds, &violations)
        .figure("accepted", found.accepted, None)
        .figure("gap_median_ms", gaps.get(gaps.len() / 2).copied().unwrap_or(0), None)
        .figure("gap_max_ms", gaps.last().copied().unwrap_or(0), Some(GAP_MS_MAX)))
}

/// P2: all agents are killed at once and started again; tasks go on under their shims, the state is the same.
pub(super) async fn all_killed(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("P2", 3, |_| {}).await?;
    let witness = Witness::new(&bench.dir.join("P2"));
    let mut client = Stubborn::new(&lab, 0);
    let (mut violations, mut slowest) = (Vec::new(), 0);
    for round in 0..bench.rounds {
        let spec = as_array(shell_job("through the outage", &witness.script("sleep 2; exit 7")), 12);
        let job = client.submit(spec).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        for number in 0..lab.peers.len() {
            lab.signal(number, Signal::KILL)?;
        }
        for number in 0..lab.peers.len() {
            lab.spawn(number)?;
        }
        let started = Instant::now();
        lab.until_answers(0).await?;
        slowest = slowest.max(started.elapsed().as_millis() as u64);
        lab.until_up(3).await?;
        let rows = client.until_done(&[job], Duration::from_secs(30), |_, _| {}).await?;
        let row = rows.iter().find(|row| row.job == job);
        // Each task returns 7: a task that was not seen to its end, or ran again, shows.
        if row.map(|row| (row.state, row.tasks.failed)) != Some((JobState::Failed, 12)) {
            violations.push(format!("round {round}: the job came back as {row:?}"));
        }
        let digests = lab.digests().await?;
        if digests.windows(2).any(|pair| (pair[0].2, pair[0].3) != (pair[1].2, pair[1].3)) {
            violations.push(format!("round {round}: state hashes differ"));
        }
    }
    if witness.run_twice() > 0 {
        violations.push(format!("{} tasks ran twice", witness.run_twice()));
    }
    Ok(Report::of("P2", bench.rounds, &violations).figure("serves_after_ms", slowest, Some(SERVES_MS_MAX)))
}
