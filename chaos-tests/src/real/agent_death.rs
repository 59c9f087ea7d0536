//! Agents and shims killed (faults P6, P7, P11; field report R061): tasks go on under their shims and are taken over,
//! or are ended when nobody can answer for them any more.

use super::Bench;
use super::beats::{Beats, now_ns};
use super::ends::left_over;
use super::freeze::{position, running_on};
use super::host_files::{lab_with_files, program, set_settings};
use super::report::Report;
use super::row::Row;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rota_node::io::proc;
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, OutputStream};
use rota_protocol::ids::JobId;
use rota_protocol::job::{AttemptEnd, JobSpec};
use rota_protocol::view::JobView;
use rustix::process::{Pid, Signal};
use std::time::{Duration, Instant};

/// Longest time from the start of an agent to having taken over its attempts, in ms (P6).
const ADOPTED_MS_MAX: u64 = 1_000;
/// Longest life of a task after its shim was killed, in ms (P7), with one beat of slack.
const ORPHAN_MS_MAX: u64 = 600;
/// Longest time until a second agent on one data directory gives up, in ms (P11).
const SECOND_MS_MAX: u64 = 1_000;

pub(super) async fn show(client: &mut Stubborn, job: JobId) -> Result<JobView, LabError> {
    let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
    match client.ask(show, Duration::from_secs(20)).await? {
        ApiReply::Job(view) => Ok(*view),
        other => {
            Err(rota_protocol::PublicError::new(rota_protocol::ErrorCode::Internal, format!("{other:?}"))
                .into())
        }
    }
}

