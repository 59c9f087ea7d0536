//! Gangs that lose a part (fault T3), and gangs whose start a leader does not live to see (fault T4): all parts or none,
//! whatever happens, and in bounded time.

use super::Bench;
use super::beats::Beats;
use super::freeze::position;
use super::report::Report;
use rota_node::lab::{Lab, LabError, new_request, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::JobId;
use rota_protocol::job::{AttemptEnd, JobSpec, JobState};
use rota_protocol::view::{AttemptRow, JobView};
use rota_protocol::work::{GangSpec, Layout};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// T3: from the loss of a part to the last sign of life of any other: K + 1,000.
const ALL_STOP_MS: u64 = 1_600;
/// T4: from the leader's death to the end of a gang that takes 200 ms. Nothing of it waits for a lease: the failover has
/// its bound (P1: 2,500), the dead leader's own host, which the gang needs too, is back and adopted within its own (P6:
/// 1,000), and then the parts run.
const ENDED_MS: u64 = 2_500 + 1_000 + 200;
/// T4: cards of the gang are never granted for longer than a lease without a process on them (L).
const FOR_NOBODY_MS: u64 = 5_000;
const LIMIT: Duration = Duration::from_secs(40);

/// A gang of `min..max` parts, each with all four cards of a host.
pub(super) fn gang(name: &str, script: &str, min: u32, max: u32) -> JobSpec {
    let spec = with_gpus(shell_job(name, script), 4);
    JobSpec { gang: Some(GangSpec { min, max }), layout: Layout::Spread, ..spec }
}

pub(super) async fn show(client: &mut Stubborn, job: JobId) -> Result<JobView, LabError> {
    let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
    match client.ask(show, Duration::from_secs(20)).await? {
        ApiReply::Job(view) => Ok(*view),
        other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}")).into()),
    }
}

pub(super) async fn cancel(client: &mut Stubborn, job: JobId) -> Result<(), LabError> {
    let cancel = ApiRequest::Cancel { request: new_request(), job, index: None };
    client.ask(cancel, Duration::from_secs(20)).await?;
    client.until_done(&[job], LIMIT, |_, _| {}).await.map(|_| ())
}

/// T3: one part dies, one cannot start, one's host is lost. The others ignore TERM.
pub(super) async fn one_part_lost(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("T3", 3, |_| {}).await?;
    let dir = bench.dir.join("T3");
    let (mut violations, mut worst) = (Vec::new(), [0_u64; 3]);
    for round in 0..bench.rounds {
        let dies = dies(&lab, &dir, round).await?;
        let unborn = cannot_start(&lab, &dir, round).await?;
        let lost = host_lost(&mut lab, &dir, round).await?;
        for (at, found) in [dies, unborn, lost].into_iter().enumerate() {
            match found {
                Ok(ms) => worst[at] = worst[at].max(ms),
                Err(what) => violations.push(format!("round {round}: {what}")),
            }
        }
    }
    let [dies, unborn, lost] = worst;
    Ok(Report::of("T3", bench.rounds, &violations)
        .figure("all_stop_after_a_death_ms", dies, Some(ALL_STOP_MS))
        .figure("all_stop_after_a_failed_start_ms", unborn, Some(ALL_STOP_MS))
        .figure("all_stop_after_a_lost_host_ms", lost, Some(ALL_STOP_MS)))
}

fn stubborn(beats: &Beats) -> String {
    format!("trap '' TERM; {}", beats.script(60))
}

/// Last sign of life of any attempt but these, in ms since the epoch.
fn last_beat_ms(beats: &Beats) -> u64 {
    beats.lives().values().map(|life| life.last_ns / 1_000_000).max().unwrap_or(0)
}

fn all_over(view: &JobView) -> bool {
    view.attempts.iter().all(|attempt| attempt.end.is_some() && attempt.ended_ms.is_some())
}

