//! Many short attempts on one host: how many a second beside the machine's own fork and exec rate in the same run,
//! what agent and shims hold in memory, and what is left behind afterwards (nothing should be).

use super::BenchLab;
use super::burst::{fork_exec_per_s, last_row};
use super::figures::Figures;
use crate::cli::ops::BenchAttemptsArgs;
use crate::io::proc;
use crate::io::usage::{cpu_ms, private_kib, rss_kib};
use crate::lab::{LabError, Peer};
use crate::lab_work::{Stubborn, as_array, shell_job, true_job};
use crate::shim::SIT;
use crate::shim::cage::{NAME_FILE, SPARE, SPARES_OF_AGENT_MAX};
use std::path::Path;
use std::time::{Duration, Instant};

/// Attempts before the first count: what an agent opens once is open then.
const WARM_UP: u32 = 200;
/// Attempts that live while the memory of their shims is read.
const SLEEPERS: u32 = 16;
/// How long leavings may take to go, and how often they are counted meanwhile.
const SETTLE: Duration = Duration::from_secs(5);
const SETTLE_LOOK: Duration = Duration::from_millis(100);
/// The log's folder. It holds its newest snapshot open, which is there after some thousand entries and no attempt's.
const LOG_DIR: &str = "raft";
/// Where the kernel shows control groups.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Runs `tasks` attempts on one host.
///
/// # Errors
/// The host does not start, or a task does not succeed.
pub async fn run(args: &BenchAttemptsArgs) -> Result<Figures, LabError> {
    let floor_before = fork_exec_per_s(args.tasks.min(1_000))?;
    let mut bench = BenchLab::start(1, |options| {
        options.cpus = Some(args.slots.to_string());
        options.config = args.isolation.as_ref().map(|word| format!("isolation = {word:?}\n"));
    })
    .await?;
    let lab = bench.lab();
    let agent = lab.peers[0].pid().unwrap_or_default();
    let (socket, dir) = (lab.peers[0].socket(), lab.peers[0].dir.clone());
    let mut client = Stubborn::new(lab, 0);
    client.patience = Duration::from_secs(600);
    let warm = client.submit(as_array(true_job("warm"), WARM_UP)).await?;
    last_row(&socket, warm).await?;
    // Shims that wait for another attempt are gone then.
    tokio::time::sleep(2 * SIT).await;
    let before = settled(agent, &dir, &Leavings::default()).await;
    let (cpu_before, rss_before) = (cpu_ms(agent).unwrap_or(0), rss_kib(agent).unwrap_or(0));

    let started = Instant::now();
    let job = client.submit(as_array(true_job("attempts"), args.tasks)).await?;
    let row = last_row(&socket, job).await?;
    let rate = f64::from(args.tasks) / started.elapsed().as_secs_f64();
    let cpu = cpu_ms(agent).unwrap_or(0).saturating_sub(cpu_before);
    let after = settled(agent, &dir, &before).await;
    let floor = f64::midpoint(floor_before, fork_exec_per_s(args.tasks.min(1_000))?);

    let mut figures = Figures::default();
    figures.count("attempts", args.tasks.into());
    figures.value("attempts_per_s", rate);
    figures.value("fork_exec_per_s", floor);
    figures.value("ratio_to_fork_exec", rate / floor);
    figures.value("agent_cpu_us_per_attempt", cpu as f64 * 1_000.0 / f64::from(args.tasks.max(1)));
    figures.value("agent_rss_mib_before", rss_before as f64 / 1_024.0);
    figures.value("agent_rss_mib_after", rss_kib(agent).unwrap_or(0) as f64 / 1_024.0);
    figures.value("shim_private_kib", shim_kib(&lab.peers[0], &mut client).await?);
    figures.count("succeeded", row.tasks.succeeded.into());
    figures.count("lost", u64::from(args.tasks - row.tasks.succeeded));
    figures.count("leaked_processes", after.processes.saturating_sub(before.processes));
    figures.count("leaked_fds", after.fds.saturating_sub(before.fds));
    figures.count("leaked_files", after.files.saturating_sub(before.files));
    figures.count("kept_records", kept_records(&dir));
    let (_, spare) = cgroups(&dir);
    figures.count("kept_cgroups", spare);
    figures.count("kept_cgroups_most", SPARES_OF_AGENT_MAX);
    let too_many = spare.saturating_sub(SPARES_OF_AGENT_MAX);
    figures.count("leaked_cgroups", after.cgroups.saturating_sub(before.cgroups) + too_many);
    Ok(figures)
}

