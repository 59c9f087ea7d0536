//! Latency of `rota run --gpus 1 -- true` on an idle cluster, CLI process included, beside a bare fork and exec of
//! `true` measured in the same run.

use super::BenchLab;
use super::figures::Figures;
use crate::cli::ops::BenchLaunchArgs;
use crate::lab::LabError;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs that are not counted: pages and connections get warm.
const WARM_UP: usize = 5;

/// Runs `true` `runs` times through the cluster, in turn at each peer.
///
/// # Errors
/// The cluster does not start, or a run fails.
pub async fn run(args: &BenchLaunchArgs) -> Result<Figures, LabError> {
    let mut bench = BenchLab::start(args.peers, |_| {}).await?;
    let lab = bench.lab();
    let exe = std::env::current_exe().map_err(|e| LabError::Io("no program".into(), e))?;
    let (mut runs, mut bare) = (Vec::new(), Vec::new());
    for number in 0..args.runs + WARM_UP {
        let socket = lab.peers[number % lab.peers.len()].socket();
        let mut command = Command::new(&exe);
        command.arg("run").arg("--socket").arg(&socket).args(["--gpus", "1", "--", "true"]);
        let through = timed(command)?;
        let alone = timed(Command::new("/bin/true"))?;
        if number >= WARM_UP {
            runs.push(through);
            bare.push(alone);
        }
    }
    let mut figures = Figures::default();
    figures.count("runs", args.runs as u64);
    figures.percentiles("", &mut runs);
    figures.percentiles("fork_exec_", &mut bare);
    bare.sort_unstable();
    figures.value("fork_exec_ms", super::figures::percentile_ms(&bare, 500));
    Ok(figures)
}

fn timed(mut command: Command) -> Result<Duration, LabError> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status().map_err(|e| LabError::Io("cannot run".into(), e))?;
    let took = started.elapsed();
    if status.success() {
        return Ok(took);
    }
    Err(LabError::Command { command: format!("{command:?}"), output: status.to_string() })
}