async fn dies(lab: &Lab, dir: &Path, round: usize) -> Result<Result<u64, String>, LabError> {
    let beats = Beats::new(dir, &format!("dies-{round}"));
    let died = dir.join(format!("died-{round}"));
    let script = format!(
        "if [ \"$RANK\" = 1 ]; then sleep 1; date +%s%N > {}; exit 7; fi; {}",
        died.display(),
        stubborn(&beats)
    );
    let mut client = Stubborn::new(lab, 0);
    let job = client.submit(gang("dies", &script, 3, 3)).await?;
    let rows = client.until_done(&[job], LIMIT, |_, _| {}).await?;
    let state = rows.iter().find(|row| row.job == job).map(|row| row.state);
    let view = show(&mut client, job).await?;
    if state != Some(JobState::Failed) || view.attempts.len() != 3 || !all_over(&view) {
        return Ok(Err(format!("a gang whose part died is {state:?}: {:?}", view.attempts)));
    }
    if beats.lives().len() != 2 {
        return Ok(Err("not exercised: the other two parts did not beat".into()));
    }
    let died_ms = read_ns(&died) / 1_000_000;
    Ok(Ok(last_beat_ms(&beats).saturating_sub(died_ms)))
}

fn read_ns(path: &Path) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The second host makes no attempts; from the first beat of the other parts, which is about when that is found, to
/// their last.
async fn cannot_start(lab: &Lab, dir: &Path, round: usize) -> Result<Result<u64, String>, LabError> {
    let beats = Beats::new(dir, &format!("unborn-{round}"));
    let attempts = lab.peers[1].dir.join("attempts");
    let locked = |locked| {
        super::black_hole::lock_folder(&attempts, locked)
            .map_err(|error| LabError::Io("cannot break the host".into(), error))
    };
    locked(true)?;
    let mut client = Stubborn::new(lab, 0);
    let job = client.submit(gang("unborn", &stubborn(&beats), 3, 3)).await?;
    let found = wait_for("a failed start", LIMIT, async || {
        let view = show(&mut client, job).await.ok()?;
        let failed = |end: &Option<AttemptEnd>| matches!(end, Some(AttemptEnd::LaunchFailed { .. }));
        let first = view.attempts.iter().filter(|a| failed(&a.end)).map(|a| a.token.log_index()).min()?;
        let of_first = view.attempts.iter().filter(|a| a.token.log_index() == first);
        of_first.clone().all(|a| a.end.is_some()).then(|| of_first.map(|a| a.token.0).collect::<Vec<u64>>())
    });
    let tokens = found.await;
    locked(false)?;
    cancel(&mut client, job).await?;
    let tokens = tokens?;
    let lives = beats.lives();
    let lived = tokens.iter().filter_map(|token| lives.get(token));
    Ok(match lived.map(|life| (life.last_ns - life.first_ns) / 1_000_000).max() {
        Some(ms) => Ok(ms),
        // The failure was in the log before the others had made their first beat.
        None => Ok(0),
    })
}

/// From the entry that says that the host is lost to the others' last beat; then all start again as a whole.
async fn host_lost(lab: &mut Lab, dir: &Path, round: usize) -> Result<Result<u64, String>, LabError> {
    let beats = Beats::new(dir, &format!("lost-{round}"));
    lab.until_up(3).await?;
    let job = Stubborn::new(lab, 0).submit(gang("lost", &stubborn(&beats), 3, 3)).await?;
    wait_for("three beating parts", LIMIT, async || (beats.lives().len() == 3).then_some(())).await?;
    let victim = (lab.leader().await? + 1) % 3;
    let host = lab.peers[victim].host;
    lab.signal(victim, Signal::KILL)?;
    let mut client = Stubborn::without(lab, victim);
    let view = wait_for("the end of all parts", LIMIT, async || {
        show(&mut client, job).await.ok().filter(|view| view.attempts.len() == 3 && all_over(view))
    })
    .await?;
    let lost = view.attempts.iter().find(|attempt| attempt.host == host);
    let lost_ms = lost.and_then(|attempt| attempt.ended_ms).unwrap_or(0);
    let stopped_ms = last_beat_ms(&beats).saturating_sub(lost_ms);
    let ends: Vec<_> = view.attempts.iter().filter_map(|attempt| attempt.end.clone()).collect();
    lab.spawn(victim)?;
    lab.until_up(3).await?;
    wait_for("the whole gang again", LIMIT, async || (beats.lives().len() == 6).then_some(())).await?;
    cancel(&mut client, job).await?;
    let broken = ends.iter().filter(|end| **end == AttemptEnd::GangBroken).count();
    match lost.and_then(|attempt| attempt.end.clone()) {
        Some(AttemptEnd::Lost | AttemptEnd::Fenced) if broken == 2 => Ok(Ok(stopped_ms)),
        _ => Ok(Err(format!("a lost host ended its gang as {ends:?}"))),
    }
}

