//! Actors that panic (fault P8): a supervisor starts them again and nobody outside notices; one that dies again and
//! again ends the process, which says so, rather than limp.

use super::Bench;
use super::report::Report;
use rota_node::actors::failpoint::FAIL_ACTOR_ENV;
use rota_node::boot::{OnDeath, TABLE};
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::job::JobState;
use std::time::{Duration, Instant};

/// Deaths that must not be noticed.
const FEW: u32 = 2;
/// Deaths that are too many.
const MANY: u32 = 50;
/// How long a job may take while an actor that it needs is started again.
const JOB_LIMIT: Duration = Duration::from_secs(20);

/// P8: each kind of actor in the table dies twice under a job; then one dies for ever.
pub(super) async fn restarted_or_given_up(bench: &Bench) -> Result<Report, LabError> {
    let (mut violations, mut slowest_ms) = (Vec::new(), 0);
    // A client's connection is a task of its own, not a message to the `api` actor.
    let kinds = TABLE.iter().filter(|row| row.on_death != OnDeath::EndProcess && row.name != "api");
    for row in kinds {
        let mut lab = failing(bench, row.name, FEW).await?;
        let mut client = Stubborn::new(&lab, 0);
        let started = Instant::now();
        let job = client.submit(with_gpus(shell_job("under deaths", "exit 0"), 1)).await?;
        let rows = client.until_done(&[job], JOB_LIMIT, |_, _| {}).await?;
        let state = rows.iter().find(|found| found.job == job).map(|found| found.state);
        if state != Some(JobState::Succeeded) {
            violations.push(format!("{}: the job is {state:?}", row.name));
        }
        slowest_ms = slowest_ms.max(started.elapsed().as_millis() as u64);
        // Some are told something only once a second.
        let died = wait_for("a death", Duration::from_secs(5), async || {
            log_says(bench, row.name, "ordered to die").then_some(())
        });
        if died.await.is_err() {
            violations.push(format!("{}: not exercised, it never died", row.name));
        }
        if let Some(status) = lab.exited(0) {
            violations.push(format!("{}: the agent ended with {status}", row.name));
        }
    }
    for kind in ["scheduler", "raft"] {
        // An agent that gives up does so while the lab still waits for it to come up, or soon after.
        let mut ended = None;
        if let Ok(mut lab) = failing(bench, kind, MANY).await {
            let watched = wait_for("the end of the agent", Duration::from_secs(20), async || lab.exited(0));
            ended = watched.await.ok().and_then(|status| status.code());
        } else if log_says(bench, kind, &format!("rota agent: actor {kind} died")) {
            ended = Some(70);
        }
        if ended != Some(70) {
            violations.push(format!("{kind}: an agent whose {kind} dies for ever ended with {ended:?}"));
        }
    }
    Ok(Report::of("P8", 1, &violations).figure("slowest_job_ms", slowest_ms, None))
}

async fn failing(bench: &Bench, kind: &str, times: u32) -> Result<Lab, LabError> {
    bench
        .lab(&format!("P8-{kind}"), 1, |options| {
            options.env = vec![(FAIL_ACTOR_ENV.into(), format!("{kind}:{times}"))];
        })
        .await
}

fn log_says(bench: &Bench, kind: &str, text: &str) -> bool {
    let log = bench.dir.join(format!("P8-{kind}")).join("n1").join("agent.log");
    std::fs::read_to_string(log).unwrap_or_default().contains(text)
}
