//! The published figures beside our own. Both are means of draws: a seed decides the order of arrivals, and their
//! generator is not ours. So a cell is compared by how likely the distance is if both draw from one distribution, and
//! not by the distance alone.

use super::trace::TraceError;
use crate::input::read_text;
use rota_core::placement::score::Policy;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Points within which a cell is wanted.
pub const TOLERANCE: f64 = 0.3;

/// Column of what is allocated when 100 % has arrived.
const AT_100: &str = "100";

/// The published table: what is allocated at 100 % arrived, by pod list, policy and seed.
#[derive(Debug, Clone, Default)]
pub struct Published {
    cells: BTreeMap<(String, String), Vec<f64>>,
}

/// One cell of the table and its distance to ours.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Compared {
    /// Allocated GPUs in % of the cluster at 100 % arrived, mean of the published seeds.
    pub allocated_at_100: f64,
    /// Standard deviation of it between seeds.
    pub sd: f64,
    /// Published seeds.
    pub seeds: usize,
    /// Our mean less the published one.
    pub difference: f64,
    /// The difference in standard deviations of the difference of two such means, if seeds vary alike in both.
    pub z: f64,
    /// How often two means of as many seeds as published lie within 0.3 points of each other although both draw from
    /// one distribution: what a perfect replica can hope for.
    pub chance_within: f64,
}

impl Published {
    /// Reads the table: a line for each run, with columns `workload`, `sc_policy`, and one for each percent arrived.
    ///
    /// # Errors
    /// A file that cannot be read, a column that is missing, or a figure that is none.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        Self::parse(path, &read_text(path)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, TraceError> {
        let header: Vec<&str> = text.lines().next().unwrap_or_default().split(',').map(str::trim).collect();
        let place = |column: &'static str| {
            let found = header.iter().position(|name| *name == column);
            found.ok_or(TraceError::Column { path: path.to_owned(), column })
        };
        let (workload, policy, figure) = (place("workload")?, place("sc_policy")?, place(AT_100)?);
        let mut cells: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
        for (line, row) in (1..).zip(text.lines()).skip(1).filter(|(_, row)| !row.trim().is_empty()) {
            let fields: Vec<&str> = row.split(',').map(str::trim).collect();
            let field = |at: usize, column: &'static str| {
                fields.get(at).copied().ok_or(TraceError::Missing { path: path.to_owned(), line, column })
            };
            let said = field(figure, AT_100)?;
            let wrong = || TraceError::Field {
                path: path.to_owned(),
                line,
                column: AT_100,
                text: said.to_owned(),
                want: "percent, such as 95.23",
            };
            let percent = said.parse::<f64>().ok().filter(|percent| percent.is_finite()).ok_or_else(wrong)?;
            let key = (field(workload, "workload")?.to_owned(), field(policy, "sc_policy")?.to_owned());
            cells.entry(key).or_default().push(percent);
        }
        Ok(Self { cells })
    }

    /// The cell of a pod list and a policy beside our figures, one for each seed; none if the table has no such cell,
    /// or one of the two has fewer than two seeds.
    #[must_use]
    pub fn compare(&self, workload: &str, policy: Policy, ours: &[f64]) -> Option<Compared> {
        let theirs = self.cells.get(&(workload.to_owned(), named(policy)?.to_owned()))?;
        if ours.len() < 2 || theirs.len() < 2 {
            return None;
        }
        let (own, other) = (Sample::of(ours), Sample::of(theirs));
        let sd = ((own.squares + other.squares) / (own.count + other.count - 2.0)).sqrt();
        let difference = own.mean - other.mean;
        let spread = sd * (1.0 / own.count + 1.0 / other.count).sqrt();
        let of_two = sd * (2.0 / other.count).sqrt();
        Some(Compared {
            allocated_at_100: other.mean,
            sd: (other.squares / (other.count - 1.0)).sqrt(),
            seeds: theirs.len(),
            difference,
            z: if spread > 0.0 { difference / spread } else { 0.0 },
            chance_within: if of_two > 0.0 { within(TOLERANCE / of_two) } else { 1.0 },
        })
    }
}

