//! `rota bench plan|reclaim|admit|replicas`: the planner's own time, and whether all replicas plan alike, on a cluster in memory, without processes and network. What
//! is built and timed stands in `rota_sim::bench`; here are the arguments and the names of the figures.

use super::figures::Figures;
use crate::lab::LabError;
use clap::Args;
use rota_sim::bench::{admit, plan, reclaim, replicas};
use rota_sim::cluster::HOSTS_MAX;
use serde::Serialize;

/// Rounds with one event each.
const EVENTS: usize = 500;
/// Rounds of a planner that has just come to lead.
const COLD: usize = 10;

/// `rota bench plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Hosts
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=HOSTS_MAX as i64))]
    pub hosts: u32,
    /// Cards of each
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub gpus: u32,
    /// Jobs that wait
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(0..=900_000))]
    pub jobs: u32,
    /// Cards that are taken on hosts that take new work, in percent
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub occupancy: u32,
    /// Different asks among the jobs that wait
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub kinds: u32,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench reclaim`
#[derive(Debug, Args)]
pub struct ReclaimArgs {
    /// Hosts of eight cards
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=HOSTS_MAX as i64))]
    pub hosts: u32,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench admit`
#[derive(Debug, Args)]
pub struct AdmitArgs {
    /// Jobs over all queues
    #[arg(long, default_value_t = 15_000, value_parser = clap::value_parser!(u32).range(1..=900_000))]
    pub jobs: u32,
    /// Queues
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub queues: u32,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench replicas`
#[derive(Debug, Args)]
pub struct ReplicasArgs {
    /// Hosts of eight cards
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=HOSTS_MAX as i64))]
    pub hosts: u32,
    /// Rounds with some events each
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub rounds: u32,
    /// What the events are drawn from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota bench plan`.
///
/// # Errors
/// The scheduler refused what the bench must be able to do.
pub fn plan(args: &PlanArgs) -> Result<Figures, LabError> {
    let bench = plan::PlanBench {
        hosts: args.hosts as usize,
        gpus: args.gpus,
        jobs: args.jobs as usize,
        kinds: args.kinds as usize,
        occupancy_percent: args.occupancy,
        events: EVENTS,
        cold: COLD,
    };
    figures(&plan::run(&bench)?)
}

/// Runs `rota bench reclaim`.
///
/// # Errors
/// The scheduler refused what the bench must be able to do.
pub fn reclaim(args: &ReclaimArgs) -> Result<Figures, LabError> {
    figures(&reclaim::run(args.hosts as usize)?)
}

/// Runs `rota bench admit`.
///
/// # Errors
/// The scheduler refused what the bench must be able to do.
pub fn admit(args: &AdmitArgs) -> Result<Figures, LabError> {
    figures(&admit::run(args.jobs as usize, args.queues as usize)?)
}

/// Runs `rota bench replicas`.
///
/// # Errors
/// Two replicas differ, or the scheduler refused what the check must be able to do.
pub fn replicas(args: &ReplicasArgs) -> Result<Figures, LabError> {
    let (hosts, rounds) = (args.hosts as usize, args.rounds as usize);
    let check = replicas::ReplicaCheck { hosts, rounds, seed: args.seed };
    figures(&replicas::run(&check).map_err(LabError::Replicas)?)
}

fn figures(report: &impl Serialize) -> Result<Figures, LabError> {
    let mut figures = Figures::default();
    figures.report(report).map_err(|error| LabError::Io("a report".into(), error.into()))?;
    Ok(figures)
}
