//! Rounds at a given scale. A tenth of the hosts has cards of a model that is all taken, and every waiting job but
//! those of an event asks for that model: they are looked at in each round and cannot start. The other hosts are
//! filled to the occupancy asked.

use super::{Times, rss_kib};
use crate::cluster::{Cluster, ClusterError, HostKind};
use crate::rng::Rng;
use rota_core::placement::{PlanConfig, Planner, View};
use rota_protocol::Token;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::job::{ArraySpec, AttemptEnd, JobSpec};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Model of the hosts that take new work.
const OPEN: &str = "open-80";
/// Model of the hosts that are full.
const FULL: &str = "full-80";
/// CPU for each card, in thousandths of a core.
const CPUS_PER_CARD_MILLI: u32 = 8_000;

/// Fewest rounds of a kind, however long they take.
const ROUNDS_MIN: usize = 20;
/// Time of one kind of rounds after which no more are begun: with many different asks one takes a sixth of a second.
const ROUNDS_FOR: Duration = Duration::from_secs(10);

/// At what scale.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanBench {
    /// Hosts.
    pub hosts: usize,
    /// Cards of each.
    pub gpus: u32,
    /// Jobs that wait.
    pub jobs: usize,
    /// Different asks among them.
    pub kinds: usize,
    /// Cards taken on hosts that are open, in percent.
    pub occupancy_percent: u32,
    /// Rounds with one event each; fewer if they take long.
    pub events: usize,
    /// Cold rounds.
    pub cold: usize,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanReport {
    /// Hosts.
    pub hosts: usize,
    /// Cards of each.
    pub gpus: u32,
    /// Jobs that wait.
    pub jobs: usize,
    /// Different asks among them.
    pub kinds: usize,
    /// Cards taken on open hosts, in percent.
    pub occupancy_percent: u32,
    /// Copying the view, planning and dropping the copy, after one task ended and one job came.
    pub one_event: Times,
    /// Of that, copying the view.
    pub view: Times,
    /// Rounds of a planner that has just come to lead, with 1,024 tasks that can start.
    pub cold: Times,
    /// The same by the planner that has led all along.
    pub warm_full: Times,
    /// Rounds in which nothing has changed.
    pub unchanged: Times,
    /// Memory of the process with state and planner, MiB.
    pub rss_mib: u64,
}

/// Builds the cluster and times its rounds.
///
/// # Errors
/// The scheduler refused what the bench must be able to do.
pub fn run(bench: &PlanBench) -> Result<PlanReport, ClusterError> {
    let mut cluster = filled(bench)?;
    submit_waiting(&mut cluster, bench)?;
    let config = cluster.config.clone();
    let mut planner = Planner::default();
    let now_ms = cluster.now_ms();
    // Whatever is to be promised is promised before the clock is read.
    while !cluster.round()?.is_empty() {}
    let _ = planner.plan(&View::of(cluster.state(), now_ms), &config, now_ms);
    let (one_event, view) = events(&mut cluster, &mut planner, bench)?;
    let begun = Instant::now();
    let unchanged = (0..bench.events.min(200)).take_while(|round| goes_on(*round, begun)).map(|_| {
        let started = Instant::now();
        let view = View::of(cluster.state(), now_ms);
        let _ = planner.plan(&view, &config, now_ms);
        drop(view);
        started.elapsed()
    });
    let unchanged = Times::of(unchanged.collect());
    let rss_mib = rss_kib().unwrap_or(0) / 1_024;
    let tasks = ArraySpec { start: 0, end: 1_023, step: 1, parallel_max: 0 };
    cluster.submit("bench", "events", JobSpec { array: Some(tasks), ..one_card(OPEN, 1_000) })?;
    let view_now = View::of(cluster.state(), now_ms);
    let cold = (0..bench.cold).map(|_| {
        let started = Instant::now();
        let _ = Planner::default().plan(&view_now, &config, now_ms);
        started.elapsed()
    });
    let cold = Times::of(cold.collect());
    let warm = (0..bench.cold).map(|_| {
        let started = Instant::now();
        let _ = planner.plan(&view_now, &config, now_ms);
        started.elapsed()
    });
    let warm_full = Times::of(warm.collect());
    Ok(PlanReport {
        hosts: bench.hosts,
        gpus: bench.gpus,
        jobs: bench.jobs,
        kinds: bench.kinds,
        occupancy_percent: bench.occupancy_percent,
        one_event,
        view,
        cold,
        warm_full,
        unchanged,
        rss_mib,
    })
}

