//! A host that is cut off for a while (field report R064): shorter than its lease, nobody notices; longer, its work
//! has moved, once, and everything fits together when it is back.

use super::Bench;
use super::beats::{Beats, now_ns};
use super::freeze::{position, running_on};
use super::proxy::{Fault, Wires};
use super::report::Report;
use rota_node::lab::{Lab, LabError, new_request, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, JobId, Token};
use rota_protocol::job::{AttemptEnd, AttemptState};
use rota_protocol::view::{AttemptRow, HostState};
use std::time::{Duration, Instant};

/// A cut that the lease of 5 s bears.
const SHORT: Duration = Duration::from_secs(2);
/// One that it does not.
const LONG: Duration = Duration::from_secs(9);
/// How long all may take to fit together again.
const SETTLES: Duration = Duration::from_secs(30);
/// How long the replacement is watched after the original's host came back.
const WATCHED: Duration = Duration::from_secs(3);

/// A beating job that takes a whole host.
struct Lasting {
    job: JobId,
    beats: Beats,
}

async fn attempts(client: &mut Stubborn, job: JobId) -> Result<Vec<AttemptRow>, LabError> {
    let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
    match client.ask(show, Duration::from_secs(20)).await? {
        ApiReply::Job(view) => Ok(view.attempts),
        other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}")).into()),
    }
}

/// Two jobs on two hosts; the third host is free for a replacement.
async fn two_jobs(bench: &Bench, lab: &Lab, round: usize) -> Result<Vec<Lasting>, LabError> {
    let mut client = Stubborn::new(lab, 0);
    let mut jobs = Vec::new();
    for number in 0..2 {
        let beats = Beats::new(&bench.dir.join("R064"), &format!("beats-{round}-{number}"));
        let spec = with_gpus(shell_job(&format!("beats-{number}"), &beats.script(90)), 4);
        let job = client.submit(spec).await?;
        wait_for("a first beat", Duration::from_secs(10), async || (!beats.lives().is_empty()).then_some(()))
            .await?;
        jobs.push(Lasting { job, beats });
    }
    Ok(jobs)
}

/// R064: a host that does not lead is cut off for less than its lease, then for more.
pub(super) async fn host_cut_off(bench: &Bench) -> Result<Report, LabError> {
    let wires = Wires::new(3)?;
    let lab = bench.lab("R064", 3, |options| options.ports = wires.ports()).await?;
    let (mut violations, mut figures) = (Vec::new(), Figures { distance_ms: i64::MAX, ..Figures::default() });
    for round in 0..bench.rounds {
        let jobs = two_jobs(bench, &lab, round).await?;
        let leader = lab.leader().await?;
        let mut client = Stubborn::new(&lab, leader);
        let mut victim = None;
        for (number, lasting) in jobs.iter().enumerate() {
            let at = position(&lab, running_on(&mut client, lasting.job).await?);
            if at != leader {
                victim = Some((number, at));
            }
        }
        // Two hosts run a job and one of the three leads.
        let Some((moved, at)) = victim else {
            violations.push(format!("round {round}: both jobs run on the leader"));
            continue;
        };
        let mut client = Stubborn::without(&lab, at);
        let mut found = short_cut(&wires, at, &jobs, &mut client).await?;
        found.extend(long_cut(&wires, &lab, (moved, at), &jobs, &mut client, &mut figures).await?);
        violations.extend(found.into_iter().map(|what| format!("round {round}: {what}")));
        for lasting in &jobs {
            let cancel = ApiRequest::Cancel { request: new_request(), job: lasting.job, index: None };
            client.ask(cancel, Duration::from_secs(20)).await?;
            client.until_done(&[lasting.job], Duration::from_secs(20), |_, _| {}).await?;
        }
    }
    Ok(Report::of("R064", bench.rounds, &violations)
        .figure("smallest_distance_ms", u64::try_from(figures.distance_ms).unwrap_or(0), None)
        .figure("back_after_ms", figures.back_ms, Some(SETTLES.as_millis() as u64))
        .figure("beats_after_cut_ms", figures.beat_on_ms, None))
}

#[derive(Debug, Default)]
struct Figures {
    distance_ms: i64,
    back_ms: u64,
    beat_on_ms: u64,
}

