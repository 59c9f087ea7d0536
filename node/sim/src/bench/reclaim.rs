//! Gang reclaim: every card is taken by one-card jobs of a queue that is guaranteed nothing, and a gang of a tenth of
//! the hosts, all their cards each, waits in a queue that is guaranteed everything. Timed is the round that finds whom
//! to end and where the gang will start.

use super::Times;
use crate::cluster::{Cluster, ClusterError, HostKind};
use rota_core::placement::{PlanConfig, Planner, View};
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::command::Command;
use rota_protocol::job::{ArraySpec, JobSpec};
use rota_protocol::plan::Move;
use rota_protocol::queue::{Amounts, QueueSpec};
use rota_protocol::work::GangSpec;
use serde::Serialize;
use std::time::Instant;

/// Cards of a host.
const CARDS: u32 = 8;
/// Rounds that are timed, each by a fresh planner.
const ROUNDS: usize = 5;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReclaimReport {
    /// Hosts.
    pub hosts: usize,
    /// Half of the rounds took no longer, ms.
    pub plan_ms: f64,
    /// All rounds.
    pub rounds: Times,
    /// Attempts that are asked to end.
    pub victims: usize,
    /// Tasks of the gang that have a place once they are gone.
    pub slots: usize,
    /// The plan was committed as it is.
    pub committed: bool,
}

/// Builds the cluster and times the round.
///
/// # Errors
/// The scheduler refused what the bench must be able to do.
pub fn run(hosts: usize) -> Result<ReclaimReport, ClusterError> {
    let kind = HostKind {
        cpus_milli: CARDS * 8_000,
        mem_mib: 1 << 20,
        cards: CARDS,
        model: "H100".into(),
        vram_mib: Some(81_920),
    };
    let mut cluster = Cluster::new(&vec![kind; hosts], PlanConfig::default())?;
    let cards = hosts as u64 * u64::from(CARDS);
    cluster.system(Command::SetQueue { queue: QueueSpec::open("queue-0") })?;
    let guarantee = Amounts { gpu_milli: cards * u64::from(CARD_MILLI), ..Amounts::default() };
    cluster.system(Command::SetQueue { queue: QueueSpec { guarantee, ..QueueSpec::open("queue-1") } })?;
    let array = ArraySpec { start: 0, end: cards as u32 - 1, step: 1, parallel_max: 0 };
    cluster.submit("queue-0", "u", JobSpec { array: Some(array), ..job(1) })?;
    while !cluster.round()?.is_empty() {}
    let parts = (hosts as u32 / 10).max(1);
    let gang = Some(GangSpec { min: parts, max: parts });
    cluster.submit("queue-1", "u", JobSpec { gang, ..job(CARDS) })?;

    let now_ms = cluster.now_ms();
    let mut times = Vec::new();
    let mut plan = None;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let view = View::of(cluster.state(), now_ms);
        plan = Some(Planner::default().plan(&view, &cluster.config, now_ms));
        times.push(started.elapsed());
    }
    let rounds = Times::of(times);
    let plan = plan.unwrap_or_default();
    let found = plan.moves.iter().find_map(|one| match one {
        Move::Evict { victims, slots, .. } => Some((victims.len(), slots.len())),
        _ => None,
    });
    let (victims, slots) = found.unwrap_or_default();
    let committed = cluster.commit(plan).is_ok();
    Ok(ReclaimReport { hosts, plan_ms: rounds.p50_ms, rounds, victims, slots, committed })
}

fn job(cards: u32) -> JobSpec {
    JobSpec {
        argv: vec![b"true".to_vec()],
        ask: Ask { gpu_milli: cards * CARD_MILLI, cpus_milli: cards * 4_000, ..Ask::default() },
        ..JobSpec::default()
    }
}
