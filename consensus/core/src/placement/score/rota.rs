//! Our own score: fragmentation gradient descent without rounding, less what a placement strands, less what it takes
//! of a short model.
//!
//! - fragment: `before - after`, see `fragment.rs`.
//! - stranded: GPU that stays free for lack of CPU, `max(0, free GPU - free CPU / CPU that comes with a card)`.
//! - scarce: `gpu asked x scarcity^2` of the host's model; see `Demand::scarcity_permille`.

use super::{Fill, PPM, Scored, Shape, demand::Demand, fragment};

/// How much each part counts against the fragment, in ppm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// Of newly stranded GPU.
    pub stranded_ppm: i64,
    /// Of scarce GPU that is taken.
    pub scarce_ppm: i64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { stranded_ppm: 500_000, scarce_ppm: PPM }
    }
}

/// The score in milli x ppm. Higher is better, and it may be negative.
pub(super) fn score(fill: &Fill<'_>, shape: &Shape, demand: &Demand) -> Scored {
    let (descent, card) = fragment::descent(fill, shape, demand, |change| change);
    let weights = demand.weights;
    let free_milli: i64 = fill.cards.iter().map(|free| i64::from(*free)).sum();
    let asked = shape.gpu_milli() as i64;
    let cpus_after = fill.cpus_milli_free - shape.cpus_milli;
    let stranded = stranded_micro(free_milli - asked, cpus_after, demand)
        - stranded_micro(free_milli, fill.cpus_milli_free, demand);
    let scarcity = i64::from(demand.scarcity_permille(fill.model));
    let scarce = asked * scarcity * scarcity;
    let score = descent - stranded * weights.stranded_ppm / 1000 - scarce * weights.scarce_ppm / PPM;
    Scored { score, card }
}

/// Free GPU that the free CPU does not reach, in millionths of a card.
fn stranded_micro(free_milli: i64, cpus_milli_free: u32, demand: &Demand) -> i64 {
    // Without a card asked for yet nothing is known to be stranded.
    let Some(reached) = (i64::from(cpus_milli_free) * PPM).checked_div(demand.cpus_milli_per_card() as i64)
    else {
        return 0;
    };
    (free_milli * 1000 - reached).max(0)
}
