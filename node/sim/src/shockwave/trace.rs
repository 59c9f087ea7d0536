//! The job traces of the experiment and the speeds they refer to, read from their published files.

use super::ShockwaveError;
use super::adapt::{Mode, models, samples};
use crate::field::{self, FieldError, RUN_S_MAX};
use rota_protocol::limits::GANG_PARTS_MAX;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

/// Columns of a line.
pub(super) const COLUMNS: usize = 12;
/// Most steps of a job: two hundred times the longest of the published traces.
const STEPS_MAX: u64 = 1_000_000_000;
/// Largest batch: a hundred times the largest published.
const BATCH_MAX: u64 = 1_000_000;

/// One line of a trace.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TraceJob {
    /// The name of the model.
    pub(super) model: String,
    /// Its batch at first.
    pub(super) batch: u64,
    /// Samples per epoch.
    pub(super) samples: u64,
    /// Steps at the first batch.
    pub(super) steps: u64,
    /// GPUs at a time.
    pub(super) gpus: u32,
    /// How it adapts.
    pub(super) mode: Mode,
    /// When it arrives, in seconds.
    pub(super) arrival_s: f64,
}

/// Steps per second on a V100 by model, batch and GPUs.
pub(super) type Speeds = BTreeMap<(String, u64, u32), f64>;

/// Parses a trace; jobs in order of arrival.
///
/// # Errors
/// If a line lacks a column, or one of them is not what it should be.
pub(super) fn parse_trace(path: &Path, text: &str) -> Result<Vec<TraceJob>, ShockwaveError> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let jobs =
        lines.map(|(line, text)| parse_line(&Line { path, line, columns: text.split('\t').collect() }));
    let mut jobs = jobs.collect::<Result<Vec<TraceJob>, _>>()?;
    jobs.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
    Ok(jobs)
}

/// One line, cut at its tabs.
struct Line<'a> {
    path: &'a Path,
    line: usize,
    columns: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn place(&self) -> String {
        format!("{}:{}", self.path.display(), self.line)
    }

    /// The text of a column, counted from 0.
    fn text(&self, at: usize) -> Result<&'a str, ShockwaveError> {
        self.columns
            .get(at)
            .map(|text| text.trim())
            .ok_or_else(|| ShockwaveError::Columns { place: self.place(), found: self.columns.len() })
    }

    fn number<T: FromStr + PartialOrd + Display>(
        &self,
        at: usize,
        field: &str,
        bounds: RangeInclusive<T>,
        example: &'static str,
    ) -> Result<T, ShockwaveError> {
        let field = format!("{field} (column {})", at + 1);
        Ok(field::number(|| self.place(), &field, self.text(at)?, &bounds, example)?)
    }

    fn wrong(&self, at: usize, field: &str, want: String, example: &'static str) -> ShockwaveError {
        let text = format!("{:?}", self.columns.get(at).copied().unwrap_or_default());
        let field = format!("{field} (column {})", at + 1);
        FieldError { place: self.place(), field, text, want, example }.into()
    }
}

fn parse_line(line: &Line<'_>) -> Result<TraceJob, ShockwaveError> {
    // All of them first: a line of another format is told as such.
    line.text(COLUMNS - 1)?;
    let program = line.text(0)?;
    let known = parse_program(program).and_then(|(model, batch)| Some((samples(&model)?, model, batch)));
    let program_wrong = || {
        let want = format!("MODEL (batch size 1 to {BATCH_MAX}) with one of {}", models().join(", "));
        line.wrong(0, "program", want, "LM (batch size 10)")
    };
    let (samples, model, batch) = known.ok_or_else(program_wrong)?;
    let mode = match line.text(7)? {
        "static" => Mode::Static,
        "accordion" => Mode::Accordion,
        "gns" => Mode::Gns,
        _ => return Err(line.wrong(7, "mode", "static, accordion or gns".to_owned(), "static")),
    };
    let steps = line.number(5, "steps", 1..=STEPS_MAX, "134583")?;
    let gpus = line.number(6, "GPUs", 1..=GANG_PARTS_MAX, "4")?;
    let arrival_s = line.number(11, "arrival", 0.0..=RUN_S_MAX as f64, "55")?;
    Ok(TraceJob { samples, model, batch, steps, gpus, mode, arrival_s })
}

/// `LM (batch size 10)` as model and batch.
fn parse_program(text: &str) -> Option<(String, u64)> {
    let (model, rest) = text.split_once(" (batch size ")?;
    let batch = rest.strip_suffix(')')?.parse().ok()?;
    (1..=BATCH_MAX).contains(&batch).then(|| (model.to_owned(), batch))
}

#[derive(Deserialize)]
struct Table {
    v100: BTreeMap<String, Row>,
}

