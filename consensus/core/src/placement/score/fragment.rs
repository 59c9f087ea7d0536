//! The fragment measure of Weng et al. (USENIX ATC 2023), computed as free milli less usable milli, and the change
//! that a placement makes to it, for which only the changed cards are looked at again.
//!
//! For an expected ask m with weight p: usable(m) is the sum of the free milli of the cards that are free enough for m,
//! or 0 if m cannot run on the host. fragment = free - sum of p x usable, in milli x ppm.

use super::demand::{Demand, LEVELS_MAX, Tier};
use super::{Fill, PPM, Shape, Standing, cards};

/// How many cards of a host are free enough for each level of the demand, and what is free on them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    cards: [u32; LEVELS_MAX],
    milli: [u32; LEVELS_MAX],
    free_milli: u32,
}

impl Reach {
    /// Counts the cards of a host.
    pub(super) fn new(fill: &Fill<'_>, demand: &Demand) -> Self {
        let mut reach = Self { cards: [0; LEVELS_MAX], milli: [0; LEVELS_MAX], free_milli: 0 };
        for free in fill.cards {
            reach.add(u32::from(*free), demand);
        }
        reach
    }

    /// What is free in all, in milli.
    pub(super) fn free_milli(&self) -> i64 {
        i64::from(self.free_milli)
    }

    /// What the expected asks could use with so much CPU free, in milli x ppm.
    pub(super) fn usable(&self, tiers: &[Tier], cpus_milli_free: u32) -> i64 {
        let mut usable = 0;
        for tier in tiers {
            let level = usize::from(tier.level);
            if self.cards[level] >= tier.cards {
                usable += tier.weight_ppm(cpus_milli_free) * i64::from(self.milli[level]);
            }
        }
        usable
    }

    /// Takes milli off a card that had so much free.
    pub(super) fn take(&mut self, free: u32, milli: u32, demand: &Demand) {
        for (index, _) in demand.levels().iter().enumerate().take_while(|(_, level)| **level <= free) {
            self.cards[index] -= 1;
            self.milli[index] -= free;
        }
        self.free_milli -= free;
        self.add(free - milli, demand);
    }

    fn add(&mut self, free: u32, demand: &Demand) {
        for (index, _) in demand.levels().iter().enumerate().take_while(|(_, level)| **level <= free) {
            self.cards[index] += 1;
            self.milli[index] += free;
        }
        self.free_milli += free;
    }
}

/// What a placement changes, for the card that serves it best if it is a share: the most of `value`, and that card, the
/// first of equals. `value` gets the fragment before less that after in milli x ppm, and what the card had free.
pub(super) fn descent(
    fill: &Fill<'_>,
    standing: &Standing,
    shape: &Shape,
    demand: &Demand,
    value: impl Fn(i64, Option<u32>) -> i64,
) -> (i64, Option<usize>) {
    let tiers = demand.tiers(fill.model);
    let cpus_after = fill.cpus_milli_free - shape.cpus_milli;
    let asked = shape.gpu_milli() as i64 * PPM;
    if !shape.is_share() {
        let mut after = standing.reach;
        for index in cards::taken(fill, shape, None) {
            after.take(u32::from(fill.cards[index]), shape.card_milli, demand);
        }
        return (value(asked + after.usable(tiers, cpus_after) - standing.usable, None), None);
    }
    let mut best: Option<(i64, usize)> = None;
    for (index, free) in fill.cards.iter().enumerate() {
        // Cards with equally much free differ in nothing: the first speaks for all.
        if u32::from(*free) < shape.card_milli || fill.cards[..index].contains(free) {
            continue;
        }
        let free = u32::from(*free);
        let mut after = standing.reach;
        after.take(free, shape.card_milli, demand);
        let value = value(asked + after.usable(tiers, cpus_after) - standing.usable, Some(free));
        if best.is_none_or(|(most, _)| value > most) {
            best = Some((value, index));
        }
    }
    best.map_or((i64::MIN, None), |(value, index)| (value, Some(index)))
}
