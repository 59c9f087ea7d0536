//! How fast attempts can be run on this machine, beside the floor that the kernel sets: the same program started
//! without any keeping. Real processes, real records, through the same [`ShimHost`] as the product.

use super::cage::{CageAsk, CageSettings, Offer};
use super::{LeaseFile, ShimError, ShimHost, ShimNote};
use crate::io::clock::boottime_ms;
use crate::io::proc;
use crate::logic::env::{TaskEnv, task_env};
use rota_protocol::job::AttemptEnd;
use rota_protocol::session::LifeOrder;
use rota_protocol::spool::LaunchOrder;
use rota_protocol::{ClusterId, HostId, JobId, LeaseEpoch, TaskId, Token};
use rustix::process::Pid;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Attempts under way at once: enough that neither side waits for the other.
const WINDOW: u64 = 64;
/// How often and how many times the end of the fork server is looked for.
const REAP_LOOK: Duration = Duration::from_millis(20);
const REAP_LOOKS: u32 = 100;
/// The one epoch of the bench.
const EPOCH: LeaseEpoch = LeaseEpoch(1);
/// Nothing takes this long.
const LEASE_MS: u64 = 3_600_000;

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub struct LaunchRates {
    /// Runs of each kind.
    pub runs: u64,
    /// Time for all runs through shims.
    pub kept: Duration,
    /// Time for all runs by plain fork and exec, as many at once as there are processors.
    pub plain: Duration,
    /// Processors used by both.
    pub cpus: u32,
    /// Processor time of all runs through shims: agent, fork server, shims and the programs themselves.
    pub kept_cpu: Duration,
    /// Processor time of all plain runs, those who start them included.
    pub plain_cpu: Duration,
    /// Runs through shims that did not end as they should.
    pub failed: u64,
}

impl LaunchRates {
    /// Processor time that keeping costs per run beyond plain fork and exec, in microseconds. Independent of what
    /// else the machine does.
    #[must_use]
    pub fn overhead_us(&self) -> f64 {
        (self.kept_cpu.as_secs_f64() - self.plain_cpu.as_secs_f64()) * 1e6 / self.runs as f64
    }
}

impl fmt::Display for LaunchRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |took: Duration| self.runs as f64 / took.as_secs_f64();
        write!(
            f,
            "{} runs of `true` on {} processors: {:.0}/s kept by shims, {:.0}/s by plain fork and exec, {:.0} us of processor time per run for keeping, {} failed",
            self.runs,
            self.cpus,
            rate(self.kept),
            rate(self.plain),
            self.overhead_us(),
            self.failed
        )
    }
}

/// Runs `runs` times `true` through shims in `data_dir`, bounded as `settings` say, and as often without.
///
/// # Errors
/// The shims cannot be hosted there.
pub async fn launch_rates(
    exe: &Path,
    data_dir: &Path,
    runs: u64,
    settings: &CageSettings,
) -> Result<LaunchRates, ShimError> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1));
    let began = cpu_used();
    let (kept, failed) = kept(exe, data_dir, runs, settings).await?;
    // The fork server hands its own time and that of all its shims to whoever reaps it.
    let own = Pid::as_raw(Some(rustix::process::getpid()));
    for _ in 0..REAP_LOOKS {
        if proc::children(own).is_ok_and(|children| children.is_empty()) {
            break;
        }
        tokio::time::sleep(REAP_LOOK).await;
    }
    let between = cpu_used();
    let plain = tokio::task::spawn_blocking(move || plain(runs, cpus)).await.unwrap_or_default();
    let (kept_cpu, plain_cpu) = (between - began, cpu_used() - between);
    Ok(LaunchRates { runs, kept, plain, cpus, kept_cpu, plain_cpu, failed })
}

/// Processor time of this process and of all children that it has reaped.
fn cpu_used() -> Duration {
    const TICK_MS: u64 = 10;
    let ticks = proc::cpu_ticks().unwrap_or_default();
    Duration::from_millis(ticks * TICK_MS)
}

async fn kept(
    exe: &Path,
    data_dir: &Path,
    runs: u64,
    settings: &CageSettings,
) -> Result<(Duration, u64), ShimError> {
    let boot = proc::boot_id().map_err(ShimError::Boot)?;
    let dir = data_dir.join("lease");
    let lease = LeaseFile::open(&dir, &boot, EPOCH)
        .and_then(|lease| lease.extend(boottime_ms() + LEASE_MS).map(|()| lease))
        .map_err(|source| ShimError::Folder { dir, source })?;
    let (sender, mut notes) = mpsc::channel(256);
    let (host, _) = ShimHost::start_caged(exe, data_dir, (settings, Offer::default()), sender).await?;
    let cluster = ClusterId(u128::from(std::process::id()));
    let lease_path = lease.path().as_os_str().as_encoded_bytes();
    let order = |token: u64| order(&host, cluster, lease_path, Token(token));
    let (mut launched, mut ended, mut failed) = (0, 0, 0);
    let began = Instant::now();
    while ended < runs {
        while launched < runs && launched - ended < WINDOW {
            launched += 1;
            if host.launch(order(launched)).await.is_err() {
                failed += 1;
                ended += 1;
            }
        }
        match notes.recv().await {
            Some(ShimNote::Ended { record }) => {
                failed += u64::from(record.end != AttemptEnd::Exited { code: 0 });
                ended += 1;
                host.release(record.token).await;
            }
            Some(ShimNote::LaunchFailed { .. }) => {
                failed += 1;
                ended += 1;
            }
            Some(ShimNote::Started { .. } | ShimNote::Stuck { .. } | ShimNote::EpilogFailed { .. }) => {}
            None => break,
        }
    }
    Ok((began.elapsed(), failed))
}

/// The order of one run of `true`.
fn order(host: &ShimHost, cluster: ClusterId, lease_path: &[u8], token: Token) -> LaunchOrder {
    let task = TaskId { job: JobId(token.0), index: 0 };
    let notes_base = host.draw_notes_base(token);
    let env = TaskEnv::plain(cluster, HostId(1), token, task, &notes_base);
    LaunchOrder {
        cluster,
        host: HostId(1),
        epoch: EPOCH,
        token,
        task,
        argv: vec![b"/bin/true".to_vec()],
        env: task_env(&[(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec())], env),
        workdir: b"/".to_vec(),
        uid_gid: None,
        devices: Vec::new(),
        time_limit_ms: None,
        grace_ms: 0,
        kill_budget_ms: 1_000,
        lease_path: lease_path.to_vec(),
        notes_base,
        warning: None,
        requeue_status: None,
        life: LifeOrder::default(),
        gang: Vec::new(),
        output: rota_protocol::output::OutputOrder::default(),
        around: rota_protocol::around::Around::default(),
        inputs: Vec::new(),
        cage: host.cage(
            token,
            CageAsk { cpus_milli: 1_000, workdir: "/".into(), as_agent: true, ..CageAsk::default() },
        ),
    }
}

fn plain(runs: u64, cpus: u32) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for cpu in 0..u64::from(cpus) {
            let share = runs / u64::from(cpus) + u64::from(cpu < runs % u64::from(cpus));
            scope.spawn(move || {
                for _ in 0..share {
                    let _ = std::process::Command::new("/bin/true")
                        .env_clear()
                        .current_dir("/")
                        .stdin(std::process::Stdio::null())
                        .status();
                }
            });
        }
    });
    began.elapsed()
}
