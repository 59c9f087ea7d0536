//! The published figures beside our own. A seed decides the order of arrivals and of ties, by the published generator
//! (`lagged`), so a run can be held against the published run of its seed; where the policy draws lots beyond that, only
//! means can be, and then a cell is compared by how likely the distance is if both draw from one distribution.

use super::report::SeedReport;
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
/// Percents arrived up to which curves are compared: nothing is dropped until then, so that they tell of arrivals alone.
const ARRIVING: std::ops::RangeInclusive<u64> = 1..=20;

/// The published table: what is allocated at 100 % arrived, by pod list, policy and seed.
#[derive(Debug, Clone, Default)]
pub struct Published {
    cells: BTreeMap<(String, String), Vec<Row>>,
}

/// One published run.
#[derive(Debug, Clone)]
struct Row {
    seed: u64,
    allocated_at_100: f64,
    /// What is allocated by percent arrived, of those in `ARRIVING` that have a column.
    arriving: BTreeMap<u64, f64>,
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
    /// Mean distance of a run to the published run of its seed; none if no seed is in both.
    pub by_seed: Option<f64>,
    /// Mean distance of their curves while all that arrives is placed: nothing but rounding if the same asks arrived in
    /// the same order.
    pub arrivals_apart: Option<f64>,
}

impl Compared {
    /// Whether the published runs saw the arrivals that ours did. Two other orders are 0.05 points apart.
    #[must_use]
    pub fn same_arrivals(&self) -> bool {
        self.arrivals_apart.is_some_and(|apart| apart < 0.01)
    }
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
        let seed = place("seed")?;
        let columns: Vec<(u64, usize)> = ARRIVING
            .filter_map(|percent| Some((percent, header.iter().position(|n| *n == percent.to_string())?)))
            .collect();
        let mut cells: BTreeMap<(String, String), Vec<Row>> = BTreeMap::new();
        for (line, row) in (1..).zip(text.lines()).skip(1).filter(|(_, row)| !row.trim().is_empty()) {
            let fields: Vec<&str> = row.split(',').map(str::trim).collect();
            let field = |at: usize, column: &'static str| {
                fields.get(at).copied().ok_or(TraceError::Missing { path: path.to_owned(), line, column })
            };
            let wrong = |column: &'static str, at: usize, want: &str, example| TraceError::Field {
                path: path.to_owned(),
                line,
                column,
                text: fields[at].to_owned(),
                want: want.to_owned(),
                example,
            };
            let percent =
                |text: &str| text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
            let allocated_at_100 = percent(field(figure, AT_100)?)
                .ok_or_else(|| wrong(AT_100, figure, "0 to 100 percent", "95.23"))?;
            let seed =
                field(seed, "seed")?.parse().map_err(|_| wrong("seed", seed, "a whole number", "42"))?;
            let arriving =
                columns.iter().filter_map(|(at, place)| Some((*at, percent(fields.get(*place)?)?)));
            let row = Row { seed, allocated_at_100, arriving: arriving.collect() };
            let key = (field(workload, "workload")?.to_owned(), field(policy, "sc_policy")?.to_owned());
            cells.entry(key).or_default().push(row);
        }
        Ok(Self { cells })
    }

    /// The cell of a pod list and a policy beside our runs, one for each seed; none if the table has no such cell, or one
    /// of the two has fewer than two seeds.
    #[must_use]
    pub fn compare(&self, workload: &str, policy: Policy, ours: &[SeedReport]) -> Option<Compared> {
        let theirs = self.cells.get(&(workload.to_owned(), named(policy)?.to_owned()))?;
        if ours.len() < 2 || theirs.len() < 2 {
            return None;
        }
        let own = Sample::of(ours.iter().map(|run| run.allocated_at_100));
        let other = Sample::of(theirs.iter().map(|row| row.allocated_at_100));
        let of_seed = |run: &SeedReport| theirs.iter().find(|row| row.seed == run.seed);
        let pairs = || ours.iter().filter_map(|run| Some((run, of_seed(run)?)));
        let ends = pairs().map(|(run, row)| (run.allocated_at_100 - row.allocated_at_100).abs());
        let curves = pairs().flat_map(|(run, row)| {
            let points = run.curve.iter();
            points.filter_map(|point| Some((point.allocated - row.arriving.get(&point.arrived)?).abs()))
        });
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
            by_seed: mean(ends),
            arrivals_apart: mean(curves),
        })
    }
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
    /// Of at least one value.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / count;
        Self { count, mean, squares: values.map(|value| (value - mean).powi(2)).sum() }
    }
}

