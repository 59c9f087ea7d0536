//! How runs are shown: tables and a chart for people, one document for programs, a picture in a file, and a line on
//! standard error while long runs go on.

use super::ShowArgs;
use crate::cli::context::say;
use crate::cli::failure::Failure;
use crate::table::{Table, clean};
use rota_sim::chart::{Chart, Series};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Runs that are done before this are not worth a line.
const SILENT: Duration = Duration::from_secs(2);

/// What came of one command.
#[derive(Debug, Default)]
pub(super) struct Shown {
    reports: Vec<Value>,
    tables: Vec<Table>,
    notes: Vec<String>,
    chart: Option<Chart>,
}

impl Shown {
    /// The document: the report itself, or the list of reports if there are several.
    pub(super) fn of(reports: &[impl Serialize]) -> Result<Self, Failure> {
        let reports = reports.iter().map(serde_json::to_value).collect::<Result<_, _>>();
        Ok(Self { reports: reports.map_err(Failure::other)?, ..Self::default() })
    }

    pub(super) fn table(mut self, table: Table) -> Self {
        self.tables.push(table);
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    pub(super) fn chart(mut self, title: &str, x_label: &str, y_label: &str, series: Vec<Series>) -> Self {
        let (title, x_label, y_label) = (title.to_owned(), x_label.to_owned(), y_label.to_owned());
        self.chart = Some(Chart { title, x_label, y_label, series });
        self
    }

    /// Writes the picture, then prints.
    pub(super) fn print(self, args: &ShowArgs) -> Result<u8, Failure> {
        if let (Some(path), Some(chart)) = (&args.svg, &self.chart) {
            let wrong = |error| Failure::other(format!("cannot write {}: {error}", path.display()));
            std::fs::write(path, chart.svg()).map_err(wrong)?;
        }
        say(&if args.json { self.document()? } else { self.text() })?;
        Ok(0)
    }

    fn document(mut self) -> Result<String, Failure> {
        let value = match self.reports.len() {
            1 => self.reports.remove(0),
            _ => json!({ "reports": self.reports }),
        };
        Ok(serde_json::to_string(&value).map_err(Failure::other)? + "\n")
    }

    fn text(&self) -> String {
        let mut parts: Vec<String> = self.tables.iter().map(Table::to_string).collect();
        parts.extend(self.chart.iter().filter(|chart| chart.has_line()).map(Chart::text));
        if !self.notes.is_empty() {
            parts.push(self.notes.iter().map(|note| clean(note).into_owned() + "\n").collect());
        }
        parts.join("\n")
    }
}

/// A line of a chart.
pub(super) fn line(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    Series { name: name.into(), points: points.into_iter().collect() }
}

/// Tells how far a command is, on standard error: one line that is written over on a terminal, a line for each step
/// elsewhere.
pub(super) struct Progress {
    begun: Instant,
    all: usize,
    done: Mutex<usize>,
}

impl Progress {
    pub(super) fn new(all: usize) -> Self {
        Self { begun: Instant::now(), all, done: Mutex::new(0) }
    }

    /// One more is done.
    pub(super) fn step(&self, what: &str) {
        let Ok(mut done) = self.done.lock() else {
            return;
        };
        *done += 1;
        let spent = self.begun.elapsed();
        if self.all < 2 || spent < SILENT {
            return;
        }
        let mut err = std::io::stderr().lock();
        let text = format!("{done}/{} {what}, {} s", self.all, spent.as_secs());
        // A closed standard error is no reason to fail.
        let _ = match (err.is_terminal(), *done == self.all) {
            (true, false) => write!(err, "\r{text}\u{1b}[K"),
            (true, true) => write!(err, "\r\u{1b}[K"),
            (false, _) => writeln!(err, "{text}"),
        };
        let _ = err.flush();
    }
}
