//! What is expected to be asked for: the common shapes with their weights, how much CPU comes with a card, and which
//! models are short. Made from integer counts alone, so that replicas which counted the same make the same.

use super::scarcity::Needs;
use super::wide::Wide;
use super::{ModelSet, PPM, Shape, Weights, prices};
use std::collections::{BTreeMap, BTreeSet};

/// Most shapes that are looked at. The common ones cover 95 % of real traces with 20 to 150.
pub const SHAPES_MAX: usize = 256;
/// Most different shares of a card among them. Rarer ones are left out.
pub const LEVELS_MAX: usize = 32;

/// Most different shares that are priced, by count. The linear program over them takes some milliseconds.
const PRICED_MAX: usize = 48;
/// Share of the asks that the looked-at shapes must cover, in percent.
const COVERED_PERCENT: u128 = 95;

/// The expected asks, ready for the score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    shapes: Vec<(Shape, u32)>,
    levels: Vec<u32>,
    tiers: Vec<Vec<Tier>>,
    open_tiers: Vec<Tier>,
    cpus_milli_per_card: u64,
    needs: Needs,
    scarcity_ppm: Vec<u32>,
    worth_ppm: Vec<u32>,
    wide: Vec<Wide>,
    open_wide: Wide,
    /// How much each part of our own score counts.
    pub weights: Weights,
}

/// Expected asks with the same share and number of cards, on one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tier {
    /// Index of its share among the levels.
    pub(super) level: u8,
    /// Cards asked.
    pub(super) cards: u32,
    /// CPU asked, ascending, with the weight of all that ask so much or less.
    by_cpus: Vec<(u32, u32)>,
}

impl Tier {
    /// Weight of those for which so much CPU is enough, in ppm.
    pub(super) fn weight_ppm(&self, cpus_milli_free: u32) -> i64 {
        let mut weight = 0;
        for (cpus_milli, ppm) in &self.by_cpus {
            if *cpus_milli > cpus_milli_free {
                break;
            }
            weight = *ppm;
        }
        i64::from(weight)
    }
}

impl Demand {
    /// Takes the counts of asks by shape, and the milli of all cards that are free by model id (index 0 is not used). The shapes
    /// are sorted by count, equal counts by the shape itself, and taken until they cover 95 % of the asks; their
    /// weights sum to one million exactly. Memory is ignored. Counts may be decayed; only their proportions matter.
    #[must_use]
    pub fn from_counts(counts: impl IntoIterator<Item = (Shape, u64)>, free_milli: &[u64]) -> Self {
        let mut merged: BTreeMap<Shape, u64> = BTreeMap::new();
        for (shape, count) in counts {
            let sum = merged.entry(Shape { mem_mib: 0, ..shape }).or_default();
            *sum = sum.saturating_add(count);
        }
        merged.retain(|_, count| *count > 0);
        // As published: of equally common ones the larger asks first. Where the list is cut that decides which are in it.
        let larger = |shape: &Shape| (shape.cpus_milli, shape.card_milli, shape.cards, shape.models);
        let mut ranked: Vec<(Shape, u64)> = merged.iter().map(|(shape, count)| (*shape, *count)).collect();
        ranked.sort_by_key(|(shape, count)| std::cmp::Reverse((*count, larger(shape))));
        Self::of_common(common(&ranked), &merged, free_milli)
    }

    /// The same for shapes that are ranked already, most common first. Equal ones may stand in it several times; that
    /// is how the published scheduler counts asks which write one set of models in two ways.
    #[must_use]
    pub fn from_ranked(ranked: &[(Shape, u64)], free_milli: &[u64]) -> Self {
        let mut merged: BTreeMap<Shape, u64> = BTreeMap::new();
        for (shape, count) in ranked {
            *merged.entry(Shape { mem_mib: 0, ..*shape }).or_default() += count;
        }
        Self::of_common(common(ranked), &merged, free_milli)
    }

    fn of_common(shapes: Vec<(Shape, u32)>, merged: &BTreeMap<Shape, u64>, free_milli: &[u64]) -> Self {
        let levels: BTreeSet<u32> =
            shapes.iter().filter(|(s, _)| s.cards > 0).map(|(s, _)| s.card_milli).collect();
        let levels: Vec<u32> = levels.into_iter().collect();
        let mut models = free_milli.len();
        // Models that are asked for and that no host has need a table all the same: a host may come.
        while models < 64
            && shapes.iter().any(|(s, _)| s.models != ModelSet::ANY && s.models.0 >> models != 0)
        {
            models += 1;
        }
        let tiers = (0..models).map(|model| tiers(&shapes, &levels, |set| set.contains(model as u16)));
        let wide = (0..models).map(|model| Wide::new(merged, |set| set.contains(model as u16)));
        let needs = Needs::new(merged);
        Self {
            tiers: tiers.collect(),
            open_tiers: tiers_of_any(&shapes, &levels),
            cpus_milli_per_card: cpus_per_card(merged),
            scarcity_ppm: needs.ppm(free_milli),
            needs,
            wide: wide.collect(),
            open_wide: Wide::new(merged, |set| set == ModelSet::ANY),
            worth_ppm: prices::worth_ppm(&priced(merged)),
            weights: Weights::default(),
            shapes,
            levels,
        }
    }

    /// Looks again at which models are short, with what is free by now, in milli by model id. Cheap: nothing else
    /// changes. Scores from before are not to be compared with scores from after.
    pub fn reprice(&mut self, free_milli: &[u64]) {
        self.scarcity_ppm = self.needs.ppm(free_milli);
    }

