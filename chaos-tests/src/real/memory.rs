//! What a job sees of cards that it did not ask for, and what is told of memory that it took (field reports R012, R049, R050).

use super::Bench;
use super::agent_death::show;
use super::ends::{cancel, until};
use super::row::Row;
use rota_node::io::proc;
use rota_node::lab::{Lab, LabError};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::job::{AttemptEnd, JobSpec, JobState};
use rota_protocol::view::{AttemptRow, JobView};
use std::path::Path;
use std::time::Instant;

/// From the submit of a job that takes all memory to its end, in ms: the kernel kills it before the machine is short.
const ENDED_MS: u64 = 10_000;
/// Memory that the host offers, and what a job may ask of it, in MiB.
const OFFERED: &str = "512MiB";
const ASKED_MIB: u64 = 64;
/// The score of a late choice.
const SPARED: &str = "-900";
/// `tail` keeps what has no line ends.
const HOG: &str = "tail /dev/zero";

/// R012: who asked for no card is told of none, by variables that are set, and opens none.
pub(super) async fn no_card_unasked(bench: &Bench) -> Result<Row, LabError> {
    let lab = bench.lab("R012", 1, |_| {}).await?;
    let (dir, mut client) = (bench.dir.join("R012"), Stubborn::new(&lab, 0));
    let mut row = Row::new("R012", "no ask for cards: the variables are set to none, no node opens", None);
    for round in 0..bench.rounds {
        for gpus in [0, 1] {
            let told = dir.join(format!("told-{round}-{gpus}"));
            let script = format!(
                "for d in /dev/nvidia[0-9]*; do (: < $d) 2>/dev/null && echo OPEN $d; done >> {0}; \
                 echo \"${{CUDA_VISIBLE_DEVICES-unset}}|${{NVIDIA_VISIBLE_DEVICES-unset}}\" >> {0}",
                told.display()
            );
            let job = client.submit(with_gpus(shell_job("looks", &script), gpus)).await?;
            let view = until(&mut client, job, "the end", |view| view.row.state.is_terminal()).await?;
            row.must(view.row.state == JobState::Succeeded, || format!("{gpus}: it is {}", view.row.state));
            let told = std::fs::read_to_string(&told).unwrap_or_default();
            let uuid = view.attempts.first().and_then(|a| a.devices.first()).map(|d| d.uuid.0.clone());
            let wanted = match uuid {
                Some(uuid) => format!("{uuid}|{uuid}\n"),
                None => "|void\n".to_owned(),
            };
            row.must(told == wanted, || format!("with {gpus} cards a job was told {told:?}, not {wanted:?}"));
        }
        row.tried();
    }
    Ok(row)
}

fn asks(name: &str, script: &str) -> JobSpec {
    let mut spec = shell_job(name, script);
    spec.ask.mem_mib = ASKED_MIB;
    spec
}

async fn ended(client: &mut Stubborn, spec: JobSpec) -> Result<(JobView, AttemptRow), LabError> {
    let job = client.submit(spec).await?;
    let view = until(client, job, "the end", |view| view.row.state.is_terminal()).await?;
    let last = view.attempts.iter().max_by_key(|attempt| attempt.token).cloned();
    let last = last.ok_or_else(|| LabError::Late(format!("an attempt of job {job}"), 0))?;
    Ok((view, last))
}

/// Nothing may be tried where the kernel bounds nobody: it would be the machine's memory that is taken.
async fn is_bounded(client: &mut Stubborn) -> Result<bool, LabError> {
    let (_, attempt) = ended(client, asks("calm", "true")).await?;
    Ok(attempt.used.limit_mib == ASKED_MIB)
}

const UNBOUNDED: &str = "no control groups that bound memory and that this user may make";