/// The mean of values; none without any.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
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
    use super::super::report::Point;
    use super::*;

    const TABLE: &str = "workload,sc_policy,tune,seed,1,2,99,100
few,06-FGD,1.3,42,1.1,2.0,1,90.0
few,06-FGD,1.3,43,0.9,,1,92.0
few,01-Random,1.3,42,1,2,1,80.0
";

    /// Runs of seeds 42, 43 .. with such ends, of which 1 % was allocated when 1 % had arrived.
    fn runs(ends: &[f64]) -> Vec<SeedReport> {
        let curve = vec![Point { arrived: 1, allocated: 1.0, fragment: 0.0 }];
        let run = |(seed, end): (u64, &f64)| SeedReport {
            seed,
            allocated_at_100: *end,
            placed: 1,
            dropped: 0,
            curve: curve.clone(),
        };
        (42..).zip(ends).map(run).collect()
    }

    fn table() -> Published {
        Published::parse(Path::new("table.csv"), TABLE).expect("the table is right")
    }

    #[test]
    fn a_distance_is_told_in_deviations() {
        let cell = table().compare("few", Policy::Fgd, &runs(&[92.0, 94.0])).expect("it is there");
        assert_eq!((cell.allocated_at_100, cell.seeds, cell.difference), (91.0, 2, 2.0));
        // Each has a variance of 2, so the mean of two has one of 1, and the difference of two such one of 2.
        assert!((cell.z - 2.0 / 2.0_f64.sqrt()).abs() < 1e-12, "{cell:?}");
        assert!((cell.chance_within - 0.168).abs() < 0.001, "{cell:?}");
        assert_eq!(cell.by_seed, Some(2.0));
        assert!(cell.arrivals_apart.is_some_and(|apart| (apart - 0.1).abs() < 1e-9) && !cell.same_arrivals());
    }

    #[test]
    fn other_seeds_are_no_pairs() {
        let mut other = runs(&[92.0, 94.0]);
        for run in &mut other {
            run.seed += 10;
        }
        let cell = table().compare("few", Policy::Fgd, &other).expect("it is there");
        assert_eq!((cell.by_seed, cell.arrivals_apart), (None, None));
    }

    #[test]
    fn what_cannot_be_compared_is_not() {
        for (workload, policy, ours) in [
            ("many", Policy::Fgd, &[1.0, 2.0][..]),
            ("few", Policy::Rota, &[1.0, 2.0]),
            ("few", Policy::Random, &[1.0, 2.0]),
            ("few", Policy::Fgd, &[1.0]),
        ] {
            assert_eq!(table().compare(workload, policy, &runs(ours)), None);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |text: &str| Published::parse(Path::new("t.csv"), text).expect_err("wrong").to_string();
        assert_eq!(said("workload,sc_policy,99\n"), "t.csv: no column \"100\" in the header");
        assert_eq!(
            said(&TABLE.replace("92.0", "many")),
            "t.csv:3: 100 is \"many\", want 0 to 100 percent, such as 95.23"
        );
        assert_eq!(said(&TABLE.replace(",1,92.0", "")), "t.csv:3: no field \"100\"");
        assert_eq!(
            said(&TABLE.replace("1.3,43", "1.3,x")),
            "t.csv:3: seed is \"x\", want a whole number, such as 42"
        );
    }

    #[test]
    fn the_known_quantiles() {
        assert!((within(1.959_964) - 0.95).abs() < 1e-5);
        assert!(within(0.0).abs() < 1e-6);
    }
}