    /// The common shapes with their weights in ppm, most common first.
    #[must_use]
    pub fn shapes(&self) -> &[(Shape, u32)] {
        &self.shapes
    }

    /// Mean CPU that comes with a whole card of demand, in thousandths of a core; 0 if no card was asked for.
    #[must_use]
    pub fn cpus_milli_per_card(&self) -> u64 {
        self.cpus_milli_per_card
    }

    /// How short a model is, 0..=1,000,000: what can use nothing else would take so much of what is free of it.
    #[must_use]
    pub fn scarcity_ppm(&self, model: u16) -> u32 {
        self.scarcity_ppm.get(usize::from(model)).copied().unwrap_or(0)
    }

    /// What a card with so much free is worth, in ppm of a whole one.
    pub(super) fn worth_ppm(&self, free_milli: u32) -> i64 {
        self.worth_ppm.get(free_milli as usize).map_or(PPM, |ppm| i64::from(*ppm))
    }

    /// What the whole cards of a host of this model are worth together.
    pub(super) fn wide(&self, model: u16) -> &Wide {
        self.wide.get(usize::from(model)).unwrap_or(&self.open_wide)
    }

    /// The shares of a card that are asked for, ascending, in milli.
    pub(super) fn levels(&self) -> &[u32] {
        &self.levels
    }

    /// The asks that a model can serve.
    pub(super) fn tiers(&self, model: u16) -> &[Tier] {
        self.tiers.get(usize::from(model)).unwrap_or(&self.open_tiers)
    }
}

/// The shapes that cover enough of the asks, first of those ranked, with weights that sum to a million.
fn common(ranked: &[(Shape, u64)]) -> Vec<(Shape, u32)> {
    let total: u128 = ranked.iter().map(|(_, count)| u128::from(*count)).sum();
    let mut levels = BTreeSet::new();
    let mut chosen = Vec::new();
    let mut covered: u128 = 0;
    for (shape, count) in ranked.iter().copied() {
        if covered * 100 >= total * COVERED_PERCENT || chosen.len() == SHAPES_MAX {
            break;
        }
        covered += u128::from(count);
        if shape.cards > 0 && !levels.contains(&shape.card_milli) {
            if levels.len() == LEVELS_MAX {
                continue;
            }
            levels.insert(shape.card_milli);
        }
        chosen.push((shape, count));
    }
    let total: u128 = chosen.iter().map(|(_, count)| u128::from(*count)).sum();
    let (mut sum, mut given) = (0, 0);
    let mut weighted = Vec::with_capacity(chosen.len());
    for (shape, count) in chosen {
        sum += u128::from(count);
        // Differences of rounded sums: no weight is off by more than one, and nothing is lost.
        let until = (sum * PPM as u128 / total) as u32;
        weighted.push((shape, until - given));
        given = until;
    }
    weighted
}

fn tiers_of_any(shapes: &[(Shape, u32)], levels: &[u32]) -> Vec<Tier> {
    tiers(shapes, levels, |set| set == ModelSet::ANY)
}

/// The shapes whose models pass, by share and number of cards.
fn tiers(shapes: &[(Shape, u32)], levels: &[u32], passes: impl Fn(ModelSet) -> bool) -> Vec<Tier> {
    let mut grouped: BTreeMap<(u32, u32), BTreeMap<u32, u32>> = BTreeMap::new();
    for (shape, ppm) in shapes.iter().filter(|(shape, _)| shape.cards > 0 && passes(shape.models)) {
        *grouped.entry((shape.card_milli, shape.cards)).or_default().entry(shape.cpus_milli).or_default() +=
            ppm;
    }
    let mut tiers = Vec::with_capacity(grouped.len());
    for ((card_milli, cards), by_cpus) in grouped {
        let mut sum = 0;
        let running = by_cpus.into_iter().map(|(cpus_milli, ppm)| {
            sum += ppm;
            (cpus_milli, sum)
        });
        let by_cpus = running.collect();
        // Not more than LEVELS_MAX levels, so that the index fits a byte.
        let level = levels.partition_point(|level| *level < card_milli) as u8;
        tiers.push(Tier { level, cards, by_cpus });
    }
    tiers
}

fn cpus_per_card(merged: &BTreeMap<Shape, u64>) -> u64 {
    let (mut cpus, mut milli) = (0_u128, 0_u128);
    for (shape, count) in merged.iter().filter(|(shape, _)| shape.cards > 0) {
        cpus += u128::from(shape.cpus_milli) * u128::from(*count);
        milli += u128::from(shape.gpu_milli()) * u128::from(*count);
    }
    u64::try_from((cpus * 1000).checked_div(milli).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// The most common shares of a card with their counts, by milli.
fn priced(merged: &BTreeMap<Shape, u64>) -> Vec<(u32, u64)> {
    let mut shares: BTreeMap<u32, u64> = BTreeMap::new();
    for (shape, count) in merged.iter().filter(|(shape, _)| shape.is_share() && shape.card_milli > 0) {
        let sum = shares.entry(shape.card_milli).or_default();
        *sum = sum.saturating_add(*count);
    }
    let mut shares: Vec<(u32, u64)> = shares.into_iter().collect();
    shares.sort_by_key(|(milli, count)| (std::cmp::Reverse(*count), *milli));
    shares.truncate(PRICED_MAX);
    shares.sort_unstable();
    shares
}
