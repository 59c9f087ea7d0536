//! One line of the table of `rota-chaos hands`: a fault, how often it was tried, the stated bound and what was measured.

use super::report::{Report, Verdict};
use serde_json::{Value, json};

/// How a row came out. There is no "maybe".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Tried, and everything held.
    Held,
    /// Something did not hold, or took longer than stated.
    Broken,
    /// Never tried: that is no success.
    NotExercised,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The fault's or the report's id.
    pub id: String,
    /// What is measured, for people.
    pub what: String,
    /// The stated bound, in ms.
    pub stated_ms: Option<u64>,
    /// How often it was tried.
    pub runs: usize,
    /// What was measured, in ms.
    pub measured_ms: Vec<u64>,
    /// What did not hold.
    pub violations: Vec<String>,
    /// Why it could not be tried here.
    pub skipped: Option<String>,
}

impl Row {
    /// A row without runs.
    #[must_use]
    pub fn new(id: &str, what: &str, stated_ms: Option<u64>) -> Self {
        let (measured_ms, violations) = (Vec::new(), Vec::new());
        Self { id: id.into(), what: what.into(), stated_ms, runs: 0, measured_ms, violations, skipped: None }
    }

    /// A row of an older report: its first bounded figure is the measured one.
    #[must_use]
    pub fn of(report: &Report, what: &str) -> Self {
        let bounded = report.figures.iter().find_map(|(_, measured, bound)| Some((*measured, (*bound)?)));
        let mut row = Self::new(&report.scenario, what, bounded.map(|(_, bound)| bound));
        row.measured_ms.extend(bounded.map(|(measured, _)| measured));
        row.runs = report.rounds;
        match &report.verdict {
            Verdict::Pass => {}
            Verdict::Fail(why) => row.violations.push(why.clone()),
            Verdict::NotExercised(why) => row.skipped = Some(why.clone()),
        }
        row
    }

    /// It was tried once more, and took this long, in ms.
    pub fn ran(&mut self, ms: u64) {
        self.runs += 1;
        self.measured_ms.push(ms);
    }

    /// It was tried once more.
    pub fn tried(&mut self) {
        self.runs += 1;
    }

    /// Something did not hold.
    pub fn wrong(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// Something did not hold, if it does not.
    pub fn must(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(what());
        }
    }

    /// It cannot be tried here.
    #[must_use]
    pub fn skip(mut self, why: &str) -> Self {
        self.skipped = Some(why.to_owned());
        self
    }

    /// The middle of what was measured, in ms.
    #[must_use]
    pub fn p50_ms(&self) -> Option<u64> {
        let mut sorted = self.measured_ms.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }

    /// The greatest that was measured, in ms.
    #[must_use]
    pub fn max_ms(&self) -> Option<u64> {
        self.measured_ms.iter().max().copied()
    }

    /// How it came out.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let late = self.stated_ms.zip(self.max_ms()).is_some_and(|(stated, max)| max > stated);
        match () {
            () if late || !self.violations.is_empty() => Outcome::Broken,
            () if self.runs == 0 || self.skipped.is_some() => Outcome::NotExercised,
            () => Outcome::Held,
        }
    }

    /// The head of the table.
    #[must_use]
    pub fn head() -> String {
        format!("{:6} {:>5} {:>9} {:>8} {:>8}  {:13} WHAT", "ROW", "RUNS", "STATED", "P50", "MAX", "OUTCOME")
    }

    /// One line of the table, and one for each violation.
    #[must_use]
    pub fn lines(&self) -> String {
        let ms = |ms: Option<u64>| ms.map_or("-".to_owned(), |ms| format!("{ms} ms"));
        let outcome = match self.outcome() {
            Outcome::Held => "held",
            Outcome::Broken => "BROKEN",
            Outcome::NotExercised => "NOT EXERCISED",
        };
        let mut lines = format!(
            "{:6} {:>5} {:>9} {:>8} {:>8}  {outcome:13} {}",
            self.id,
            self.runs,
            ms(self.stated_ms),
            ms(self.p50_ms()),
            ms(self.max_ms()),
            self.what
        );
        for why in self.violations.iter().chain(&self.skipped) {
            lines.push_str(&format!("\n       {why}"));
        }
        lines
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "row": self.id,
            "what": self.what,
            "runs": self.runs,
            "stated_ms": self.stated_ms,
            "p50_ms": self.p50_ms(),
            "max_ms": self.max_ms(),
            "violations": self.violations,
            "skipped": self.skipped,
            "held": self.outcome() == Outcome::Held,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_was_not_tried_has_not_held_and_neither_has_a_late_one() {
        let mut row = Row::new("T1", "x", Some(100));
        assert_eq!(row.outcome(), Outcome::NotExercised);
        for ms in [40, 100, 60] {
            row.ran(ms);
        }
        assert_eq!((row.p50_ms(), row.max_ms(), row.outcome()), (Some(60), Some(100), Outcome::Held));
        assert_eq!(row.clone().skip("no root").outcome(), Outcome::NotExercised);
        row.ran(101);
        assert_eq!(row.outcome(), Outcome::Broken);
        assert!(row.lines().contains("BROKEN") && row.lines().contains("101 ms"), "{}", row.lines());
        let mut wrong = Row::new("T2", "x", None);
        wrong.tried();
        wrong.must(1 > 2, || "one is not above two".into());
        assert_eq!(wrong.outcome(), Outcome::Broken);
    }
}
