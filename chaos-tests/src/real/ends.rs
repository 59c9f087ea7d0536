//! How attempts end (faults T1, T5, T6, T7; field reports R052, R066, R044): whole trees killed before their cards are used
//! again, cancels that race everything else, victims that end by themselves, reasons told as they were.

use super::Bench;
use super::agent_death::show;
use super::row::Row;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rota_node::io::proc;
use rota_node::lab::{Lab, LabError, new_request, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, true_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::ids::JobId;
use rota_protocol::job::{AttemptEnd, AttemptState, JobState};
use rota_protocol::view::{AttemptRow, JobView};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between TERM and KILL of the lab's jobs, in ms.
const GRACE_MS: u64 = 500;
/// The part of the lease that killing may take in the lab's profile, in ms (K).
const KILL_BUDGET_MS: u64 = 600;
/// A victim's devices are given to whoever comes next within this, in ms (R044).
const BACK_MS: u64 = 2_000;
/// Longest wait for anything that a lab should do.
const LIMIT: Duration = Duration::from_secs(30);
/// A process that hides: it heeds nothing, and notes its number.
const HIDES: &str = "trap \"\" TERM HUP INT; echo $$ >> PIDS; while :; do sleep 1000; done";

pub(super) async fn cancel(client: &mut Stubborn, job: JobId) -> Result<u32, LabError> {
    let cancel = ApiRequest::Cancel { request: new_request(), job, index: None };
    match client.ask(cancel, LIMIT).await? {
        ApiReply::Cancelling { live } => Ok(live),
        other => {
            let message = format!("unexpected reply {other:?}");
            Err(rota_protocol::PublicError::new(rota_protocol::ErrorCode::Internal, message).into())
        }
    }
}

fn numbers(path: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

fn lives(pid: i32) -> bool {
    proc::stat(pid).is_ok_and(|stat| stat.state != b'Z')
}

/// Waits until a job is as wanted.
pub(super) async fn until(
    client: &mut Stubborn,
    job: JobId,
    what: &str,
    holds: impl Fn(&JobView) -> bool,
) -> Result<JobView, LabError> {
    let began = Instant::now();
    loop {
        let view = show(client, job).await?;
        if holds(&view) {
            return Ok(view);
        }
        if began.elapsed() > LIMIT {
            return Err(LabError::Late(
                format!("{what} of job {job} ({})", view.row.state),
                LIMIT.as_millis(),
            ));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// T1, R052: a tree that hides in every way is gone within grace and kill budget; the job says "ending" until it is, and
/// the next job on the card finds nothing.
pub(super) async fn tree_killed(bench: &Bench) -> Result<Row, LabError> {
    let lab = bench.lab("T1", 1, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let (dir, mut client) = (bench.dir.join("T1"), Stubborn::new(&lab, 0));
    let what =
        "fork, double fork, setsid, empty environment, TERM ignored: from cancel to the last process's end";
    let mut row = Row::new("T1", what, Some(GRACE_MS + KILL_BUDGET_MS));
    for round in 0..bench.rounds {
        let (pids, left) = (dir.join(format!("pids-{round}")), dir.join(format!("left-{round}")));
        let me = HIDES.replace("PIDS", &pids.display().to_string());
        let script = format!(
            "me='{me}'; sh -c \"$me\" & setsid sh -c \"$me\" & (setsid sh -c \"$me\" & ) & \
             env -i setsid sh -c \"$me\" & trap '' TERM; echo $$ >> {}; wait; sleep 9999",
            pids.display()
        );
        let job = client.submit(with_gpus(shell_job("hides", &script), 1)).await?;
        wait_for("all five processes", LIMIT, async || (numbers(&pids).len() == 5).then_some(())).await?;
        let looks = format!(
            "for p in $(cat {}); do kill -0 $p 2>/dev/null && echo $p >> {}; done; exit 0",
            pids.display(),
            left.display()
        );
        let next = client.submit(with_gpus(shell_job("next", &looks), 1)).await?;
        let cancelled = Instant::now();
        let live = cancel(&mut client, job).await?;
        let answered_ms = cancelled.elapsed().as_millis();
        let view = show(&mut client, job).await?;
        row.must(live == 1 && view.row.state == JobState::Ending && view.row.place == "n1", || {
            format!(
                "round {round}: after the cancel it is {} on {}, {live} live",
                view.row.state, view.row.place
            )
        });
        row.must(answered_ms < u128::from(GRACE_MS), || {
            format!("round {round}: the cancel was answered after {answered_ms} ms")
        });
        let again = cancel(&mut client, job).await?;
        row.must(again == 1, || format!("round {round}: cancelled again, {again} are live"));
        let all = numbers(&pids);
        wait_for("the end of all", LIMIT, async || all.iter().all(|pid| !lives(*pid)).then_some(())).await?;
        row.ran(cancelled.elapsed().as_millis() as u64);
        client.until_done(&[job, next], LIMIT, |_, _| {}).await?;
        let (over, used) = (show(&mut client, job).await?, show(&mut client, next).await?);
        row.must(over.row.state == JobState::Cancelled, || {
            format!("round {round}: it is {}", over.row.state)
        });
        row.must(used.row.state == JobState::Succeeded && !left.exists(), || {
            format!("round {round}: the next job was {} and found {:?}", used.row.state, numbers(&left))
        });
    }
    Ok(row)
}

/// T5, R066: cancels at random moments of short jobs' lives. Each job has one end; nothing is granted after a cancel was
/// acknowledged; all capacity is back.
pub(super) async fn cancels_race(bench: &Bench) -> Result<Row, LabError> {
    const SEED: u64 = 5;
    const JOBS: usize = 40;
    let lab = bench.lab("T5", 1, |_| {}).await?;
    let mut client = Stubborn::new(&lab, 0);
    let mut dice = SmallRng::seed_from_u64(SEED);
    let what = "cancel races start, finish and retry: from cancel to the one end";
    let mut row = Row::new("T5", what, Some(GRACE_MS + KILL_BUDGET_MS + 500));
    let mut ends: Vec<JobState> = Vec::new();
    for round in 0..bench.rounds {
        for number in 0..JOBS {
            let body =
                ["sleep 0.03", "sleep 0.03; exit 3", "trap '' TERM; sleep 0.2", "sleep 9999"][number % 4];
            let mut spec = with_gpus(shell_job("races", body), 1);
            spec.retries = u16::from(number % 3 == 0);
            spec.grace_ms = Some(100);
            let job = client.submit(spec).await?;
            tokio::time::sleep(Duration::from_micros(dice.random_range(0..120_000))).await;
            let asked = Instant::now();
            cancel(&mut client, job).await?;
            let acked_ms = rota_node::io::clock::wall_ms();
            let view = until(&mut client, job, "the end", |view| view.row.state.is_terminal()).await?;
            row.ran(asked.elapsed().as_millis() as u64);
            ends.push(view.row.state);
            let late = view.attempts.iter().any(|attempt| attempt.granted_ms > acked_ms);
            let counts = view.row.tasks;
            let once =
                counts.succeeded + counts.failed + counts.cancelled == 1 && counts.live + counts.pending == 0;
            let all_ended = view.attempts.iter().all(|attempt| attempt.end.is_some());
            row.must(!late && once && all_ended, || format!("round {round}: {view:?}"));
            let after = show(&mut client, job).await?;
            row.must(after.row.state == view.row.state, || {
                format!("{} became {}", view.row.state, after.row.state)
            });
        }
        whole_host(&mut client, &mut row, 4).await?;
    }
    // Not exercised if every cancel met jobs in one state only.
    let cancelled = ends.iter().filter(|state| **state == JobState::Cancelled).count();
    row.must(cancelled > 0 && cancelled < ends.len(), || format!("{cancelled} of {} cancelled", ends.len()));
    Ok(row)
}

/// All of a host's cards can be had.
async fn whole_host(client: &mut Stubborn, row: &mut Row, gpus: u32) -> Result<(), LabError> {
    let job = client.submit(with_gpus(true_job("all"), gpus)).await?;
    let view = until(client, job, "a run on all cards", |view| view.row.state.is_terminal()).await?;
    row.must(view.row.state == JobState::Succeeded, || format!("a job of all cards was {}", view.row.state));
    Ok(())
}

/// T6, R044: a preemptor is cancelled at random moments: its victim, which ends by itself when asked, is ended at most once
/// for it, runs again, and no card is lost.
pub(super) async fn preemptors_cancelled(bench: &Bench) -> Result<Row, LabError> {
    const SEED: u64 = 6;
    let lab = bench.lab("T6", 1, |_| {}).await?;
    let mut client = Stubborn::new(&lab, 0);
    let mut dice = SmallRng::seed_from_u64(SEED);
    let what = "preemptor cancelled, victim ends by itself: from that cancel to the victim's run";
    let mut row = Row::new("T6", what, Some(BACK_MS));
    let script = "trap 'sleep 0.0$(($ROTA_TOKEN % 9)); exit 0' TERM; while :; do sleep 0.01; done";
    let mut evicted = 0;
    for round in 0..bench.rounds * 4 {
        // A new one each time: one that was ended a few times is spared.
        let mut victim = with_gpus(shell_job("victim", script), 4);
        (victim.priority, victim.retries) = (10, 1);
        let victim = client.submit(victim).await?;
        // What is being ended is no run any more.
        let goes_on = |a: &AttemptRow| a.pid.is_some() && a.state == Some(AttemptState::Running);
        let runs = |view: &JobView| view.attempts.iter().any(|a| a.end.is_none() && goes_on(a));
        let before = until(&mut client, victim, "a run", runs).await?;
        let known = before.attempts.len() + before.attempts_forgotten as usize;
        let mut spec = with_gpus(shell_job("first", "sleep 9999"), 4);
        (spec.priority, spec.grace_ms) = (90, Some(100));
        let first = client.submit(spec).await?;
        tokio::time::sleep(Duration::from_micros(dice.random_range(0..250_000))).await;
        cancel(&mut client, first).await?;
        let asked = Instant::now();
        until(&mut client, first, "the end", |view| view.row.state.is_terminal()).await?;
        let back = until(&mut client, victim, "a run", runs).await?;
        row.ran(asked.elapsed().as_millis() as u64);
        let now = back.attempts.len() + back.attempts_forgotten as usize;
        row.must(now <= known + 1, || {
            format!("round {round}: ended {} times for one preemptor: {:?}", now - known, back.attempts)
        });
        evicted += now - known;
        let others: Vec<_> = back.attempts.iter().filter_map(|attempt| attempt.end.as_ref()).collect();
        row.must(others.iter().all(|end| **end == AttemptEnd::Preempted), || {
            format!("round {round}: {others:?}")
        });
        cancel(&mut client, victim).await?;
        until(&mut client, victim, "the end", |view| view.row.state == JobState::Cancelled).await?;
    }
    row.must(evicted * 2 > bench.rounds * 4, || format!("not exercised: {evicted} victims were ended"));
    whole_host(&mut client, &mut row, 4).await?;
    Ok(row)
}

/// T7: ends by signals are told with the signal, by exit code with the code; what a task that ended well left behind is
/// gone before its card is used again.
pub(super) async fn reasons_told(bench: &Bench) -> Result<Row, LabError> {
    let lab = bench.lab("T7", 1, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let (dir, mut client) = (bench.dir.join("T7"), Stubborn::new(&lab, 0));
    let what =
        "exit 0 with processes left: from that exit to the card's next job; reasons of other ends told";
    let mut row = Row::new("T7", what, Some(KILL_BUDGET_MS + 500));
    for round in 0..bench.rounds {
        for (script, end, status) in [
            ("kill -SEGV $$", AttemptEnd::Signalled { signal: 11 }, 139),
            ("kill -KILL $$", AttemptEnd::Signalled { signal: 9 }, 137),
            ("exit 7", AttemptEnd::Exited { code: 7 }, 7),
        ] {
            let job = client.submit(with_gpus(shell_job("ends", script), 1)).await?;
            let view = until(&mut client, job, "the end", |view| view.row.state.is_terminal()).await?;
            let told = view.attempts.first().and_then(|attempt| attempt.end.clone());
            row.must(told.as_ref() == Some(&end) && view.exit_status == Some(status), || {
                format!("round {round}: `{script}` was told as {told:?}, status {:?}", view.exit_status)
            });
        }
        let (pids, times) = (dir.join(format!("pids-{round}")), dir.join(format!("times-{round}")));
        let me = HIDES.replace("PIDS", &pids.display().to_string());
        let leaves = format!(
            "me='{me}'; setsid sh -c \"$me\" & sh -c \"$me\" & while [ \"$(cat {0} | wc -l)\" != 2 ]; do sleep 0.01; done; \
             date +%s%N >> {1}; exit 0",
            pids.display(),
            times.display()
        );
        let job = client.submit(with_gpus(shell_job("leaves", &leaves), 1)).await?;
        let looks = format!(
            "date +%s%N >> {1}; for p in $(cat {0}); do kill -0 $p 2>/dev/null && exit 9; done; exit 0",
            pids.display(),
            times.display()
        );
        let next = client.submit(with_gpus(shell_job("next", &looks), 1)).await?;
        client.until_done(&[job, next], LIMIT, |_, _| {}).await?;
        let (first, second) = (show(&mut client, job).await?, show(&mut client, next).await?);
        row.must(first.exit_status == Some(0) && second.exit_status == Some(0), || {
            format!("round {round}: exit {:?}, then {:?}", first.exit_status, second.exit_status)
        });
        let text = std::fs::read_to_string(&times).unwrap_or_default();
        match text.lines().filter_map(|line| line.parse::<u64>().ok()).collect::<Vec<_>>()[..] {
            [ended_ns, started_ns] => row.ran(started_ns.saturating_sub(ended_ns) / 1_000_000),
            ref other => row.wrong(format!("round {round}: times {other:?}")),
        }
    }
    Ok(row)
}

/// Processes of a lab's cluster that are still there.
pub(super) async fn left_over(lab: &Lab) -> Result<Vec<i32>, LabError> {
    let mark = format!("ROTA_CLUSTER={}", lab.cluster().await?.cluster).into_bytes();
    Ok(proc::marked(&[mark]).unwrap_or_default())
}
