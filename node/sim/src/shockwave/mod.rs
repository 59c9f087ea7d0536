//! The experiment of Shockwave (Zheng et al., NSDI 2023): jobs that change their batch size, on equal GPUs, in rounds of
//! 120 s; judged by makespan and finish-time fairness. Trace and speeds come from files.

mod adapt;
mod cluster;
mod product;
mod trace;
mod training;

use crate::input::{InputError, read_text};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Who decides, and what it may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShockwavePolicy {
    /// Max-min time shares, the published policy of Gavel; knows nothing of lengths.
    MaxMin,
    /// The production scheduler; jobs say how long they would run alone at their first batch.
    Rota,
    /// The production scheduler; jobs say how long they would run alone with every change of batch foreseen.
    RotaForeseen,
    /// Our rule on the compact engine of rounds; knows the epochs asked for and reckons with the batch of now.
    Engine,
    /// The same; foresees the batch of each epoch.
    EngineForeseen,
}

impl ShockwavePolicy {
    /// All of them, the baseline first.
    pub const ALL: [Self; 5] =
        [Self::MaxMin, Self::Rota, Self::RotaForeseen, Self::Engine, Self::EngineForeseen];

    /// Whether the production scheduler decides, not the engine of rounds.
    #[must_use]
    pub fn is_product(self) -> bool {
        matches!(self, Self::Rota | Self::RotaForeseen)
    }

    /// Its name, as in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxMin => "max-min",
            Self::Rota => "rota",
            Self::RotaForeseen => "rota-foreseen",
            Self::Engine => "engine",
            Self::EngineForeseen => "engine-foreseen",
        }
    }
}

/// One experiment.
#[derive(Debug, Clone)]
pub struct ShockwaveConfig {
    /// The trace.
    pub trace: PathBuf,
    /// The table of measured speeds.
    pub throughputs: PathBuf,
    /// GPUs, all equal.
    pub gpus: u32,
    /// Who decides.
    pub policy: ShockwavePolicy,
}

/// A job is called unfair above this finish-time fairness, as published.
pub const UNFAIR_ABOVE: f64 = 1.05;

/// What an experiment gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShockwaveReport {
    /// End of the last job, in seconds.
    pub makespan_s: f64,
    /// Mean time from arrival to end, in seconds.
    pub completion_s_mean: f64,
    /// GPU time in which jobs ran over all GPU time until the end.
    pub utilisation: f64,
    /// Largest finish-time fairness: time over (time alone x jobs per GPU).
    pub fairness_worst: f64,
    /// Jobs above `UNFAIR_ABOVE`, in percent.
    pub unfair_percent: f64,
    /// Jobs that ended.
    pub jobs: usize,
    /// Rounds played.
    pub rounds: u64,
    /// Starts of jobs that had not run in the round before.
    pub starts: u64,
}

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShockwaveError {
    /// A file is no input.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The speeds are not the expected table.
    #[error("the table of speeds is malformed: {0}")]
    Json(serde_json::Error),
    /// A line of the trace is malformed.
    #[error("line {0} of the trace is malformed")]
    Line(usize),
    /// A model of the trace has no speed.
    #[error("the table of speeds lacks {0}")]
    Speed(String),
    /// Some job fits on no GPUs.
    #[error("a job waits for more gpus than there are")]
    Stuck,
    /// The production scheduler refused what a replay must be able to do.
    #[error(transparent)]
    Cluster(#[from] crate::cluster::ClusterError),
}

/// Runs one experiment.
///
/// # Errors
/// If a file cannot be read or parsed, or a job never fits.
pub fn run(config: &ShockwaveConfig) -> Result<ShockwaveReport, ShockwaveError> {
    let trace = trace::parse_trace(&read_text(&config.trace)?)?;
    let speeds = trace::parse_speeds(&read_text(&config.throughputs)?)?;
    let play = if config.policy.is_product() { product::run } else { cluster::run };
    let out = play(&trace, &speeds, config.gpus, config.policy)?;
    let jobs = out.completion_s.len();
    let unfair = out.fairness.iter().filter(|rho| **rho > UNFAIR_ABOVE).count();
    Ok(ShockwaveReport {
        makespan_s: out.makespan_s,
        completion_s_mean: out.completion_s.iter().sum::<f64>() / jobs.max(1) as f64,
        utilisation: out.held_s / (out.makespan_s * f64::from(config.gpus)),
        fairness_worst: out.fairness.iter().copied().fold(0.0, f64::max),
        unfair_percent: 100.0 * unfair as f64 / jobs.max(1) as f64,
        jobs,
        rounds: out.rounds,
        starts: out.starts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Play = fn(
        &[trace::TraceJob],
        &trace::Speeds,
        u32,
        ShockwavePolicy,
    ) -> Result<cluster::Outcome, ShockwaveError>;

    /// A trace of our own: 14 short jobs, a gang and a job as long as all others on their share of 4 GPUs.
    fn run_small(policy: ShockwavePolicy) -> cluster::Outcome {
        let line = |steps: u32, gpus: u32, mode: &str, at: u32| {
            format!("LM (batch size 10)\tcmd\tdir\t--steps\t1\t{steps}\t{gpus}\t{mode}\t1\t-1\t0\t{at}\n")
        };
        let mut text: String =
            (0..14).map(|at| line(119_360, 1, ["gns", "accordion"][at % 2], at as u32)).collect();
        text += &line(150_000, 4, "static", 20);
        text += &line(600_000, 1, "static", 30);
        let trace = trace::parse_trace(&text).unwrap();
        let rate = |batch: u64| [1, 4].map(|gpus| (("LM".to_owned(), batch, gpus), 90.0 * f64::from(gpus)));
        let speeds = [10, 20, 40, 80].into_iter().flat_map(rate).collect();
        let play = if policy.is_product() { product::run } else { cluster::run };
        play(&trace, &speeds, 4, policy).unwrap()
    }

    #[test]
    fn planning_ahead_ends_earlier_and_fairer_than_equal_shares() {
        let worst = |out: &cluster::Outcome| out.fairness.iter().copied().fold(0.0, f64::max);
        let equal = run_small(ShockwavePolicy::MaxMin);
        for policy in ShockwavePolicy::ALL.into_iter().filter(|policy| *policy != ShockwavePolicy::MaxMin) {
            let ours = run_small(policy);
            assert_eq!(ours.completion_s.len(), 16);
            let last = if policy.is_product() { 1.05 } else { 1.0 } * equal.makespan_s;
            assert!(ours.makespan_s < last, "{} {} {last}", policy.name(), ours.makespan_s);
            // The production scheduler counts time served, not progress: among so few jobs its unluckiest waits longer.
            let fair = if policy.is_product() { 2.0 } else { 1.0 } * worst(&equal);
            assert!(worst(&ours) <= fair, "{} {} {fair}", policy.name(), worst(&ours));
            assert!(ours.makespan_s >= 600_000.0 / 90.0, "the longest job alone takes that long");
        }
    }

    #[test]
    fn a_job_too_wide_is_said_so() {
        let text = "LM (batch size 10)\tcmd\tdir\t--steps\t1\t100\t4\tstatic\t1\t-1\t0\t0";
        let trace = trace::parse_trace(text).unwrap();
        let speeds = [(("LM".to_owned(), 10, 4), 1.0)].into_iter().collect();
        for (policy, play) in
            [(ShockwavePolicy::Engine, cluster::run as Play), (ShockwavePolicy::Rota, product::run)]
        {
            assert!(matches!(play(&trace, &speeds, 2, policy), Err(ShockwaveError::Stuck)));
        }
    }
}
