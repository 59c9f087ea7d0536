//! How short each model is: what will be asked of it that can use nothing else, against what is free of it. Integers only.

use super::{ModelSet, PPM, Shape};
use std::collections::BTreeMap;

/// Demand that stands in for what was not seen yet. It counts against any model in proportion to how rare the model is:
/// a few odd cards are more likely to be somebody's only choice than the bulk of the cluster.
const UNSEEN_MILLI: u128 = 30_000;

/// What is asked for by the set of models that will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needs {
    /// Milli by set, of asks that name their models.
    bound: BTreeMap<ModelSet, u128>,
    /// Milli of all asks.
    asked_milli: u128,
}

impl Needs {
    pub(super) fn new(counts: &BTreeMap<Shape, u64>) -> Self {
        let mut by_set: BTreeMap<ModelSet, u128> = BTreeMap::new();
        for (shape, count) in counts.iter().filter(|(shape, _)| shape.cards > 0) {
            *by_set.entry(shape.models).or_default() += u128::from(shape.gpu_milli()) * u128::from(*count);
        }
        let asked_milli = by_set.values().sum();
        by_set.remove(&ModelSet::ANY);
        Self { bound: by_set, asked_milli }
    }

    /// By model id, 0..=1,000,000. For each set of models that asks name, and for each model alone: what that set and
    /// all narrower ones will take of what is free, if all of it is asked for, over what the set has free. A model is
    /// as short as the shortest set it is in. With the whole capacity as free it is the price at the start; later it
    /// falls for what others leave alone, and rises for what they eat up.
    pub(super) fn ppm(&self, free_milli: &[u64]) -> Vec<u32> {
        let alone = (0..free_milli.len()).map(|model| ModelSet::NONE.with(model as u16));
        let sets = alone.chain(self.bound.keys().copied());
        let asked = self.asked_milli + UNSEEN_MILLI;
        let all: u128 = free_milli.iter().map(|milli| u128::from(*milli)).sum();
        let mut ppm = vec![0_u32; free_milli.len()];
        for set in sets {
            let members = || (0..free_milli.len()).filter(|model| set.contains(*model as u16));
            let has: u128 = members().map(|model| u128::from(free_milli[model])).sum();
            if has == 0 {
                // Nothing to spare.
                continue;
            }
            let unseen = UNSEEN_MILLI * has / all * (all - has) / all;
            let bound = self.bound.iter().filter(|(narrower, _)| narrower.is_within(set));
            let need = unseen + bound.map(|(_, milli)| *milli).sum::<u128>();
            let short = need.saturating_mul(all).saturating_mul(PPM as u128) / asked.saturating_mul(has);
            for model in members() {
                ppm[model] = ppm[model].max(short.min(PPM as u128) as u32);
            }
        }
        ppm
    }
}
