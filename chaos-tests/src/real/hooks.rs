//! The host's own programs (fault T10): a prolog that hangs.

use super::Bench;
use super::agent_death::show;
use super::host_files::{lab_with_files, program, set_settings};
use super::row::Row;
use rota_node::io::proc;
use rota_node::lab::{LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::job::{AttemptEnd, JobState};
use rota_protocol::view::HostState;
use std::time::Duration;

/// The hook's time-out.
const TIMEOUT_MS: u64 = 1_000;
/// Killing what hangs, and the way of the news, in ms.
const KILLED_MS: u64 = 600 + 400;

/// T10: on one host of two the prolog hangs and hides. Each launch there is given up at the time-out, with nothing left,
/// and the job runs elsewhere; the host is scored and takes nothing more.
pub(super) async fn prolog_hangs(bench: &Bench) -> Result<Row, LabError> {
    let mut lab = lab_with_files(bench, "T10", 3).await?;
    let (dir, bad) = (bench.dir.join("T10"), 2);
    let (hook, pids) = (dir.join("prolog"), dir.join("pids"));
    let script = format!(
        "trap '' TERM HUP; echo $$ >> {0}; setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; sleep 9999' & sleep 9999",
        pids.display()
    );
    program(&hook, &script)?;
    lab.stop(bad).await?;
    set_settings(
        &lab.peers[bad],
        &format!("[hooks]\nprolog = \"{}\"\ntimeout = \"{TIMEOUT_MS}ms\"\n", hook.display()),
    )?;
    lab.spawn(bad)?;
    lab.until_answers(bad).await?;
    lab.until_up(3).await?;
    // Its registration may still be under way.
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let mut client = Stubborn::new(&lab, 0);
    let what =
        "a prolog that hangs: from grant to the launch given up; the job runs elsewhere, the host is scored";
    let mut row = Row::new("T10", what, Some(TIMEOUT_MS + KILLED_MS));
    let mut jobs = Vec::new();
    // More than the two good hosts hold at once, so that the bad one is tried.
    for _ in 0..12 {
        jobs.push(client.submit(with_gpus(shell_job("short", "sleep 3"), 1)).await?);
    }
    client.until_done(&jobs, Duration::from_secs(60), |_, _| {}).await?;
    for job in jobs {
        let view = show(&mut client, job).await?;
        row.must(view.row.state == JobState::Succeeded, || format!("job {job} is {}", view.row.state));
        for attempt in &view.attempts {
            match &attempt.end {
                Some(AttemptEnd::LaunchFailed { reason }) if reason.contains("time-out") => {
                    row.ran(attempt.ended_ms.unwrap_or(u64::MAX).saturating_sub(attempt.granted_ms));
                }
                Some(AttemptEnd::Exited { code: 0 }) => {
                    row.must(attempt.host != lab.peers[bad].host, || {
                        format!("job {job} ran without its prolog")
                    });
                }
                other => row.wrong(format!("job {job}: {other:?}")),
            }
        }
    }
    let text = std::fs::read_to_string(&pids).unwrap_or_default();
    let left: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let left: Vec<i32> = left.into_iter().filter(|pid| proc::stat(*pid).is_ok()).collect();
    row.must(left.is_empty(), || format!("processes {left:?} of prologs are left"));
    let host = lab.peers[bad].host;
    let scored = wait_for("the host's suspension", Duration::from_secs(5), async || {
        let hosts = lab.hosts().await.ok()?;
        hosts.into_iter().find(|row| row.host == host && row.state == HostState::Suspended)
    });
    match scored.await {
        Ok(host) => row.must(host.reason.as_ref().is_some_and(|why| why.contains("prolog")), || {
            format!("suspended without the prolog's reason: {:?}", host.reason)
        }),
        Err(_) => row.wrong("the host was not scored: it is still given work"),
    }
    Ok(row)
}
