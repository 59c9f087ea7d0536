//! `rota sim swf|gavel|shockwave`: published experiments, one run for each policy (and rate, or size) named.

use super::show::{Progress, Shown, line};
use super::{GavelArgs, ShockwaveArgs, SwfArgs, unusable};
use crate::cli::failure::Failure;
use crate::table::Table;
use rota_sim::gavel::{self, GavelConfig, GavelError, GavelReport};
use rota_sim::shockwave::{self, ShockwaveConfig, ShockwaveError, ShockwaveReport};
use rota_sim::swf::log::{Log, LogError};
use rota_sim::swf::outcome::SwfReport;
use rota_sim::swf::{self, SwfError};
use rota_sim::threads;
use serde::Serialize;
use std::fmt::Display;

/// The measured jobs of `gavel`, as published.
const WINDOW: (u64, u64) = (4_000, 5_000);

/// Runs `rota sim swf`.
pub(super) fn swf(args: &SwfArgs) -> Result<Shown, Failure> {
    let in_file = |error: &dyn Display| unusable(format!("{}: {error}", args.file.display()));
    let log = Log::read(&args.file, args.processors).map_err(|error| match error {
        named @ LogError::Io { .. } => unusable(named),
        unnamed => in_file(&unnamed),
    })?;
    let log = if args.exact { log.with_exact_limits() } else { log };
    let progress = Progress::new(args.policy.len());
    let reports = threads::map(&args.policy, usize::from(args.threads), |policy| {
        let report = swf::replay(&log, *policy);
        progress.step(&format!("swf {}", policy.name()));
        report
    });
    let reports = reports.into_iter().collect::<Result<Vec<_>, SwfError>>().map_err(|error| match error {
        SwfError::Cluster(error) => Failure::other(error),
        wrong => in_file(&wrong),
    })?;
    let lines = reports.iter().map(|report| {
        let points = report.wait_s_by_percent.iter().enumerate();
        line(
            report.policy.clone(),
            points.map(|(percent, wait_s)| (percent as f64, *wait_s as f64 / 3_600.0)),
        )
    });
    let note = format!(
        "{} jobs on {} processors; {} lines of the log pass no filter",
        log.jobs.len(),
        log.processors,
        log.left_out
    );
    let (title, x) = ("Waits by share of the jobs", "jobs that wait no longer, %");
    Ok(Shown::of(&reports)?.table(swf_table(&reports)).chart(title, x, "wait, h", lines.collect()).note(note))
}

fn swf_table(reports: &[SwfReport]) -> Table {
    let mut table = Table::new(&[
        "POLICY",
        "BOUNDED SLOWDOWN>",
        "MEAN WAIT>",
        "LONGEST WAIT>",
        "USE>",
        "PROMISES>",
        "BROKEN>",
        "TOOK>",
    ]);
    for report in reports {
        table.row([
            report.policy.clone(),
            format!("{:.2}", report.avg_bounded_slowdown),
            format!("{:.0} s", report.mean_wait_s),
            format!("{} s", report.max_wait_s),
            format!("{:.1}%", report.utilisation_permille as f64 / 10.0),
            report.promises.to_string(),
            report.promises_broken.to_string(),
            format!("{:.1} s", report.seconds),
        ]);
    }
    table
}

/// A report of one of several runs, with what was varied.
#[derive(Serialize)]
struct Varied<R: Serialize> {
    policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs_per_hour: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    multi_gpu: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<u32>,
    #[serde(flatten)]
    report: R,
}