/// P6, R061: the agent is killed twice under a counting job; same process, every line once, the exact code.
pub(super) async fn restarted(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("P6", 3, |_| {}).await?;
    let (mut violations, mut slowest) = (Vec::new(), 0);
    for round in 0..bench.rounds {
        let mut client = Stubborn::new(&lab, 0);
        let count = "for i in $(seq 120); do echo $i; sleep 0.02; done; exit 3";
        let job = client.submit(shell_job("counts", count)).await?;
        let at = position(&lab, running_on(&mut client, job).await?);
        let before = show(&mut client, job).await?.attempts.first().and_then(|attempt| attempt.pid);
        let mut client = Stubborn::new(&lab, at);
        for _ in 0..2 {
            lab.signal(at, Signal::KILL)?;
            tokio::time::sleep(Duration::from_millis(300)).await;
            lab.spawn(at)?;
            let started = Instant::now();
            lab.until_answers(at).await?;
            slowest = slowest.max(started.elapsed().as_millis() as u64);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        client.until_done(&[job], Duration::from_secs(30), |_, _| {}).await?;
        let view = show(&mut client, job).await?;
        let pids: Vec<_> = view.attempts.iter().map(|attempt| attempt.pid).collect();
        if pids != [before] {
            violations.push(format!("round {round}: processes {before:?} became {pids:?}"));
        }
        if view.exit_status != Some(3) {
            violations.push(format!("round {round}: exit status {:?} instead of 3", view.exit_status));
        }
        let wanted: String = (1..=120).map(|i| format!("{i}\n")).collect();
        let text = output(&lab, (at + 1) % lab.peers.len(), job, true).await?;
        if text != wanted {
            violations.push(format!(
                "round {round}: {} bytes of output instead of {}",
                text.len(),
                wanted.len()
            ));
        }
    }
    Ok(Report::of("P6", bench.rounds, &violations).figure("adopted_ms", slowest, Some(ADOPTED_MS_MAX)))
}

/// A job's standard output: what there is, or, followed, all of it.
pub(super) async fn output(lab: &Lab, peer: usize, job: JobId, follow: bool) -> Result<String, LabError> {
    let client = lab.peers[peer].client().await?;
    let stream = OutputStream::Stdout;
    let logs = ApiRequest::Logs { job, index: 0, attempt: None, stream, offset: 0, follow };
    let mut chunks = client.stream(logs).await?;
    let mut bytes = Vec::new();
    while let Some(reply) = chunks.next().await {
        if let ApiReply::Log(chunk) = reply? {
            bytes.extend_from_slice(&chunk.bytes);
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// P7: the agent is killed for good: the task is gone by the end of its lease and runs elsewhere after it. Then a
/// shim is killed: its task is gone at once and the task runs again.
pub(super) async fn not_restarted(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("P7", 3, |_| {}).await?;
    let dir = bench.dir.join("P7");
    let (mut violations, mut smallest, mut orphan_max) = (Vec::new(), i64::MAX, 0);
    for round in 0..bench.rounds {
        let beats = Beats::new(&dir, &format!("beats-{round}"));
        let mut client = Stubborn::new(&lab, 0);
        let job = client.submit(shell_job("beats", &beats.script(60))).await?;
        let at = position(&lab, running_on(&mut client, job).await?);
        let mut client = Stubborn::new(&lab, at);
        client.patience = Duration::from_millis(1_000);
        lab.signal(at, Signal::KILL)?;
        wait_for("a second copy", Duration::from_secs(30), async || (beats.lives().len() > 1).then_some(()))
            .await?;
        smallest = smallest.min(beats.distance_ms().unwrap_or(0));
        lab.spawn(at)?;
        lab.until_up(3).await?;

        // The second copy's shim dies: the parent of the task's first process.
        running_on(&mut client, job).await?;
        let view = show(&mut client, job).await?;
        let live = view.attempts.iter().find(|attempt| attempt.end.is_none());
        let Some((token, pid)) = live.and_then(|attempt| Some((attempt.token, attempt.pid?))) else {
            violations.push(format!("round {round}: no live process"));
            continue;
        };
        let stat = i32::try_from(pid).ok().and_then(|pid| proc::stat(pid).ok());
        let shim = stat.and_then(|stat| Pid::from_raw(stat.ppid));
        let Some(shim) = shim else {
            violations.push(format!("round {round}: process {pid} has no parent"));
            continue;
        };
        let killed_ns = now_ns();
        rustix::process::kill_process(shim, Signal::KILL)
            .map_err(|e| LabError::Io("kill".into(), e.into()))?;
        wait_for("a third copy", Duration::from_secs(30), async || (beats.lives().len() > 2).then_some(()))
            .await?;
        let last_ns = beats.lives().get(&token.0).map_or(0, |life| life.last_ns);
        orphan_max = orphan_max.max(last_ns.saturating_sub(killed_ns) / 1_000_000);
        smallest = smallest.min(beats.distance_ms().unwrap_or(0));
        let cancel = ApiRequest::Cancel { request: rota_node::lab::new_request(), job, index: None };
        client.ask(cancel, Duration::from_secs(20)).await?;
        client.until_done(&[job], Duration::from_secs(20), |_, _| {}).await?;
    }
    if smallest <= 0 {
        violations.push(format!("two copies lived at once ({smallest} ms)"));
    }
    Ok(Report::of("P7", bench.rounds, &violations)
        .figure("smallest_distance_ms", u64::try_from(smallest).unwrap_or(0), None)
        .figure("orphan_lived_ms", orphan_max, Some(ORPHAN_MS_MAX)))
}

/// P11: a second agent on the same data directory ends with a message, and the first does not notice.
pub(super) async fn started_twice(bench: &Bench) -> Result<Report, LabError> {
    let lab = bench.lab("P11", 1, |_| {}).await?;
    let dir = lab.peers[0].dir.display().to_string();
    let listen = format!("127.0.0.1:{}", lab.peers[0].port);
    let started = Instant::now();
    let second = lab.rota(&["agent", "--data-dir", &dir, "--listen", &listen, "--http-listen", "off"]).await;
    let took = started.elapsed().as_millis() as u64;
    let mut violations = Vec::new();
    match second {
        Err(LabError::Command { output, .. }) if output.contains("another agent runs") => {}
        other => violations.push(format!("the second agent said {other:?}")),
    }
    lab.until_answers(0).await?;
    Ok(Report::of("P11", 1, &violations).figure("gave_up_ms", took, Some(SECOND_MS_MAX)))
}

/// P6 as a row.
pub(super) async fn adopted(bench: &Bench) -> Result<Row, LabError> {
    let what = "agent killed and started again: from its start to its attempts taken over; same processes, all output";
    Ok(Row::of(&restarted(bench).await?, what))
}

/// P7 as a row.
pub(super) async fn orphaned(bench: &Bench) -> Result<Row, LabError> {
    let what = "shim killed: from that to the last sign of its task; agent killed for good: no two copies";
    Ok(Row::of(&not_restarted(bench).await?, what))
}

/// Where in an attempt's life the agent is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    Spawn,
    Running,
    Term,
    Exit,
    Epilog,
}

const POINTS: [Point; 5] = [Point::Spawn, Point::Running, Point::Term, Point::Exit, Point::Epilog];
/// From the start of the killed agent's successor to the job's end in the log, in ms: what the job itself needs for its
/// longest part (a second), an election, and taking over.
const SETTLED_MS: u64 = 5_000;

/// R061, R063, R066: the agent is killed at random points of attempts' lives, by seed. Whatever the point: one start, the
/// exact end, every byte of output once, one epilog, no process left, every card free again.
pub(super) async fn at_any_point(bench: &Bench) -> Result<Row, LabError> {
    const SEED: u64 = 61;
    let mut lab = lab_with_files(bench, "R061", 1).await?;
    let dir = bench.dir.join("R061");
    let epilog = dir.join("epilog");
    let script = format!("echo \"$ROTA_JOB $ROTA_END\" >> {}; sleep 0.15", dir.join("epilogs").display());
    program(&epilog, &script)?;
    lab.stop(0).await?;
    set_settings(&lab.peers[0], &format!("[hooks]\nepilog = \"{}\"\n", epilog.display()))?;
    lab.spawn(0)?;
    lab.until_answers(0).await?;
    lab.until_up(1).await?;
    let what = "agent killed at any point of an attempt: from its successor's start to the right end";
    let mut row = Row::new("R061", what, Some(SETTLED_MS));
    let mut dice = SmallRng::seed_from_u64(SEED);
    for round in 0..bench.rounds * POINTS.len() {
        let point = POINTS[round % POINTS.len()];
        let starts = dir.join(format!("starts-{round}"));
        let mut client = Stubborn::new(&lab, 0);
        let job = client.submit(with_gpus(a_life(&starts, point), 4)).await?;
        until_point(&lab, &mut client, job, point, &mut dice).await?;
        lab.signal(0, Signal::KILL)?;
        tokio::time::sleep(Duration::from_millis(dice.random_range(0..400))).await;
        lab.spawn(0)?;
        let started = Instant::now();
        let mut client = Stubborn::new(&lab, 0);
        client.until_done(&[job], Duration::from_secs(30), |_, _| {}).await?;
        row.ran(started.elapsed().as_millis() as u64);
        let name = format!("round {round} ({point:?})");
        for wrong in wrong_with(&lab, &mut client, job, point, &starts).await? {
            row.wrong(format!("{name}: {wrong}"));
        }
        let epilogs = std::fs::read_to_string(dir.join("epilogs")).unwrap_or_default();
        let own = epilogs.lines().filter(|line| line.split(' ').next() == Some(&job.to_string())).count();
        row.must(own == 1, || format!("{name}: {own} epilogs"));
        let left = left_over(&lab).await?;
        row.must(left.is_empty(), || format!("{name}: processes {left:?} are left"));
    }
    Ok(row)
}

/// Notes its start, says forty lines, and ends with 5; at TERM it says one more.
fn a_life(starts: &std::path::Path, point: Point) -> JobSpec {
    let waits = if point == Point::Term { "while :; do sleep 0.01; done" } else { ":" };
    let script = format!(
        "echo $ROTA_TOKEN >> {}; trap 'echo term; sleep 0.1; exit 5' TERM; \
         for i in $(seq 40); do echo line $i; sleep 0.005; done; {waits}; exit 5",
        starts.display()
    );
    let mut spec = shell_job("a-life", &script);
    if point == Point::Term {
        (spec.time_limit_ms, spec.grace_ms) = (Some(600), Some(5_000));
    }
    spec
}

/// Waits until the attempt has come to the point, and a random moment longer.
async fn until_point(
    lab: &Lab,
    client: &mut Stubborn,
    job: JobId,
    point: Point,
    dice: &mut SmallRng,
) -> Result<(), LabError> {
    let limit = Duration::from_secs(10);
    let mut pause = async |ms: std::ops::Range<u64>| {
        tokio::time::sleep(Duration::from_micros(dice.random_range(ms.start * 1_000..ms.end * 1_000))).await;
    };
    match point {
        Point::Spawn => pause(0..25).await,
        Point::Running => {
            running_on(client, job).await?;
            pause(0..150).await;
        }
        Point::Term | Point::Exit => {
            let last = if point == Point::Term { "term" } else { "line 38" };
            wait_for("the last words", limit, async || {
                let text = output(lab, 0, job, false).await.ok()?;
                text.contains(last).then_some(())
            })
            .await?;
            pause(0..60).await;
        }
        Point::Epilog => {
            let mark = format!("{job} ");
            let epilogs = lab.peers[0].dir.with_file_name("epilogs");
            wait_for("its epilog", limit, async || {
                let text = std::fs::read_to_string(&epilogs).unwrap_or_default();
                text.lines().any(|line| line.starts_with(&mark)).then_some(())
            })
            .await?;
            pause(0..140).await;
        }
    }
    Ok(())
}

async fn wrong_with(
    lab: &Lab,
    client: &mut Stubborn,
    job: JobId,
    point: Point,
    starts: &std::path::Path,
) -> Result<Vec<String>, LabError> {
    let mut wrong = Vec::new();
    let view = show(client, job).await?;
    let ends: Vec<_> = view.attempts.iter().map(|attempt| attempt.end.clone()).collect();
    let (end, last) = match point {
        Point::Term => (AttemptEnd::TimeLimit, "term\n"),
        _ => (AttemptEnd::Exited { code: 5 }, ""),
    };
    if ends != [Some(end)] {
        wrong.push(format!("it ended as {ends:?}"));
    }
    let started = std::fs::read_to_string(starts).unwrap_or_default().lines().count();
    if started != 1 {
        wrong.push(format!("it was started {started} times"));
    }
    let wanted: String = (1..=40).map(|i| format!("line {i}\n")).collect();
    let text = output(lab, 0, job, true).await?;
    if text != wanted + last {
        wrong.push(format!("its output is {text:?}"));
    }
    Ok(wrong)
}
