//! What a history or a replay of it amounts to: waits, use of the GPUs, and the time until all is done.

use super::history::{History, HistoryJob};
use crate::swf::outcome::by_percent;
use rota_protocol::ask::CARD_MILLI;
use serde::Serialize;
use std::collections::BTreeMap;

/// The figures of one course of events.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Figures {
    /// Jobs that started.
    pub started: u64,
    /// Jobs that never did.
    pub never_started: u64,
    /// Mean time from submission to the first start, of those that started, s.
    pub mean_wait_s: f64,
    /// Half of them waited no longer, s.
    pub median_wait_s: f64,
    /// 99 of 100 waited no longer, s.
    pub p99_wait_s: f64,
    /// The longest wait, s.
    pub max_wait_s: f64,
    /// GPU time held over all GPU time from the first submission to the last end, percent; CPU time where there are no
    /// GPUs.
    pub utilisation_percent: f64,
    /// From the first submission to the last end, s.
    pub makespan_s: f64,
    /// Attempts that were ended to make room; none where it is not known.
    pub evictions: Option<u64>,
    /// Waits queue by queue, by name.
    pub queues: Vec<QueueWaits>,
    /// The wait that so many percent of the jobs do not exceed, ms, for 0 to 100 percent: for charts.
    #[serde(skip)]
    pub wait_ms_by_percent: Vec<u64>,
}

/// How long the jobs of one queue waited.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct QueueWaits {
    /// Its path.
    pub queue: String,
    /// Its jobs.
    pub jobs: u64,
    /// Of them, those that started.
    pub started: u64,
    /// Mean wait of these, s.
    pub mean_wait_s: f64,
    /// Half of them waited no longer, s.
    pub median_wait_s: f64,
    /// The longest wait, s.
    pub max_wait_s: f64,
}

/// What figures are made of.
#[derive(Debug, Clone, Default)]
pub(super) struct Course {
    /// Jobs that started, by their place in the history, and their waits, ms.
    pub(super) waits_ms: Vec<(usize, u64)>,
    /// All jobs.
    pub(super) jobs: u64,
    /// Milli of cards, or of cores where there are no GPUs, times ms.
    pub(super) held: u128,
    /// First submission, ms.
    pub(super) from_ms: u64,
    /// Last end, ms.
    pub(super) to_ms: u64,
    /// Attempts ended to make room.
    pub(super) evictions: Option<u64>,
}

impl Course {
    /// The figures of a history's jobs on so much capacity, in milli of cards, or of cores where there are no GPUs.
    pub(super) fn figures(self, history: &History, capacity_milli: u64) -> Figures {
        let mut waits_ms: Vec<u64> = self.waits_ms.iter().map(|(_, wait_ms)| *wait_ms).collect();
        waits_ms.sort_unstable();
        let started = waits_ms.len() as u64;
        let by_percent = by_percent(&waits_ms);
        let seconds = |percent: usize| by_percent.get(percent).map_or(0.0, |ms| *ms as f64 / 1_000.0);
        let span_ms = self.to_ms.saturating_sub(self.from_ms);
        let all = u128::from(capacity_milli) * u128::from(span_ms);
        Figures {
            started,
            never_started: self.jobs - started,
            mean_wait_s: mean_s(&waits_ms),
            median_wait_s: seconds(50),
            p99_wait_s: seconds(99),
            max_wait_s: seconds(100),
            utilisation_percent: if all == 0 { 0.0 } else { self.held as f64 * 100.0 / all as f64 },
            makespan_s: span_ms as f64 / 1_000.0,
            evictions: self.evictions,
            queues: self.queues(history),
            wait_ms_by_percent: by_percent,
        }
    }

    fn queues(&self, history: &History) -> Vec<QueueWaits> {
        let mut jobs: BTreeMap<&str, u64> = BTreeMap::new();
        for job in &history.jobs {
            *jobs.entry(job.queue_name()).or_default() += 1;
        }
        let mut waits_ms: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (at, wait_ms) in &self.waits_ms {
            waits_ms.entry(history.jobs[*at].queue_name()).or_default().push(*wait_ms);
        }
        let mut row = |(queue, jobs): (&str, u64)| {
            let mut waits_ms = waits_ms.remove(queue).unwrap_or_default();
            waits_ms.sort_unstable();
            let by_percent = by_percent(&waits_ms);
            let seconds = |percent: usize| by_percent.get(percent).map_or(0.0, |ms| *ms as f64 / 1_000.0);
            QueueWaits {
                queue: queue.to_owned(),
                jobs,
                started: waits_ms.len() as u64,
                mean_wait_s: mean_s(&waits_ms),
                median_wait_s: seconds(50),
                max_wait_s: seconds(100),
            }
        };
        jobs.into_iter().map(&mut row).collect()
    }
}

/// The mean in s; 0 of nothing.
fn mean_s(waits_ms: &[u64]) -> f64 {
    let sum: u128 = waits_ms.iter().map(|wait_ms| u128::from(*wait_ms)).sum();
    sum as f64 / 1_000.0 / waits_ms.len().max(1) as f64
}

/// What is counted as capacity: GPUs if there are any, or else CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scarce {
    Gpus,
    Cpus,
}

impl Scarce {
    /// Of a history.
    pub(super) fn of(history: &History) -> Self {
        let has_gpus = history.hosts.iter().any(|host| host.gpus().next().is_some());
        if has_gpus { Self::Gpus } else { Self::Cpus }
    }

    /// How much of it there is, in thousandths.
    pub(super) fn capacity_milli(self, history: &History) -> u64 {
        let of = |host: &super::history::HistoryHost| match self {
            Self::Gpus => host.gpus().count() as u64 * u64::from(CARD_MILLI),
            Self::Cpus => u64::from(host.cpus_milli),
        };
        history.hosts.iter().map(of).sum()
    }

    /// How much of it one task holds.
    pub(super) fn held_milli(self, gpu_milli: u32, cpus_milli: u32) -> u64 {
        u64::from(match self {
            Self::Gpus => gpu_milli,
            Self::Cpus => cpus_milli,
        })
    }
}

/// What was recorded. Where a history says nothing of what its attempts held, work that was lost to evictions and
/// failures is not in it, so that use is told too low where there was much of it.
pub(super) fn recorded(history: &History, scarce: Scarce) -> Course {
    let jobs = &history.jobs;
    let held = |job: &HistoryJob| match (&job.held, scarce) {
        (Some(held), Scarce::Gpus) => u128::from(held.gpu_ms) * u128::from(CARD_MILLI),
        (Some(held), Scarce::Cpus) => u128::from(held.ms) * u128::from(job.ask.cpus_milli),
        (None, _) => u128::from(scarce.held_milli(job.ask.gpu_milli, job.ask.cpus_milli)) * job.ran_ms_all(),
    };
    let wait = |(at, job): (usize, &HistoryJob)| Some((at, job.started_ms? - job.submitted_ms));
    Course {
        waits_ms: jobs.iter().enumerate().filter_map(wait).collect(),
        jobs: jobs.len() as u64,
        held: jobs.iter().map(held).sum(),
        from_ms: jobs.iter().map(|job| job.submitted_ms).min().unwrap_or(0),
        to_ms: jobs
            .iter()
            .filter(|job| job.started_ms.is_some())
            .filter_map(|job| job.ended_ms)
            .max()
            .unwrap_or(0),
        evictions: jobs.iter().map(|job| job.held.map(|held| held.evictions)).sum(),
    }
}
