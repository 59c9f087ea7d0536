//! The production scheduler as an engine for batch logs: one host with one card for each processor, a gang of one
//! card each for each job, one account. Hosts play their part by the log's run times.

use super::SwfError;
use super::log::{Log, LogJob};
use super::outcome::Outcome;
use crate::cluster::{Cluster, ClusterError, HOSTS_MAX, HostKind};
use rota_core::placement::PlanConfig;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::job::{AttemptEnd, JobSpec};
use rota_protocol::limits::GANG_PARTS_MAX;
use rota_protocol::plan::Move;
use rota_protocol::work::GangSpec;
use rota_protocol::{JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// A second of the log, in the scheduler's time.
const SECOND_MS: u64 = 1_000;

/// How the production scheduler is set up for a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    /// Lengths of its own limit that a job may wait before a promise to it is as early as can be.
    pub(super) slack_limits: u64,
}

/// Whether the production scheduler can have the machine and its jobs at all, before any of it is built.
pub(super) fn check(log: &Log) -> Result<(), SwfError> {
    if log.processors as usize > HOSTS_MAX {
        return Err(SwfError::Size(log.processors));
    }
    match log.jobs.iter().find(|job| job.processors > GANG_PARTS_MAX) {
        Some(wide) => Err(SwfError::Width { job: wide.number, processors: wide.processors }),
        None => Ok(()),
    }
}

/// Replays a log on the production scheduler.
pub(super) fn replay(log: &Log, setup: Setup) -> Result<Outcome, ClusterError> {
    let kind = HostKind { cpus_milli: 1_000, mem_mib: 1, cards: 1, model: "node".into(), vram_mib: None };
    let kinds = vec![kind; log.processors as usize];
    let config = PlanConfig {
        promise_slack_limits: setup.slack_limits,
        promise_after_ms: 0,
        promises_max: 1,
        grace_ms: 0,
        evicts: false,
        ..PlanConfig::default()
    };
    let cluster = Cluster::new(&kinds, config)?;
    let start_ms = cluster.now_ms();
    let mut replay = Replay {
        log,
        cluster,
        start_ms,
        jobs: BTreeMap::new(),
        ends: BTreeMap::new(),
        wakes: BTreeSet::new(),
        outcome: Outcome::new(log.jobs.len()),
    };
    replay.run()?;
    replay.outcome.accuracy = *replay.cluster.state().history().accuracy();
    Ok(replay.outcome)
}

struct Replay<'l> {
    log: &'l Log,
    cluster: Cluster,
    /// The scheduler's time of second 0.
    start_ms: u64,
    /// Positions in the log of jobs that are not over.
    jobs: BTreeMap<JobId, usize>,
    /// What ends when, ms.
    ends: BTreeMap<(u64, JobId), Vec<Token>>,
    /// Promised starts, ms.
    wakes: BTreeSet<u64>,
    outcome: Outcome,
}

impl Replay<'_> {
    fn run(&mut self) -> Result<(), ClusterError> {
        let mut submitted = 0;
        while let Some(now_ms) = self.next_ms(submitted) {
            self.cluster.advance_to(now_ms);
            self.wakes.retain(|at_ms| *at_ms > now_ms);
            self.end_jobs(now_ms)?;
            while let Some(job) =
                self.log.jobs.get(submitted).filter(|job| self.at_ms(job.submit_s) <= now_ms)
            {
                let id = self.cluster.submit("log", "all", spec(job))?;
                self.jobs.insert(id, submitted);
                submitted += 1;
            }
            // A round that starts something may leave room for a promise; the next one sees it.
            while self.round()? {}
        }
        Ok(())
    }

    /// One round; whether it did anything.
    fn round(&mut self) -> Result<bool, ClusterError> {
        let moves = self.cluster.round()?;
        for one in &moves {
            match one {
                Move::Start { job, .. } => self.started(*job)?,
                Move::Place { task, .. } => self.started(task.job)?,
                Move::Promise { job, at_ms, .. } => {
                    self.wakes.insert(*at_ms);
                    let at_s = (at_ms - self.start_ms).div_ceil(SECOND_MS);
                    if let Some(at) = self.jobs.get(job) {
                        self.outcome.promised_s[*at].get_or_insert(at_s);
                    }
                }
                Move::Evict { .. } | Move::Lapse { .. } => {}
            }
        }
        Ok(!moves.is_empty())
    }

    fn started(&mut self, id: JobId) -> Result<(), ClusterError> {
        let Some(at) = self.jobs.get(&id).copied() else {
            return Ok(());
        };
        let tokens: Vec<Token> = self.cluster.state().attempts_of(id).map(|attempt| attempt.token).collect();
        for token in &tokens {
            self.cluster.started(*token)?;
        }
        let now_ms = self.cluster.now_ms();
        self.outcome.start_s[at] = (now_ms - self.start_ms) / SECOND_MS;
        self.ends.insert((now_ms + self.log.jobs[at].run_s * SECOND_MS, id), tokens);
        Ok(())
    }

    fn end_jobs(&mut self, now_ms: u64) -> Result<(), ClusterError> {
        while let Some(((at_ms, id), _)) =
            self.ends.first_key_value().map(|(key, tokens)| (*key, tokens.len()))
            && at_ms <= now_ms
        {
            let ran_ms = self.jobs.remove(&id).map_or(0, |at| self.log.jobs[at].run_s * SECOND_MS);
            for token in self.ends.remove(&(at_ms, id)).unwrap_or_default() {
                self.cluster.end(token, AttemptEnd::Exited { code: 0 }, ran_ms)?;
            }
        }
        Ok(())
    }

    /// The next time at which something is due.
    fn next_ms(&self, submitted: usize) -> Option<u64> {
        let submit = self.log.jobs.get(submitted).map(|job| self.at_ms(job.submit_s));
        let end = self.ends.first_key_value().map(|((at_ms, _), _)| *at_ms);
        let wake = self.wakes.first().copied();
        [submit, end, wake].into_iter().flatten().min()
    }

    fn at_ms(&self, second: u64) -> u64 {
        self.start_ms + second * SECOND_MS
    }
}

/// A job of the log. Its user stands in its name: all jobs are of one account, as in the published replays, and the
/// history still tells users apart.
fn spec(job: &LogJob) -> JobSpec {
    let width = job.processors.max(1);
    JobSpec {
        name: format!("user-{}", job.user),
        argv: vec![b"job".to_vec()],
        ask: Ask { gpu_milli: CARD_MILLI, ..Ask::default() },
        gang: (width > 1).then_some(GangSpec { min: width, max: width }),
        time_limit_ms: Some(job.limit_s * SECOND_MS),
        ..JobSpec::default()
    }
}
