//! The job traces of the experiment and the speeds they refer to, read from their published files.

use super::ShockwaveError;
use super::adapt::{Mode, samples};
use serde::Deserialize;
use std::collections::BTreeMap;

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

/// Parses a trace.
///
/// # Errors
/// If a line lacks a column or names a model whose data are not known.
pub(super) fn parse_trace(text: &str) -> Result<Vec<TraceJob>, ShockwaveError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(at, line)| parse_line(line).ok_or(ShockwaveError::Line(at + 1))).collect()
}

fn parse_line(line: &str) -> Option<TraceJob> {
    let columns: Vec<&str> = line.split('\t').collect();
    let (model, batch) = parse_program(columns.first()?)?;
    let mode = match *columns.get(7)? {
        "static" => Mode::Static,
        "accordion" => Mode::Accordion,
        "gns" => Mode::Gns,
        _ => return None,
    };
    let (steps, gpus) = (columns.get(5)?.parse().ok()?, columns.get(6)?.parse().ok()?);
    let arrival_s = columns.get(11)?.parse().ok()?;
    Some(TraceJob { samples: samples(&model)?, model, batch, steps, gpus, mode, arrival_s })
}

/// `LM (batch size 10)` as model and batch.
fn parse_program(text: &str) -> Option<(String, u64)> {
    let (model, rest) = text.split_once(" (batch size ")?;
    Some((model.to_owned(), rest.strip_suffix(')')?.parse().ok()?))
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
/// If the text is not such a table.
pub(super) fn parse_speeds(text: &str) -> Result<Speeds, ShockwaveError> {
    let table: Table = serde_json::from_str(text).map_err(ShockwaveError::Json)?;
    let entry = |(key, row): (String, Row)| {
        let inner = key.strip_prefix("('")?.strip_suffix(')')?;
        let (program, gpus) = inner.rsplit_once("', ")?;
        let (model, batch) = parse_program(program)?;
        Some(((model, batch, gpus.parse().ok()?), row.null))
    };
    Ok(table.v100.into_iter().filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_and_says_which_is_bad() {
        let line = "LM (batch size 10)\tcmd\tdir\t--steps\t1\t134583\t2\tgns\t1\t-1.0\t1418\t55";
        let jobs = parse_trace(line).unwrap();
        assert_eq!((jobs[0].batch, jobs[0].gpus, jobs[0].mode, jobs[0].arrival_s), (10, 2, Mode::Gns, 55.0));
        let bad = format!("{line}\nLM (batch size 10)\tcmd\n");
        assert!(matches!(parse_trace(&bad), Err(ShockwaveError::Line(2))));
    }

    #[test]
    fn reads_speeds() {
        let text =
            r#"{"v100": {"('LM (batch size 5)', 4)": {"null": 2.5}, "('A3C', 1)": {"null": 1}}, "k80": {}}"#;
        let speeds = parse_speeds(text).unwrap();
        assert_eq!(speeds.get(&("LM".to_owned(), 5, 4)), Some(&2.5));
        assert_eq!(speeds.len(), 1);
    }
}
