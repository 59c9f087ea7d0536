//! The measured speeds of the experiment: steps per second of each job class on each GPU model, alone and in pairs.
//! Reads the published JSON table; data/gavel/README.md of the data set gives its layout.

use super::GavelError;
use crate::field::{self, FieldError};
use crate::input::read_text;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The GPU models in the order of the published runs.
pub(super) const MODELS: [&str; 3] = ["v100", "p100", "k80"];

/// Most by which the speeds of a program differ.
const RATIO_MAX: f64 = 1_000.0;

/// Steps per second by class and model.
#[derive(Debug, Clone)]
pub(super) struct Rates {
    /// Each class: the name of its program and its GPUs.
    pub(super) classes: Vec<(String, u32)>,
    /// `alone[class][model]`; 0 where it cannot run.
    pub(super) alone: Vec<[f64; 3]>,
    /// `pairs[(a, b)][model]`: steps per second of a and of b when both hold the same GPUs. Both orders are there.
    pub(super) pairs: BTreeMap<(usize, usize), [[f64; 2]; 3]>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Cell {
    Alone(f64),
    Pair([f64; 2]),
}

type Table = BTreeMap<String, BTreeMap<String, BTreeMap<String, Cell>>>;

impl Rates {
    /// Reads the published table.
    ///
    /// # Errors
    /// If the file cannot be read, lacks a model, or has a speed that is none.
    pub(super) fn read(path: &Path) -> Result<Self, GavelError> {
        Self::parse(path, &read_text(path)?)
    }

    /// As `read`, from the text of the table.
    ///
    /// # Errors
    /// If the text is not such a table, lacks a model, or has a speed that is none.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, GavelError> {
        let table: Table = serde_json::from_str(text).map_err(GavelError::Json)?;
        for model in MODELS {
            check(path, model, table.get(model).ok_or(GavelError::Model(model))?)?;
        }
        let first = table.get(MODELS[0]).ok_or(GavelError::Model(MODELS[0]))?;
        let keys: BTreeMap<&String, (String, u32)> =
            first.keys().filter_map(|key| key_of(key).map(|class| (key, class))).collect();
        let classes: Vec<(String, u32)> = keys.values().cloned().collect();
        let place: BTreeMap<&String, usize> = keys.keys().enumerate().map(|(at, key)| (*key, at)).collect();
        let mut rates = Self { alone: vec![[0.0; 3]; classes.len()], classes, pairs: BTreeMap::new() };
        for (model, name) in MODELS.iter().enumerate() {
            for (key, row) in table.get(*name).ok_or(GavelError::Model(name))? {
                let Some(class) = place.get(key) else { continue };
                for (partner, cell) in row {
                    rates.take(&place, *class, model, partner, cell);
                }
            }
        }
        rates.check_ratios(path)?;
        Ok(rates)
    }

    /// Speeds of one program on unlike models are of one order: the scheduler tells them apart in thousandths.
    fn check_ratios(&self, path: &Path) -> Result<(), GavelError> {
        for ((name, gpus), alone) in self.classes.iter().zip(&self.alone) {
            let best = alone.iter().copied().fold(0.0, f64::max);
            for (model, steps_s) in MODELS.iter().zip(alone) {
                if *steps_s > 0.0 && *steps_s * RATIO_MAX < best {
                    let want = format!("at least {}, a thousandth of its best one, or 0", best / RATIO_MAX);
                    return Err(FieldError {
                        place: path.display().to_string(),
                        field: format!("{model}.\"('{name}', {gpus})\".null"),
                        text: format!("{steps_s:?}"),
                        want,
                        example: "0",
                    }
                    .into());
                }
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        place: &BTreeMap<&String, usize>,
        class: usize,
        model: usize,
        partner: &String,
        cell: &Cell,
    ) {
        match cell {
            Cell::Alone(rate) if partner == "null" => self.alone[class][model] = *rate,
            Cell::Pair(rates) => {
                if let Some(other) = place.get(partner) {
                    self.pairs.entry((class, *other)).or_insert([[0.0; 2]; 3])[model] = *rates;
                }
            }
            Cell::Alone(_) => {}
        }
    }

    /// The class of a program on that many GPUs.
    #[must_use]
    pub(super) fn class(&self, program: &str, gpus: u32) -> Option<usize> {
        self.classes.iter().position(|(name, workers)| name == program && *workers == gpus)
    }
}

/// Every speed of a model, alone and in pairs.
fn check(
    path: &Path,
    model: &str,
    rows: &BTreeMap<String, BTreeMap<String, Cell>>,
) -> Result<(), GavelError> {
    let place = || path.display().to_string();
    for (key, row) in rows {
        for (partner, cell) in row {
            let name = || format!("{model}.\"{key}\".{partner}");
            match cell {
                Cell::Alone(steps_s) => field::speed(place, name, *steps_s).map(|_| ())?,
                Cell::Pair(both) => {
                    both.iter().try_for_each(|one| field::speed(place, name, *one).map(|_| ()))?
                }
            }
        }
    }
    Ok(())
}

/// `('name', 2)` as name and number.
fn key_of(text: &str) -> Option<(String, u32)> {
    let inner = text.strip_prefix("('")?.strip_suffix(')')?;
    let (name, gpus) = inner.rsplit_once("', ")?;
    Some((name.to_owned(), gpus.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rates_alone_and_in_pairs() {
        let row = |rate: f64| {
            format!(
                "{{\"('A (batch size 1)', 2)\": {{\"null\": {rate}}}, \"('B', 1)\": {{\"null\": 1, \"('B', 1)\": [0.5, 0.6]}}}}"
            )
        };
        let text = format!("{{\"v100\": {}, \"p100\": {}, \"k80\": {}}}", row(3.0), row(2.5), row(0.0));
        let parse = |text: &str| Rates::parse(Path::new("s.json"), text);
        let rates = parse(&text).unwrap();
        let gang = rates.class("A (batch size 1)", 2).unwrap();
        assert_eq!(rates.alone[gang], [3.0, 2.5, 0.0]);
        let single = rates.class("B", 1).unwrap();
        assert_eq!(rates.pairs[&(single, single)][1], [0.5, 0.6]);
        assert!(matches!(parse("{\"v100\": {}}"), Err(GavelError::Model("p100"))));
        for (speed, wrong, field) in [
            ("2.5", "-2.5", "p100.\"('A (batch size 1)', 2)\".null is -2.5"),
            ("2.5", "1e308", "p100.\"('A (batch size 1)', 2)\".null is 1e308"),
            ("2.5", "1e-308", "p100.\"('A (batch size 1)', 2)\".null is 1e-308"),
            ("0.6", "-0.6", "v100.\"('B', 1)\".('B', 1) is -0.6"),
            ("2.5", "4000", "v100.\"('A (batch size 1)', 2)\".null is 3.0, want at least 4"),
        ] {
            let said = parse(&text.replace(speed, wrong)).unwrap_err().to_string();
            assert!(said.starts_with(&format!("s.json: {field}")), "{said}");
            assert!(said.contains(", such as "), "{said}");
        }
    }
}
