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
    let mut shown = Shown::of(std::slice::from_ref(&report))?.table(table(&report)).chart(
        "Waits by share of the jobs",
        "jobs that wait no longer, %",
        "wait, h",
        lines(&report),
    );
    if guessed > 0 {
        shown = shown.note(format!("{guessed} of {} run times are not known and were guessed", report.jobs));
    }
    if report.what_if.is_none() {
        shown = shown.note("what if: --add-hosts 4x8xH100, --without-hosts NAME, --policy fgd");
    }
    Ok(shown)
}

fn table(report: &ReplayReport) -> Table {
    let mut table = Table::new(&[
        "",
        "POLICY",
        "HOSTS>",
        "GPUS>",
        "STARTED>",
        "MEAN WAIT>",
        "MEDIAN>",
        "P99>",
        "USE>",
        "MAKESPAN>",
        "EVICTIONS>",
    ]);
    let hosts = |run: &Run| (run.policy.clone(), run.hosts.to_string(), run.gpus.to_string());
    let mut row = |what: &str, run: (String, String, String), figures: &Figures| {
        table.row([
            what.to_owned(),
            run.0,
            run.1,
            run.2,
            format!("{}/{}", figures.started, figures.started + figures.never_started),
            seconds(figures.mean_wait_s),
            seconds(figures.median_wait_s),
            seconds(figures.p99_wait_s),
            format!("{:.1}%", figures.utilisation_percent),
            seconds(figures.makespan_s),
            figures.evictions.map_or("-".to_owned(), |count| count.to_string()),
        ]);
    };
    let (_, all_hosts, all_gpus) = hosts(&report.replayed);
    row("recorded", ("-".into(), all_hosts, all_gpus), &report.recorded);
    row("replayed", hosts(&report.replayed), &report.replayed.figures);
    if let Some(run) = &report.what_if {
        row("what if", hosts(run), &run.figures);
    }
    table
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.1} s")
}

fn lines(report: &ReplayReport) -> Vec<Series> {
    let of = |name: &str, figures: &Figures| {
        let waits = figures.wait_ms_by_percent.iter().enumerate();
        line(name, waits.map(|(percent, wait_ms)| (percent as f64, *wait_ms as f64 / 3_600_000.0)))
    };
    let mut lines = vec![of("recorded", &report.recorded), of("replayed", &report.replayed.figures)];
    lines.extend(report.what_if.iter().map(|run| of("what if", &run.figures)));
    lines
}
