//! Times one round of the planner for unlike GPUs: `hetero_round JOBS GPUS_PER_MODEL MODELS`. Jobs are drawn from a seed;
//! prints the median and the slowest of 20 rounds, and the time to solve the max-min shares, in microseconds.

use rota_core::placement::hetero::lengths::Lengths;
use rota_core::placement::hetero::shares::{ShareRow, max_min};
use rota_core::placement::hetero::table::ClassId;
use rota_core::placement::hetero::{Job, RoundConfig, who_runs};
use rota_sim::rng::Rng;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<u64> = std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    let &[count, gpus, models] = args.as_slice() else {
        return Err("usage: hetero_round JOBS GPUS_PER_MODEL MODELS".into());
    };
    let mut rng = Rng::new(1);
    let mut draw = |id: u64| Job {
        id,
        class: ClassId(rng.below(26) as u32),
        workers: [1, 1, 1, 1, 1, 1, 1, 2, 4, 8][rng.below(10) as usize],
        weight: 1,
        speeds: (0..models).map(|_| 100 + rng.below(901) as u32).collect(),
        attained_ms: rng.below(90_000_000),
        remaining_ms: Some(60_000 + rng.below(600_000_000)),
        age_ms: rng.below(600_000_000),
        crowd_permille: 1500,
        on: None,
    };
    let mut jobs: Vec<Job> = (0..count).map(&mut draw).collect();
    let fleet = vec![gpus as u32; models as usize];
    let (indices, config) = (Lengths::default().indices(), RoundConfig::default());
    let mut times_us = Vec::new();
    let mut running = 0;
    for _ in 0..20 {
        let start = Instant::now();
        let runs = who_runs(&jobs, &fleet, &indices, None, &config);
        times_us.push(start.elapsed().as_micros());
        running = runs.len();
        for job in &mut jobs {
            (job.on, job.age_ms) = (None, job.age_ms + 360_000);
        }
        for run in runs {
            jobs[run.job].on = Some(run.model);
        }
    }
    times_us.sort_unstable();
    let row = |job: &Job| ShareRow {
        count: 1,
        workers: job.workers,
        weight: 1.0,
        speeds: job.speeds.iter().map(|speed| f64::from(*speed)).collect(),
    };
    let rows: Vec<ShareRow> = jobs.iter().map(row).collect();
    let start = Instant::now();
    let shares = max_min(&rows, &fleet);
    let shares_us = start.elapsed().as_micros();
    let (median_us, worst_us) = (times_us[10], times_us[19]);
    println!(
        "jobs {count} models {models}: {running} run, round median {median_us} us, slowest {worst_us} us"
    );
    println!("max-min shares of {} rows: {shares_us} us", shares.len());
    Ok(())
}