/// Runs `rota sim gavel`.
pub(super) fn gavel(args: &GavelArgs) -> Result<Shown, Failure> {
    let progress = Progress::new(args.policy.len() * args.rate.len());
    let mut reports: Vec<Varied<GavelReport>> = Vec::new();
    for policy in &args.policy {
        for rate in &args.rate {
            let config = GavelConfig {
                throughputs: args.throughputs.clone(),
                jobs_per_hour: *rate,
                multi_gpu: args.multi_gpu,
                policy: *policy,
                // Their parser takes no larger ones.
                seeds: (args.seeds.first as u32..=args.seeds.last as u32).collect(),
                window: WINDOW,
                restart_ms: args.restart,
            };
            let report = gavel::run_on(&config, usize::from(args.threads)).map_err(|error| match error {
                named @ (GavelError::Input(_) | GavelError::Field(_) | GavelError::Endless) => {
                    unusable(named)
                }
                GavelError::Cluster(error) => Failure::other(error),
                unnamed => unusable(format!("{}: {unnamed}", args.throughputs.display())),
            })?;
            let (policy, multi_gpu) = (policy.name(), Some(args.multi_gpu));
            progress.step(&format!("gavel {policy} at {rate} jobs an hour"));
            reports.push(Varied { policy, jobs_per_hour: Some(*rate), multi_gpu, gpus: None, report });
        }
    }
    let mut table = Table::new(&[
        "POLICY",
        "JOBS/H>",
        "COMPLETION>",
        "BY SEED",
        "FAIRNESS>",
        "WORST>",
        "USE>",
        "MOVES/ROUND>",
    ]);
    for row in &reports {
        let by_seed = row.report.completion_h_by_seed.iter().map(|hours| format!("{hours:.1}"));
        table.row([
            row.policy.to_owned(),
            row.jobs_per_hour.unwrap_or(0.0).to_string(),
            format!("{:.2} h", row.report.completion_h_mean),
            by_seed.collect::<Vec<_>>().join(" "),
            format!("{:.2}", row.report.fairness_mean),
            format!("{:.2}", row.report.fairness_worst),
            format!("{:.1}%", row.report.utilisation * 100.0),
            format!("{:.1}", row.report.moves_per_round),
        ]);
    }
    let lines = args.policy.iter().map(|policy| {
        let rows = reports.iter().filter(|row| row.policy == policy.name());
        line(policy.name(), rows.map(|row| (row.jobs_per_hour.unwrap_or(0.0), row.report.completion_h_mean)))
    });
    let title = "Time from arrival to end";
    Ok(Shown::of(&reports)?.table(table).chart(title, "jobs an hour", "mean completion, h", lines.collect()))
}

/// Runs `rota sim shockwave`.
pub(super) fn shockwave(args: &ShockwaveArgs) -> Result<Shown, Failure> {
    let runs: Vec<_> =
        args.policy.iter().flat_map(|policy| args.gpus.iter().map(|gpus| (*policy, *gpus))).collect();
    let progress = Progress::new(runs.len());
    let reports = threads::map(&runs, usize::from(args.threads), |(policy, gpus)| {
        let (trace, throughputs) = (args.trace.clone(), args.throughputs.clone());
        let config = ShockwaveConfig { trace, throughputs, gpus: *gpus, policy: *policy };
        let report = shockwave::run(&config);
        progress.step(&format!("shockwave {} on {gpus} GPUs", policy.name()));
        let policy = policy.name();
        report.map(|report| Varied {
            policy,
            jobs_per_hour: None,
            multi_gpu: None,
            gpus: Some(*gpus),
            report,
        })
    });
    let reports: Vec<Varied<ShockwaveReport>> =
        reports.into_iter().collect::<Result<_, _>>().map_err(|error| match error {
            ShockwaveError::Cluster(error) => Failure::other(error),
            of_a_job @ (ShockwaveError::Long { .. }
            | ShockwaveError::Epochs { .. }
            | ShockwaveError::Stuck { .. }) => unusable(format!("{}: {of_a_job}", args.trace.display())),
            named => unusable(named),
        })?;
    let mut table = Table::new(&[
        "POLICY",
        "GPUS>",
        "MAKESPAN>",
        "COMPLETION>",
        "USE>",
        "WORST FAIRNESS>",
        "UNFAIR>",
        "STARTS>",
    ]);
    for row in &reports {
        table.row([
            row.policy.to_owned(),
            row.gpus.unwrap_or(0).to_string(),
            format!("{:.2} h", row.report.makespan_s / 3_600.0),
            format!("{:.2} h", row.report.completion_s_mean / 3_600.0),
            format!("{:.1}%", row.report.utilisation * 100.0),
            format!("{:.2}", row.report.fairness_worst),
            format!("{:.1}%", row.report.unfair_percent),
            row.report.starts.to_string(),
        ]);
    }
    let lines = args.policy.iter().map(|policy| {
        let rows = reports.iter().filter(|row| row.policy == policy.name());
        let point = |row: &Varied<ShockwaveReport>| {
            (f64::from(row.gpus.unwrap_or(0)), row.report.makespan_s / 3_600.0)
        };
        line(policy.name(), rows.map(point))
    });
    Ok(Shown::of(&reports)?.table(table).chart("Makespan by size", "GPUs", "makespan, h", lines.collect()))
}
