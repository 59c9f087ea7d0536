//! What a scenario found: a verdict, and the measured figure beside its bound.

use serde_json::{Value, json};

/// How it came out. There is no "maybe": what could not be decided has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every round held.
    Pass,
    /// What did not hold.
    Fail(String),
    /// Why it could not be tried here: that is no success.
    NotExercised(String),
}

/// One scenario's outcome.
#[derive(Debug, Clone)]
pub struct Report {
    /// The fault's id.
    pub scenario: String,
    /// How often it was run.
    pub rounds: usize,
    /// How it came out.
    pub verdict: Verdict,
    /// Figures: name, measured, bound.
    pub figures: Vec<(String, u64, Option<u64>)>,
    /// It has failed by a bound alone.
    pub late: bool,
}

impl Report {
    /// A report without figures.
    #[must_use]
    pub fn new(scenario: &str, verdict: Verdict) -> Self {
        Self { scenario: scenario.to_owned(), rounds: 0, verdict, figures: Vec::new(), late: false }
    }

    /// A report of `rounds` rounds with these violations.
    #[must_use]
    pub fn of(scenario: &str, rounds: usize, violations: &[String]) -> Self {
        let verdict =
            if violations.is_empty() { Verdict::Pass } else { Verdict::Fail(violations.join("; ")) };
        Self { rounds, ..Self::new(scenario, verdict) }
    }

    /// Adds a figure; past its bound, if it has one, the scenario has failed.
    #[must_use]
    pub fn figure(mut self, name: &str, measured: u64, bound: Option<u64>) -> Self {
        if bound.is_some_and(|bound| measured > bound) && self.verdict == Verdict::Pass {
            self.late = true;
            self.verdict = Verdict::Fail(format!("{name} is {measured}, past its bound"));
        }
        self.figures.push((name.to_owned(), measured, bound));
        self
    }

    /// The same, but neither passed nor failed where this keeps it from being judged; what is broken stays broken.
    #[must_use]
    pub fn unless(mut self, why: Option<String>) -> Self {
        if let Some(why) = why.filter(|_| self.verdict == Verdict::Pass) {
            self.verdict = Verdict::NotExercised(why);
        }
        self
    }

    /// The same, failed if there are any of these.
    #[must_use]
    pub fn but(mut self, violations: &[String]) -> Self {
        if let Some(first) = violations.first().filter(|_| self.late || self.verdict == Verdict::Pass) {
            self.late = false;
            self.verdict = Verdict::Fail(format!("{} broken laws, the first: {first}", violations.len()));
        }
        self
    }

    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let verdict = match &self.verdict {
            Verdict::Pass => "pass".to_owned(),
            Verdict::Fail(why) => format!("FAIL: {why}"),
            Verdict::NotExercised(why) => format!("NOT EXERCISED: {why}"),
        };
        let figures: Vec<_> = self
            .figures
            .iter()
            .map(|(name, measured, bound)| match bound {
                Some(bound) => format!("{name} {measured} (bound {bound})"),
                None => format!("{name} {measured}"),
            })
            .collect();
        format!("{:5} {:3} rounds  {}  {verdict}", self.scenario, self.rounds, figures.join(", "))
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let figures: serde_json::Map<_, _> =
            self.figures.iter().map(|(name, measured, _)| (name.clone(), json!(measured))).collect();
        json!({
            "scenario": self.scenario,
            "rounds": self.rounds,
            "pass": self.verdict == Verdict::Pass,
            "figures": figures,
        })
    }
}
