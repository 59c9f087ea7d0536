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

    /// Speeds of a class on models `0..models`, in permille of its best model; 0 where it was seen not to run. A model
    /// not yet tried gets the mean of what other classes reach there, an empty table 1000 everywhere.
    #[must_use]
    pub fn speeds(&self, class: ClassId, models: u32) -> Vec<u32> {
        let best = self.best(class).map_or(0, |(_, rate)| rate);
        let row = self.rows.get(&class);
        let speed = |model: ModelId| match row.and_then(|row| row.get(&model)) {
            Some(cell) => permille(cell.rate_micro, best),
            None => self.usual(model),
        };
        (0..models).map(|model| speed(ModelId(model))).collect()
    }

    /// The mean speed of all measured classes on a model, in permille of each one's best.
    fn usual(&self, model: ModelId) -> u32 {
        let mut sum = 0_u64;
        let mut count = 0_u64;
        for (class, row) in &self.rows {
            if let (Some(cell), Some((_, best))) = (row.get(&model), self.best(*class)) {
                sum += u64::from(permille(cell.rate_micro, best));
                count += 1;
            }
        }
        sum.checked_div(count).map_or(1000, |mean| mean.max(1) as u32)
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
        table.observe(ClassId(2), ModelId(0), 70);
        assert_eq!(table.speeds(ClassId(2), 3), vec![1000, 200, 1000], "model 1 as other classes find it");
        table.observe(ClassId(2), ModelId(1), 0);
        assert_eq!(table.speeds(ClassId(2), 2), vec![1000, 0]);
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
