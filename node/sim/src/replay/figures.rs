//! What a history or a replay of it amounts to: waits, use of the GPUs, and the time until all is done.

use super::history::{History, HistoryJob};
use crate::swf::outcome::by_percent;
use rota_protocol::ask::CARD_MILLI;
use serde::Serialize;

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
    /// The wait that so many percent of the jobs do not exceed, ms, for 0 to 100 percent: for charts.
    #[serde(skip)]
    pub wait_ms_by_percent: Vec<u64>,
}

/// What figures are made of.
#[derive(Debug, Clone, Default)]
pub(super) struct Course {
    /// Waits of jobs that started, ms.
    pub(super) waits_ms: Vec<u64>,
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
    /// The figures on so much capacity, in milli of cards, or of cores where there are no GPUs.
    pub(super) fn figures(mut self, capacity_milli: u64) -> Figures {
        self.waits_ms.sort_unstable();
        let started = self.waits_ms.len() as u64;
        let by_percent = by_percent(&self.waits_ms);
        let seconds = |percent: usize| by_percent.get(percent).map_or(0.0, |ms| *ms as f64 / 1_000.0);
        let span_ms = self.to_ms.saturating_sub(self.from_ms);
        let all = u128::from(capacity_milli) * u128::from(span_ms);
        Figures {
            started,
            never_started: self.jobs - started,
            mean_wait_s: self.waits_ms.iter().sum::<u64>() as f64 / 1_000.0 / started.max(1) as f64,
            median_wait_s: seconds(50),
            p99_wait_s: seconds(99),
            max_wait_s: seconds(100),
            utilisation_percent: if all == 0 { 0.0 } else { self.held as f64 * 100.0 / all as f64 },
            makespan_s: span_ms as f64 / 1_000.0,
            evictions: self.evictions,
            wait_ms_by_percent: by_percent,
        }
    }
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

/// What was recorded. Work that was lost to evictions and failures is not in a history, so that use is told too low
/// where there was much of it.
pub(super) fn recorded(history: &History, scarce: Scarce) -> Course {
    let jobs = &history.jobs;
    let held = |job: &HistoryJob| {
        let milli = scarce.held_milli(job.ask.gpu_milli, job.ask.cpus_milli);
        u128::from(milli) * job.ran_ms_all()
    };
    let wait = |job: &HistoryJob| job.started_ms.map(|started_ms| started_ms - job.submitted_ms);
    Course {
        waits_ms: jobs.iter().filter_map(wait).collect(),
        jobs: jobs.len() as u64,
        held: jobs.iter().map(held).sum(),
        from_ms: jobs.iter().map(|job| job.submitted_ms).min().unwrap_or(0),
        to_ms: jobs
            .iter()
            .filter(|job| job.started_ms.is_some())
            .filter_map(|job| job.ended_ms)
            .max()
            .unwrap_or(0),
        evictions: None,
    }
}
