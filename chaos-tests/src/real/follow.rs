//! `rota logs -f` while everything around it breaks (field report R058): a job counts, the agent of its host is killed
//! and restarted, the follower's peer is cut off, the leader is killed. What the follower printed is compared byte for
//! byte with what the job counted.

use super::freeze::{position, running_on};
use super::proxy::{Fault, Wires};
use super::report::Report;
use super::{Bench, budget, said};
use rota_node::io::clock::wall_ms;
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::ids::JobId;
use rota_protocol::view::JobView;
use rustix::process::Signal;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;

/// Lines that the job counts.
const LINES: u64 = 2_000;
/// Time between the job's end and the follower's, in ms.
const END_MS_MAX: u64 = 2_000;
/// The status with which the job, and so the follower, ends.
const STATUS: i32 = 3;

/// R058. `ROTA_FOLLOW_PACE_MS` is the time between two lines: 50 for the report's own times (a cut of 30 s).
pub(super) async fn every_byte_once(bench: &Bench) -> Result<Report, LabError> {
    let pace_ms = budget("ROTA_FOLLOW_PACE_MS", 10);
    let lines = |count: u64| Duration::from_millis(count * pace_ms);
    let wires = Wires::new(3)?;
    let mut lab = bench.lab("R058", 3, |options| options.ports = wires.ports()).await?;
    let (mut violations, mut slowest_end) = (Vec::new(), 0);
    for round in 0..bench.rounds {
        let mut client = Stubborn::new(&lab, 0);
        let script = format!(
            "i=1; while [ $i -le {LINES} ]; do echo $i; i=$((i+1)); sleep 0.{pace_ms:03}; done; exit {STATUS}"
        );
        let job = client.submit(shell_job("counts", &script)).await?;
        let at = position(&lab, running_on(&mut client, job).await?);
        let follower = (at + 1) % 3;
        let name = job.to_string();
        let mut child = bench
            .rota(&lab, follower, &["logs", "-f", &name])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| LabError::Io("cannot run rota logs".into(), e))?;
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        let reading = tokio::spawn(async move {
            let (mut text, mut told) = (Vec::new(), String::new());
            if let (Some(out), Some(err)) = (&mut out, &mut err) {
                let _ = tokio::join!(out.read_to_end(&mut text), err.read_to_string(&mut told));
            }
            (text, told)
        });

        broken(&mut lab, &wires, at, follower, pace_ms).await?;
        let limit = lines(4 * LINES) + Duration::from_secs(60);
        let status = tokio::time::timeout(limit, child.wait()).await;
        let ended_ms = wall_ms();
        let status = match status {
            Ok(status) => status.map_err(|e| LabError::Io("cannot wait".into(), e))?.code(),
            Err(_) => {
                violations.push(format!("round {round}: the follower does not end"));
                let _ = child.kill().await;
                None
            }
        };
        let (text, told) = reading.await.map_err(|e| LabError::Io("reading".into(), e.into()))?;
        let wanted: String = (1..=LINES).map(|line| format!("{line}\n")).collect();
        if text != wanted.as_bytes() {
            violations
                .push(format!("round {round}: {}; it told {told:?}", difference(&text, wanted.as_bytes())));
        }
        if status != Some(STATUS) {
            violations.push(format!("round {round}: status {status:?}, and it told {told:?}"));
        }
        let mut client = Stubborn::new(&lab, at);
        let view = ended(&mut client, job).await?;
        slowest_end = slowest_end.max(ended_ms.saturating_sub(view.row.ended_ms.unwrap_or(ended_ms)));
        lab.until_answers((at + 2) % 3).await?;
        let again = elsewhere(bench, &lab, (at + 2) % 3, job, wanted.as_bytes()).await?;
        violations.extend(again.into_iter().map(|what| format!("round {round}: {what}")));
        lab.until_up(3).await?;
    }
    Ok(Report::of("R058", bench.rounds, &violations).figure("lines", LINES, None).figure(
        "end_ms",
        slowest_end,
        Some(END_MS_MAX),
    ))
}

/// Everything that may break, one after the other, in times of the count.
async fn broken(
    lab: &mut Lab,
    wires: &Wires,
    at: usize,
    follower: usize,
    pace_ms: u64,
) -> Result<(), LabError> {
    let lines = |count: u64| Duration::from_millis(count * pace_ms);
    tokio::time::sleep(lines(200)).await;
    lab.signal(at, Signal::KILL)?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    lab.spawn(at)?;
    lab.until_answers(at).await?;

    tokio::time::sleep(lines(200)).await;
    wires.set_around(follower, Fault::CUT);
    tokio::time::sleep(lines(600)).await;
    wires.heal();

    tokio::time::sleep(lines(200)).await;
    let leader = lab.leader().await?;
    lab.signal(leader, Signal::KILL)?;
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    lab.spawn(leader)?;
    Ok(())
}

/// Another peer gives the same, from any byte and from any line on.
async fn elsewhere(
    bench: &Bench,
    lab: &Lab,
    peer: usize,
    job: JobId,
    wanted: &[u8],
) -> Result<Vec<String>, LabError> {
    let mut violations = Vec::new();
    let name = job.to_string();
    for (args, from) in [
        (vec!["logs", &name], 0),
        (vec!["logs", &name, "--offset", "100"], 100),
        (vec!["logs", &name, "--tail", "3"], wanted.len() - 15),
    ] {
        let again = said(&mut bench.rota(lab, peer, &args)).await?;
        if again.status != 0 || again.out != wanted[from..] {
            violations.push(format!("{args:?}: {}, {}", difference(&again.out, &wanted[from..]), again.err));
        }
    }
    Ok(violations)
}

/// All about a job that has ended, or is about to.
async fn ended(client: &mut Stubborn, job: JobId) -> Result<JobView, LabError> {
    wait_for("the job's end", Duration::from_secs(30), async || {
        let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
        match client.ask(show, Duration::from_secs(20)).await {
            Ok(ApiReply::Job(view)) if view.row.state.is_terminal() => Some(*view),
            _ => None,
        }
    })
    .await
}

/// Where two texts part.
pub(super) fn difference(got: &[u8], wanted: &[u8]) -> String {
    let at = got.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(got.len().min(wanted.len()));
    format!("{} bytes instead of {}, equal up to byte {at}", got.len(), wanted.len())
}
