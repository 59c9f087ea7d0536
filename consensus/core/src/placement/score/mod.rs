//! The score of a host for an ask: how well the cards that stay free can still be used afterwards. Pure and in
//! integers, so that all replicas and all machines get the same number. It knows nothing of the state, of queues or of
//! names: hosts come as `Fill`, asks as `Shape`, what is to be expected as `Demand`. README.md beside this file
//! gives the measure, the policies and their sources.
//!
//! Scale: GPU shares are milli (1000 = one card), weights are parts per million, so a fragment is milli x ppm. With 64
//! cards that is below 2^36, and the sums below stay far inside an i64.

mod cards;
mod demand;
mod fragment;
mod policy;
mod prices;
mod published;
mod rota;
mod scarcity;
mod wide;

pub use cards::taken;
pub use demand::{Demand, LEVELS_MAX, SHAPES_MAX};
pub use policy::{Policy, UnknownPolicy};
pub use rota::Weights;

/// One card, in milli.
pub const CARD_MILLI: u32 = 1000;
/// One, in parts per million.
pub const PPM: i64 = 1_000_000;

/// A set of GPU models by their small ids (1..=63), or all of them, known and unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelSet(u64);

impl ModelSet {
    /// Every model, also those without an id.
    pub const ANY: Self = Self(u64::MAX);
    /// No model: fits nowhere.
    pub const NONE: Self = Self(0);

    /// The same set with one more model. Ids above 63 have no bit and change nothing.
    #[must_use]
    pub fn with(self, model: u16) -> Self {
        Self(self.0 | Self::bit(model))
    }

    /// Whether a card of this model will do.
    #[must_use]
    pub fn contains(self, model: u16) -> bool {
        self == Self::ANY || self.0 & Self::bit(model) != 0
    }

    /// Whether every model of this set is in the other one.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    fn bit(model: u16) -> u64 {
        1_u64.checked_shl(u32::from(model)).unwrap_or(0)
    }
}

/// What a host has free. Compact: no names, no history.
#[derive(Debug, Clone, Copy)]
pub struct Fill<'a> {
    /// Small id of the model of its cards (1..=63), 0 if it has none.
    pub model: u16,
    /// Free milli of each card that may be granted, in the order in which cards are taken.
    pub cards: &'a [u16],
    /// CPU not granted, in thousandths of a core.
    pub cpus_milli_free: u32,
    /// All its CPU.
    pub cpus_milli: u32,
    /// Memory not granted.
    pub mem_mib_free: u64,
    /// All its memory.
    pub mem_mib: u64,
    /// Kinds of GPU work that run there, as bits of `Shape::class`. Only `Policy::Clustering` reads it.
    pub classes: u16,
}

/// What a task asks of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// CPU, in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory. It decides whether a host will do, not how good it is.
    pub mem_mib: u64,
    /// Cards.
    pub cards: u32,
    /// Milli of each card, 1..=1000; 0 if no card is asked.
    pub card_milli: u32,
    /// Which models will do.
    pub models: ModelSet,
}

impl Shape {
    /// What it takes of the cards in all, in milli.
    #[must_use]
    pub fn gpu_milli(&self) -> u64 {
        u64::from(self.cards) * u64::from(self.card_milli)
    }

    /// Whether it is a part of one card.
    #[must_use]
    pub fn is_share(&self) -> bool {
        self.cards == 1 && self.card_milli < CARD_MILLI
    }

    /// Its kind as one bit: a share, one card, two cards and so on; 0 without cards.
    #[must_use]
    pub fn class(&self) -> u16 {
        match self.cards {
            0 => 0,
            1 if self.is_share() => 1,
            cards => 1 << cards.min(15),
        }
    }
}

/// How good a host is for an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scored {
    /// Higher is better. Only scores of one policy, one shape and one demand can be compared.
    pub score: i64,
    /// For a share, the index in `Fill::cards` of the card to take it from.
    pub card: Option<usize>,
}

/// What there is to know of a host before an ask is looked at: good for all asks until the host or the demand changes.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    reach: fragment::Reach,
    usable: i64,
    stranded: i64,
}

impl Standing {
    /// Looks at a host.
    #[must_use]
    pub fn new(fill: &Fill<'_>, demand: &Demand) -> Self {
        let reach = fragment::Reach::new(fill, demand);
        let usable = reach.usable(demand.tiers(fill.model), fill.cpus_milli_free);
        Self { reach, usable, stranded: rota::stranded(reach.free_milli(), fill.cpus_milli_free, demand) }
    }

    /// The fragment of the host: the free milli that the expected asks could not use, weighted by how often each is
    /// expected, in milli x ppm.
    #[must_use]
    pub fn fragment(&self) -> i64 {
        self.free_milli() * PPM - self.usable
    }

    /// What is free on its cards, in milli.
    fn free_milli(&self) -> i64 {
        self.reach.free_milli()
    }
}

/// The fragment of a host in milli x ppm, see `Standing::fragment`.
#[must_use]
pub fn fragment(fill: &Fill<'_>, demand: &Demand) -> i64 {
    Standing::new(fill, demand).fragment()
}

/// The score of a host for an ask, or nothing if the ask has no room there. `draw` is a number that differs from
/// decision to decision and from host to host; only `Policy::Random` uses it.
#[must_use]
pub fn score(policy: Policy, fill: &Fill<'_>, shape: &Shape, demand: &Demand, draw: u64) -> Option<Scored> {
    if !has_room(fill, shape) {
        return None;
    }
    score_standing(policy, fill, &Standing::new(fill, demand), shape, demand, draw)
}

/// The same for a host that was looked at before: `standing` must be of this fill and this demand.
#[must_use]
pub fn score_standing(
    policy: Policy,
    fill: &Fill<'_>,
    standing: &Standing,
    shape: &Shape,
    demand: &Demand,
    draw: u64,
) -> Option<Scored> {
    if !has_room(fill, shape) {
        return None;
    }
    Some(match policy {
        Policy::Rota => rota::score(fill, standing, shape, demand),
        Policy::Fgd => published::fgd(fill, standing, shape, demand),
        Policy::BestFit => published::best_fit(fill, shape),
        Policy::Packing => published::packing(fill, shape),
        Policy::Clustering => published::clustering(fill, shape),
        Policy::DotProd => published::dot_product(fill, shape),
        Policy::Random => published::random(fill, shape, draw),
    })
}

/// Whether the ask would run there, as far as a fill can tell.
#[must_use]
pub fn has_room(fill: &Fill<'_>, shape: &Shape) -> bool {
    if shape.cpus_milli > fill.cpus_milli_free || shape.mem_mib > fill.mem_mib_free {
        return false;
    }
    if shape.cards == 0 {
        return true;
    }
    let enough = fill.cards.iter().filter(|free| u32::from(**free) >= shape.card_milli).count();
    enough >= shape.cards as usize && shape.models.contains(fill.model)
}

#[cfg(test)]
mod tests;
