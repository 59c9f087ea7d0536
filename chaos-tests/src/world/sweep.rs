//! Many seeds, over the cores that there are; each run is a world of its own, so the order does not matter.

use super::oracle::{Law, Violation};
use super::plant::Plant;
use super::reach::Reach;
use super::sim::World;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What became of one seed.
#[derive(Debug, Clone)]
pub struct Run {
    /// Which.
    pub seed: u64,
    /// Events.
    pub steps: u64,
    /// True time at its end, in ms.
    pub virtual_ms: u64,
    /// Equal for equal runs.
    pub trace: u64,
    /// Broken laws; empty if all held.
    pub violations: Vec<Violation>,
    /// What it met.
    pub reach: Reach,
    /// The last lines, if it was asked to talk.
    pub lines: Vec<String>,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, plant: Option<Plant>, talks: bool) -> Run {
    let mut world = World::new(seed, plant, talks);
    world.run();
    Run {
        seed,
        steps: world.steps,
        virtual_ms: world.now,
        trace: world.trace_hash(),
        lines: world.lines(),
        violations: world.oracle.violations,
        reach: world.reach,
    }
}

/// What became of many seeds.
#[derive(Debug, Clone, Default)]
pub struct Sweep {
    /// How many ran.
    pub seeds: u64,
    /// Events of all.
    pub steps: u64,
    /// True time of all, in ms.
    pub virtual_ms: u64,
    /// Runs that broke a law, by seed.
    pub failed: Vec<Run>,
    /// What all together met.
    pub reach: Reach,
}

/// Runs `seeds` on `threads` threads; stops early at the first failure if asked to.
#[must_use]
pub fn sweep(seeds: &[u64], plant: Option<Plant>, threads: usize, first_only: bool) -> Sweep {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Sweep::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed)
                    && let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let run = caught(*seed, plant);
                    let failed = !run.violations.is_empty();
                    total.lock().unwrap_or_else(PoisonError::into_inner).take(run);
                    if failed && first_only {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    total.failed.sort_by_key(|run| run.seed);
    total
}

/// A run that panics broke a law too, and its seed must be known.
fn caught(seed: u64, plant: Option<Plant>) -> Run {
    std::panic::catch_unwind(|| run(seed, plant, false)).unwrap_or_else(|_| Run {
        seed,
        steps: 0,
        virtual_ms: 0,
        trace: 0,
        violations: vec![Violation { at_ms: 0, law: Law::Core, what: "it panicked, see above".to_owned() }],
        reach: Reach::default(),
        lines: Vec::new(),
    })
}

impl Sweep {
    fn take(&mut self, run: Run) {
        self.seeds += 1;
        self.steps += run.steps;
        self.virtual_ms += run.virtual_ms;
        self.reach.add(&run.reach);
        if !run.violations.is_empty() {
            self.failed.push(run);
        }
    }
}
