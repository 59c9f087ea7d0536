//! Agents and shims killed (faults P6, P7, P11; field report R061): tasks go on under their shims and are taken over,
//! or are ended when nobody can answer for them any more.

use super::Bench;
use super::beats::Beats;
use super::freeze::{position, running_on};
use super::report::Report;
use rota_node::io::proc;
use rota_node::lab::{LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, OutputStream};
use rota_protocol::ids::JobId;
use rota_protocol::view::JobView;
use rustix::process::{Pid, Signal};
use std::time::{Duration, Instant};

/// Longest time from the start of an agent to having taken over its attempts, in ms (P6).
const ADOPTED_MS_MAX: u64 = 1_000;
/// Longest life of a task after its shim was killed, in ms (P7), with one beat of slack.
const ORPHAN_MS_MAX: u64 = 600;
/// Longest time until a second agent on one data directory gives up, in ms (P11).
const SECOND_MS_MAX: u64 = 1_000;

async fn show(client: &mut Stubborn, job: JobId) -> Result<JobView, LabError> {
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
        let text = output(&lab, (at + 1) % lab.peers.len(), job).await?;
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

/// A job's whole standard output, asked at a peer that does not run it.
async fn output(lab: &rota_node::lab::Lab, peer: usize, job: JobId) -> Result<String, LabError> {
    let client = lab.peers[peer].client().await?;
    let stream = OutputStream::Stdout;
    let logs = ApiRequest::Logs { job, index: 0, attempt: None, stream, offset: 0, follow: true };
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

fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
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
