//! What it is worth to run a job for a round. It does not choose: `assign` does.

use super::Job;
use super::assign::Bid;
use super::lengths::Indices;

/// How jobs are valued.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankConfig {
    pub beta: f64,
    pub stay: f64,
    pub known: bool,
    pub norm: f64,
    pub age: f64,
}

/// The bids of a round.
#[must_use]
pub fn bids(jobs: &[Job], indices: &Indices, config: &RankConfig) -> Vec<Bid> {
    let value = |job: &Job| {
        let per_worker = f64::from(job.workers);
        let index = match job.remaining_ms {
            Some(left_ms) if config.known => 1000.0 / left_ms.max(1000) as f64,
            _ => indices.of(job.attained_ms),
        };
        let index = (index / per_worker).powf(config.beta) * f64::from(job.weight) * per_worker * (job.age_ms as f64 / 1000.0 + job.workers as f64 / index).powf(config.age);
        let equal = job.speeds.iter().sum::<u32>() as f64 / job.speeds.len() as f64 / 1000.0;
        let index = index / equal.powf(config.norm);
        let on = |(model, speed): (usize, &u32)| {
            let stay = if job.on == Some(model) { 1.0 + config.stay } else { 1.0 };
            index * f64::from(*speed) / 1000.0 * stay
        };
        Bid { workers: job.workers, values: job.speeds.iter().enumerate().map(on).collect() }
    };
    jobs.iter().map(value).collect()
}
