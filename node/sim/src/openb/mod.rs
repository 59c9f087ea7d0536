//! The `openb` experiment of Weng et al. (USENIX ATC 2023): pods arrive one by one on 1213 GPU hosts and never leave,
//! and what counts is the share of the GPUs that is allocated when as much has been asked for as there is. The lists are
//! not part of this repository; paths are given.

mod engine;
mod lagged;
mod product;
mod published;
mod report;
mod trace;

pub use engine::{Compact, Engine};
pub use lagged::Lagged;
pub use product::Product;
pub use published::{Compared, Published, TOLERANCE};
pub use report::{OpenbReport, Point, SeedReport};
pub use trace::{Node, Trace, TraceError};

use crate::threads;
use report::{Meter, Timings};
use rota_core::hash::mix;
use rota_core::placement::score::{Demand, Policy, fragment};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Instant;
use thiserror::Error;

/// After so many arrivals what is expected is learned anew, and at each power of two before.
pub const LEARN_EVERY: usize = 500;

/// After so many arrivals it is looked again at which models are short.
pub const REPRICE_EVERY: usize = 100;

/// What to run.
#[derive(Debug, Clone)]
pub struct OpenbConfig {
    /// The node list.
    pub nodes: PathBuf,
    /// The pod list.
    pub pods: PathBuf,
    /// How hosts are compared.
    pub policy: Policy,
    /// One run each; published: 42..=51.
    pub seeds: RangeInclusive<u64>,
    /// Whether only pods already seen are known, and not the whole list.
    pub online: bool,
    /// On the compact reference instead of the production scheduler.
    pub reference: bool,
    /// Demand that arrives, in percent of the GPUs; published: 130.
    pub tune_percent: u64,
    /// Runs of each seed with the same arrivals, of which the mean is told, where the policy itself draws lots. The
    /// published program draws them as its threads race, so one run says little.
    pub draws: u32,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum OpenbError {
    /// A list is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// No seed was given.
    #[error("the range of seeds is empty")]
    NoSeeds,
    /// The scheduler refused what the replay must be able to do.
    #[error(transparent)]
    Cluster(#[from] crate::cluster::ClusterError),
}

/// How seeds are run.
#[derive(Clone, Copy)]
pub struct Pace<'a> {
    /// Seeds that run side by side. Times of decisions are right only for one.
    pub threads: usize,
    /// Told of each seed that is done.
    pub done: &'a (dyn Fn(u64) + Sync),
}

impl Default for Pace<'_> {
    /// One after the other, without a word.
    fn default() -> Self {
        Self { threads: 1, done: &|_| () }
    }
}

/// Runs the experiment, one seed after the other.
///
/// # Errors
/// A list that cannot be read or is wrong, or no seed.
pub fn run(config: &OpenbConfig) -> Result<OpenbReport, OpenbError> {
    run_at(config, &Pace::default())
}

/// Runs the experiment.
///
/// # Errors
/// A list that cannot be read or is wrong, or no seed.
pub fn run_at(config: &OpenbConfig, pace: &Pace<'_>) -> Result<OpenbReport, OpenbError> {
    if config.seeds.is_empty() {
        return Err(OpenbError::NoSeeds);
    }
    let trace = Trace::read(&config.nodes, &config.pods)?;
    if !config.reference {
        return replay_product(&trace, config, pace);
    }
    let engine = |demand, lots| Ok(Compact::new(config.policy, &trace.nodes, &trace.shapes, demand, lots));
    replay(&trace, config, pace, engine, |_| None)
}

/// Replays a trace on the production scheduler.
fn replay_product(trace: &Trace, config: &OpenbConfig, pace: &Pace<'_>) -> Result<OpenbReport, OpenbError> {
    let mut known = vec![0_u64; trace.shapes.len()];
    for pod in trace.pods.iter().filter(|_| !config.online) {
        known[*pod as usize] += 1;
    }
    let known: Vec<(u32, u64)> = (0..).zip(known).filter(|(_, count)| *count > 0).collect();
    replay(
        trace,
        config,
        pace,
        |_, _| Product::new(trace, config.policy, &known),
        |engine| match &mut engine.failure {
            Some(_) => engine.failure.take().map(OpenbError::Cluster),
            None => None,
        },
    )
}

