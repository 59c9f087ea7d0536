//! Named figures of one bench: a table for people, one flat object for programs.

use crate::cli::context;
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::Duration;

/// Figures in the order they were added.
#[derive(Debug, Default)]
pub struct Figures {
    named: Vec<(String, Value)>,
    /// For people, instead of the list of names.
    lines: Vec<String>,
}

impl Figures {
    /// Adds a count.
    pub fn count(&mut self, name: &str, value: u64) {
        self.named.push((name.to_owned(), value.into()));
    }

    /// Adds a measured value, rounded to three digits behind the point.
    pub fn value(&mut self, name: &str, value: f64) {
        let rounded = (value * 1_000.0).round() / 1_000.0;
        self.named.push((name.to_owned(), rounded.into()));
    }

    /// Adds a word.
    pub fn text(&mut self, name: &str, value: &str) {
        self.named.push((name.to_owned(), value.into()));
    }

    /// Adds the figures of a report by their names, those of its parts as `<part>_<name>`.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn report(&mut self, report: &impl Serialize) -> Result<(), serde_json::Error> {
        self.flat("", serde_json::to_value(report)?);
        Ok(())
    }

    fn flat(&mut self, prefix: &str, value: Value) {
        match value {
            Value::Object(parts) => {
                for (name, part) in parts {
                    let name = if prefix.is_empty() { name } else { format!("{prefix}_{name}") };
                    self.flat(&name, part);
                }
            }
            Value::Number(number) if number.is_f64() => self.value(prefix, number.as_f64().unwrap_or(0.0)),
            other => self.named.push((prefix.to_owned(), other)),
        }
    }

    /// Adds median, 99th percentile and largest of some times, in ms, as `<prefix>p50_ms` and so on.
    pub fn percentiles(&mut self, prefix: &str, times: &mut [Duration]) {
        times.sort_unstable();
        for (name, permille) in [("p50_ms", 500), ("p99_ms", 990), ("max_ms", 1_000)] {
            self.value(&format!("{prefix}{name}"), percentile_ms(times, permille));
        }
    }

    /// Those whose names begin with one of these.
    #[must_use]
    pub fn select(&self, beginnings: &[&str]) -> Vec<(String, Value)> {
        let wanted = |name: &String| beginnings.iter().any(|beginning| name.starts_with(beginning));
        self.named.iter().filter(|(name, _)| wanted(name)).cloned().collect()
    }

    /// Adds a line for people; with any, they see only lines.
    pub fn line(&mut self, line: String) {
        self.lines.push(line);
    }

    /// Prints them. Whoever reads may have had enough.
    pub fn print(&self, json: bool) {
        let _ = context::say(&self.printed(json));
    }

    fn printed(&self, json: bool) -> String {
        if json {
            let object: Map<String, Value> = self.named.iter().cloned().collect();
            return format!("{}\n", Value::Object(object));
        }
        if !self.lines.is_empty() {
            return self.lines.iter().map(|line| format!("{line}\n")).collect();
        }
        let width = self.named.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        self.named.iter().map(|(name, value)| format!("  {name:width$}  {value}\n")).collect()
    }
}

/// The value below which `permille` of the sorted times lie, in ms.
#[must_use]
pub fn percentile_ms(sorted: &[Duration], permille: usize) -> f64 {
    let position = (sorted.len() * permille).div_ceil(1_000).saturating_sub(1);
    sorted.get(position).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_is_told_flat() {
        let mut figures = Figures::default();
        figures
            .report(&json!({ "hosts": 3, "cold": { "p50_ms": 0.123_456, "count": 2 }, "ok": true }))
            .unwrap();
        let object: Map<String, Value> = figures.named.into_iter().collect();
        let want = json!({ "hosts": 3, "cold_p50_ms": 0.123, "cold_count": 2, "ok": true });
        assert_eq!(Value::Object(object), want);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile_ms(&times, 500), 100.0);
        assert_eq!(percentile_ms(&times, 990), 198.0);
        assert_eq!(percentile_ms(&times, 1_000), 200.0);
        assert_eq!(percentile_ms(&[], 500), 0.0);
    }
}
