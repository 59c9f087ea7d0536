//! How fast each class of jobs runs on each GPU model, learned from what was measured. Integers only, so that every
//! replica that saw the same measurements holds the same table. It does not know hosts, gangs or prices.

use std::collections::BTreeMap;

/// Work that runs alike: the same program with the same settings on the same number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

/// A GPU model, as an index into the fleet of the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u32);

/// Measurements after which the mean forgets: later ones count one in so many.
const MEMORY: u64 = 8;

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    rate_micro: u64,
    seen: u64,
}

/// Speeds by class and model. A class is compared only with itself: rates of different classes share no unit.
#[derive(Debug, Clone, Default)]
pub struct SpeedTable {
    rows: BTreeMap<ClassId, BTreeMap<ModelId, Cell>>,
}

impl SpeedTable {
    /// Takes one measurement, in millionths of a step per second (any unit of progress does if a class keeps to it).
    pub fn observe(&mut self, class: ClassId, model: ModelId, rate_micro: u64) {
        let cell = self.rows.entry(class).or_default().entry(model).or_default();
        cell.seen = (cell.seen + 1).min(MEMORY);
        let keep = cell.seen - 1;
        let sum = u128::from(cell.rate_micro) * u128::from(keep) + u128::from(rate_micro);
        cell.rate_micro = (sum / u128::from(cell.seen)) as u64;
    }

    /// The best model measured for a class and its rate, in millionths of a step per second.
    #[must_use]
    pub fn best(&self, class: ClassId) -> Option<(ModelId, u64)> {
        let row = self.rows.get(&class)?;
        let best = row.iter().max_by_key(|(model, cell)| (cell.rate_micro, std::cmp::Reverse(**model)))?;
        (best.1.rate_micro > 0).then_some((*best.0, best.1.rate_micro))
    }

    /// Speeds of a class on models `0..models`, in permille of its best; 0 where it was seen not to run. A model not yet
    /// tried is reckoned from those tried, by the best that any other class gains there; 1000 if nothing is known.
    #[must_use]
    pub fn speeds(&self, class: ClassId, models: u32) -> Vec<u32> {
        let empty = BTreeMap::new();
        let row = self.rows.get(&class).unwrap_or(&empty);
        let rate = |model: u32| match row.get(&ModelId(model)) {
            Some(cell) => cell.rate_micro,
            None => self.reckoned(row, ModelId(model)),
        };
        let rates: Vec<u64> = (0..models).map(rate).collect();
        let best = rates.iter().copied().max().unwrap_or(0);
        if row.is_empty() {
            self.usual(models)
        } else {
            rates.iter().map(|rate| permille(*rate, best)).collect()
        }
    }

    /// The rate to expect on an untried model, from each tried one.
    fn reckoned(&self, row: &BTreeMap<ModelId, Cell>, model: ModelId) -> u64 {
        let tried = row.iter().filter(|(_, cell)| cell.rate_micro > 0);
        let from = |(other, cell): (&ModelId, &Cell)| {
            u128::from(cell.rate_micro) * u128::from(self.ratio_permille(*other, model)) / 1000
        };
        let guesses: Vec<u128> = tried.map(from).collect();
        guesses.iter().sum::<u128>().checked_div(guesses.len() as u128).unwrap_or(0) as u64
    }

    /// How much faster `model` is than `base` at best, of the classes measured on both; 1000 if there are none. Hope is
    /// cheap: a try costs one round, and what is never tried because others are slow there is lost for good.
    fn ratio_permille(&self, base: ModelId, model: ModelId) -> u64 {
        let both = self.rows.values().filter_map(|row| Some((row.get(&base)?, row.get(&model)?)));
        let ratio = |(base, model): (&Cell, &Cell)| {
            model.rate_micro.saturating_mul(1000).checked_div(base.rate_micro)
        };
        both.filter_map(ratio).max().unwrap_or(1000)
    }

    /// The mean speeds of all classes, for one never seen.
    fn usual(&self, models: u32) -> Vec<u32> {
        let mean = |model: u32| {
            let known = self
                .rows
                .iter()
                .filter_map(|(class, row)| Some((self.best(*class)?.1, row.get(&ModelId(model))?)));
            let speeds: Vec<u64> =
                known.map(|(best, cell)| u64::from(permille(cell.rate_micro, best))).collect();
            speeds
                .iter()
                .sum::<u64>()
                .checked_div(speeds.len() as u64)
                .map_or(1000, |mean| mean.max(1) as u32)
        };
        (0..models).map(mean).collect()
    }
}

/// Rounded, and never 0 for a class that does run.
fn permille(rate_micro: u64, best_micro: u64) -> u32 {
    if rate_micro == 0 || best_micro == 0 {
        return 0;
    }
    let scaled = (u128::from(rate_micro) * 1000 + u128::from(best_micro) / 2) / u128::from(best_micro);
    scaled.clamp(1, 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_means_and_guesses_untried_models() {
        let mut table = SpeedTable::default();
        assert_eq!(table.speeds(ClassId(9), 2), vec![1000, 1000]);
        table.observe(ClassId(1), ModelId(0), 4_000_000);
        table.observe(ClassId(1), ModelId(0), 6_000_000);
        table.observe(ClassId(1), ModelId(1), 1_000_000);
        assert_eq!(table.best(ClassId(1)), Some((ModelId(0), 5_000_000)));
        assert_eq!(table.speeds(ClassId(1), 2), vec![1000, 200]);
        assert_eq!(table.speeds(ClassId(9), 2), vec![1000, 200], "a class never seen is like the others");
        table.observe(ClassId(2), ModelId(0), 70);
        assert_eq!(table.speeds(ClassId(2), 3), vec![1000, 200, 1000], "model 1 as other classes find it");
        table.observe(ClassId(2), ModelId(1), 0);
        assert_eq!(table.speeds(ClassId(2), 2), vec![1000, 0]);
        table.observe(ClassId(3), ModelId(1), 40);
        assert_eq!(
            table.speeds(ClassId(3), 2)[0],
            1000,
            "tried on the slow model alone, it expects the fast one"
        );
        assert!(table.speeds(ClassId(3), 2)[1] < 1000);
    }

    #[test]
    fn forgets_old_speeds() {
        let mut table = SpeedTable::default();
        for _ in 0..100 {
            table.observe(ClassId(1), ModelId(0), 1_000);
        }
        for _ in 0..60 {
            table.observe(ClassId(1), ModelId(0), 2_000);
        }
        assert!(table.best(ClassId(1)).is_some_and(|(_, rate)| rate > 1_990));
    }
}
