//! Where the run times come from that a policy goes by: users' limits, what the same user's jobs took before, or, for
//! bounds that no real scheduler reaches, the truth.

use super::log::LogJob;
use rota_core::state::history::{Basis, History, HistoryKey, Prediction};
use std::collections::BTreeMap;

/// A source of expected run times.
pub(super) enum Foresight {
    /// What the user asked for.
    Limit,
    /// The truth.
    Oracle,
    /// The mean of the user's last two jobs, once there are two, and as of submission: EASY++ as published.
    LastTwo(BTreeMap<u64, Vec<u64>>),
    /// The table that the product keeps, asked again whenever it has learned something.
    History(Box<History>),
}

impl Foresight {
    /// Nothing learned yet.
    pub(super) fn last_two() -> Self {
        Self::LastTwo(BTreeMap::new())
    }

    /// Nothing learned yet.
    pub(super) fn history() -> Self {
        Self::History(Box::default())
    }

    /// Predictions of waiting jobs change when it learns.
    pub(super) fn looks_again(&self) -> bool {
        matches!(self, Self::History(_))
    }

    /// How long a job is expected to run.
    pub(super) fn of(&self, job: &LogJob) -> Prediction {
        let limit = Prediction { ms: job.limit_s * 1_000, basis: Basis::Limit };
        match self {
            Self::Limit => limit,
            Self::Oracle => Prediction { ms: job.run_s * 1_000, basis: Basis::None },
            Self::LastTwo(runs) => match runs.get(&job.user).map(Vec::as_slice) {
                Some([.., earlier, last]) => {
                    let mean_s = ((earlier + last) / 2).clamp(1, job.limit_s);
                    Prediction { ms: mean_s * 1_000, basis: Basis::UserRuns(2) }
                }
                _ => limit,
            },
            Self::History(history) => with_key(job, |key| history.predict(key, Some(job.limit_s * 1_000))),
        }
    }

    /// A job has ended.
    pub(super) fn learn(&mut self, job: &LogJob) {
        match self {
            Self::Limit | Self::Oracle => {}
            Self::LastTwo(runs) => {
                let runs = runs.entry(job.user).or_default();
                runs.push(job.run_s);
                runs.drain(..runs.len().saturating_sub(2));
            }
            Self::History(history) => with_key(job, |key| {
                history.record(key, Some(job.limit_s * 1_000), job.run_s * 1_000);
            }),
        }
    }
}

/// What the product would know of a job of the log.
fn with_key<T>(job: &LogJob, of: impl FnOnce(&HistoryKey<'_>) -> T) -> T {
    let user = job.user.to_string();
    let name = job.program.map(|program| program.to_string()).unwrap_or_default();
    of(&HistoryKey { tenant: "", user: &user, name: &name, gpus: job.processors })
}
