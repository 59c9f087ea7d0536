//! What the cluster is asked for: counts by shape of ask, fading as new ones come. Replicated, so that whoever leads
//! judges fragmentation by the same workload.

use rota_protocol::ask::Ask;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most shapes kept; the rarest go first.
const SHAPES_MAX: usize = 512;
/// What one task counts: room for halving without losing rare shapes.
const TASK_COUNT: u64 = 1 << 16;
/// Sum of counts at which all are halved: the last 16,384 tasks or so decide.
const COUNTS_MAX: u64 = TASK_COUNT << 14;
/// An array counts as at most this many tasks, so that one job does not become the whole workload.
const JOB_TASKS_MAX: u32 = 1_024;

/// The part of an ask that decides where it can lie.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AskShape {
    /// CPU in thousandths of a core.
    pub cpus_milli: u32,
    /// GPUs in thousandths of a card.
    pub gpu_milli: u32,
    /// Accepted models.
    pub gpu_models: Vec<String>,
}

impl AskShape {
    /// The shape of an ask.
    #[must_use]
    pub fn of(ask: &Ask) -> Self {
        Self { cpus_milli: ask.cpus_milli, gpu_milli: ask.gpu_milli, gpu_models: ask.gpu_models.clone() }
    }
}

/// What is asked for and what is there to serve it, as planners judge by it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Workload {
    /// Counts of tasks by shape; only their proportions matter.
    pub counts: BTreeMap<AskShape, u64>,
    /// Thousandths of healthy cards that nobody held, by model.
    pub free_milli: BTreeMap<String, u64>,
}

/// Counts by shape.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DemandTable {
    counts: BTreeMap<AskShape, u64>,
    sum: u64,
    /// What planners look at: the counts as of the last change of `version`, and the thousandths of cards that were
    /// free then, by model.
    published: Arc<Workload>,
    /// Grows whenever new counts are published.
    pub version: u64,
    /// Tasks noted since `version` grew.
    since_version: u64,
}

/// Tasks after which planners look again, at first; later a sixteenth of all that count.
const REFRESH_TASKS: u64 = 32;

impl DemandTable {
    /// Counts by shape, in the order of shapes.
    pub fn counts(&self) -> impl Iterator<Item = (&AskShape, u64)> {
        self.counts.iter().map(|(shape, count)| (shape, *count))
    }

    /// The counts that planners look at. They change only with `version`, so that a planner which has been at work
    /// for long and one that has just begun judge by the same.
    #[must_use]
    pub fn published(&self) -> Arc<Workload> {
        Arc::clone(&self.published)
    }

    /// Notes `tasks` new tasks of one ask.
    ///
    /// True if there is enough that is new to be published.
    pub fn note(&mut self, ask: &Ask, tasks: u32) -> bool {
        let tasks = u64::from(tasks.min(JOB_TASKS_MAX));
        let more = tasks * TASK_COUNT;
        let counts = &mut self.counts;
        let shape = AskShape::of(ask);
        if !counts.contains_key(&shape) && counts.len() >= SHAPES_MAX {
            let rarest = counts.iter().min_by_key(|(_, count)| **count).map(|(shape, _)| shape.clone());
            if let Some(gone) = rarest.and_then(|shape| counts.remove(&shape)) {
                self.sum -= gone;
            }
        }
        *counts.entry(shape).or_default() += more;
        self.sum += more;
        if self.sum > COUNTS_MAX {
            for count in counts.values_mut() {
                *count /= 2;
            }
            counts.retain(|_, count| *count > 0);
            self.sum = counts.values().sum();
        }
        self.since_version += tasks;
        self.since_version >= REFRESH_TASKS.max(self.sum / TASK_COUNT / 16)
    }

    /// Replaces what was noted by counts of tasks known beforehand; only their proportions matter.
    pub(crate) fn expect(&mut self, counts: impl IntoIterator<Item = (AskShape, u64)>) {
        let mut all: BTreeMap<AskShape, u64> = BTreeMap::new();
        for (shape, count) in counts {
            *all.entry(shape).or_default() += count;
        }
        while all.len() > SHAPES_MAX {
            let rarest = all.iter().min_by_key(|(_, count)| **count).map(|(shape, _)| shape.clone());
            let _ = rarest.and_then(|shape| all.remove(&shape));
        }
        let sum: u64 = all.values().sum();
        // As if as many tasks had been seen as are remembered at the most.
        let scale = (COUNTS_MAX / 2).checked_div(sum).unwrap_or(0).max(1);
        for count in all.values_mut() {
            *count *= scale;
        }
        self.sum = sum * scale;
        self.counts = all;
    }

    /// Lets planners see the counts, with what is free now.
    pub(crate) fn publish(&mut self, free_milli: BTreeMap<String, u64>) {
        self.published = Arc::new(Workload { counts: self.counts.clone(), free_milli });
        self.since_version = 0;
        self.version += 1;
    }

    /// The sum is the sum.
    pub(crate) fn is_sound(&self) -> bool {
        self.counts.values().sum::<u64>() == self.sum && self.counts.len() <= SHAPES_MAX
    }
}
