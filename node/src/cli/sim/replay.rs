//! `rota sim replay`: a cluster's own history, and what would have been.

use super::show::{Shown, line};
use super::{ReplayArgs, unusable};
use crate::cli::failure::Failure;
use crate::table::Table;
use rota_sim::chart::Series;
use rota_sim::replay::{self, Change, Figures, History, ReplayConfig, ReplayError, ReplayReport, Run};

/// Runs `rota sim replay`.
pub(super) fn replay(args: &ReplayArgs) -> Result<Shown, Failure> {
    let named = |error: &dyn std::fmt::Display| unusable(format!("{}: {error}", args.file.display()));
    let history = History::read(&args.file).map_err(|error| match error {
        replay::HistoryError::Input(_) | replay::HistoryError::Json { .. } => unusable(error),
        unnamed => named(&unnamed),
    })?;
    let change =
        Change { policy: args.policy, add: args.add_hosts.clone(), without: args.without_hosts.clone() };
    let config = ReplayConfig { change, jitter_ms: args.jitter, seed: args.seed };
    let report = replay::run(&history, &config).map_err(|error| match error {
        ReplayError::Cluster(error) => Failure::other(error),
        wrong => named(&wrong),
    })?;
    let guessed = report.run_times_guessed;
    let unit = Unit::of(&report);
    let mut shown = Shown::of(std::slice::from_ref(&report))?
        .table(table(&report, unit))
        .table(queue_table(&report, unit))
        .chart(
            "Waits by share of the jobs",
            "jobs that wait no longer, %",
            &format!("wait, {}", unit.name),
            lines(&report, unit),
        );
    if guessed > 0 {
        shown = shown.note(format!("{guessed} of {} run times are not known and were guessed", report.jobs));
    }
    if report.what_if.is_none() {
        shown = shown.note("what if: --add-hosts 4x8xH100, --without-hosts NAME, --policy fgd");
    }
    Ok(shown)
}

/// In what waits are told, the same in tables and chart: as the longest of them asks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Unit {
    name: &'static str,
    seconds: f64,
}

impl Unit {
    fn of(report: &ReplayReport) -> Self {
        let longest_s = courses(report).map(|(_, figures)| figures.max_wait_s).fold(0.0, f64::max);
        match longest_s {
            ..120.0 => Self { name: "s", seconds: 1.0 },
            ..7_200.0 => Self { name: "min", seconds: 60.0 },
            _ => Self { name: "h", seconds: 3_600.0 },
        }
    }

    fn text(self, seconds: f64) -> String {
        format!("{:.1} {}", seconds / self.seconds, self.name)
    }
}

/// The courses of events, with what they are called.
fn courses(report: &ReplayReport) -> impl Iterator<Item = (&'static str, &Figures)> {
    let what_if = report.what_if.iter().map(|run| ("what if", &run.figures));
    [("recorded", &report.recorded), ("replayed", &report.replayed.figures)].into_iter().chain(what_if)
}

fn table(report: &ReplayReport, unit: Unit) -> Table {
    let mut table = Table::new(&[
        "",
        "POLICY",
        "HOSTS>",
        "GPUS>",
        "STARTED>",
        "MEAN WAIT>",
        "MEDIAN>",
        "P99>",
        "LONGEST>",
        "USE>",
        "MAKESPAN>",
        "EVICTIONS>",
    ]);
    let replayed = &report.replayed;
    let recorded = ("-", replayed.hosts, replayed.gpus);
    let of = |run: &'_ Run| (run.policy.clone(), run.hosts, run.gpus);
    let runs = std::iter::once((recorded.0.to_owned(), recorded.1, recorded.2))
        .chain(std::iter::once(of(replayed)))
        .chain(report.what_if.iter().map(of));
    for ((what, figures), (policy, hosts, gpus)) in courses(report).zip(runs) {
        table.row([
            what.to_owned(),
            policy,
            hosts.to_string(),
            gpus.to_string(),
            format!("{}/{}", figures.started, figures.started + figures.never_started),
            unit.text(figures.mean_wait_s),
            unit.text(figures.median_wait_s),
            unit.text(figures.p99_wait_s),
            unit.text(figures.max_wait_s),
            format!("{:.1}%", figures.utilisation_percent),
            unit.text(figures.makespan_s),
            figures.evictions.map_or("-".to_owned(), |count| count.to_string()),
        ]);
    }
    table
}

/// Who waited: a row for each queue and course.
fn queue_table(report: &ReplayReport, unit: Unit) -> Table {
    let mut table = Table::new(&["QUEUE", "", "STARTED>", "MEAN WAIT>", "MEDIAN>", "LONGEST>"]);
    for at in 0..report.replayed.figures.queues.len() {
        for (what, figures) in courses(report) {
            let Some(row) = figures.queues.get(at) else { continue };
            table.row([
                row.queue.clone(),
                what.to_owned(),
                format!("{}/{}", row.started, row.jobs),
                unit.text(row.mean_wait_s),
                unit.text(row.median_wait_s),
                unit.text(row.max_wait_s),
            ]);
        }
    }
    table
}

fn lines(report: &ReplayReport, unit: Unit) -> Vec<Series> {
    let of = |(name, figures): (&'static str, &Figures)| {
        let waits = figures.wait_ms_by_percent.iter().enumerate();
        line(name, waits.map(|(percent, ms)| (percent as f64, *ms as f64 / 1_000.0 / unit.seconds)))
    };
    courses(report).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(max_wait_s: f64) -> Run {
        let wait_ms = (max_wait_s * 1_000.0) as u64;
        let figures = Figures { max_wait_s, wait_ms_by_percent: vec![0, wait_ms], ..Figures::default() };
        Run { policy: "rota".into(), hosts: 1, gpus: 1, figures }
    }

    #[test]
    fn tables_and_chart_tell_waits_in_one_unit() {
        for (longest_s, unit, text, point) in [
            (0.0, "s", "0.0 s", 0.0),
            (119.0, "s", "119.0 s", 119.0),
            (180.0, "min", "3.0 min", 3.0),
            (9_000.0, "h", "2.5 h", 2.5),
        ] {
            let report = ReplayReport {
                jobs: 1,
                run_times_guessed: 0,
                seed: 1,
                jitter_ms: 0,
                recorded: run(0.0).figures,
                replayed: run(longest_s),
                what_if: Some(run(longest_s / 2.0)),
                seconds: 0.0,
            };
            let chosen = Unit::of(&report);
            assert_eq!((chosen.name, chosen.text(longest_s).as_str()), (unit, text));
            assert!(table(&report, chosen).to_string().contains(text), "{text}");
            let lines = lines(&report, chosen);
            assert_eq!(lines.len(), 3);
            assert_eq!(lines[1].points, [(0.0, 0.0), (1.0, point)]);
        }
    }
}
