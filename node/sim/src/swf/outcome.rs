//! What came of a replay, and the figures that are read off it. Equal for every engine: it knows the log and the
//! starts, not who chose them.

use super::log::{Log, LogJob};
use rota_core::state::history::{Accuracy, AccuracyByBasis};
use serde::{Deserialize, Serialize};

/// Run times below it count as this long in a slowdown, s: the bound of the published tables.
pub const SLOWDOWN_RUN_S_MIN: u64 = 10;

/// When each job of a log started, and what it was promised before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Start of each job, s, in the order of the log.
    pub start_s: Vec<u64>,
    /// The first start that each job was promised, s.
    pub promised_s: Vec<Option<u64>>,
    /// How good the predictions were that held when jobs started.
    pub accuracy: AccuracyByBasis,
}

/// How good predictions were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PredictionReport {
    /// Jobs with a prediction.
    pub count: u64,
    /// Mean of min(predicted/ran, ran/predicted), permille.
    pub mean_permille: u64,
    /// Jobs that ran longer than predicted, permille.
    pub under_permille: u64,
}

/// The figures of a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwfReport {
    /// The policy's name.
    pub policy: String,
    /// Jobs replayed.
    pub jobs: u64,
    /// Jobs that the filter left out.
    pub left_out: u64,
    /// Processors of the machine.
    pub processors: u32,
    /// Mean of max(1, (wait + run) / max(run, 10 s)): "average bounded slowdown", the figure of the literature.
    pub avg_bounded_slowdown: f64,
    /// The same over the first and the second half of the jobs.
    pub avg_bounded_slowdown_by_half: [f64; 2],
    /// Mean wait, s.
    pub mean_wait_s: f64,
    /// Wait that one job in a thousand exceeds, s.
    pub wait_p999_s: u64,
    /// Longest wait, s.
    pub max_wait_s: u64,
    /// Work done by capacity from the first submission to the last end, permille.
    pub utilisation_permille: u64,
    /// Jobs that were promised a start.
    pub promises: u64,
    /// Promised jobs that started later.
    pub promises_broken: u64,
    /// Longest delay of a job beyond its first promised start, s.
    pub promise_delay_s_max: u64,
    /// How good predictions were, over all jobs that had one.
    pub prediction: PredictionReport,
    /// Of the jobs of a name that was known.
    pub prediction_by_name: PredictionReport,
    /// Of the others whose user had asked for the same limit before.
    pub prediction_by_limit: PredictionReport,
    /// Of the others whose user was known.
    pub prediction_by_user: PredictionReport,
    /// Of the rest: the limit itself.
    pub prediction_by_asked: PredictionReport,
    /// The wait that so many percent of the jobs do not exceed, s, for 0 to 100 percent: for charts.
    #[serde(skip)]
    pub wait_s_by_percent: Vec<u64>,
    /// How long the replay took, s of wall time. The only figure that differs between runs.
    pub seconds: f64,
}

impl Outcome {
    /// Before the first start.
    #[must_use]
    pub fn new(jobs: usize) -> Self {
        Self { start_s: vec![0; jobs], promised_s: vec![None; jobs], accuracy: AccuracyByBasis::default() }
    }

