//! Admission: many short jobs of many queues, each queue guaranteed a little and free to borrow within its cohort, on
//! a cluster that has just what is guaranteed. Runs pass in virtual time; counted is the wall time that the scheduler
//! takes from the first submission to the last start, rounds and state together.
//!
//! The mix follows the published scalability test of Kueue: of each 500 jobs 350 small (1 CPU, 200 ms), 100 medium
//! (5 CPUs, 500 ms) and 50 large (20 CPUs, 1 s); queues of 20 CPUs in cohorts of six.

use crate::cluster::{Cluster, ClusterError, HostKind};
use rota_core::placement::PlanConfig;
use rota_protocol::Token;
use rota_protocol::ask::Ask;
use rota_protocol::command::Command;
use rota_protocol::job::{AttemptEnd, JobSpec};
use rota_protocol::plan::Move;
use rota_protocol::queue::{Amounts, Ceiling, QueueSpec};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Queues of one cohort.
const COHORT: usize = 6;
/// CPU guaranteed to each queue, in thousandths of a core.
const QUEUE_CPUS_MILLI: u64 = 20_000;
/// CPU of one host, in thousandths of a core.
const HOST_CPUS_MILLI: u32 = 120_000;
/// Small, medium, large: jobs of 10, CPU in thousandths of a core, run time in ms, priority.
const CLASSES: [(usize, u32, u64, u16); 3] =
    [(7, 1_000, 200, 50), (2, 5_000, 500, 60), (1, 20_000, 1_000, 70)];

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdmitReport {
    /// Jobs.
    pub jobs: usize,
    /// Queues.
    pub queues: usize,
    /// Wall time of the scheduler, s: submissions, rounds, ends.
    pub scheduler_s: f64,
    /// Of that, rounds alone.
    pub rounds_s: f64,
    /// Rounds.
    pub rounds: usize,
    /// Virtual time from the first submission to the last end, s.
    pub makespan_s: f64,
    /// Jobs that were started.
    pub started: usize,
}

/// Runs all jobs.
///
/// # Errors
/// The scheduler refused what the bench must be able to do.
pub fn run(jobs: usize, queues: usize) -> Result<AdmitReport, ClusterError> {
    let mut cluster = cluster(queues)?;
    let start_ms = cluster.now_ms();
    let (mut spent, mut in_rounds, mut rounds, mut started) = (Duration::ZERO, Duration::ZERO, 0, 0);
    let begun = Instant::now();
    for job in 0..jobs {
        let queue = job % queues;
        let (_, cpus_milli, run_ms, priority) = class_of(job / queues);
        let name = queue_name(queue);
        let spec = JobSpec {
            name: run_ms.to_string(),
            argv: vec![b"true".to_vec()],
            ask: Ask { cpus_milli, ..Ask::default() },
            queue: name,
            priority,
            preemptible: false,
            ..JobSpec::default()
        };
        cluster.submit(&format!("cohort-{}", queue / COHORT), "u", spec)?;
    }
    spent += begun.elapsed();
    let mut ends: BTreeMap<u64, Vec<(Token, u64)>> = BTreeMap::new();
    loop {
        let begun = Instant::now();
        let moves = cluster.round()?;
        in_rounds += begun.elapsed();
        spent += begun.elapsed();
        rounds += 1;
        for one in &moves {
            let Move::Place { task, .. } = one else {
                continue;
            };
            let Some(attempt) = cluster.state().attempt_of(*task) else {
                continue;
            };
            let run_ms =
                cluster.state().job(task.job).and_then(|job| job.spec.name.parse().ok()).unwrap_or(1);
            ends.entry(cluster.now_ms() + run_ms).or_default().push((attempt.token, run_ms));
            started += 1;
        }
        if !moves.is_empty() {
            // The copy may have been cut: as a leader does, look again.
            continue;
        }
        let Some((at_ms, over)) = ends.pop_first() else {
            break;
        };
        cluster.advance_to(at_ms);
        let begun = Instant::now();
        for (token, ran_ms) in over {
            cluster.end(token, AttemptEnd::Exited { code: 0 }, ran_ms)?;
        }
        spent += begun.elapsed();
    }
    Ok(AdmitReport {
        jobs,
        queues,
        scheduler_s: spent.as_secs_f64(),
        rounds_s: in_rounds.as_secs_f64(),
        rounds,
        makespan_s: (cluster.now_ms() - start_ms) as f64 / 1_000.0,
        started,
    })
}

fn cluster(queues: usize) -> Result<Cluster, ClusterError> {
    let all = QUEUE_CPUS_MILLI * queues as u64;
    let hosts = all.div_ceil(u64::from(HOST_CPUS_MILLI)) as usize;
    let kind = HostKind { cpus_milli: HOST_CPUS_MILLI, mem_mib: 1 << 20, ..HostKind::default() };
    let config = PlanConfig { promise_after_ms: 60_000, ..PlanConfig::default() };
    let mut cluster = Cluster::new(&vec![kind; hosts], config)?;
    for cohort in 0..queues.div_ceil(COHORT) {
        cluster.system(Command::SetQueue { queue: QueueSpec::open(&format!("cohort-{cohort}")) })?;
    }
    for queue in 0..queues {
        let guarantee = Amounts { cpus_milli: QUEUE_CPUS_MILLI, ..Amounts::default() };
        let ceiling = Ceiling { cpus_milli: Some(6 * QUEUE_CPUS_MILLI), ..Ceiling::default() };
        let spec = QueueSpec { guarantee, ceiling, ..QueueSpec::open(&queue_name(queue)) };
        cluster.system(Command::SetQueue { queue: spec })?;
    }
    Ok(cluster)
}

fn queue_name(queue: usize) -> String {
    format!("cohort-{}/queue-{}", queue / COHORT, queue % COHORT)
}

/// The class of a queue's nth job.
fn class_of(nth: usize) -> (usize, u32, u64, u16) {
    let mut place = nth % 10;
    for class in CLASSES {
        if place < class.0 {
            return class;
        }
        place -= class.0;
    }
    CLASSES[0]
}