/// T4: the leader is killed this long after the answer to a submit, in ms: before the plan, between plan and commit,
/// between commit and start, while the parts start.
const KILLED_AFTER_MS: [u64; 6] = [0, 1, 3, 8, 20, 60];

/// T4: whatever step of a gang's start the leader sees last, all parts run or none, and the gang's cards are never held
/// for nobody.
pub(super) async fn leader_killed_at_the_start(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("T4", 3, |_| {}).await?;
    let witness = bench.dir.join("T4").join("parts");
    let (mut violations, mut worst, mut held, mut middle) = (Vec::new(), 0, 0, Vec::new());
    for round in 0..bench.rounds {
        lab.until_up(3).await?;
        let leader = lab.leader().await?;
        let script =
            format!("echo \"$ROTA_JOB_ID $ROTA_TOKEN $WORLD_SIZE\" >> {}; sleep 0.2", witness.display());
        let mut client = Stubborn::without(&lab, leader);
        client.patience = Duration::from_millis(1_000);
        let job = client.submit(gang("begun", &script, 3, 3)).await?;
        tokio::time::sleep(Duration::from_millis(KILLED_AFTER_MS[round % KILLED_AFTER_MS.len()])).await;
        lab.signal(leader, Signal::KILL)?;
        let killed = Instant::now();
        lab.spawn(leader)?;
        let rows = client.until_done(&[job], LIMIT, |_, _| {}).await?;
        let ended_ms = killed.elapsed().as_millis() as u64;
        worst = worst.max(ended_ms);
        middle.push(ended_ms);
        let state = rows.iter().find(|row| row.job == job).map(|row| row.state);
        if state != Some(JobState::Succeeded) {
            violations.push(format!("round {round}: the gang is {state:?}"));
        }
        violations.extend(halves(&witness, job).into_iter().map(|what| format!("round {round}: {what}")));
        let view = show(&mut client, job).await?;
        held = view.attempts.iter().map(for_nobody_ms).max().unwrap_or(0).max(held);
        if !all_over(&view) {
            violations.push(format!("round {round}: something is still held: {:?}", view.attempts));
        }
        let at = view.attempts.first().map(|attempt| position(&lab, attempt.host));
        if at.is_none() {
            violations.push(format!("round {round}: not exercised"));
        }
    }
    middle.sort_unstable();
    Ok(Report::of("T4", bench.rounds, &violations)
        .figure("ended_after_kill_ms", worst, Some(ENDED_MS))
        .figure("ended_after_kill_p50_ms", middle.get(middle.len() / 2).copied().unwrap_or(0), None)
        .figure("granted_without_a_process_ms", held, Some(FOR_NOBODY_MS)))
}

/// How long an attempt's cards were granted without a process on them, by the log's own times.
fn for_nobody_ms(attempt: &AttemptRow) -> u64 {
    let until_ms = attempt.started_ms.or(attempt.ended_ms).unwrap_or(u64::MAX);
    until_ms.saturating_sub(attempt.granted_ms)
}

/// Starts of which not all parts ran.
fn halves(witness: &Path, job: JobId) -> Vec<String> {
    let mut starts: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for line in std::fs::read_to_string(witness).unwrap_or_default().lines() {
        let words: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        if let [of, token, 3] = words[..]
            && of == job.0
        {
            starts.entry(rota_protocol::Token(token).log_index()).or_default().insert(token);
        }
    }
    let half = starts.iter().filter(|(_, tokens)| tokens.len() != 3);
    let mut found: Vec<String> =
        half.map(|(at, tokens)| format!("of the start at {at} ran {tokens:?}")).collect();
    if starts.is_empty() {
        found.push("not exercised: no part was told of three".into());
    }
    found
}
