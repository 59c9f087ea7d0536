//! What it is worth to run a job for a round: how hard its lateness presses, times how well a model suits it. It does
//! not choose: `assign` does.
//!
//! - **Lateness** of a job is its finish-time fairness if it ran from now on without a break, or its part in the time
//!   that all known work still takes, whichever is larger. The first makes short jobs that wait press soon (and
//!   bounds how unfair it gets), the second starts long jobs before only they are left (and bounds the makespan).
//! - **Suits**: speed on a model over the mean of its speeds on all models, so that a fast model goes to who gains most.
//! - Only the fourth root of lateness counts: near full load, waste of a model costs every job more than the order
//!   among them is worth. With the first power the mixed cluster of the tests fills up at 90 % load.

use super::assign::Bid;
use super::fair::lateness_of;
use super::lengths::Indices;
use super::{Job, RoundConfig};

/// The bids of a round, one for each job.
#[must_use]
pub fn bids(jobs: &[Job], fleet: &[u32], indices: &Indices, config: &RoundConfig) -> Vec<Bid> {
    let left_ms: Vec<f64> = jobs.iter().map(|job| left_ms(job, indices)).collect();
    let horizon_ms = horizon_ms(jobs, &left_ms, fleet);
    let bid = |(job, left_ms): (&Job, &f64)| {
        let late =
            lateness_of(job.age_ms as f64 + left_ms, job.attained_ms as f64 + left_ms, job.crowd_permille);
        let long = left_ms / horizon_ms * f64::from(config.long_permille) / 1000.0;
        let worth = late.max(long).sqrt().sqrt() * f64::from(job.weight) * f64::from(job.workers);
        let mean =
            job.speeds.iter().map(|speed| f64::from(*speed)).sum::<f64>() / job.speeds.len().max(1) as f64;
        let on = |(model, speed): (usize, &u32)| {
            let stays = if job.on == Some(model) { config.stay_permille } else { 0 };
            worth * f64::from(*speed) / mean.max(1.0) * (1.0 + f64::from(stays) / 1000.0)
        };
        Bid { workers: job.workers, values: job.speeds.iter().enumerate().map(on).collect() }
    };
    jobs.iter().zip(&left_ms).map(bid).collect()
}

/// Work left as stated, else as lengths of ended jobs suggest; at least a second.
fn left_ms(job: &Job, indices: &Indices) -> f64 {
    match job.remaining_ms {
        Some(left_ms) => left_ms.max(1000) as f64,
        None => 1000.0 / indices.of(job.attained_ms),
    }
}

/// How long all known work takes at least: its sum over the whole fleet, or the longest job.
fn horizon_ms(jobs: &[Job], left_ms: &[f64], fleet: &[u32]) -> f64 {
    let workers: f64 = fleet.iter().map(|workers| f64::from(*workers)).sum();
    let sum: f64 = jobs.iter().zip(left_ms).map(|(job, left_ms)| f64::from(job.workers) * left_ms).sum();
    left_ms.iter().copied().fold(sum / workers.max(1.0), f64::max).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::lengths::Lengths;
    use super::super::tests::job;
    use super::*;

    fn worth(jobs: &[Job], fleet: &[u32]) -> Vec<f64> {
        let bids = bids(jobs, fleet, &Lengths::default().indices(), &RoundConfig::default());
        bids.iter().map(|bid| bid.values[0]).collect()
    }

    /// Both wait for an hour; the one of ten minutes is seven times late, the one of ten hours 1.1 times.
    #[test]
    fn short_jobs_press_sooner() {
        let jobs =
            [job(0, 1, 600_000, 3_600_000), job(1, 1, 36_000_000, 3_600_000), job(2, 1, 36_000_000, 0)];
        let worth = worth(&jobs, &[100]);
        assert!(worth[0] > worth[1], "{worth:?}");
    }

    /// At a crowd of four, new jobs are worth a fourth of their lateness, but the one that is as long as all other work
    /// together must start now.
    #[test]
    fn the_longest_job_starts_in_time() {
        let mut jobs: Vec<Job> = (0..8).map(|id| job(id, 1, 600_000, 60_000)).collect();
        jobs.push(job(8, 1, 6_000_000, 0));
        for job in &mut jobs {
            job.crowd_permille = 4000;
        }
        let worth = worth(&jobs, &[2]);
        assert!(worth[8] > worth[0], "{worth:?}");
    }

    #[test]
    fn suits_is_relative_to_the_job_itself() {
        let mut jobs = [job(0, 1, 600_000, 0), job(1, 1, 600_000, 0)];
        jobs[0].speeds = vec![1000, 100];
        jobs[1].speeds = vec![1000, 900];
        let bids = bids(&jobs, &[1, 1], &Lengths::default().indices(), &RoundConfig::default());
        assert!(bids[0].values[0] > bids[1].values[0]);
        assert!(bids[0].values[1] < bids[1].values[1]);
    }
}
