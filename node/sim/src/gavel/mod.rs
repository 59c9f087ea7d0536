//! The heterogeneity experiment of Gavel (Narayanan et al., OSDI 2020): a continuous trace on 36 V100, 36 P100 and 36
//! K80, in rounds of 6 minutes, judged by the mean time from arrival to end. Measured speeds come from a file.

mod cluster;
mod policy;
mod product;
mod rates;
mod trace;
mod twister;

use crate::field::{FieldError, no_number};
use crate::input::InputError;
use crate::threads;
use rates::Rates;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use trace::Trace;

/// What a table of speeds looks like, for those who gave another file.
const SPEEDS_FORM: &str = "such as {\"v100\": {\"('A3C', 1)\": {\"null\": 12.5}}, \"p100\": .., \"k80\": ..}";

/// Who decides, and what it may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GavelPolicy {
    /// First come, first served on the first model with room, V100 first.
    FifoBlind,
    /// First come, first served on the best free model; knows speeds.
    FifoAware,
    /// Max-min time shares; knows nothing of speeds.
    LasBlind,
    /// Max-min of throughput over an equal share's; knows speeds. The published policy of Gavel.
    LasAware,
    /// The production scheduler; jobs say their speeds, and it learns how long jobs are.
    Rota,
    /// The production scheduler; jobs also say how much work they are.
    RotaStated,
    /// Our rule on the compact engine of rounds, without knowing how much work a job is: knows speeds and the lengths of jobs that ended.
    EngineBlind,
    /// The same, knowing how much work each job asks for, as AlloX does: speeds and steps.
    EngineKnown,
    /// As `EngineBlind`, but it begins with an empty table of speeds and fills it by what it sees.
    EngineLearning,
    /// `EngineBlind`, and two jobs may share a GPU; knows what pairs keep of their speeds.
    EngineBlindSharing,
    /// `EngineKnown`, and two jobs may share a GPU; knows what pairs keep of their speeds.
    EngineKnownSharing,
}

impl GavelPolicy {
    /// All of them, baselines first.
    pub const ALL: [Self; 11] = [
        Self::FifoBlind,
        Self::FifoAware,
        Self::LasBlind,
        Self::LasAware,
        Self::Rota,
        Self::RotaStated,
        Self::EngineBlind,
        Self::EngineKnown,
        Self::EngineLearning,
        Self::EngineBlindSharing,
        Self::EngineKnownSharing,
    ];

    /// Its name, as in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FifoBlind => "fifo-blind",
            Self::FifoAware => "fifo-aware",
            Self::LasBlind => "las-blind",
            Self::LasAware => "las-aware",
            Self::Rota => "rota",
            Self::RotaStated => "rota-stated",
            Self::EngineBlind => "engine-blind",
            Self::EngineKnown => "engine-known",
            Self::EngineLearning => "engine-learning",
            Self::EngineBlindSharing => "engine-blind-sharing",
            Self::EngineKnownSharing => "engine-known-sharing",
        }
    }

    /// Whether the production scheduler decides, not the engine of rounds.
    #[must_use]
    pub fn is_product(self) -> bool {
        matches!(self, Self::Rota | Self::RotaStated)
    }

    /// Whether it may know how much work each job asks for.
    #[must_use]
    pub fn knows_work(self) -> bool {
        matches!(self, Self::EngineKnown | Self::EngineKnownSharing)
    }

    /// Whether two jobs may share a GPU.
    #[must_use]
    pub fn shares_gpus(self) -> bool {
        matches!(self, Self::EngineBlindSharing | Self::EngineKnownSharing)
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
    /// What a start after a pause or on another model costs on the production scheduler, in ms. Published: nothing.
    pub restart_ms: u64,
}

