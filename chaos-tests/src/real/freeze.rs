//! Frozen processes (faults P3, P4): a leader that wakes up must not believe that it still leads; a host whose agent
//! is frozen past its lease has no task left when its replacement starts.

use super::Bench;
use super::beats::Beats;
use super::report::Report;
use super::stood::Stood;
use rota_node::bench::pulse::{Pulse, Span};
use rota_node::lab::{Lab, LabError, new_request, wait_for};
use rota_node::lab_work::{Stubborn, as_array, shell_job, true_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, QueueFilter};
use rota_protocol::ids::{HostId, JobId};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How long the leader sleeps in each round, in turn.
const LEADER_SLEEPS_MS: [u64; 4] = [300, 1_500, 5_000, 30_000];
/// Linearizable reads that wait for the leader when it wakes.
const READERS: usize = 16;
/// Longest time until a client of the other peers is served while the leader is frozen, in ms (as P1).
const GAP_MS_MAX: u64 = 2_500;

/// P3: the leader is stopped while others go on; the instant it wakes it is asked for what was accepted meanwhile,
/// linearizably: it must know it or say that it cannot tell.
pub(super) async fn leader_frozen(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("P3", 3, |_| {}).await?;
    let (mut violations, mut gap_max, mut stale_refused) = (Vec::new(), 0, 0);
    let stood = Stood::begin();
    let mut starved = None;
    for round in 0..bench.rounds {
        let sleep = Duration::from_millis(LEADER_SLEEPS_MS[round % LEADER_SLEEPS_MS.len()]);
        let leader = lab.leader().await?;
        let frozen = lab.peers[leader].client().await?;
        lab.signal(leader, Signal::STOP)?;
        let started = std::time::Instant::now();
        let mut client = Stubborn::new(&lab, leader);
        client.patience = Duration::from_millis(1_000);
        let mut newest: Option<JobId> = None;
        while started.elapsed() < sleep {
            let asked = std::time::Instant::now();
            let rest = Duration::from_secs(10);
            newest = Some(client.submit_as(new_request(), queued(), rest).await?);
            match stood.judge(asked, GAP_MS_MAX) {
                Ok(gap) => gap_max = gap_max.max(gap),
                Err(why) => starved = Some(why),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let Some(newest) = newest else {
            lab.signal(leader, Signal::CONT)?;
            continue;
        };
        // Asked while it sleeps, over a connection from before: the first things that the woken process reads.
        let reads = (0..READERS).map(|reader| {
            let (job, freshness) = (newest, Freshness::Linearizable);
            let filter = QueueFilter { after: job.0.checked_sub(1).map(JobId), ..QueueFilter::default() };
            match reader % 2 {
                0 => ApiRequest::Show { job, freshness },
                _ => ApiRequest::Queue { filter, freshness },
            }
        });
        let asked = frozen.streams(reads).await?;
        lab.signal(leader, Signal::CONT)?;
        for mut answers in asked {
            let Some(answer) = answers.next().await else { continue };
            match answer {
                Ok(ApiReply::Job(_)) => {}
                Ok(ApiReply::Queue { rows, .. }) if rows.iter().any(|row| row.job == newest) => {}
                Err(error) if error.code != rota_protocol::ErrorCode::NotFound => stale_refused += 1,
                other => violations
                    .push(format!("round {round}: the woken leader answered {other:?} for job {newest}")),
            }
        }
        lab.until_up(3).await?;
    }
    Ok(Report::of("P3", bench.rounds, &violations)
        .figure("gap_max_ms", gap_max, Some(GAP_MS_MAX))
        .figure("woken_leader_could_not_tell", stale_refused, None)
        .figure("harness_stood_still_ms", stood.longest_ms(), None)
        .unless(starved))
}

fn queued() -> rota_protocol::job::JobSpec {
    let mut spec = true_job("queued");
    spec.ask.labels.insert("chaos".into(), "no-host-has-this".into());
    spec
}

/// How long a follower is stopped.
const FOLLOWER_SLEEP: Duration = Duration::from_secs(4);
/// Longest gap of clients of the others meanwhile, in ms (P2).
const UNTOUCHED_MS_MAX: u64 = 200;
/// Longest that a call takes which needs the frozen peer, in ms: one deadline of 2,000, and a busy machine.
const DEADLINE_MS_MAX: u64 = 3_000;

/// A frozen follower: it costs one deadline, and only to calls that need it.
pub(super) async fn follower_frozen(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("P3F", 3, |_| {}).await?;
    let dir = bench.dir.join("P3F");
    let (mut violations, mut gap_max, mut deadline_max) = (Vec::new(), 0, 0);
    for round in 0..bench.rounds {
        let leader = lab.leader().await?;
        let at = (leader + 1) % lab.peers.len();
        let mut client = Stubborn::without(&lab, at);
        // One task on each host, of which each says when it was told to.
        let told = dir.join(format!("told-{round}"));
        let script =
            format!("trap 'echo $ROTA_TASK_INDEX >> {}' USR1; while :; do sleep 0.1; done", told.display());
        let spec = with_gpus(shell_job("spread", &script), 4);
        let job = client.submit(as_array(spec, 3)).await?;
        let hosts = running_hosts(&mut client, job, 3).await?;
        if !hosts.contains(&lab.peers[at].host) {
            violations.push(format!("round {round}: not exercised, the task runs on {hosts:?}"));
        }
        let submits = Pulse::submits(Stubborn::without(&lab, at), "true");
        submits.warm(5).await;
        lab.signal(at, Signal::STOP)?;
        let began = Instant::now();
        // Needs the frozen peer for one of its three tasks.
        let signal = ApiRequest::Signal { job, index: None, signal: 10 };
        let answer = lab.peers[leader].client().await?.call(signal).await;
        deadline_max = deadline_max.max(began.elapsed().as_millis() as u64);
        if answer.is_ok() {
            violations.push(format!("round {round}: a signal was told as sent to a frozen host"));
        }
        let heard = || std::fs::read_to_string(&told).unwrap_or_default().lines().count();
        if wait_for("the others' signals", Duration::from_secs(3), async || (heard() >= 2).then_some(()))
            .await
            .is_err()
        {
            violations.push(format!("round {round}: {} of the two other tasks heard their signal", heard()));
        }
        tokio::time::sleep(FOLLOWER_SLEEP.saturating_sub(began.elapsed())).await;
        gap_max = gap_max.max(submits.gap(Span::since(began)).as_millis() as u64);
        lab.signal(at, Signal::CONT)?;
        lab.until_up(3).await?;
        let mut jobs = submits.finish().await?;
        let cancel = ApiRequest::Cancel { request: new_request(), job, index: None };
        client.ask(cancel, Duration::from_secs(20)).await?;
        jobs.push(job);
        client.until_done(&jobs, Duration::from_secs(60), |_, _| {}).await?;
    }
    let digests = lab.digests().await?;
    if digests.windows(2).any(|pair| (pair[0].2, pair[0].3) != (pair[1].2, pair[1].3)) {
        violations.push(format!("state hashes differ: {digests:?}"));
    }
    Ok(Report::of("P3F", bench.rounds, &violations)
        .figure("gap_of_others_ms", gap_max, Some(UNTOUCHED_MS_MAX))
        .figure("call_that_needs_it_ms", deadline_max, Some(DEADLINE_MS_MAX)))
}

/// The hosts on which a job's attempts run, once there are so many.
async fn running_hosts(client: &mut Stubborn, job: JobId, count: usize) -> Result<Vec<HostId>, LabError> {
    for _ in 0..500 {
        let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
        if let ApiReply::Job(view) = client.ask(show, Duration::from_secs(10)).await? {
            let live = view.attempts.iter().filter(|attempt| attempt.pid.is_some() && attempt.end.is_none());
            let hosts: Vec<HostId> = live.map(|attempt| attempt.host).collect();
            if hosts.len() >= count {
                return Ok(hosts);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(LabError::Late(format!("start of job {job}"), 10_000))
}

/// P4: the agent of the host that runs a job is stopped for longer than its lease; the old copy must be silent
/// before the new one beats.
pub(super) async fn agent_frozen_past_its_lease(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("P4", 3, |_| {}).await?;
    let dir = bench.dir.join("P4");
    let (mut violations, mut smallest) = (Vec::new(), i64::MAX);
    for round in 0..bench.rounds {
        let beats = Beats::new(&dir, &format!("beats-{round}"));
        let mut client = Stubborn::new(&lab, 0);
        let job = client.submit(shell_job("beats", &beats.script(60))).await?;
        let at = position(&lab, running_on(&mut client, job).await?);
        wait_for("a first beat", Duration::from_secs(10), async || (!beats.lives().is_empty()).then_some(()))
            .await?;
        let mut client = Stubborn::new(&lab, at);
        client.patience = Duration::from_millis(1_000);
        lab.signal(at, Signal::STOP)?;
        let moved = wait_for("a second copy", Duration::from_secs(30), async || {
            (beats.lives().len() > 1).then_some(())
        })
        .await;
        lab.signal(at, Signal::CONT)?;
        if moved.is_err() {
            violations.push(format!("round {round}: the job was not started elsewhere"));
        }
        // The woken agent must not disturb the new copy.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        match beats.distance_ms() {
            Some(distance) => {
                smallest = smallest.min(distance);
                if distance <= 0 {
                    violations.push(format!("round {round}: two copies lived at once, {distance} ms apart"));
                }
            }
            None => violations.push(format!("round {round}: only one copy was seen")),
        }
        if beats.lives().len() > 2 {
            violations.push(format!("round {round}: {} copies", beats.lives().len()));
        }
        let cancel = ApiRequest::Cancel { request: new_request(), job, index: None };
        client.ask(cancel, Duration::from_secs(20)).await?;
        client.until_done(&[job], Duration::from_secs(20), |_, _| {}).await?;
        lab.until_up(3).await?;
    }
    Ok(Report::of("P4", bench.rounds, &violations).figure(
        "smallest_distance_ms",
        u64::try_from(smallest).unwrap_or(0),
        None,
    ))
}

/// The host on which a job's only live attempt runs.
pub(super) async fn running_on(client: &mut Stubborn, job: JobId) -> Result<HostId, LabError> {
    for _ in 0..500 {
        let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
        if let ApiReply::Job(view) = client.ask(show, Duration::from_secs(10)).await?
            && let Some(attempt) =
                view.attempts.iter().find(|attempt| attempt.pid.is_some() && attempt.end.is_none())
        {
            return Ok(attempt.host);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(LabError::Late(format!("start of job {job}"), 10_000))
}

/// Where a host stands among the lab's peers.
pub(super) fn position(lab: &Lab, host: HostId) -> usize {
    lab.peers.iter().position(|peer| peer.host == host).unwrap_or(0)
}