/// The sum of squares of standard deviations over many cells, and what it stays below in 19 of 20 cases if every cell
/// draws from the published distribution (Wilson and Hilferty, 1931).
#[must_use]
pub fn chi_square(cells: &[Compared]) -> (f64, f64) {
    let sum = cells.iter().map(|cell| cell.z * cell.z).sum();
    let count = cells.len() as f64;
    let part = 2.0 / (9.0 * count.max(1.0));
    (sum, count * (1.0 - part + 1.644_854 * part.sqrt()).powi(3))
}

/// The policy's name in the table.
fn named(policy: Policy) -> Option<&'static str> {
    match policy {
        Policy::Rota => None,
        Policy::Random => Some("01-Random"),
        Policy::DotProd => Some("02-DotProd"),
        Policy::Clustering => Some("03-GpuClustering"),
        Policy::Packing => Some("04-GpuPacking"),
        Policy::BestFit => Some("05-BestFit"),
        Policy::Fgd => Some("06-FGD"),
    }
}

struct Sample {
    count: f64,
    mean: f64,
    /// Sum of the squares of distances to the mean.
    squares: f64,
}

impl Sample {
    fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        Self { count, mean, squares: values.iter().map(|value| (value - mean).powi(2)).sum() }
    }
}

/// The chance that a normal variable lies within so many standard deviations of its mean (Abramowitz and Stegun,
/// 7.1.26: right to six digits).
fn within(deviations: f64) -> f64 {
    let x = deviations / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let factors = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    1.0 - factors.iter().fold(0.0, |sum, factor| (sum + factor) * t) * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "workload,sc_policy,tune,seed,99,100
few,06-FGD,1.3,42,1,90.0
few,06-FGD,1.3,43,1,92.0
few,01-Random,1.3,42,1,80.0
";

    fn table() -> Published {
        Published::parse(Path::new("table.csv"), TABLE).expect("the table is right")
    }

    #[test]
    fn a_distance_is_told_in_deviations() {
        let cell = table().compare("few", Policy::Fgd, &[92.0, 94.0]).expect("it is there");
        assert_eq!((cell.allocated_at_100, cell.seeds, cell.difference), (91.0, 2, 2.0));
        // Each has a variance of 2, so the mean of two has one of 1, and the difference of two such one of 2.
        assert!((cell.z - 2.0 / 2.0_f64.sqrt()).abs() < 1e-12, "{cell:?}");
        assert!((cell.chance_within - 0.168).abs() < 0.001, "{cell:?}");
        let (sum, _) = chi_square(&[cell, cell]);
        assert!((sum - 4.0).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_compared_is_not() {
        for (workload, policy, ours) in [
            ("many", Policy::Fgd, &[1.0, 2.0][..]),
            ("few", Policy::Rota, &[1.0, 2.0]),
            ("few", Policy::Random, &[1.0, 2.0]),
            ("few", Policy::Fgd, &[1.0]),
        ] {
            assert_eq!(table().compare(workload, policy, ours), None);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |text: &str| Published::parse(Path::new("t.csv"), text).expect_err("wrong").to_string();
        assert_eq!(said("workload,sc_policy,99\n"), "t.csv: no column \"100\" in the header");
        assert_eq!(
            said(&TABLE.replace("92.0", "many")),
            "t.csv:3: 100 is \"many\", want percent, such as 95.23"
        );
        assert_eq!(said(&TABLE.replace(",1,92.0", "")), "t.csv:3: no field \"100\"");
    }

    #[test]
    fn the_known_quantiles() {
        assert!((within(1.959_964) - 0.95).abs() < 1e-5);
        assert!(within(0.0).abs() < 1e-6);
        let cell = table().compare("few", Policy::Fgd, &[92.0, 94.0]).expect("it is there");
        let (_, most) = chi_square(&[cell; 10]);
        assert!((most - 18.307).abs() < 0.05, "{most}");
    }
}
