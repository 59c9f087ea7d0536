//! What a replay measures: the published curves of allocated and fragment GPUs over arrived demand, and what decisions
//! cost.

use super::{Compared, OpenbConfig, Published, Trace};
use rota_core::placement::score::Policy;
use serde::Serialize;
use std::time::Duration;

/// What is expected of the figures of all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenbReport {
    /// The pod list, by the name of its file.
    pub workload: String,
    /// The policy by name.
    pub policy: String,
    /// What placed: `production`, the scheduler itself, or `reference`, the compact engine with published ties.
    pub engine: String,
    /// Whether only pods already seen were known.
    pub online: bool,
    /// Seeds that ran side by side: times of decisions are those of a shared machine if there are several.
    pub threads: usize,
    /// Allocated GPUs in % of the cluster at 100 % arrived, mean of the seeds.
    pub allocated_at_100: f64,
    /// Standard deviation of it between seeds; 0 for one seed.
    pub sd: f64,
    /// The published cell, if a table was given that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Compared>,
    /// Each seed.
    pub per_seed: Vec<SeedReport>,
    /// Mean curves of the seeds, by whole percent arrived.
    pub curve: Vec<Point>,
    /// Wall time of all runs, with learning and measuring.
    pub seconds: f64,
    /// Pods placed in all runs.
    pub placements: u64,
    /// Median time of a decision, placed or not, in microseconds.
    pub decision_us_p50: f64,
    /// 99th percentile of it.
    pub decision_us_p99: f64,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeedReport {
    /// Its seed.
    pub seed: u64,
    /// Allocated GPUs in % of the cluster at 100 % arrived.
    pub allocated_at_100: f64,
    /// Pods placed.
    pub placed: u64,
    /// Pods dropped.
    pub dropped: u64,
    /// Its curves.
    #[serde(skip)]
    pub curve: Vec<Point>,
}

impl SeedReport {
    /// The mean of several runs of one seed; counts are rounded down.
    pub(super) fn mean(runs: &[Self]) -> Self {
        let count = runs.len().max(1) as u64;
        let sum = |of: fn(&Self) -> u64| runs.iter().map(of).sum::<u64>() / count;
        Self {
            seed: runs.first().map_or(0, |run| run.seed),
            allocated_at_100: runs.iter().map(|run| run.allocated_at_100).sum::<f64>() / count as f64,
            placed: sum(|run| run.placed),
            dropped: sum(|run| run.dropped),
            curve: mean_curve(runs),
        }
    }
}

/// The mean over all events whose arrived demand rounds to a percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Arrived GPU demand, in % of the cluster.
    pub arrived: u64,
    /// Allocated GPUs, in % of the cluster.
    pub allocated: f64,
    /// Fragment GPUs, in % of the cluster, by the asks of the whole list.
    pub fragment: f64,
}

impl OpenbReport {
    /// Sums up the runs; `pace` is how many ran side by side and how long all took.
    pub(super) fn new(
        config: &OpenbConfig,
        per_seed: Vec<SeedReport>,
        timings: &Timings,
        pace: (usize, Duration),
    ) -> Self {
        let count = per_seed.len() as f64;
        let mean = per_seed.iter().map(|seed| seed.allocated_at_100).sum::<f64>() / count;
        let squares: f64 = per_seed.iter().map(|seed| (seed.allocated_at_100 - mean).powi(2)).sum();
        let sd = if per_seed.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        let (decision_us_p50, decision_us_p99) = timings.percentiles_us();
        Self {
            workload: config.pods.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            policy: config.policy.to_string(),
            engine: if config.reference { "reference" } else { "production" }.to_owned(),
            online: config.online,
            threads: pace.0,
            allocated_at_100: mean,
            sd,
            published: None,
            curve: mean_curve(&per_seed),
            seconds: pace.1.as_secs_f64(),
            placements: per_seed.iter().map(|seed| seed.placed).sum(),
            decision_us_p50,
            decision_us_p99,
            per_seed,
        }
    }