/// What an experiment gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GavelReport {
    /// Mean time from arrival to end of the measured jobs over all seeds, in hours.
    pub completion_h_mean: f64,
    /// The same by seed.
    pub completion_h_by_seed: Vec<f64>,
    /// Mean finish-time fairness of the measured jobs: time over (time with an equal share of each model x workers asked
    /// per GPU).
    pub fairness_mean: f64,
    /// The worst of them.
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
    /// The file of speeds is no input.
    #[error(transparent)]
    Input(#[from] InputError),
    /// It is not the expected table.
    #[error("this is no table of speeds, {SPEEDS_FORM}: {0}")]
    Json(serde_json::Error),
    /// A model is missing.
    #[error("the table of speeds lacks {0}")]
    Model(&'static str),
    /// A program of the trace is missing.
    #[error("the table of speeds lacks {0}")]
    Class(String),
    /// A speed is none.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A program of the trace has no speed on the model by which lengths are told.
    #[error("v100.\"{0}\".null is 0, want more: lengths of jobs are told by it, such as 12.5")]
    Still(String),
    /// A figure that came out as none.
    #[error("{0} came out as no number")]
    Figure(&'static str),
    /// The measured jobs never end at this rate.
    #[error("the cluster does not keep up: the measured jobs do not end")]
    Endless,
    /// The production scheduler refused what a replay must be able to do.
    #[error(transparent)]
    Cluster(#[from] crate::cluster::ClusterError),
}

/// Runs one experiment.
///
/// # Errors
/// If the table cannot be read or the cluster does not keep up.
pub fn run(config: &GavelConfig) -> Result<GavelReport, GavelError> {
    run_on(config, 1)
}

/// Runs one experiment, seeds on up to so many threads.
///
/// # Errors
/// If the table cannot be read or the cluster does not keep up.
pub fn run_on(config: &GavelConfig, threads: usize) -> Result<GavelReport, GavelError> {
    let rates = Rates::read(&config.throughputs)?;
    let runs = threads::map(&config.seeds, threads, |seed| {
        let mut trace = Trace::new(&rates, config.jobs_per_hour, config.multi_gpu, *seed);
        if config.policy.is_product() {
            return product::run(&rates, &mut trace, config);
        }
        cluster::run(&rates, &mut trace, config.policy, *seed, config.window)
    });
    let outcomes = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let runs = outcomes.len().max(1) as f64;
    let mean = |of: &dyn Fn(&cluster::Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / runs;
    let average = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let completion_h_by_seed: Vec<f64> = outcomes.iter().map(|o| average(&o.completion_s) / 3600.0).collect();
    let report = GavelReport {
        completion_h_mean: average(&completion_h_by_seed),
        completion_h_by_seed,
        fairness_mean: mean(&|o| average(&o.fairness)),
        fairness_worst: outcomes.iter().flat_map(|o| &o.fairness).copied().fold(0.0, f64::max),
        utilisation: mean(&|o| o.utilisation),
        rounds: outcomes.iter().map(|o| o.rounds).sum(),
        jobs_mean: mean(&|o| o.jobs_mean),
        jobs_max: outcomes.iter().map(|o| o.jobs_max).max().unwrap_or(0),
        moves_per_round: mean(&|o| o.moves as f64 / o.rounds as f64),
    };
    let figures = [
        ("completion_h_mean", report.completion_h_mean),
        ("fairness_mean", report.fairness_mean),
        ("fairness_worst", report.fairness_worst),
        ("utilisation", report.utilisation),
        ("jobs_mean", report.jobs_mean),
        ("moves_per_round", report.moves_per_round),
    ];
    match no_number(&figures) {
        Some(name) => Err(GavelError::Figure(name)),
        None => Ok(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Speeds of our own for the programs of the trace: one family is fastest on the second model, the others on the
    /// first by factors that differ; gangs scale to three quarters; pairs keep 0.7 each.
    pub(super) fn rates() -> Rates {
        let families: [(&str, &[u32], [f64; 3]); 7] = [
            ("ResNet-18", &[16, 32, 64, 128, 256], [8.0, 4.0, 1.0]),
            ("ResNet-50", &[16, 32, 64, 128], [7.0, 3.0, 1.0]),
            ("Transformer", &[16, 32, 64, 128, 256], [3.0, 2.0, 1.0]),
            ("LM", &[5, 10, 20, 40, 80], [4.0, 3.0, 1.0]),
            ("Recommendation", &[512, 1024, 2048, 4096, 8192], [1.0, 2.0, 1.4]),
            ("A3C", &[], [2.0, 1.6, 1.0]),
            ("CycleGAN", &[], [9.0, 5.0, 1.0]),
        ];
        let mut rates = Rates { classes: Vec::new(), alone: Vec::new(), pairs: Default::default() };
        for (name, settings, speeds) in families {
            let mut names: Vec<String> =
                settings.iter().map(|b| format!("{name} (batch size {b})")).collect();
            if settings.is_empty() {
                names.push(name.to_owned());
            }
            for name in names {
                for gpus in [1, 2, 4, 8] {
                    rates.classes.push((name.clone(), gpus));
                    let gang = if gpus == 1 { 1.0 } else { f64::from(gpus) * 0.75 };
                    rates.alone.push(speeds.map(|speed| speed * gang));
                }
            }
        }
        let count = rates.classes.len();
        for (first, second) in (0..count).flat_map(|first| (0..count).map(move |second| (first, second))) {
            let (a, b) = (rates.alone[first], rates.alone[second]);
            rates.pairs.insert((first, second), [0, 1, 2].map(|model| [a[model] * 0.7, b[model] * 0.7]));
        }
        rates
    }

    /// Mean hours of jobs 100..200.
    fn hours(policy: GavelPolicy, jobs_per_hour: f64, multi_gpu: bool) -> f64 {
        let rates = rates();
        let mut trace = Trace::new(&rates, jobs_per_hour, multi_gpu, 1);
        let out = cluster::run(&rates, &mut trace, policy, 1, (100, 200)).unwrap();
        assert_eq!(out.completion_s.len(), 100);
        out.completion_s.iter().sum::<f64>() / 100.0 / 3600.0
    }

    #[test]
    fn knowing_speeds_and_work_helps_under_load() {
        let blind = hours(GavelPolicy::LasBlind, 5.0, false);
        let aware = hours(GavelPolicy::LasAware, 5.0, false);
        assert!(aware < blind, "{aware} {blind}");
        for policy in [GavelPolicy::EngineLearning, GavelPolicy::EngineBlind, GavelPolicy::EngineKnown] {
            let ours = hours(policy, 5.0, false);
            assert!(ours < aware, "{policy:?} {ours} {aware}");
        }
    }

    #[test]
    fn sharing_helps_when_there_is_too_much_work() {
        let alone = hours(GavelPolicy::EngineKnown, 9.0, false);
        let shared = hours(GavelPolicy::EngineKnownSharing, 9.0, false);
        assert!(shared < alone, "{shared} {alone}");
    }

    #[test]
    fn runs_repeat_exactly() {
        for policy in [GavelPolicy::LasAware, GavelPolicy::EngineLearning] {
            assert_eq!(hours(policy, 2.5, true).to_bits(), hours(policy, 2.5, true).to_bits());
        }
    }

    /// Lengths are told on the first model: without a speed there, a job would have no work and no figure.
    #[test]
    fn a_program_without_a_speed_to_tell_lengths_by_is_refused() {
        let mut rates = rates();
        let at = rates.class("A3C", 1).unwrap();
        rates.alone[at] = [0.0, 1.6, 1.0];
        let mut trace = Trace::new(&rates, 5.0, false, u32::MAX);
        let said = (0..1_000).find_map(|_| trace.draw().err()).expect("it is drawn").to_string();
        assert!(said.starts_with("v100.\"('A3C', 1)\".null is 0, want more"), "{said}");
    }

    #[test]
    fn a_cluster_that_cannot_keep_up_is_said_so() {
        let rates = rates();
        let mut trace = Trace::new(&rates, 60.0, false, 0);
        let end = cluster::run(&rates, &mut trace, GavelPolicy::FifoBlind, 0, (4000, 5000));
        assert!(matches!(end, Err(GavelError::Endless)));
    }
}