/// Shorter than the lease: the records are the same to the letter, and the tasks beat on.
async fn short_cut(
    wires: &Wires,
    at: usize,
    jobs: &[Lasting],
    client: &mut Stubborn,
) -> Result<Vec<String>, LabError> {
    let mut before = Vec::new();
    for lasting in jobs {
        before.push(attempts(client, lasting.job).await?);
    }
    wires.set_around(at, Fault::CUT);
    tokio::time::sleep(SHORT).await;
    wires.heal();
    tokio::time::sleep(SETTLE_AFTER_SHORT).await;
    let mut violations = Vec::new();
    for (lasting, before) in jobs.iter().zip(&before) {
        let after = attempts(client, lasting.job).await?;
        if after != *before {
            violations.push(format!("a short cut changed {before:?} to {after:?}"));
        }
        if lasting.beats.lives().len() != 1 || silent_ms(lasting, None) > BEAT_MS_MAX {
            violations.push(format!("a short cut disturbed job {}", lasting.job));
        }
    }
    Ok(violations)
}

/// An expiry that the cut brought about would be in the log by then.
const SETTLE_AFTER_SHORT: Duration = Duration::from_millis(4_500);
/// Longest silence of a living task: a beat each 20 ms and a busy machine.
const BEAT_MS_MAX: u64 = 1_000;

/// How long ago the task, or one of its attempts, beat last, in ms.
fn silent_ms(lasting: &Lasting, token: Option<Token>) -> u64 {
    let lives = lasting.beats.lives();
    let chosen = lives.iter().filter(|(id, _)| token.is_none_or(|token| token.0 == **id));
    let last_ns = chosen.map(|(_, life)| life.last_ns).max().unwrap_or(0);
    now_ns().saturating_sub(last_ns) / 1_000_000
}

/// Longer than the lease: the old copy is silent before the new one beats, and the new one stays.
async fn long_cut(
    wires: &Wires,
    lab: &Lab,
    (moved, at): (usize, usize),
    jobs: &[Lasting],
    client: &mut Stubborn,
    figures: &mut Figures,
) -> Result<Vec<String>, LabError> {
    let mut violations = Vec::new();
    let old = attempts(client, jobs[moved].job).await?.first().map(|attempt| attempt.token);
    let cut_ns = now_ns();
    wires.set_around(at, Fault::CUT);
    tokio::time::sleep(LONG).await;
    wires.heal();
    let healed = Instant::now();
    let host = lab.peers[at].host;
    let back = wait_for("the host's return", SETTLES, async || {
        let hosts = lab.hosts().await.ok()?;
        hosts.iter().any(|row| row.host == host && row.state == HostState::Up).then_some(())
    });
    if back.await.is_err() {
        violations.push("the host did not register again".into());
    }
    figures.back_ms = figures.back_ms.max(healed.elapsed().as_millis() as u64);
    // A replacement must not fall because the original came back.
    tokio::time::sleep(WATCHED).await;
    if let Some(distance) = jobs[moved].beats.distance_ms() {
        figures.distance_ms = figures.distance_ms.min(distance);
        if distance <= 0 {
            violations.push(format!("two copies lived at once, {distance} ms apart"));
        }
    }
    let first = old.and_then(|old| jobs[moved].beats.lives().get(&old.0).copied());
    let beat_on = first.map_or(0, |life| life.last_ns.saturating_sub(cut_ns) / 1_000_000);
    figures.beat_on_ms = figures.beat_on_ms.max(beat_on);
    for (number, lasting) in jobs.iter().enumerate() {
        let rows = attempts(client, lasting.job).await?;
        let gone = (number == moved).then_some(host);
        violations.extend(disagreements(lasting, &rows, gone));
    }
    Ok(violations)
}

/// Where a job's record does not say what its processes do.
fn disagreements(lasting: &Lasting, rows: &[AttemptRow], moved_from: Option<HostId>) -> Vec<String> {
    let mut violations = Vec::new();
    let expected = if moved_from.is_some() { 2 } else { 1 };
    let copies = lasting.beats.lives().len();
    if rows.len() != expected || copies != expected {
        violations.push(format!("job {}: {} attempts, {copies} seen", lasting.job, rows.len()));
    }
    let live: Vec<_> = rows.iter().filter(|row| row.end.is_none()).collect();
    match live[..] {
        [row] => {
            let running = matches!(row.state, Some(AttemptState::Running));
            if !running || Some(row.host) == moved_from || silent_ms(lasting, Some(row.token)) > BEAT_MS_MAX {
                violations.push(format!("job {}: the record {row:?} is not what runs", lasting.job));
            }
        }
        _ => violations.push(format!("job {}: {} live attempts", lasting.job, live.len())),
    }
    for row in rows.iter().filter(|row| row.end.is_some()) {
        let ended = matches!(row.end, Some(AttemptEnd::Lost | AttemptEnd::Fenced));
        if !ended || silent_ms(lasting, Some(row.token)) <= BEAT_MS_MAX {
            violations.push(format!("job {}: {row:?} did not end by its host's loss", lasting.job));
        }
    }
    violations
}
