//! `rota sim openb`: one run for each pod list and policy named, and the published figures beside it if they are given.

use super::show::{Progress, Shown, line};
use super::{OpenbArgs, unusable};
use crate::cli::failure::Failure;
use crate::table::Table;
use rota_core::placement::score::Policy;
use rota_sim::chart::Series;
use rota_sim::openb::{
    self, Compared, OpenbConfig, OpenbError, OpenbReport, Pace, Published, SeedReport, TOLERANCE,
};
use std::collections::BTreeSet;

/// Demand that arrives in `openb`, in percent of the GPUs, as published.
const TUNE_PERCENT: u64 = 130;

/// Points by which a run may differ from the published one of its seed and count as the same: both are rounded means.
const EXACT: f64 = 0.01;

/// Runs `rota sim openb`.
pub(super) fn run(args: &OpenbArgs) -> Result<Shown, Failure> {
    let published = args.published.as_deref().map(Published::read).transpose().map_err(unusable)?;
    let seeds = (args.seeds.last - args.seeds.first + 1) as usize;
    let progress = Progress::new(seeds * args.policy.len() * args.pods.len());
    let mut reports = Vec::new();
    for (pods, policy) in args.pods.iter().flat_map(|pods| args.policy.iter().map(move |one| (pods, one))) {
        let config = OpenbConfig {
            nodes: args.nodes.clone(),
            pods: pods.clone(),
            policy: *policy,
            seeds: args.seeds.first..=args.seeds.last,
            online: args.online,
            reference: args.reference || *policy != Policy::Rota,
            tune_percent: TUNE_PERCENT,
            draws: args.draws,
        };
        let done = |seed: u64| progress.step(&format!("openb {policy} seed {seed}"));
        let pace = Pace { threads: usize::from(args.threads), done: &done };
        let report = openb::run_at(&config, &pace).map_err(openb_failure)?;
        reports.push(match &published {
            Some(table) => report.beside(table, *policy),
            None => report,
        });
    }
    let mut shown = Shown::of(&reports)?.table(openb_table(&reports));
    if published.is_some() {
        shown = shown.table(published_table(&reports)).note(verdict(&reports));
    }
    if let [report] = reports.as_slice() {
        shown = shown.table(seed_table(&report.per_seed));
    }
    let title = "GPUs allocated as demand arrives";
    let (x, y) = ("GPU demand that has arrived, % of the cluster", "GPUs, % of the cluster");
    if args.pods.len() == 1 {
        shown = shown.chart(title, x, y, openb_lines(&reports));
    }
    Ok(if reports.iter().any(|report| report.threads > 1) {
        shown.note("seeds ran side by side: times of decisions are those of a shared machine")
    } else {
        shown
    })
}

/// How all cells together compare.
fn verdict(reports: &[OpenbReport]) -> String {
    let cells: Vec<(&str, Compared)> =
        reports.iter().filter_map(|report| Some((report.workload.as_str(), report.published?))).collect();
    let within = cells.iter().filter(|(_, cell)| cell.difference.abs() <= TOLERANCE).count();
    let (same, other): (Vec<_>, Vec<_>) = cells.iter().copied().partition(|(_, cell)| cell.same_arrivals());
    let exact = same.iter().filter(|(_, cell)| cell.by_seed.is_some_and(|apart| apart < EXACT)).count();
    let others: BTreeSet<&str> = other.iter().map(|(workload, _)| *workload).collect();
    let mut text = format!(
        "{within} of {} cells within {TOLERANCE} points of the published mean. The same asks arrived in the same order as \
         in {} published cells; in {exact} of these each run ends within {EXACT} points of the published run of its seed, \
         on average",
        cells.len(),
        same.len()
    );
    if !others.is_empty() {
        let list = others.into_iter().collect::<Vec<_>>().join(", ");
        let expected: f64 = other.iter().map(|(_, cell)| cell.chance_within).sum();
        text += &format!(
            ". Published runs of {list} saw other arrivals: two such draws from one distribution agree within {TOLERANCE} \
             in {expected:.1} of {} cells",
            other.len()
        );
    }
    text
}

fn published_table(reports: &[OpenbReport]) -> Table {
    let mut table = Table::new(&[
        "WORKLOAD",
        "POLICY",
        "SEEDS>",
        "MEAN>",
        "SD>",
        "PUBLISHED>",
        "SEEDS>",
        "SD>",
        "DIFFERENCE>",
        "BY SEED>",
        "ARRIVALS>",
        "Z>",
        "AGREE>",
    ]);
    for report in reports {
        let Some(cell) = report.published else {
            continue;
        };
        table.row([
            report.workload.clone(),
            report.policy.clone(),
            report.per_seed.len().to_string(),
            format!("{:.2}%", report.allocated_at_100),
            format!("{:.2}", report.sd),
            format!("{:.2}%", cell.allocated_at_100),
            cell.seeds.to_string(),
            format!("{:.2}", cell.sd),
            format!("{:+.2}", cell.difference),
            cell.by_seed.map_or_else(|| "-".to_owned(), |apart| format!("{apart:.3}")),
            cell.arrivals_apart.map_or_else(|| "-".to_owned(), |apart| format!("{apart:.3}")),
            format!("{:+.2}", cell.z),
            format!("{:.0}%", cell.chance_within * 100.0),
        ]);
    }
    table
}

fn openb_failure(error: OpenbError) -> Failure {
    match error {
        OpenbError::Cluster(error) => Failure::other(error),
        wrong => unusable(wrong),
    }
}

fn openb_table(reports: &[OpenbReport]) -> Table {
    let mut table = Table::new(&[
        "WORKLOAD",
        "POLICY",
        "ENGINE",
        "ALLOCATED AT 100%>",
        "SD>",
        "PLACED>",
        "DECISION P50>",
        "P99>",
        "TOOK>",
    ]);
    for report in reports {
        table.row([
            report.workload.clone(),
            report.policy.clone(),
            report.engine.clone(),
            format!("{:.2}%", report.allocated_at_100),
            format!("{:.2}", report.sd),
            report.placements.to_string(),
            format!("{:.1} us", report.decision_us_p50),
            format!("{:.1} us", report.decision_us_p99),
            format!("{:.1} s", report.seconds),
        ]);
    }
    table
}

fn seed_table(seeds: &[SeedReport]) -> Table {
    let mut table = Table::new(&["SEED>", "ALLOCATED AT 100%>", "PLACED>", "DROPPED>"]);
    for seed in seeds {
        table.row([
            seed.seed.to_string(),
            format!("{:.2}%", seed.allocated_at_100),
            seed.placed.to_string(),
            seed.dropped.to_string(),
        ]);
    }
    table
}

fn openb_lines(reports: &[OpenbReport]) -> Vec<Series> {
    let mut lines: Vec<Series> = reports
        .iter()
        .map(|report| {
            let points = report.curve.iter().map(|point| (point.arrived as f64, point.allocated));
            line(format!("{} allocated", report.policy), points)
        })
        .collect();
    if let [report] = reports {
        let points = report.curve.iter().map(|point| (point.arrived as f64, point.fragment));
        lines.push(line("in fragments", points));
    }
    lines
}
