//! A cluster's own history, replayed on the production scheduler in virtual time, as it was and with what might be
//! changed: more or fewer hosts, another policy.
//!
//! A replay knows how long every task ran, not what it did: an attempt that is ended to make room starts again from
//! nothing, a job's time does not depend on its host, and failures of hosts do not happen again. Hosts are those of
//! the moment of export, all up. Jobs whose run time is not known (they wait or were never started) are taken to run
//! as long as their limit or the median of all runs, whichever is less; their number is told.

mod figures;
pub mod history;
mod player;
mod stage;
#[cfg(test)]
mod tests;

pub use figures::{Figures, QueueWaits};
pub use history::{History, HistoryError};

use crate::cluster::{ClusterError, HOSTS_MAX};
use crate::rng::Rng;
use figures::Scarce;
use history::HistoryHost;
use player::Player;
use rota_core::placement::score::Policy;
use rota_core::spec::twice;
use rota_protocol::DeviceUuid;
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;
use thiserror::Error;

/// CPU for each card of an added host, where the history has no host like it, in thousandths of a core.
const CPUS_PER_CARD_MILLI: u32 = 16_000;
/// Memory for each card of an added host, where the history has no host like it, in MiB.
const MEM_PER_CARD_MIB: u64 = 128 << 10;

/// Most cards of a replay: eight a host, on more than ten thousand of them.
const CARDS_MAX: usize = 200_000;

/// Hosts to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedHosts {
    /// How many.
    pub hosts: u32,
    /// Cards of each.
    pub cards: u32,
    /// Their model.
    pub model: String,
    /// Their memory in MiB; none for that of the same model in the history.
    pub vram_mib: Option<u64>,
}

/// What to replay it with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// Another way to compare hosts.
    pub policy: Option<Policy>,
    /// More hosts.
    pub add: Vec<AddedHosts>,
    /// Hosts that are not there, by name.
    pub without: Vec<String>,
}

/// How to replay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayConfig {
    /// What to change; nothing for the course of events as it was.
    pub change: Change,
    /// Submissions are moved by up to so long, in ms: whether a result hangs on seconds.
    pub jitter_ms: u64,
    /// Which way they are moved.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Jobs.
    pub jobs: u64,
    /// Of them, those whose run time is not known and was guessed.
    pub run_times_guessed: u64,
    /// The seed that moved submissions.
    pub seed: u64,
    /// By how much at most, ms.
    pub jitter_ms: u64,
    /// As it was recorded.
    pub recorded: Figures,
    /// As the scheduler does it in virtual time.
    pub replayed: Run,
    /// The same with the change.
    pub what_if: Option<Run>,
    /// How long the replay took, s of wall time.
    pub seconds: f64,
}

/// One replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// How hosts were compared.
    pub policy: String,
    /// Hosts.
    pub hosts: usize,
    /// Their GPUs.
    pub gpus: usize,
    /// What came of it.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The history is wrong.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A host to be left out is not there.
    #[error("the history has no host {0:?}")]
    NoHost(String),
    /// There would be more hosts, or cards, than a cluster has.
    #[error("{what} would be {count}, want at most {most}: add fewer, such as 4x8xH100")]
    Many {
        /// Hosts or cards.
        what: &'static str,
        /// How many there would be.
        count: usize,
        /// The most there can be.
        most: usize,
    },
    /// A host is to be left out twice.
    #[error("host {0:?} is to be left out twice")]
    Twice(String),
    /// The change takes all hosts away.
    #[error("no host is left")]
    NoHosts,
    /// The scheduler refused what a replay must be able to do.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// Replays a history as it was and, if something is to be changed, with that.
