//! Our own score: fragmentation gradient descent without rounding, and four things that it does not see.
//!
//! - fragment: `before - after`, see `fragment.rs`. It looks one ask ahead.
//! - cut: what a share takes of the worth of its card, see `prices.rs`. It looks at the whole pattern of a card: a share
//!   of 320 milli belongs beside one of 650, and not on a card where 470 would fill what is left.
//! - stranded: GPU that the free CPU will not reach, `max(0, free GPU - free CPU / CPU that comes with a card)`; once
//!   with the mean, and for less with half as much again, since not every host gets mean work.
//! - broken: what the whole cards of the host lose in worth to asks for several, see `wide.rs`.
//! - scarce: `GPU asked x scarcity^2` of the host's model, see `scarcity.rs`.

use super::{CARD_MILLI, Demand, Fill, PPM, Scored, Shape, Standing, fragment};

/// How much CPU beyond the mean is better not taken, in percent of the mean.
const AHEAD_PERCENT: i64 = 150;

/// How much each part counts against the fragment, in ppm. One set for all workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// Of worth that is cut off a card.
    pub cut_ppm: i64,
    /// Of sets of whole cards that are broken.
    pub broken_ppm: i64,
    /// Of newly stranded GPU.
    pub stranded_ppm: i64,
    /// Of GPU that half as much CPU again would not strand.
    pub ahead_ppm: i64,
    /// Of scarce GPU that is taken.
    pub scarce_ppm: i64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            cut_ppm: 10_000_000,
            broken_ppm: 80_000,
            stranded_ppm: 1_500_000,
            ahead_ppm: 200_000,
            scarce_ppm: 2_000_000,
        }
    }
}

/// The score in milli x ppm. Higher is better, and it may be negative.
pub(super) fn score(fill: &Fill<'_>, standing: &Standing, shape: &Shape, demand: &Demand) -> Scored {
    let weights = demand.weights;
    let cut = |free: u32| {
        let lost = demand.worth_ppm(free) - demand.worth_ppm(free - shape.card_milli);
        lost * weights.cut_ppm / 1000
    };
    let wide = demand.wide(fill.model);
    let whole = fill.cards.iter().filter(|free| u32::from(**free) == CARD_MILLI).count() as u32;
    let broken = |cards: u32| {
        let lost = wide.worth(whole) - wide.worth(whole.saturating_sub(cards));
        lost / 1000 * weights.broken_ppm / 1000
    };
    let value = |change, free: Option<u32>| match free {
        Some(free) => change - cut(free) - if free == CARD_MILLI { broken(1) } else { 0 },
        None => change - broken(shape.cards),
    };
    let (descent, card) = fragment::descent(fill, standing, shape, demand, value);
    let asked = shape.gpu_milli() as i64;
    let stranded_after =
        stranded(standing.free_milli() - asked, fill.cpus_milli_free - shape.cpus_milli, demand);
    let scarcity = i64::from(demand.scarcity_ppm(fill.model));
    let scarce = asked * (scarcity * scarcity / PPM) * weights.scarce_ppm / PPM;
    Scored { score: descent - (stranded_after - standing.stranded) - scarce, card }
}

/// Free GPU that the free CPU does not reach, weighted, in milli x ppm.
pub(super) fn stranded(free_milli: i64, cpus_milli_free: u32, demand: &Demand) -> i64 {
    let per_card = i64::try_from(demand.cpus_milli_per_card()).unwrap_or(i64::MAX);
    // Without a card asked for yet nothing is known to be stranded.
    let reached = |percent: i64| {
        (i64::from(cpus_milli_free) * (PPM * 100)).checked_div(per_card.saturating_mul(percent))
    };
    let beyond = |percent| reached(percent).map_or(0, |micro| (free_milli * 1000 - micro).max(0));
    let weights = demand.weights;
    (beyond(100) * weights.stranded_ppm + beyond(AHEAD_PERCENT) * weights.ahead_ppm) / 1000
}