/// R049: the kernel's own count decides: a kill inside is told with limit and peak, also when the job says that all is well.
pub(super) async fn out_of_memory_told(bench: &Bench) -> Result<Row, LabError> {
    let lab = bench.lab("R049", 1, |options| options.mem = Some(OFFERED.into())).await?;
    let mut client = Stubborn::new(&lab, 0);
    let what = "out of memory, by the first process, by a child, in a memory-backed file, behind an exit of 0: told with limit and peak";
    let mut row = Row::new("R049", what, Some(ENDED_MS));
    if !is_bounded(&mut client).await? {
        return Ok(row.skip(UNBOUNDED));
    }
    let tries = [
        (HOG.to_owned(), false),
        (format!("{HOG}; exit 3"), false),
        ("head -c 300M /dev/zero > /dev/shm/f".to_owned(), false),
        (format!("{HOG}; exit 0"), true),
    ];
    for _ in 0..bench.rounds.min(3) {
        for (script, is_well) in &tries {
            let asked = Instant::now();
            let (view, attempt) = ended(&mut client, asks("hog", script)).await?;
            row.ran(u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX));
            let used = attempt.used;
            let told = used.oom_kills > 0
                && used.limit_mib == ASKED_MIB
                && (ASKED_MIB / 2..=ASKED_MIB).contains(&used.peak_mib);
            row.must(told, || format!("{script}: {used:?}"));
            let is_named = matches!(attempt.end, Some(AttemptEnd::OutOfMemory { .. }));
            let is_done = attempt.end == Some(AttemptEnd::Exited { code: 0 });
            row.must(if *is_well { is_done } else { is_named }, || format!("{script}: {:?}", attempt.end));
            let shown = shown(&lab, view.row.job).await?;
            row.must(shown.contains("(killed)") && shown.contains(&format!("{ASKED_MIB}")), || {
                format!("{script} is shown as {shown}")
            });
        }
    }
    Ok(row)
}

/// What `rota show` prints.
async fn shown(lab: &Lab, job: rota_protocol::JobId) -> Result<String, LabError> {
    let socket = lab.peers[0].socket().display().to_string();
    lab.rota(&["show", "--socket", &socket, &job.to_string()]).await
}

/// Whether a process of this user may be made a late choice: some containers take that right from root, too.
fn may_be_spared() -> bool {
    let script = format!("echo {SPARED} > /proc/self/oom_score_adj");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).stderr(std::process::Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

fn score(pid: u32) -> String {
    let path = Path::new("/proc").join(pid.to_string()).join("oom_score_adj");
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// R050: a job without an ask takes all that there is: it is ended as out of memory; the agent is the same process, and the
/// jobs beside it run on.
pub(super) async fn hog_beside_others(bench: &Bench) -> Result<Row, LabError> {
    let lab = bench.lab("R050", 1, |options| options.mem = Some(OFFERED.into())).await?;
    let mut client = Stubborn::new(&lab, 0);
    let what =
        "a job without an ask takes all memory: from its submit to its end; same agent, neighbours run on";
    let mut row = Row::new("R050", what, Some(ENDED_MS));
    if !is_bounded(&mut client).await? {
        return Ok(row.skip(UNBOUNDED));
    }
    let agent = lab.peers[0].pid().unwrap_or_default();
    let mut neighbours = Vec::new();
    for name in ["left", "right"] {
        let job = client.submit(shell_job(name, "exec sleep 600")).await?;
        let runs = |view: &JobView| view.attempts.iter().any(|a| a.pid.is_some());
        let view = until(&mut client, job, "a run", runs).await?;
        neighbours.push((job, view.attempts[0].pid.unwrap_or_default()));
    }
    // The kernel's last choice is the agent, where it may say so, and no task inherits that.
    let (own, may) = (score(std::process::id()), may_be_spared());
    let agents = if may && own == "0" { SPARED } else { &own };
    let scores = (score(agent), score(neighbours[0].1));
    row.must(scores.0 == agents && (scores.1 == "0" || scores.1 == own), || {
        format!("agent and task score {scores:?}")
    });
    row.also("agent_is_spared", u64::from(scores.0 == SPARED), None);
    for round in 0..bench.rounds {
        let asked = Instant::now();
        let (_, attempt) = ended(&mut client, shell_job("hog", HOG)).await?;
        row.ran(u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX));
        row.must(matches!(attempt.end, Some(AttemptEnd::OutOfMemory { .. })), || {
            format!("round {round}: it ended as {:?}", attempt.end)
        });
        row.must(lab.peers[0].pid() == Some(agent) && proc::stat(agent.cast_signed()).is_ok(), || {
            format!("round {round}: the agent is gone")
        });
        for (job, pid) in &neighbours {
            let view = show(&mut client, *job).await?;
            let same = view.attempts.len() == 1 && view.attempts[0].pid == Some(*pid);
            row.must(same && view.row.state == JobState::Running, || format!("round {round}: {view:?}"));
        }
    }
    for (job, _) in neighbours {
        cancel(&mut client, job).await?;
    }
    Ok(row)
}