/// Private memory of one shim, the mean over some that keep a sleeping task.
async fn shim_kib(peer: &Peer, client: &mut Stubborn) -> Result<f64, LabError> {
    let sleepers = as_array(shell_job("sleepers", "exec sleep 3"), SLEEPERS);
    let job = client.submit(sleepers).await?;
    let agent = i32::try_from(peer.pid().unwrap_or_default()).unwrap_or_default();
    let mut shims = Vec::new();
    for _ in 0..SETTLE.as_millis() / SETTLE_LOOK.as_millis() {
        let all = proc::descendants(agent).unwrap_or_default();
        let sizes = all.into_iter().filter(|pid| is_shim(*pid));
        shims = sizes.filter_map(|pid| private_kib(pid.cast_unsigned())).collect();
        if shims.len() as u32 >= SLEEPERS {
            break;
        }
        tokio::time::sleep(SETTLE_LOOK).await;
    }
    last_row(&peer.socket(), job).await?;
    Ok(shims.iter().sum::<u64>() as f64 / shims.len().max(1) as f64)
}

fn is_shim(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "rota-shim")
}

/// What may be left behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Leavings {
    processes: u64,
    fds: u64,
    files: u64,
    cgroups: u64,
}

impl Leavings {
    fn count(agent: u32, dir: &Path) -> Self {
        let entries = |path: &Path| std::fs::read_dir(path).map_or(0, |all| all.count() as u64);
        let below = proc::descendants(agent.cast_signed()).unwrap_or_default();
        let log = dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).join(LOG_DIR);
        let fds = |pid: u32| {
            let all = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let targets = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            targets.filter(|target| !target.starts_with(&log)).count() as u64
        };
        Self {
            processes: below.len() as u64,
            fds: fds(agent) + below.iter().map(|pid| fds(pid.cast_unsigned())).sum::<u64>(),
            files: entries(&dir.join("attempts")).saturating_sub(kept_records(dir))
                + entries(&dir.join("tasks")),
            cgroups: cgroups(dir).0,
        }
    }

    fn exceeds(&self, other: &Self) -> bool {
        self.processes > other.processes
            || self.fds > other.fds
            || self.files > other.files
            || self.cgroups > other.cgroups
    }
}

/// Waits until nothing is left beyond `known`, or for as long as it may take.
async fn settled(agent: u32, dir: &Path, known: &Leavings) -> Leavings {
    let mut now = Leavings::count(agent, dir);
    for _ in 0..SETTLE.as_millis() / SETTLE_LOOK.as_millis() {
        if !now.exceeds(known) {
            break;
        }
        tokio::time::sleep(SETTLE_LOOK).await;
        let again = Leavings::count(agent, dir);
        if *known == Leavings::default() && again == now {
            break;
        }
        now = again;
    }
    now
}

/// Records and output of ended attempts that the host keeps by rule, up to a number.
fn kept_records(dir: &Path) -> u64 {
    const KEPT: [&str; 3] = ["record", "stdout", "stderr"];
    let by_rule = |name: &Path| name.extension().is_some_and(|kind| KEPT.iter().any(|kept| kind == *kept));
    let all = std::fs::read_dir(dir.join("attempts"));
    all.map_or(0, |all| all.flatten().filter(|entry| by_rule(Path::new(&entry.file_name()))).count() as u64)
}

/// Control groups of the agent at `dir`, and those of them that are kept by rule for its next attempts. What other agents
/// of this machine have is not counted.
fn cgroups(dir: &Path) -> (u64, u64) {
    match std::fs::read_to_string(dir.join("attempts").join(NAME_FILE)) {
        Ok(name) if !name.is_empty() => below(Path::new(CGROUP_ROOT), &name, false),
        _ => (0, 0),
    }
}

fn below(dir: &Path, agent: &str, ours: bool) -> (u64, u64) {
    let Ok(entries) = std::fs::read_dir(dir) else { return (0, 0) };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.fold((0, 0), |(groups, spare), entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if ours && name.starts_with(SPARE) {
            return (groups, spare + 1);
        }
        let ours = ours || name == agent;
        let (more, more_spare) = below(&entry.path(), agent, ours);
        (groups + u64::from(ours) + more, spare + more_spare)
    })
}