///
/// # Errors
/// The history or the change cannot be replayed.
pub fn run(history: &History, config: &ReplayConfig) -> Result<ReplayReport, ReplayError> {
    let begun = Instant::now();
    history.check()?;
    let changed =
        (config.change != Change::default()).then(|| changed(history, &config.change)).transpose()?;
    let submits_ms = submits_ms(history, config);
    let one = |history: &History, policy: Policy| -> Result<(Run, u64), ReplayError> {
        let scarce = Scarce::of(history);
        let (course, guessed) = Player::new(history, &submits_ms, policy, scarce)?.play()?;
        let run = Run {
            policy: policy.to_string(),
            hosts: history.hosts.len(),
            gpus: history.hosts.iter().map(|host| host.gpus().count()).sum(),
            figures: course.figures(history, scarce.capacity_milli(history)),
        };
        Ok((run, guessed))
    };
    let (replayed, run_times_guessed) = one(history, Policy::Rota)?;
    let policy = config.change.policy.unwrap_or(Policy::Rota);
    let what_if = changed.map(|changed| one(&changed, policy)).transpose()?.map(|(run, _)| run);
    let scarce = Scarce::of(history);
    Ok(ReplayReport {
        jobs: history.jobs.len() as u64,
        run_times_guessed,
        seed: config.seed,
        jitter_ms: config.jitter_ms,
        recorded: figures::recorded(history, scarce).figures(history, scarce.capacity_milli(history)),
        replayed,
        what_if,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// When each job is submitted, in the order of the history. A job never comes before one that it waits for.
fn submits_ms(history: &History, config: &ReplayConfig) -> Vec<u64> {
    let mut rng = Rng::new(config.seed);
    let mut by_job = BTreeMap::new();
    let mut order: Vec<usize> = (0..history.jobs.len()).collect();
    order.sort_by_key(|at| history.jobs[*at].job);
    for at in order {
        let job = &history.jobs[at];
        // When a held job was released is not known; it started when it could.
        let came_ms = job.started_ms.filter(|_| job.hold).unwrap_or(job.submitted_ms);
        let moved_ms = came_ms + rng.below(config.jitter_ms);
        let parents = job.after.iter().filter_map(|parent| by_job.get(&parent.job).copied());
        by_job.insert(job.job, parents.fold(moved_ms, u64::max));
    }
    history.jobs.iter().map(|job| by_job.get(&job.job).copied().unwrap_or(job.submitted_ms)).collect()
}

/// The history on other hosts.
fn changed(history: &History, change: &Change) -> Result<History, ReplayError> {
    let mut history = history.clone();
    if let Some(name) = twice(&change.without) {
        return Err(ReplayError::Twice(name.clone()));
    }
    for name in &change.without {
        let at = history.hosts.iter().position(|host| host.name == *name);
        history.hosts.remove(at.ok_or_else(|| ReplayError::NoHost(name.clone()))?);
    }
    // Before any of them is built.
    let added = |of: fn(&AddedHosts) -> usize| change.add.iter().map(of).fold(0, usize::saturating_add);
    let cards: usize = history.hosts.iter().map(|host| host.devices.len()).sum();
    for (what, count, most) in [
        ("hosts", history.hosts.len().saturating_add(added(|one| one.hosts as usize)), HOSTS_MAX),
        ("cards", cards.saturating_add(added(|one| one.hosts as usize * one.cards as usize)), CARDS_MAX),
    ] {
        if count > most {
            return Err(ReplayError::Many { what, count, most });
        }
    }
    for (group, added) in change.add.iter().enumerate() {
        let like = history.hosts.iter().find(|host| host.gpus().any(|card| is_like(card, added))).cloned();
        for number in 1..=added.hosts {
            let name = format!("what-if-{}-{number}", group + 1);
            history.hosts.push(added_host(name, added, like.as_ref()));
        }
    }
    if history.hosts.is_empty() {
        return Err(ReplayError::NoHosts);
    }
    Ok(history)
}

/// Models are named as asks name them: by a part, letter case aside.
fn is_like(card: &DeviceFacts, added: &AddedHosts) -> bool {
    card.model.to_lowercase().contains(&added.model.to_lowercase())
}

/// A host with such cards. What is not said is as on a host of the history with such cards: CPU and memory by card.
fn added_host(name: String, added: &AddedHosts, like: Option<&HistoryHost>) -> HistoryHost {
    let cards_there = like.map_or(1, |host| host.gpus().count().max(1) as u64);
    let card = like.and_then(|host| host.gpus().find(|card| is_like(card, added)));
    let cpus = like.map_or(CPUS_PER_CARD_MILLI, |host| (u64::from(host.cpus_milli) / cards_there) as u32);
    let mem_mib = like.map_or(MEM_PER_CARD_MIB, |host| host.mem_mib / cards_there);
    let device = |index: u32| DeviceFacts {
        uuid: DeviceUuid(format!("GPU-{name}-{index}")),
        kind: DeviceKind::Gpu,
        model: card.map_or_else(|| added.model.clone(), |card| card.model.clone()),
        vram_mib: added.vram_mib.or_else(|| card.and_then(|card| card.vram_mib)),
        bus: None,
        index: Some(index),
        numa: None,
        compute_cap: card.and_then(|card| card.compute_cap),
        island: card.and_then(|card| card.island),
        health: DeviceHealth::Healthy,
        detail: Default::default(),
    };
    HistoryHost {
        cpus_milli: cpus.saturating_mul(added.cards),
        mem_mib: mem_mib.saturating_mul(u64::from(added.cards)),
        labels: like.map(|host| host.labels.clone()).unwrap_or_default(),
        devices: (0..added.cards).map(device).collect(),
        name,
    }
}