    /// Puts the published cell beside it, if there is one.
    #[must_use]
    pub fn beside(mut self, table: &Published, policy: Policy) -> Self {
        self.published = table.compare(&self.workload, policy, &self.per_seed);
        self
    }
}

/// Counts the events of one run.
pub(super) struct Meter {
    cluster_milli: u64,
    arrived_milli: u64,
    allocated_milli: u64,
    placed: u64,
    dropped: u64,
    fragments: Vec<i64>,
    fragment_sum: i64,
    /// By percent arrived: events, sum of allocated milli, sum of fragments.
    sums: Vec<(u64, u64, i128)>,
}

impl Meter {
    pub(super) fn new(trace: &Trace, fragment_of: impl Fn(usize) -> i64) -> Self {
        let fragments: Vec<i64> = (0..trace.nodes.len()).map(fragment_of).collect();
        Self {
            cluster_milli: trace.capacity_milli().iter().sum(),
            arrived_milli: 0,
            allocated_milli: 0,
            placed: 0,
            dropped: 0,
            fragment_sum: fragments.iter().sum(),
            fragments,
            sums: Vec::new(),
        }
    }

    /// One arrival; if it was placed, the host and its fragment now.
    pub(super) fn count(&mut self, gpu_milli: u64, placed: Option<(usize, i64)>) {
        self.arrived_milli += gpu_milli;
        if let Some((node, fragment)) = placed {
            self.allocated_milli += gpu_milli;
            self.fragment_sum += fragment - self.fragments[node];
            self.fragments[node] = fragment;
            self.placed += 1;
        } else {
            self.dropped += 1;
        }
        let percent = ((self.arrived_milli * 200 + self.cluster_milli) / (2 * self.cluster_milli)) as usize;
        if self.sums.len() <= percent {
            self.sums.resize(percent + 1, (0, 0, 0));
        }
        let (events, allocated, fragments) = &mut self.sums[percent];
        *events += 1;
        *allocated += self.allocated_milli;
        *fragments += i128::from(self.fragment_sum);
    }

    pub(super) fn report(self, seed: u64) -> SeedReport {
        let percent = 100.0 / self.cluster_milli as f64;
        let mut curve = Vec::new();
        for (arrived, (events, allocated, fragments)) in (0..).zip(&self.sums) {
            if *events > 0 {
                let allocated = *allocated as f64 / *events as f64 * percent;
                let fragment = *fragments as f64 / *events as f64 / 1e6 * percent;
                curve.push(Point { arrived, allocated, fragment });
            }
        }
        // With less demand than that, the last there is.
        let at_100 = curve.iter().rfind(|point| point.arrived <= 100);
        let allocated_at_100 = at_100.map_or(0.0, |point| point.allocated);
        SeedReport { seed, allocated_at_100, placed: self.placed, dropped: self.dropped, curve }
    }
}

/// Times of all decisions.
#[derive(Debug, Default)]
pub(super) struct Timings(Vec<u32>);

impl Timings {
    /// Adds those of another run.
    pub(super) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(super) fn push(&mut self, elapsed: Duration) {
        self.0.push(u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Median and 99th percentile.
    fn percentiles_us(&self) -> (f64, f64) {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            sorted.get(index).map_or(0.0, |nanos| f64::from(*nanos) / 1000.0)
        };
        (at(50), at(99))
    }
}

fn mean_curve(seeds: &[SeedReport]) -> Vec<Point> {
    let most = seeds.iter().filter_map(|seed| seed.curve.last()).map(|point| point.arrived).max();
    let mut curve = Vec::new();
    for arrived in 0..=most.unwrap_or(0) {
        let points: Vec<&Point> = seeds
            .iter()
            .filter_map(|seed| seed.curve.iter().find(|point| point.arrived == arrived))
            .collect();
        if points.is_empty() {
            continue;
        }
        let mean = |of: fn(&Point) -> f64| points.iter().map(|p| of(p)).sum::<f64>() / points.len() as f64;
        let (allocated, fragment) = (mean(|point| point.allocated), mean(|point| point.fragment));
        curve.push(Point { arrived, allocated, fragment });
    }
    curve
}
