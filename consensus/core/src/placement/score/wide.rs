//! What whole cards are worth together: a host with eight free is the only place for an ask of eight. The fragment
//! measure weighs asks by how many there are, and so hardly sees those.

use super::{ModelSet, PPM, Shape};
use std::collections::BTreeMap;

/// Asks for several cards that one model can serve: number of cards, and their part of all demand for cards in ppm.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wide(Vec<(u32, u32)>);

impl Wide {
    pub(super) fn new(counts: &BTreeMap<Shape, u64>, passes: impl Fn(ModelSet) -> bool) -> Self {
        let milli = |shape: &Shape, count: u64| u128::from(shape.gpu_milli()) * u128::from(count);
        let asked: u128 = counts.iter().map(|(shape, count)| milli(shape, *count)).sum();
        let mut by_cards: BTreeMap<u32, u128> = BTreeMap::new();
        for (shape, count) in counts.iter().filter(|(shape, _)| shape.cards > 1 && passes(shape.models)) {
            *by_cards.entry(shape.cards).or_default() += milli(shape, *count);
        }
        let part = |(cards, milli)| (cards, (milli * PPM as u128 / asked) as u32);
        Self(by_cards.into_iter().map(part).collect())
    }

    /// What so many whole cards of one host are worth, in milli x ppm: the cards that asks of each size could take,
    /// times what such asks make up.
    pub(super) fn worth(&self, whole_cards: u32) -> i64 {
        let milli = |cards: u32| i64::from(whole_cards / cards * cards) * 1000;
        self.0.iter().map(|(cards, ppm)| milli(*cards) * i64::from(*ppm)).sum()
    }
}