    /// The figures.
    #[must_use]
    pub fn report(&self, log: &Log, policy: &str, seconds: f64) -> SwfReport {
        let jobs = || log.jobs.iter().zip(&self.start_s);
        let mut waits_s: Vec<u64> = jobs().map(|(job, start_s)| start_s - job.submit_s).collect();
        waits_s.sort_unstable();
        let slowdowns: Vec<f64> = jobs().map(|(job, start_s)| bounded_slowdown(job, *start_s)).collect();
        let (first, second) = slowdowns.split_at(slowdowns.len() / 2);
        let delays_s = || {
            let promised = self.start_s.iter().zip(&self.promised_s);
            promised.filter_map(|(start_s, promised_s)| Some(start_s.saturating_sub((*promised_s)?)))
        };
        let accuracy = &self.accuracy;
        SwfReport {
            policy: policy.to_owned(),
            jobs: log.jobs.len() as u64,
            left_out: log.left_out,
            processors: log.processors,
            avg_bounded_slowdown: mean(&slowdowns),
            avg_bounded_slowdown_by_half: [mean(first), mean(second)],
            mean_wait_s: waits_s.iter().map(|wait_s| u128::from(*wait_s)).sum::<u128>() as f64
                / waits_s.len().max(1) as f64,
            wait_p999_s: waits_s.get(waits_s.len() * 999 / 1_000).copied().unwrap_or(0),
            max_wait_s: waits_s.last().copied().unwrap_or(0),
            utilisation_permille: self.utilisation_permille(log),
            promises: delays_s().count() as u64,
            promises_broken: delays_s().filter(|delay_s| *delay_s > 0).count() as u64,
            promise_delay_s_max: delays_s().max().unwrap_or(0),
            prediction: accuracy.all().into(),
            prediction_by_name: accuracy.name_runs.into(),
            prediction_by_limit: accuracy.limit_runs.into(),
            prediction_by_user: accuracy.user_runs.into(),
            prediction_by_asked: accuracy.limit.into(),
            wait_s_by_percent: by_percent(&waits_s),
            seconds,
        }
    }

    fn utilisation_permille(&self, log: &Log) -> u64 {
        let jobs = || log.jobs.iter().zip(&self.start_s);
        let work: u128 = jobs().map(|(job, _)| u128::from(job.run_s) * u128::from(job.processors)).sum();
        let from_s = jobs().map(|(job, _)| job.submit_s).min().unwrap_or(0);
        let to_s = jobs().map(|(job, start_s)| start_s + job.run_s).max().unwrap_or(0);
        let capacity = u128::from(to_s - from_s) * u128::from(log.processors);
        (work * 1_000).checked_div(capacity).unwrap_or(0) as u64
    }
}

impl From<Accuracy> for PredictionReport {
    fn from(accuracy: Accuracy) -> Self {
        Self {
            count: accuracy.count,
            mean_permille: accuracy.mean_permille(),
            under_permille: accuracy.under_permille(),
        }
    }
}

fn bounded_slowdown(job: &LogJob, start_s: u64) -> f64 {
    let in_system_s = start_s - job.submit_s + job.run_s;
    (in_system_s as f64 / job.run_s.max(SLOWDOWN_RUN_S_MIN) as f64).max(1.0)
}

/// The value that so many percent of the sorted ones do not exceed, for 0 to 100; nothing of nothing.
#[must_use]
pub fn by_percent(sorted: &[u64]) -> Vec<u64> {
    let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied();
    (0..=100).filter_map(at).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three jobs on four processors: the figures below are worked out by hand.
    #[test]
    fn figures_by_hand() {
        let text = "1 0 -1 100 4 -1 -1 4 200 -1 1 1 1 -1 -1 -1 -1 -1\n\
            2 0 -1 5 1 -1 -1 1 200 -1 1 1 1 -1 -1 -1 -1 -1\n\
            3 50 -1 150 2 -1 -1 2 200 -1 1 1 1 -1 -1 -1 -1 -1\n";
        let log = Log::of_text(text, Some(4)).unwrap();
        let mut outcome = Outcome::new(3);
        outcome.start_s = vec![0, 100, 110];
        outcome.promised_s = vec![None, Some(100), Some(100)];
        let report = outcome.report(&log, "hand", 0.0);
        // 100/100, 105/10, 210/150.
        assert!((report.avg_bounded_slowdown - (1.0 + 10.5 + 1.4) / 3.0).abs() < 1e-9);
        assert!((report.avg_bounded_slowdown_by_half[1] - (10.5 + 1.4) / 2.0).abs() < 1e-9);
        assert!((report.mean_wait_s - 160.0 / 3.0).abs() < 1e-9);
        assert_eq!((report.max_wait_s, report.wait_p999_s), (100, 100));
        // 400 + 5 + 300 of 4 x 260.
        assert_eq!(report.utilisation_permille, 705_000 / 1_040);
        assert_eq!((report.promises, report.promises_broken, report.promise_delay_s_max), (2, 1, 10));
    }
}