/// Replays a trace on engines of the caller's making, one for each seed. It gets what is expected at the start, and the
/// generator as the arrivals left it.
///
/// # Errors
/// An engine that cannot be made, or what `failure` finds in one.
pub fn replay<E: Engine>(
    trace: &Trace,
    config: &OpenbConfig,
    pace: &Pace<'_>,
    engine: impl Fn(Demand, Lagged) -> Result<E, crate::cluster::ClusterError> + Sync,
    failure: impl Fn(&mut E) -> Option<OpenbError> + Sync,
) -> Result<OpenbReport, OpenbError> {
    let capacity = trace.capacity_milli();
    let whole_list = if config.policy == Policy::Rota || !config.reference {
        Demand::from_counts(counts(trace, &trace.pods), &capacity)
    } else {
        Demand::from_ranked(&trace.ranked, &capacity)
    };
    let draws = if config.policy == Policy::Random { config.draws.max(1) } else { 1 };
    let seeds: Vec<u64> = config.seeds.clone().collect();
    let started = Instant::now();
    let runs = threads::map(&seeds, pace.threads, |seed| {
        let first = if config.online { Demand::from_counts([], &capacity) } else { whole_list.clone() };
        let mut lots = Lagged::new(*seed);
        let arrivals = trace.arrivals(&mut lots, config.tune_percent);
        let (mut reports, mut timings) = (Vec::new(), Timings::default());
        for draw in 0..draws {
            let mut engine = engine(first.clone(), lots)?;
            let (meter, times) = one_run(trace, config, &mut engine, &whole_list, &arrivals);
            if let Some(error) = failure(&mut engine) {
                return Err(error);
            }
            reports.push(meter.report(*seed));
            timings.join(times);
            lots = Lagged::new(mix(*seed ^ mix(u64::from(draw))));
        }
        (pace.done)(*seed);
        Ok((SeedReport::mean(&reports), timings))
    });
    let (mut timings, mut reports) = (Timings::default(), Vec::new());
    for run in runs {
        let (report, times) = run?;
        reports.push(report);
        timings.join(times);
    }
    let threads = pace.threads.clamp(1, threads::most().min(seeds.len()));
    Ok(OpenbReport::new(config, reports, &timings, (threads, started.elapsed())))
}

/// One run: all arrivals of a seed.
fn one_run<E: Engine>(
    trace: &Trace,
    config: &OpenbConfig,
    engine: &mut E,
    whole_list: &Demand,
    arrivals: &[u32],
) -> (Meter, Timings) {
    let capacity = trace.capacity_milli();
    let mut timings = Timings::default();
    let mut meter = Meter::new(trace, |node| fragment(&engine.fill(node), whole_list));
    for (seen, shape) in arrivals.iter().enumerate() {
        if config.online && is_lesson(seen) {
            let demand = Demand::from_counts(counts(trace, &arrivals[..seen]), &capacity);
            Engine::expect(engine, demand);
        }
        let asked_at = Instant::now();
        if seen.is_multiple_of(REPRICE_EVERY) {
            engine.reprice();
        }
        let placed = engine.place(*shape);
        timings.push(asked_at.elapsed());
        let gpu_milli = trace.shapes[*shape as usize].gpu_milli();
        let after = placed.map(|node| (node, fragment(&engine.fill(node), whole_list)));
        meter.count(gpu_milli, after);
    }
    (meter, timings)
}

/// Whether to learn anew when so many were seen.
fn is_lesson(seen: usize) -> bool {
    seen > 0 && (seen.is_multiple_of(LEARN_EVERY) || (seen < LEARN_EVERY && seen.is_power_of_two()))
}

fn counts(
    trace: &Trace,
    pods: &[u32],
) -> impl Iterator<Item = (rota_core::placement::score::Shape, u64)> + use<> {
    let mut counts = vec![0_u64; trace.shapes.len()];
    for pod in pods {
        counts[*pod as usize] += 1;
    }
    trace.shapes.clone().into_iter().zip(counts)
}

#[cfg(test)]
mod tests;
