//! Logs of batch machines, replayed on equal processors under published policies and under Rota's own: what waiting
//! costs users (average bounded slowdown), whether promised starts are kept, and how good predicted run times are.
//!
//! `log` reads, `machine` runs the clock, `easy`, `conservative` and `rota` decide, `foresight` predicts, `outcome`
//! counts, `draw` makes logs up for tests.

mod conservative;
pub mod draw;
mod easy;
mod foresight;
pub mod log;
mod machine;
pub mod outcome;
mod product;
mod rota;

use crate::cluster::HOSTS_MAX;
use foresight::Foresight;
use log::{Log, LogError};
use outcome::{Outcome, SwfReport};
use rota::Rota;
use rota_protocol::limits::GANG_PARTS_MAX;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;
use thiserror::Error;

/// What to replay, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwfConfig {
    /// A log in the Standard Workload Format.
    pub file: PathBuf,
    /// Who decides.
    pub policy: SwfPolicy,
    /// Processors of the machine, if not those of the log's header.
    pub processors: Option<u32>,
}

/// Who decides what starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwfPolicy {
    /// EASY, backfilling in order of submission, by limits.
    Easy,
    /// EASY, backfilling the shortest limit first.
    EasySjbf,
    /// EASY, backfilling the shortest first, by the mean of the user's last two runs, by the limit once that is past.
    EasyPlusPlus,
    /// EASY that knows run times.
    EasyClairvoyant,
    /// EASY, shortest first, that knows run times.
    EasySjbfClairvoyant,
    /// A reservation for every job, by limits.
    Conservative,
    /// The production scheduler: order by predictions from history, promises by limits.
    Rota,
    /// Its rule on equal processors without places, with slack in promises: the simple engine beside it.
    RotaMachine,
    /// The same with longer slack in promises, and a place kept by predictions for the first job in order.
    RotaSoft,
    /// Rota's rule with limits in place of predictions: what predictions are worth.
    RotaLimits,
    /// Rota's rule that knows run times, but promises by limits: what better predictions could be worth.
    RotaClairvoyant,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum SwfError {
    /// The log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The machine is larger than a cluster can be.
    #[error(
        "processors is {0}, want 1 to {HOSTS_MAX} for policy rota, a host for each: give --processors 10000, or \
         --policy rota-machine, which knows no hosts"
    )]
    Size(u32),
    /// A job is wider than a gang can be.
    #[error(
        "job {job} asks {processors} processors, want 1 to {GANG_PARTS_MAX} for policy rota, a part of a gang for each: \
         give --processors {GANG_PARTS_MAX}, which leaves it out, or --policy rota-machine, which knows no gangs"
    )]
    Width {
        /// Its number in the log.
        job: u64,
        /// What it asks.
        processors: u32,
    },
    /// The scheduler refused what the replay must be able to do.
    #[error(transparent)]
    Cluster(#[from] crate::cluster::ClusterError),
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no policy is called {0:?}")]
pub struct UnknownPolicy(String);

/// Reads a log and replays it.
///
/// # Errors
/// The log cannot be read or holds nothing to replay.
pub fn run(config: &SwfConfig) -> Result<SwfReport, SwfError> {
    replay(&Log::read(&config.file, config.processors)?, config.policy)
}

/// Replays a log.
///
/// # Errors
/// The scheduler refused what a replay must be able to do.
pub fn replay(log: &Log, policy: SwfPolicy) -> Result<SwfReport, SwfError> {
    let started = Instant::now();
    let outcome = outcome(log, policy)?;
    Ok(outcome.report(log, policy.name(), started.elapsed().as_secs_f64()))
}

/// The starts that a policy chooses.
fn outcome(log: &Log, policy: SwfPolicy) -> Result<Outcome, SwfError> {
    let easy =
        |shortest_first, foresight| machine::replay(log, &mut easy::Easy { shortest_first }, foresight);
    let rota = |mut rule: Rota, foresight| machine::replay(log, &mut rule, foresight);
    Ok(match policy {
        SwfPolicy::Easy => easy(false, Foresight::Limit),
        SwfPolicy::EasySjbf => easy(true, Foresight::Limit),
        SwfPolicy::EasyPlusPlus => easy(true, Foresight::last_two()),
        SwfPolicy::EasyClairvoyant => easy(false, Foresight::Oracle),
        SwfPolicy::EasySjbfClairvoyant => easy(true, Foresight::Oracle),
        SwfPolicy::Conservative => machine::replay(log, &mut conservative::Conservative, Foresight::Limit),
        SwfPolicy::Rota => {
            product::check(log)?;
            return product::replay(log, product::Setup { slack_limits: 0 }).map_err(SwfError::from);
        }
        SwfPolicy::RotaMachine => rota(Rota::firm(), Foresight::history()),
        SwfPolicy::RotaSoft => rota(Rota::soft(), Foresight::history()),
        SwfPolicy::RotaLimits => rota(Rota::firm(), Foresight::Limit),
        SwfPolicy::RotaClairvoyant => rota(Rota::firm(), Foresight::Oracle),
    })
}

impl SwfPolicy {
    /// All of them, baselines first.
    pub const ALL: [Self; 11] = [
        Self::Easy,
        Self::EasySjbf,
        Self::EasyPlusPlus,
        Self::Conservative,
        Self::EasyClairvoyant,
        Self::EasySjbfClairvoyant,
        Self::RotaLimits,
        Self::Rota,
        Self::RotaMachine,
        Self::RotaSoft,
        Self::RotaClairvoyant,
    ];

    /// Its name, as in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Easy => "easy",
            Self::EasySjbf => "easy-sjbf",
            Self::EasyPlusPlus => "easy-plus-plus",
            Self::EasyClairvoyant => "easy-clairvoyant",
            Self::EasySjbfClairvoyant => "easy-sjbf-clairvoyant",
            Self::Conservative => "conservative",
            Self::Rota => "rota",
            Self::RotaMachine => "rota-machine",
            Self::RotaSoft => "rota-soft",
            Self::RotaLimits => "rota-limits",
            Self::RotaClairvoyant => "rota-clairvoyant",
        }
    }
}

impl FromStr for SwfPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

#[cfg(test)]
mod tests;
