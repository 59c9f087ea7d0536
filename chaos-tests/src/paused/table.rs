//! One line of the table: a row, how often it was tried, the stated bound, and what was measured in virtual time.

use super::rows::{RowSpec, Tried};
use serde_json::{Value, json};

/// How a row came out. There is no "maybe".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Tried, and everything held.
    Held,
    /// A law was broken.
    Broken,
    /// All laws held, but it took longer than stated.
    Late,
    /// The fault was not met in any try: that is no success.
    NotExercised,
}

/// A row over several seeds.
#[derive(Debug, Clone)]
pub struct Line {
    /// The row's id.
    pub id: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// The stated bound, in virtual ms.
    pub stated_ms: Option<u64>,
    /// Tries.
    pub runs: usize,
    /// Tries in which the fault was met.
    pub exercised: usize,
    /// In virtual ms, sorted.
    pub measured_ms: Vec<u64>,
    /// What did not hold, with the seed.
    pub wrong: Vec<(u64, String)>,
}

impl Line {
    /// A line without tries.
    #[must_use]
    pub fn new(row: &RowSpec) -> Self {
        Self {
            id: row.id,
            what: row.what,
            stated_ms: row.stated_ms,
            runs: 0,
            exercised: 0,
            measured_ms: Vec::new(),
            wrong: Vec::new(),
        }
    }

    /// One more try.
    pub fn add(&mut self, seed: u64, tried: Tried) {
        self.runs += 1;
        self.exercised += usize::from(tried.exercised);
        self.measured_ms.extend(tried.measured);
        self.measured_ms.sort_unstable();
        self.wrong.extend(tried.wrong.into_iter().map(|what| (seed, what)));
    }

    /// So many of a thousand took no longer, in virtual ms.
    #[must_use]
    pub fn permille(&self, permille: usize) -> Option<u64> {
        let last = self.measured_ms.len().checked_sub(1)?;
        self.measured_ms.get((self.measured_ms.len() * permille / 1_000).min(last)).copied()
    }

    /// How it came out.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let late = self.stated_ms.zip(self.permille(1_000)).is_some_and(|(stated, max)| max > stated);
        match () {
            () if !self.wrong.is_empty() => Outcome::Broken,
            () if self.exercised == 0 => Outcome::NotExercised,
            () if late => Outcome::Late,
            () => Outcome::Held,
        }
    }

    /// The head of the table; times are virtual ms.
    #[must_use]
    pub fn head() -> String {
        format!(
            "{:5} {:>4} {:>3} {:>7} {:>7} {:>7} {:>7}  {:13} WHAT",
            "ROW", "RUNS", "MET", "STATED", "P50", "P99", "MAX", "OUTCOME"
        )
    }

    /// The line, and one for each thing that did not hold.
    #[must_use]
    pub fn text(&self) -> String {
        let ms = |ms: Option<u64>| ms.map_or("-".to_owned(), |ms| ms.to_string());
        let outcome = match self.outcome() {
            Outcome::Held => "held",
            Outcome::Broken => "BROKEN",
            Outcome::Late => "LATE",
            Outcome::NotExercised => "NOT EXERCISED",
        };
        let mut text = format!(
            "{:5} {:>4} {:>3} {:>7} {:>7} {:>7} {:>7}  {outcome:13} {}",
            self.id,
            self.runs,
            self.exercised,
            ms(self.stated_ms),
            ms(self.permille(500)),
            ms(self.permille(990)),
            ms(self.permille(1_000)),
            self.what
        );
        for (seed, what) in self.wrong.iter().take(10) {
            text.push_str(&format!("\n      seed {seed}: {what}"));
        }
        text
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "row": self.id,
            "what": self.what,
            "runs": self.runs,
            "exercised": self.exercised,
            "stated_ms": self.stated_ms,
            "p50_ms": self.permille(500),
            "p99_ms": self.permille(990),
            "max_ms": self.permille(1_000),
            "violations": self.wrong.iter().map(|(seed, what)| json!({ "seed": seed, "what": what })).collect::<Vec<_>>(),
            "outcome": format!("{:?}", self.outcome()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paused::rows::ROWS;

    fn tried(measured: &[u64], wrong: &[&str], exercised: bool) -> Tried {
        Tried {
            measured: measured.to_vec(),
            wrong: wrong.iter().map(|what| (*what).to_owned()).collect(),
            exercised,
            trace: 0,
            lines: Vec::new(),
        }
    }

    #[test]
    fn a_row_that_was_not_met_or_is_late_has_not_held() {
        let mut line = Line::new(&RowSpec { stated_ms: Some(100), ..ROWS[0] });
        assert_eq!(line.outcome(), Outcome::NotExercised);
        line.add(1, tried(&[], &[], false));
        assert_eq!(line.outcome(), Outcome::NotExercised);
        line.add(2, tried(&[40, 90], &[], true));
        assert_eq!((line.permille(500), line.outcome()), (Some(90), Outcome::Held));
        line.add(3, tried(&[101], &[], true));
        assert_eq!(line.outcome(), Outcome::Late);
        line.add(4, tried(&[1], &["I3: lost"], true));
        assert_eq!(line.outcome(), Outcome::Broken);
        assert!(line.text().contains("seed 4: I3: lost"), "{}", line.text());
    }

    #[test]
    fn rows_have_ids_of_their_own() {
        let ids: std::collections::BTreeSet<_> = ROWS.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), ROWS.len());
    }
}
