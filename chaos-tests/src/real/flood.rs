//! Output without measure (fault T9): a writer as fast as a pipe, a line without end, NULs, progress bars. What is
//! measured: memory of agent and shim, the bytes that a follower got against those that are kept, and the rate beside
//! that of a plain pipe on this machine.
//!
//! `ROTA_FLOOD_MIB` is the size of one stream: 64 in the gate, 1024 for a line of a gigabyte.

use super::freeze::running_on;
use super::report::Report;
use super::{Bench, budget, said};
use rota_node::io::proc;
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job};
use rota_protocol::JobId;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::output::OutputSpec;
use rota_protocol::view::JobView;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Longest wait for one stream.
const LIMIT: Duration = Duration::from_secs(600);
/// Most memory of its own that a shim has under any flood, in KiB: what a sleeping one has, and its buffers.
const SHIM_KIB_MAX: u64 = 4 << 10;
/// Most memory that any flood adds to an agent, in KiB: pieces on their way to readers, and what the allocator keeps.
const AGENT_KIB_MAX: u64 = 64 << 10;

/// What a flood consists of, and how much of it is kept.
struct Flood {
    name: &'static str,
    script: String,
    kept_mib: u64,
    /// All of it is kept, so that the follower must have all of it.
    whole: bool,
}

/// Most memory seen.
#[derive(Debug, Default, Clone, Copy)]
struct Memory {
    agent_kib: u64,
    shim_kib: u64,
}

/// T9: four floods, each followed live by a reader that stands still for a while.
pub(super) async fn bounded(bench: &Bench) -> Result<Report, LabError> {
    let mib = budget("ROTA_FLOOD_MIB", 64);
    let lab = bench.lab("T9", 1, |_| {}).await?;
    let agent = lab.peers[0].pid().unwrap_or(0);
    let before_kib = memory_kib(agent, "VmRSS:");
    let (mut violations, mut most, mut rate) = (Vec::new(), Memory::default(), 0);
    let bar = "i=0; while [ $i -lt 20000 ]; do printf '\\r%d %%' $i; i=$((i+1)); done";
    let floods = [
        // More than is kept: head, gap, tail; as fast as it goes.
        Flood { name: "nul", script: format!("head -c {}M /dev/zero", 4 * mib), kept_mib: 8, whole: false },
        Flood {
            name: "line",
            script: format!("head -c {mib}M /dev/zero | tr '\\0' x"),
            kept_mib: 4 * mib,
            whole: true,
        },
        Flood { name: "zeros", script: format!("head -c {mib}M /dev/zero"), kept_mib: 4 * mib, whole: true },
        Flood { name: "bar", script: bar.to_owned(), kept_mib: 4, whole: true },
    ];
    for flood in floods {
        let (found, memory, seconds) = run(bench, &lab, &flood).await?;
        violations.extend(found.into_iter().map(|what| format!("{}: {what}", flood.name)));
        most.agent_kib = most.agent_kib.max(memory.agent_kib.saturating_sub(before_kib));
        most.shim_kib = most.shim_kib.max(memory.shim_kib);
        if flood.name == "zeros" {
            rate = per_second(mib, seconds);
        }
    }
    let pipe = pipe_mib_s(mib).await?;
    Ok(Report::of("T9", 1, &violations)
        .figure("stream_mib", mib, None)
        .figure("shim_kib", most.shim_kib, Some(SHIM_KIB_MAX))
        .figure("agent_growth_kib", most.agent_kib, Some(AGENT_KIB_MAX))
        .figure("follow_mib_s", rate, None)
        .figure("pipe_mib_s", pipe, None))
}

fn per_second(mib: u64, seconds: f64) -> u64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people: far below 2^52, and never negative"
    )]
    let rate = (mib as f64 / seconds.max(0.001)) as u64;
    rate
}

/// One flood, followed into a file. Returns what is wrong, the memory, and how long it took.
async fn run(bench: &Bench, lab: &Lab, flood: &Flood) -> Result<(Vec<String>, Memory, f64), LabError> {
    let io = |what: &'static str| move |e| LabError::Io(what.into(), e);
    let mut client = Stubborn::new(lab, 0);
    // It waits for its follower, so that the whole is timed.
    let go = bench.dir.join(format!("go-{}", flood.name));
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done; {}", go.display(), flood.script);
    let mut spec = shell_job(flood.name, &script);
    spec.output = OutputSpec { bytes_max: Some(flood.kept_mib * MIB), ..OutputSpec::default() }.held();
    let job = client.submit(spec).await?;
    running_on(&mut client, job).await?;
    let got = bench.dir.join(format!("got-{}", flood.name));
    let sink = File::create(&got).map_err(io("a file"))?;
    let told = bench.dir.join(format!("told-{}", flood.name));
    let errors = File::create(&told).map_err(io("a file"))?;
    let mut follower = bench
        .rota(lab, 0, &["logs", "-f", &job.to_string()])
        .stdout(Stdio::from(sink))
        .stderr(Stdio::from(errors))
        .spawn()
        .map_err(io("cannot follow"))?;
    let shim = shim_of(&mut client, job).await?;
    std::fs::write(&go, "").map_err(io("a file"))?;
    let started = Instant::now();
    let follower_pid = follower.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let agent = lab.peers[0].pid().unwrap_or(0);
    let (mut memory, mut stood) = (Memory::default(), flood.whole);
    let status = loop {
        memory.agent_kib = memory.agent_kib.max(memory_kib(agent, "VmRSS:"));
        memory.shim_kib = memory.shim_kib.max(memory_kib(shim, "RssAnon:"));
        if let Some(status) = follower.try_wait().map_err(io("cannot wait"))? {
            break status.code();
        }
        if started.elapsed() > LIMIT {
            return Ok((vec!["the follower does not end".into()], memory, 0.0));
        }
        if let (false, Some(pid)) = (stood, follower_pid) {
            // A reader that reads nothing for a while costs the agent a bounded number of pieces.
            stood = true;
            let _ = kill_process(pid, Signal::STOP);
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(25)).await;
                memory.agent_kib = memory.agent_kib.max(memory_kib(agent, "VmRSS:"));
                memory.shim_kib = memory.shim_kib.max(memory_kib(shim, "RssAnon:"));
            }
            let _ = kill_process(pid, Signal::CONT);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let seconds = started.elapsed().as_secs_f64();
    let mut violations = judged(bench, lab, flood, job, &got).await?;
    if status != Some(0) {
        violations.push(format!("the follower's status is {status:?}"));
    }
    let told = std::fs::read_to_string(&told).unwrap_or_default();
    if flood.whole && !told.is_empty() {
        violations.push(format!("told {told:?}"));
    }
    let _ = std::fs::remove_file(&got);
    Ok((violations, memory, seconds))
}

