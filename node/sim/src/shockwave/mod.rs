//! The experiment of Shockwave (Zheng et al., NSDI 2023): jobs that change their batch size, on equal GPUs, in rounds of
//! 120 s; judged by makespan and finish-time fairness. Trace and speeds come from files.

mod adapt;
mod cluster;
mod product;
mod trace;
mod training;

use crate::field::{FieldError, no_number};
use crate::input::{InputError, read_text};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use trace::{Speeds, TraceJob};
use training::Training;

/// Longest time of one job alone, s: a year. The experiment looks every 120 s.
const ALONE_S_MAX: f64 = 366.0 * 86_400.0;
/// Most epochs of one job: a time is kept of each.
const EPOCHS_MAX: u64 = 100_000;
/// What a table of speeds looks like, for those who gave another file.
const SPEEDS_FORM: &str = "such as {\"v100\": {\"('LM (batch size 10)', 1)\": {\"null\": 12.5}}}";

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
    #[error("{}: this is no table of speeds, {SPEEDS_FORM}: {source}", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// A line of the trace has too few columns.
    #[error(
        "{place}: {found} columns, want {} with tabs between: program, command, folder, flag, -, steps, GPUs, mode, -, -, \
         -, arrival",
        trace::COLUMNS
    )]
    Columns {
        /// File and line.
        place: String,
        /// How many it has.
        found: usize,
    },
    /// A value is not what it should be.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A program of the trace has no speed.
    #[error("{}: the table of speeds has none above 0 for {program}", path.display())]
    Speed {
        /// The file of speeds.
        path: PathBuf,
        /// What is missing, as the table names it.
        program: String,
    },
    /// A job takes longer than the experiment can be played.
    #[error("steps of {program} is {steps}, which take {alone_s:.0} s alone, want at most {ALONE_S_MAX} s")]
    Long {
        /// Which program.
        program: String,
        /// The steps asked.
        steps: u64,
        /// How long they take.
        alone_s: f64,
    },
    /// A job has more epochs than are kept.
    #[error("steps of {program} is {steps}, which are {epochs} epochs, want at most {EPOCHS_MAX}")]
    Epochs {
        /// Which program.
        program: String,
        /// The steps asked.
        steps: u64,
        /// How many epochs they are.
        epochs: u64,
    },
    /// Some job fits on no GPUs.
    #[error("GPUs (column 7) of the trace is {asked}, want 1 to {gpus}, those of --gpus")]
    Stuck {
        /// What the widest job asks.
        asked: u32,
        /// What there is.
        gpus: u32,
    },
    /// Nothing of what is there can run on.
    #[error("no job makes a step in a round of 120 s: the speeds are too low")]
    Slow,
    /// A figure that came out as none.
    #[error("{0} came out as no number")]
    Figure(&'static str),
    /// The production scheduler refused what a replay must be able to do.
    #[error(transparent)]
    Cluster(#[from] crate::cluster::ClusterError),
}

/// Runs one experiment.
///
/// # Errors
/// If a file cannot be read or parsed, or a job never fits.
pub fn run(config: &ShockwaveConfig) -> Result<ShockwaveReport, ShockwaveError> {
    let trace = trace::parse_trace(&config.trace, &read_text(&config.trace)?)?;
    let speeds = trace::parse_speeds(&config.throughputs, &read_text(&config.throughputs)?)?;
    let out = play(&trace, &speeds, config.gpus, config.policy).map_err(|error| match error {
        ShockwaveError::Speed { program, .. } => {
            ShockwaveError::Speed { path: config.throughputs.clone(), program }
        }
        other => other,
    })?;
    report(&out, config.gpus)
}

/// Plays a trace under a policy, if all of it can be played.
fn play(
    trace: &[TraceJob],
    speeds: &Speeds,
    gpus: u32,
    policy: ShockwavePolicy,
) -> Result<cluster::Outcome, ShockwaveError> {
    if let Some(asked) = trace.iter().map(|job| job.gpus).max().filter(|asked| *asked > gpus) {
        return Err(ShockwaveError::Stuck { asked, gpus });
    }
    for job in trace {
        Training::check(job, speeds)?;
    }
    if policy.is_product() {
        product::run(trace, speeds, gpus, policy)
    } else {
        cluster::run(trace, speeds, gpus, policy)
    }
}

fn report(out: &cluster::Outcome, gpus: u32) -> Result<ShockwaveReport, ShockwaveError> {
    let jobs = out.completion_s.len();
    let unfair = out.fairness.iter().filter(|rho| **rho > UNFAIR_ABOVE).count();
    let report = ShockwaveReport {
        makespan_s: out.makespan_s,
        completion_s_mean: out.completion_s.iter().sum::<f64>() / jobs.max(1) as f64,
        utilisation: out.held_s / (out.makespan_s * f64::from(gpus)),
        fairness_worst: out.fairness.iter().copied().fold(0.0, f64::max),
        unfair_percent: 100.0 * unfair as f64 / jobs.max(1) as f64,
        jobs,
        rounds: out.rounds,
        starts: out.starts,
    };
    let figures = [
        ("makespan_s", report.makespan_s),
        ("completion_s_mean", report.completion_s_mean),
        ("utilisation", report.utilisation),
        ("fairness_worst", report.fairness_worst),
    ];
    match no_number(&figures) {
        Some(name) => Err(ShockwaveError::Figure(name)),
        None => Ok(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::RUN_S_MAX;
    use std::path::Path;

    /// A trace of our own: 14 short jobs, a gang and a job as long as all others on their share of 4 GPUs.
    fn run_small(policy: ShockwavePolicy) -> cluster::Outcome {
        let line = |steps: u32, gpus: u32, mode: &str, at: u32| {
            format!("LM (batch size 10)\tcmd\tdir\t--steps\t1\t{steps}\t{gpus}\t{mode}\t1\t-1\t0\t{at}\n")
        };
        let mut text: String =
            (0..14).map(|at| line(119_360, 1, ["gns", "accordion"][at % 2], at as u32)).collect();
        text += &line(150_000, 4, "static", 20);
        text += &line(600_000, 1, "static", 30);
        let trace = trace::parse_trace(Path::new("t"), &text).unwrap();
        let rate = |batch: u64| [1, 4].map(|gpus| (("LM".to_owned(), batch, gpus), 90.0 * f64::from(gpus)));
        let speeds = [10, 20, 40, 80].into_iter().flat_map(rate).collect();
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

    /// What one line and one speed for it come to, under every policy.
    fn one(line: &str, speeds: &[(u64, f64)]) -> Vec<Result<ShockwaveReport, String>> {
        let trace = trace::parse_trace(Path::new("t"), line).unwrap();
        let gpus = trace[0].gpus;
        let speeds: Speeds =
            speeds.iter().map(|(batch, steps_s)| (("LM".to_owned(), *batch, gpus), *steps_s)).collect();
        let run = |policy| play(&trace, &speeds, 2, policy).and_then(|out| report(&out, 2));
        ShockwavePolicy::ALL
            .into_iter()
            .map(|policy| run(policy).map_err(|error| error.to_string()))
            .collect()
    }

    fn line(steps: u64, gpus: u32, mode: &str, arrival: &str) -> String {
        format!("LM (batch size 10)\tcmd\tdir\t--steps\t1\t{steps}\t{gpus}\t{mode}\t1\t-1\t0\t{arrival}")
    }

    #[test]
    fn a_job_too_wide_is_said_so() {
        for said in one(&line(100, 4, "static", "0"), &[(10, 1.0)]) {
            assert_eq!(said.unwrap_err(), "GPUs (column 7) of the trace is 4, want 1 to 2, those of --gpus");
        }
    }

    #[test]
    fn a_job_longer_than_an_experiment_or_without_a_speed_is_refused_before_it_is_built() {
        for said in one(&line(100_000_000, 1, "static", "0"), &[(10, 1.0)]) {
            let said = said.unwrap_err();
            assert!(
                said.starts_with("steps of ('LM (batch size 10)', 1) is 100000000, which take "),
                "{said}"
            );
        }
        for speeds in [&[][..], &[(10, 0.0)], &[(20, 5.0)]] {
            for said in one(&line(100, 1, "static", "0"), speeds) {
                let said = said.unwrap_err();
                assert!(said.ends_with("none above 0 for ('LM (batch size 10)', 1)"), "{said}");
            }
        }
        for said in one(&line(1_000_000_000, 1, "static", "0"), &[(10, 1e6)]) {
            assert!(
                said.unwrap_err().ends_with("is 1000000000, which are 167561 epochs, want at most 100000")
            );
        }
        // A batch that it would reach has none.
        let said = one(&line(6_000 * 30, 1, "accordion", "0"), &[(10, 100.0), (80, 0.0)]);
        assert!(
            said[0].as_ref().unwrap_err().ends_with("none above 0 for ('LM (batch size 80)', 1)"),
            "{said:?}"
        );
    }

    #[test]
    fn the_bounds_of_a_trace_give_figures_that_are_numbers() {
        let late = RUN_S_MAX.to_string();
        for (steps, arrival, steps_s) in [
            (1, "0", 1e6),
            (1, late.as_str(), 1e6),
            (1, &late, 0.01),
            (10_000, "0", 0.01),
            (500_000_000, "0.5", 1e6),
        ] {
            for report in one(&line(steps, 1, "static", arrival), &[(10, steps_s)]) {
                let report = report.unwrap_or_else(|said| panic!("{steps} {arrival} {steps_s}: {said}"));
                assert_eq!(report.jobs, 1);
                assert!(report.completion_s_mean > 0.0 && report.fairness_worst > 0.0, "{report:?}");
            }
        }
    }
}