#[derive(Deserialize)]
struct Row {
    null: f64,
}

/// Parses the table of speeds; only its `v100` part is read.
///
/// # Errors
/// If the text is not such a table, or a speed is none.
pub(super) fn parse_speeds(path: &Path, text: &str) -> Result<Speeds, ShockwaveError> {
    let json = |source| ShockwaveError::Json { path: path.to_owned(), source };
    let table: Table = serde_json::from_str(text).map_err(json)?;
    let mut speeds = Speeds::new();
    for (key, row) in &table.v100 {
        let name = || format!("v100.\"{key}\".null");
        let steps_s = field::speed(|| path.display().to_string(), name, row.null)?;
        if let Some(program) = parse_key(key) {
            speeds.insert(program, steps_s);
        }
    }
    Ok(speeds)
}

/// `('LM (batch size 10)', 1)` as model, batch and GPUs.
fn parse_key(key: &str) -> Option<(String, u64, u32)> {
    let inner = key.strip_prefix("('")?.strip_suffix(')')?;
    let (program, gpus) = inner.rsplit_once("', ")?;
    let (model, batch) = parse_program(program)?;
    Some((model, batch, gpus.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_and_says_which_is_bad() {
        let line = "LM (batch size 10)\tcmd\tdir\t--steps\t1\t134583\t2\tgns\t1\t-1.0\t1418\t55";
        let parse = |text: &str| parse_trace(Path::new("t.trace"), text);
        let jobs = parse(line).unwrap();
        assert_eq!((jobs[0].batch, jobs[0].gpus, jobs[0].mode, jobs[0].arrival_s), (10, 2, Mode::Gns, 55.0));
        let said = parse(&format!("{line}\nLM (batch size 10)\tcmd\n")).unwrap_err().to_string();
        assert!(said.starts_with("t.trace:2: 2 columns, want 12 "), "{said}");
        let earlier = line.replace("\t55", "\t7");
        let arrivals: Vec<f64> =
            parse(&format!("{line}\n{earlier}")).unwrap().iter().map(|job| job.arrival_s).collect();
        assert_eq!(arrivals, [7.0, 55.0], "in order of arrival");
    }

    #[test]
    fn a_column_that_is_none_is_told_with_its_line_and_what_would_do() {
        let good = [
            "LM (batch size 10)",
            "cmd",
            "dir",
            "--steps",
            "1",
            "134583",
            "2",
            "gns",
            "1",
            "-1.0",
            "1418",
            "55",
        ];
        for (at, text, want) in [
            (0, "GPT (batch size 10)", "program (column 1)"),
            (0, "LM (batch size 0)", "program (column 1)"),
            (0, "LM (batch size 18446744073709551615)", "program (column 1)"),
            (5, "0", "steps (column 6)"),
            (5, "-1", "steps (column 6)"),
            (5, "4611686018427387904", "steps (column 6)"),
            (6, "0", "GPUs (column 7)"),
            (6, "4294967295", "GPUs (column 7)"),
            (7, "wild", "mode (column 8)"),
            (11, "nan", "arrival (column 12)"),
            (11, "inf", "arrival (column 12)"),
            (11, "-5", "arrival (column 12)"),
            (11, "1e300", "arrival (column 12)"),
            (11, "4611686018427387904", "arrival (column 12)"),
            (11, "99999999999999999999", "arrival (column 12)"),
        ] {
            let mut columns = good;
            columns[at] = text;
            let text = columns.join("\t");
            let said = parse_trace(Path::new("t.trace"), &format!("\n{text}")).unwrap_err().to_string();
            assert!(said.starts_with(&format!("t.trace:2: {want} is {:?}, want ", columns[at])), "{said}");
            assert!(said.contains(", such as "), "{said}");
        }
    }

    #[test]
    fn reads_speeds() {
        let parse = |text: &str| parse_speeds(Path::new("s.json"), text);
        let text =
            r#"{"v100": {"('LM (batch size 5)', 4)": {"null": 2.5}, "('A3C', 1)": {"null": 0}}, "k80": {}}"#;
        let speeds = parse(text).unwrap();
        assert_eq!(speeds.get(&("LM".to_owned(), 5, 4)), Some(&2.5));
        assert_eq!(speeds.len(), 1);
        for wrong in ["-2.5", "1e308", "1e-308"] {
            let said = parse(&text.replace("2.5", wrong)).unwrap_err().to_string();
            assert!(said.starts_with("s.json: v100.\"('LM (batch size 5)', 4)\".null is "), "{said}");
        }
        assert!(parse("sn,gpu").unwrap_err().to_string().starts_with("s.json: this is no table of speeds"));
    }
}
