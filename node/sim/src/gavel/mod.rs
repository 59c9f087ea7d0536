//! The heterogeneity experiment of Gavel (Narayanan et al., OSDI 2020): a continuous trace on 36 V100, 36 P100 and 36
//! K80, in rounds of 6 minutes, judged by the mean time from arrival to end. Measured speeds come from a file.

mod cluster;
mod policy;
mod rates;
mod trace;
mod twister;

use rates::Rates;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use trace::Trace;

/// Who decides, and what it may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GavelPolicy {
    /// First come, first served on a random model.
    FifoBlind,
    /// First come, first served on the best free model; knows speeds.
    FifoAware,
    /// Max-min time shares; knows nothing of speeds.
    LasBlind,
    /// Max-min of throughput over an equal share's; knows speeds. The published policy of Gavel.
    LasAware,
    /// Ours without knowing how much work a job is: knows speeds and the lengths of jobs that ended.
    RotaBlind,
    /// Ours knowing how much work each job asks for, as AlloX does: speeds and steps.
    RotaKnown,
    /// As `RotaBlind`, but it begins with an empty table of speeds and fills it by what it sees.
    RotaLearning,
    /// `RotaBlind`, and two jobs may share a GPU; knows what pairs keep of their speeds.
    RotaBlindSharing,
    /// `RotaKnown`, and two jobs may share a GPU; knows what pairs keep of their speeds.
    RotaKnownSharing,
}

impl GavelPolicy {
    /// Whether it may know how much work each job asks for.
    #[must_use]
    pub fn knows_work(self) -> bool {
        matches!(self, Self::RotaKnown | Self::RotaKnownSharing)
    }

    /// Whether two jobs may share a GPU.
    #[must_use]
    pub fn shares_gpus(self) -> bool {
        matches!(self, Self::RotaBlindSharing | Self::RotaKnownSharing)
    }
}

/// One experiment.
#[derive(Debug, Clone)]
pub struct GavelConfig {
    /// The table of measured speeds.
    pub throughputs: PathBuf,
    /// Mean arrivals per hour.
    pub jobs_per_hour: f64,
    /// Whether 30 % of the jobs need 2, 4 or 8 GPUs.
    pub multi_gpu: bool,
    /// Who decides.
    pub policy: GavelPolicy,
    /// Seeds, one run each. The published runs are 0, 1 and 2.
    pub seeds: Vec<u32>,
    /// The measured jobs by order of arrival, first and past the last. Published: 4000 and 5000.
    pub window: (u64, u64),
}

/// What an experiment gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GavelReport {
    /// Mean time from arrival to end of the measured jobs over all seeds, in hours.
    pub completion_h_mean: f64,
    /// The same by seed.
    pub completion_h_by_seed: Vec<f64>,
    /// Mean and worst finish-time fairness of the measured jobs.
    pub fairness_mean: f64,
    /// The worst.
    pub fairness_worst: f64,
    /// Held GPU time over all GPU time.
    pub utilisation: f64,
    /// Rounds played.
    pub rounds: u64,
    /// Mean jobs in the cluster.
    pub jobs_mean: f64,
    /// Most jobs in the cluster.
    pub jobs_max: usize,
    /// Starts and changes of model per round.
    pub moves_per_round: f64,
}

/// Why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GavelError {
    /// The file of speeds cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// It is not the expected table.
    #[error("the table of speeds is malformed: {0}")]
    Json(serde_json::Error),
    /// A model is missing.
    #[error("the table of speeds lacks {0}")]
    Model(&'static str),
    /// A program of the trace is missing.
    #[error("the table of speeds lacks {0}")]
    Class(String),
    /// The measured jobs never end at this rate.
    #[error("the cluster does not keep up: the measured jobs have not ended after 400000 rounds")]
    Endless,
}

/// Runs one experiment.
///
/// # Errors
/// If the table cannot be read or the cluster does not keep up.
pub fn run(config: &GavelConfig) -> Result<GavelReport, GavelError> {
    let rates = Rates::read(&config.throughputs)?;
    let mut outcomes = Vec::new();
    for seed in &config.seeds {
        let mut trace = Trace::new(&rates, config.jobs_per_hour, config.multi_gpu, *seed);
        outcomes.push(cluster::run(&rates, &mut trace, config.policy, *seed, config.window)?);
    }
    let runs = outcomes.len().max(1) as f64;
    let mean = |of: &dyn Fn(&cluster::Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / runs;
    let average = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let completion_h_by_seed: Vec<f64> = outcomes.iter().map(|o| average(&o.completion_s) / 3600.0).collect();
    Ok(GavelReport {
        completion_h_mean: average(&completion_h_by_seed),
        completion_h_by_seed,
        fairness_mean: mean(&|o| average(&o.fairness)),
        fairness_worst: outcomes.iter().flat_map(|o| &o.fairness).copied().fold(0.0, f64::max),
        utilisation: mean(&|o| o.utilisation),
        rounds: outcomes.iter().map(|o| o.rounds).sum(),
        jobs_mean: mean(&|o| o.jobs_mean),
        jobs_max: outcomes.iter().map(|o| o.jobs_max).max().unwrap_or(0),
        moves_per_round: mean(&|o| o.moves as f64 / o.rounds as f64),
    })
}