/// Whether another round is worth its time.
fn goes_on(rounds: usize, begun: Instant) -> bool {
    rounds < ROUNDS_MIN || begun.elapsed() < ROUNDS_FOR
}

/// One task ends, one job comes, one round.
fn events(
    cluster: &mut Cluster,
    planner: &mut Planner,
    bench: &PlanBench,
) -> Result<(Times, Times), ClusterError> {
    let mut rng = Rng::new(7);
    let config = cluster.config.clone();
    let (mut rounds, mut views) = (Vec::new(), Vec::new());
    let mut live: Vec<Token> = Vec::new();
    let begun = Instant::now();
    for _ in (0..bench.events).take_while(|round| goes_on(*round, begun)) {
        if live.is_empty() {
            let open = cluster.state().attempts().filter(|attempt| attempt.user == "open");
            live = open.map(|attempt| attempt.token).collect();
        }
        if !live.is_empty() {
            let token = live.swap_remove(rng.below(live.len() as u64) as usize);
            cluster.end(token, AttemptEnd::Exited { code: 0 }, 1_000)?;
        }
        cluster.submit("bench", "open", one_card(OPEN, 1_000 + rng.below(8) as u32 * 500))?;
        let now_ms = cluster.now_ms();
        let started = Instant::now();
        let view = View::of(cluster.state(), now_ms);
        views.push(started.elapsed());
        let plan = planner.plan(&view, &config, now_ms);
        drop(view);
        rounds.push(started.elapsed());
        cluster.commit(plan)?;
    }
    Ok((Times::of(rounds), Times::of(views)))
}

/// Hosts, filled through the planner itself.
fn filled(bench: &PlanBench) -> Result<Cluster, ClusterError> {
    let full = bench.hosts.div_ceil(10);
    let kind = |model: &str| HostKind {
        cpus_milli: bench.gpus * CPUS_PER_CARD_MILLI,
        mem_mib: u64::from(bench.gpus) * 65_536,
        cards: bench.gpus,
        model: model.into(),
        vram_mib: Some(81_920),
    };
    let kinds: Vec<HostKind> = (0..bench.hosts).map(|at| kind(if at < full { FULL } else { OPEN })).collect();
    let mut cluster = Cluster::new(&kinds, PlanConfig::default())?;
    let open_cards = (bench.hosts - full) as u64 * u64::from(bench.gpus);
    let taken = open_cards * u64::from(bench.occupancy_percent) / 100;
    for (model, user, tasks) in [(FULL, "full", full as u64 * u64::from(bench.gpus)), (OPEN, "open", taken)] {
        if tasks > 0 {
            let array = ArraySpec { start: 0, end: tasks as u32 - 1, step: 1, parallel_max: 0 };
            cluster.submit("bench", user, JobSpec { array: Some(array), ..one_card(model, 4_000) })?;
        }
    }
    while !cluster.round()?.is_empty() {}
    let tokens: Vec<Token> = cluster.state().attempts().map(|attempt| attempt.token).collect();
    for token in tokens {
        cluster.started(token)?;
    }
    Ok(cluster)
}

fn submit_waiting(cluster: &mut Cluster, bench: &PlanBench) -> Result<(), ClusterError> {
    for job in 0..bench.jobs {
        let kind = (job % bench.kinds.max(1)) as u32;
        cluster.submit("bench", "waiting", one_card(FULL, 1_000 + kind))?;
    }
    Ok(())
}

fn one_card(model: &str, cpus_milli: u32) -> JobSpec {
    JobSpec {
        name: "bench".into(),
        argv: vec![b"true".to_vec()],
        ask: Ask { gpu_milli: CARD_MILLI, gpu_models: vec![model.into()], cpus_milli, ..Ask::default() },
        time_limit_ms: Some(3_600_000),
        ..JobSpec::default()
    }
}
