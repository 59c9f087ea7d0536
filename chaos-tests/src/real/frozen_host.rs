//! A whole host that stands still past its lease and wakes (fault P5): agent, fork server, shims and tasks. No deadline on the
//! host itself can end the task in time, so two copies may live for a moment; what the old one did counts nowhere.

use super::Bench;
use super::agent_death::show;
use super::beats::{Beats, now_ns};
use super::ends::cancel;
use super::freeze::{position, running_on};
use super::report::Report;
use rota_node::io::proc;
use rota_node::lab::{LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job};
use rota_protocol::job::JobState;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the old copy may live after the host has woken, in ms: the stated 200 and one beat.
const AFTER_THAW_MS_MAX: u64 = 200 + 40;
/// From the last contact until the work runs elsewhere, in ms: L (1 + rho), a plan and a start.
const ELSEWHERE_MS_MAX: u64 = 5_000 + 50 + 3_000;
const LIMIT: Duration = Duration::from_secs(30);

/// Signals an agent and all that came of it; what is made meanwhile as well.
fn signal_all(agent: i32, signal: Signal) -> usize {
    let mut told = BTreeSet::new();
    for _ in 0..3 {
        let below = proc::descendants(agent).unwrap_or_default();
        for pid in below.into_iter().chain([agent]).filter(|pid| !told.contains(pid)).collect::<Vec<_>>() {
            // The tasks first: when it wakes, nobody has told them anything yet.
            if Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok()) {
                told.insert(pid);
            }
        }
    }
    told.len()
}

/// P5.
pub(super) async fn past_its_lease(bench: &Bench) -> Result<Report, LabError> {
    let lab = bench.lab("P5", 3, |_| {}).await?;
    let dir = bench.dir.join("P5");
    let (mut violations, mut alive_max, mut elsewhere_max) = (Vec::new(), 0, 0);
    for round in 0..bench.rounds {
        let beats = Beats::new(&dir, &format!("beats-{round}"));
        let thawed = dir.join(format!("thawed-{round}"));
        let mut client = Stubborn::new(&lab, 0);
        // Woken, the old copy says at once that it is done: a report with a stale token.
        let ends = format!("[ \"$(cat {} 2>/dev/null)\" = $ROTA_TOKEN ] && exit 0", thawed.display());
        let script = beats.script(60).replacen("do ", &format!("do {ends}; "), 1);
        let job = client.submit(shell_job("beats", &script)).await?;
        let at = position(&lab, running_on(&mut client, job).await?);
        wait_for("a first beat", LIMIT, async || (!beats.lives().is_empty()).then_some(())).await?;
        let old = beats.lives().keys().next().copied().unwrap_or(0);
        let agent = i32::try_from(lab.peers[at].pid().unwrap_or_default()).unwrap_or_default();
        let mut client = Stubborn::without(&lab, at);
        client.patience = Duration::from_millis(1_000);
        let frozen = signal_all(agent, Signal::STOP);
        let frozen_ns = now_ns();
        if frozen < 4 {
            violations.push(format!(
                "round {round}: not exercised: only {frozen} processes of the host were found"
            ));
        }
        let moved = wait_for("a second copy", LIMIT, async || (beats.lives().len() > 1).then_some(())).await;
        elsewhere_max = elsewhere_max.max(now_ns().saturating_sub(frozen_ns) / 1_000_000);
        std::fs::write(&thawed, old.to_string()).map_err(|e| LabError::Io("a mark".into(), e))?;
        let woken_ns = now_ns();
        signal_all(agent, Signal::CONT);
        if moved.is_err() {
            violations.push(format!("round {round}: the job was not started elsewhere"));
            continue;
        }
        // The woken host tells what it has, and must change nothing by it.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let last_ns = beats.lives().get(&old).map_or(0, |life| life.last_ns);
        alive_max = alive_max.max(last_ns.saturating_sub(woken_ns) / 1_000_000);
        let view = show(&mut client, job).await?;
        let live: Vec<_> = view.attempts.iter().filter(|attempt| attempt.end.is_none()).collect();
        if view.row.state != JobState::Running || live.len() != 1 || live[0].token.0 == old {
            let state = view.row.state;
            violations.push(format!(
                "round {round}: the job is {state}, with {} live attempts; a stale report counted",
                live.len()
            ));
        }
        if beats.lives().len() > 2 {
            violations.push(format!("round {round}: {} copies", beats.lives().len()));
        }
        lab.until_up(3).await?;
        cancel(&mut client, job).await?;
        client.until_done(&[job], LIMIT, |_, _| {}).await?;
    }
    Ok(Report::of("P5", bench.rounds, &violations)
        .figure("alive_after_thaw_ms", alive_max, Some(AFTER_THAW_MS_MAX))
        .figure("elsewhere_after_ms", elsewhere_max, Some(ELSEWHERE_MS_MAX)))
}
