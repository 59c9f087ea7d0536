//! One line of the table of `rota-chaos hands`: a fault, how often it was tried, the stated bound and what was measured.

use super::report::{Report, Verdict};
use serde_json::{Value, json};
use std::process::ExitCode;

/// How a row came out. There is no "maybe".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Tried, and everything held.
    Held,
    /// Something did not hold, or took longer than stated.
    Broken,
    /// Never tried: that is no success.
    NotExercised,
    /// Rota has nothing that the fault could be about.
    NoSubject,
}

impl Outcome {
    /// Of a command that tried this alone: 0 it held, 1 it did not, 2 it was not tried.
    #[must_use]
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Held | Self::NoSubject => 0,
            Self::Broken => 1,
            Self::NotExercised => 2,
        })
    }

    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Broken => "BROKEN",
            Self::NotExercised => "NOT EXERCISED",
            Self::NoSubject => "no subject",
        }
    }
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
    /// What else was measured. Names end in their units.
    pub figures: Vec<Figure>,
    /// There is nothing in Rota that the fault could be about.
    no_subject: bool,
}

/// One more figure of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// What it is; ends in its unit.
    pub name: String,
    /// The stated bound.
    pub stated: Option<u64>,
    /// The greatest that was measured.
    pub max: u64,
}

impl Figure {
    fn is_late(&self) -> bool {
        self.stated.is_some_and(|stated| self.max > stated)
    }
}

impl Row {
    /// A row without runs.
    #[must_use]
    pub fn new(id: &str, what: &str, stated_ms: Option<u64>) -> Self {
        let (id, what) = (id.into(), what.into());
        let (measured_ms, violations, figures) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            id,
            what,
            stated_ms,
            runs: 0,
            measured_ms,
            violations,
            skipped: None,
            figures,
            no_subject: false,
        }
    }

    /// A row of a report: its first bounded time is what is measured, the others stand below it.
    #[must_use]
    pub fn of(report: &Report, what: &str) -> Self {
        let is_main =
            |(name, _, bound): &&(String, u64, Option<u64>)| bound.is_some() && name.ends_with("_ms");
        let main = report.figures.iter().find(is_main);
        let mut row = Self::new(&report.scenario, what, main.and_then(|(_, _, bound)| *bound));
        row.measured_ms.extend(main.map(|(_, measured, _)| *measured));
        for (name, measured, bound) in report.figures.iter().filter(|other| Some(*other) != main) {
            row.also(name, *measured, *bound);
        }
        row.runs = report.rounds;
        match &report.verdict {
            Verdict::Pass => {}
            // Its own figures say so as well.
            Verdict::Fail(_) if report.late => {}
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

    /// Something else was measured, in the unit in which its name ends; of several runs the greatest counts.
    pub fn also(&mut self, name: &str, measured: u64, stated: Option<u64>) {
        match self.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.max = figure.max.max(measured),
            None => self.figures.push(Figure { name: name.to_owned(), stated, max: measured }),
        }
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

    /// Rota has nothing that the fault could be about.
    #[must_use]
    pub fn without_subject(mut self, why: &str) -> Self {
        self.no_subject = true;
        self.skip(why)
    }

    /// Other tries of the same row; what is not known of it yet comes from them.
    pub fn merge(&mut self, other: Self) {
        if self.what.is_empty() {
            self.what = other.what;
        }
        self.stated_ms = self.stated_ms.or(other.stated_ms);
        self.runs += other.runs;
        self.measured_ms.extend(other.measured_ms);
        self.violations.extend(other.violations);
        self.skipped = self.skipped.take().or(other.skipped);
        self.no_subject |= other.no_subject;
        for figure in other.figures {
            self.also(&figure.name, figure.max, figure.stated);
        }
    }

    /// The middle of what was measured, in ms.
    #[must_use]
    pub fn p50_ms(&self) -> Option<u64> {
        self.permille_ms(500)
    }

    /// So many of a thousand took no longer, in ms.
    #[must_use]
    pub fn permille_ms(&self, permille: usize) -> Option<u64> {
        let mut sorted = self.measured_ms.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        sorted.get((sorted.len() * permille / 1_000).min(last)).copied()
    }

    /// The greatest that was measured, in ms.
    #[must_use]
    pub fn max_ms(&self) -> Option<u64> {
        self.measured_ms.iter().max().copied()
    }

    /// How it came out.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let main_late = self.stated_ms.zip(self.max_ms()).is_some_and(|(stated, max)| max > stated);
        let late = main_late || self.figures.iter().any(Figure::is_late);
        match () {
            () if late || !self.violations.is_empty() => Outcome::Broken,
            () if self.no_subject => Outcome::NoSubject,
            () if self.runs == 0 || self.skipped.is_some() => Outcome::NotExercised,
            () => Outcome::Held,
        }
    }

    /// The head of the table.
    #[must_use]
    pub fn head() -> String {
        format!(
            "{:9} {:>4} {:>9} {:>8} {:>8} {:>8}  {:13} WHAT",
            "ROW", "RUNS", "STATED", "P50", "P99", "MAX", "OUTCOME"
        )
    }

    /// One line of the table, and one for each violation.
    #[must_use]
    pub fn lines(&self) -> String {
        let ms = |ms: Option<u64>| ms.map_or("-".to_owned(), |ms| format!("{ms} ms"));
        let outcome = self.outcome().words();
        let mut lines = format!(
            "{:9} {:>4} {:>9} {:>8} {:>8} {:>8}  {outcome:13} {}",
            self.id,
            self.runs,
            ms(self.stated_ms),
            ms(self.p50_ms()),
            ms(self.permille_ms(990)),
            ms(self.max_ms()),
            self.what
        );
        for figure in &self.figures {
            let stated = figure.stated.map_or(String::new(), |stated| format!(" (stated {stated})"));
            let late = if figure.is_late() { " BROKEN" } else { "" };
            lines.push_str(&format!("\n       {} {}{stated}{late}", figure.name, figure.max));
        }
        for why in self.violations.iter().chain(&self.skipped) {
            lines.push_str(&format!("\n       {why}"));
        }
        lines
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let figure =
            |figure: &Figure| json!({ "name": figure.name, "stated": figure.stated, "max": figure.max });
        json!({
            "row": self.id,
            "what": self.what,
            "runs": self.runs,
            "stated_ms": self.stated_ms,
            "p50_ms": self.p50_ms(),
            "p99_ms": self.permille_ms(990),
            "max_ms": self.max_ms(),
            "violations": self.violations,
            "skipped": self.skipped,
            "figures": self.figures.iter().map(figure).collect::<Vec<_>>(),
            "outcome": self.outcome().words(),
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
        let mut also = Row::new("T9", "x", None);
        also.tried();
        for (kib, outcome) in [(7, Outcome::Held), (11, Outcome::Broken), (3, Outcome::Broken)] {
            also.also("memory_kib", kib, Some(10));
            assert_eq!(also.outcome(), outcome, "{}", also.lines());
        }
        assert!(also.lines().contains("memory_kib 11 (stated 10) BROKEN"), "{}", also.lines());
        let report = Report::of("T3", 2, &[]).figure("parts", 3, Some(3)).figure("a_ms", 5, Some(6));
        let row = Row::of(&report, "x");
        assert_eq!((row.stated_ms, row.max_ms(), row.figures.len(), row.runs), (Some(6), Some(5), 1, 2));
        let mut wrong = Row::new("T2", "x", None);
        wrong.tried();
        wrong.must(1 > 2, || "one is not above two".into());
        assert_eq!(wrong.outcome(), Outcome::Broken);
    }
}
