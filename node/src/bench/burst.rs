//! An array of `true` tasks from submit to the last end, beside the machine's own fork and exec rate in the same run.

use super::BenchLab;
use super::figures::Figures;
use crate::cli::ops::BenchBurstArgs;
use crate::io::usage::cpu_ms;
use crate::lab::LabError;
use crate::lab_work::{Stubborn, as_array, true_job};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Threads that fork and exec side by side for the floor: as `xargs -P2`.
const FLOOR_THREADS: usize = 2;

/// Runs an array of `tasks`.
///
/// # Errors
/// The cluster does not start, or a task does not succeed.
pub async fn run(args: &BenchBurstArgs) -> Result<Figures, LabError> {
    let floor_before = fork_exec_per_s(args.tasks.min(1_000))?;
    let mut bench =
        BenchLab::start(args.peers, |options| options.cpus = Some(args.slots.to_string())).await?;
    let lab = bench.lab();
    let pids: Vec<_> = lab.peers.iter().filter_map(crate::lab::Peer::pid).collect();
    let mut client = Stubborn::new(lab, 0);
    client.patience = Duration::from_secs(600);
    let cpu_before: u64 = pids.iter().map(|pid| cpu_ms(*pid).unwrap_or(0)).sum();
    let started = Instant::now();
    let job = client.submit(as_array(true_job("burst"), args.tasks)).await?;
    let accepted_in = started.elapsed();
    let row = last_row(&lab.peers[0].socket(), job).await?;
    let took = started.elapsed();
    let cpu_after: u64 = pids.iter().map(|pid| cpu_ms(*pid).unwrap_or(0)).sum();
    let floor_after = fork_exec_per_s(args.tasks.min(1_000))?;
    let floor = (floor_before + floor_after) / 2.0;
    let rate = f64::from(args.tasks) / took.as_secs_f64();
    let mut figures = Figures::default();
    figures.count("tasks", args.tasks.into());
    figures.value("tasks_per_s", rate);
    figures.value("fork_exec_per_s", floor);
    figures.value("ratio_to_fork_exec", rate / floor);
    figures.value("accept_ms", accepted_in.as_secs_f64() * 1_000.0);
    figures.value(
        "agents_cpu_us_per_task",
        (cpu_after - cpu_before) as f64 * 1_000.0 / f64::from(args.tasks.max(1)),
    );
    figures.count("succeeded", row.tasks.succeeded.into());
    figures.count("lost", u64::from(args.tasks - row.tasks.succeeded));
    Ok(figures)
}

/// The job's row when it is terminal, by a watch: no polling.
pub(super) async fn last_row(
    socket: &std::path::Path,
    job: rota_protocol::ids::JobId,
) -> Result<rota_protocol::view::JobRow, LabError> {
    let client = crate::client::Client::connect_socket(socket).await?;
    let mut rows = client.stream(ApiRequest::Watch { job }).await?;
    while let Some(reply) = rows.next().await {
        if let ApiReply::Changed(row) = reply?
            && row.state.is_terminal()
        {
            return Ok(*row);
        }
    }
    Err(PublicError::new(ErrorCode::Internal, "the watch ended before the job").into())
}

pub(super) fn fork_exec_per_s(count: u32) -> Result<f64, LabError> {
    let started = Instant::now();
    let share = count as usize / FLOOR_THREADS;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..FLOOR_THREADS)
            .map(|_| {
                scope.spawn(move || -> std::io::Result<()> {
                    for _ in 0..share {
                        Command::new("/bin/true").stdin(Stdio::null()).status()?;
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            // A panic in the closure above is impossible: it only spawns and waits.
            thread.join().unwrap_or(Ok(())).map_err(|e| LabError::Io("cannot run true".into(), e))?;
        }
        Ok::<_, LabError>(())
    })?;
    Ok((share * FLOOR_THREADS) as f64 / started.elapsed().as_secs_f64())
}