/// What the follower got, against what is kept and given again.
async fn judged(
    bench: &Bench,
    lab: &Lab,
    flood: &Flood,
    job: JobId,
    got: &Path,
) -> Result<Vec<String>, LabError> {
    let view = show(&mut Stubborn::new(lab, 0), job).await?;
    let kept = kept_files(lab, &view)?;
    if flood.whole {
        let same = same(got, &kept).map_err(|e| LabError::Io("cannot compare".into(), e))?;
        return Ok(same.err().into_iter().collect());
    }
    let mut violations = Vec::new();
    let again = said(&mut bench.rota(lab, 0, &["logs", &job.to_string()])).await?;
    let bytes: u64 = kept.iter().map(|path| path.metadata().map_or(0, |meta| meta.len())).sum();
    if bytes > flood.kept_mib * MIB || again.out.len() as u64 != bytes || !again.err.contains("were not kept")
    {
        violations.push(format!("{bytes} bytes kept, {} given, told {:?}", again.out.len(), again.err));
    }
    if got.metadata().map_or(0, |meta| meta.len()) < flood.kept_mib * MIB / 2 {
        violations.push("the follower has less than the head".into());
    }
    Ok(violations)
}

async fn show(client: &mut Stubborn, job: JobId) -> Result<JobView, LabError> {
    let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
    match client.ask(show, Duration::from_secs(20)).await? {
        ApiReply::Job(view) => Ok(*view),
        other => Err(LabError::Io("unexpected reply".into(), std::io::Error::other(format!("{other:?}")))),
    }
}

/// The shim of a job's running attempt: the parent of its first process.
async fn shim_of(client: &mut Stubborn, job: JobId) -> Result<u32, LabError> {
    for _ in 0..500 {
        let view = show(client, job).await?;
        let pid = view.attempts.first().and_then(|attempt| attempt.pid);
        if let Some(stat) = pid.and_then(|pid| proc::stat(i32::try_from(pid).ok()?).ok()) {
            return Ok(stat.ppid.unsigned_abs());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    wait_for("a process", Duration::ZERO, async || None).await
}

/// The files of standard output, in their order.
fn kept_files(lab: &Lab, view: &JobView) -> Result<Vec<PathBuf>, LabError> {
    let token = view.attempts.first().map_or_else(String::new, |attempt| attempt.token.to_string());
    let dir = lab.peers[0].dir.join("attempts");
    let start = |path: &PathBuf| path.extension()?.to_str()?.parse::<u64>().ok();
    let more = std::fs::read_dir(dir.join(format!("{token}.more"))).into_iter().flatten().flatten();
    let mut pieces: Vec<PathBuf> = more
        .map(|entry| entry.path())
        .filter(|path| path.file_stem().is_some_and(|stem| stem == "stdout"))
        .collect();
    pieces.sort_by_key(start);
    pieces.insert(0, dir.join(format!("{token}.stdout")));
    Ok(pieces)
}

/// Whether a file is the others one after the other, byte for byte.
fn same(got: &Path, kept: &[PathBuf]) -> std::io::Result<Result<(), String>> {
    let mut got = BufReader::with_capacity(1 << 20, File::open(got)?);
    let mut at: u64 = 0;
    let (mut mine, mut theirs) = (vec![0; 256 << 10], vec![0; 256 << 10]);
    for path in kept {
        let mut file = File::open(path)?;
        loop {
            let len = file.read(&mut theirs)?;
            if len == 0 {
                break;
            }
            if got.read_exact(&mut mine[..len]).is_err() {
                return Ok(Err(format!("the follower's output ends after byte {at}")));
            }
            if mine[..len] != theirs[..len] {
                return Ok(Err(format!("the follower's output differs after byte {at}")));
            }
            at += len as u64;
        }
    }
    let left = got.read(&mut mine)?;
    if left > 0 || at == 0 {
        return Ok(Err(format!("the follower has more than the {at} bytes that are kept")));
    }
    Ok(Ok(()))
}

/// A line of a process's status. Of a shim only what is its own counts: the rest is the program's file, which all share.
fn memory_kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// What a pipe between two programs carries here.
async fn pipe_mib_s(mib: u64) -> Result<u64, LabError> {
    let started = Instant::now();
    let mut shell = tokio::process::Command::new("/bin/sh");
    shell.args(["-c", &format!("head -c {mib}M /dev/zero | cat > /dev/null")]);
    said(&mut shell).await?;
    Ok(per_second(mib, started.elapsed().as_secs_f64()))
}
