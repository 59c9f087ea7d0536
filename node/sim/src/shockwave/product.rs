//! The production scheduler in the experiment: each job is submitted with the work that it states and the word that it
//! resumes, and the planner's moves are played in virtual time. Batches change at the rounds of the experiment; planning
//! follows arrivals, ends and the turns of the clock.

use super::cluster::{Outcome, ROUND_S, START_S};
use super::trace::{Speeds, TraceJob};
use super::training::Training;
use super::{ShockwaveError, ShockwavePolicy};
use crate::cluster::{Cluster, HostKind};
use rota_core::placement::{PlanConfig, TURN_MS};
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::job::{AttemptEnd, JobSpec};
use rota_protocol::pace::Pace;
use rota_protocol::plan::Move;
use rota_protocol::work::GangSpec;
use rota_protocol::{JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

struct Active {
    training: Training,
    run: Option<Run>,
}

/// A run that goes on.
struct Run {
    tokens: Vec<Token>,
    started_ms: u64,
    /// Up to where its work is booked; later than now while it starts.
    booked_ms: u64,
    ends_ms: u64,
    /// Part of a step that was done and not booked.
    rest: f64,
}

/// Plays a trace to its end on the production scheduler.
///
/// # Errors
/// If the speeds lack a program of the trace, a job never fits, or the scheduler refuses what a replay must do.
pub(super) fn run(
    trace: &[TraceJob],
    speeds: &Speeds,
    gpus: u32,
    policy: ShockwavePolicy,
) -> Result<Outcome, ShockwaveError> {
    let kind = HostKind { cpus_milli: 1_000, mem_mib: 1, cards: 1, model: "v100".into(), vram_mib: None };
    let hosts = vec![kind; gpus as usize];
    let cluster = Cluster::new(&hosts, PlanConfig { grace_ms: 0, ..PlanConfig::default() })?;
    let now_ms = cluster.now_ms();
    let mut replay = Replay {
        speeds,
        policy,
        cluster,
        start_ms: now_ms,
        now_ms,
        jobs: BTreeMap::new(),
        ends: BTreeSet::new(),
        crowd: (trace.len() as f64 / f64::from(gpus)).max(1.0),
        out: Outcome::default(),
    };
    replay.run(trace)?;
    replay.out.makespan_s = replay.now_s();
    Ok(replay.out)
}

struct Replay<'a> {
    speeds: &'a Speeds,
    policy: ShockwavePolicy,
    cluster: Cluster,
    start_ms: u64,
    now_ms: u64,
    jobs: BTreeMap<JobId, Active>,
    ends: BTreeSet<(u64, JobId)>,
    crowd: f64,
    out: Outcome,
}

impl Replay<'_> {
    fn run(&mut self, trace: &[TraceJob]) -> Result<(), ShockwaveError> {
        let mut queue = trace.iter().peekable();
        let round_ms = (ROUND_S * 1_000.0) as u64;
        while queue.peek().is_some() || !self.jobs.is_empty() {
            let arrival_ms = queue.peek().map_or(u64::MAX, |job| self.at_ms(job.arrival_s));
            let end_ms = self.ends.first().map_or(u64::MAX, |(at_ms, _)| *at_ms);
            let (look_ms, turn_ms) = match self.jobs.is_empty() {
                true => (u64::MAX, u64::MAX),
                false => {
                    let rounds = (self.now_ms - self.start_ms) / round_ms + 1;
                    (self.start_ms + rounds * round_ms, (self.now_ms / TURN_MS + 1) * TURN_MS)
                }
            };
            self.now_ms = self.now_ms.max(arrival_ms.min(end_ms).min(look_ms).min(turn_ms));
            self.cluster.advance_to(self.now_ms);
            while let Some((at_ms, id)) =
                self.ends.first().copied().filter(|(at_ms, _)| *at_ms <= self.now_ms)
            {
                self.ends.remove(&(at_ms, id));
                self.book(id);
                self.leave(id)?;
            }
            if self.now_ms == look_ms {
                self.out.rounds += 1;
                self.look()?;
            }
            while let Some(job) = queue.next_if(|job| self.at_ms(job.arrival_s) <= self.now_ms) {
                self.submit(job)?;
            }
            while self.round()? {}
        }
        Ok(())
    }

    fn at_ms(&self, second: f64) -> u64 {
        self.start_ms + (second * 1_000.0) as u64
    }

    fn now_s(&self) -> f64 {
        (self.now_ms - self.start_ms) as f64 / 1_000.0
    }

    fn submit(&mut self, job: &TraceJob) -> Result<(), ShockwaveError> {
        let training = Training::new(job.clone(), self.speeds)?;
        let work_s = match self.policy {
            ShockwavePolicy::RotaForeseen => training.alone_s(),
            _ => training.left_at_this_batch_s(self.speeds),
        };
        let work_ms = Some((work_s * 1_000.0).max(1.0) as u64);
        let spec = JobSpec {
            name: format!("{}-{}", job.model, job.batch),
            argv: vec![b"job".to_vec()],
            ask: Ask { gpu_milli: CARD_MILLI, ..Ask::default() },
            gang: (job.gpus > 1).then_some(GangSpec { min: job.gpus, max: job.gpus }),
            pace: Some(Box::new(Pace { resumes: true, work_ms, speeds: Vec::new() })),
            ..JobSpec::default()
        };
        let id = self.cluster.submit("shockwave", "all", spec)?;
        self.jobs.insert(id, Active { training, run: None });
        Ok(())
    }

    /// One round of planning; whether it did anything.
    fn round(&mut self) -> Result<bool, ShockwaveError> {
        let moves = self.cluster.round()?;
        for one in &moves {
            match one {
                Move::Start { job, .. } => self.started(*job)?,
                Move::Place { task, .. } => self.started(task.job)?,
                Move::Evict { victims, .. } => self.evicted(victims)?,
                Move::Promise { .. } | Move::Lapse { .. } => {}
            }
        }
        Ok(!moves.is_empty())
    }

    fn started(&mut self, id: JobId) -> Result<(), ShockwaveError> {
        let tokens: Vec<Token> = self.cluster.state().attempts_of(id).map(|attempt| attempt.token).collect();
        for token in &tokens {
            self.cluster.started(*token)?;
        }
        // As published, nothing is charged for the very first starts.
        let cost_ms = if self.now_ms == self.start_ms { 0 } else { (START_S * 1_000.0) as u64 };
        let (started_ms, booked_ms) = (self.now_ms, self.now_ms + cost_ms);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.run = Some(Run { tokens, started_ms, booked_ms, ends_ms: u64::MAX, rest: 0.0 });
            self.out.starts += 1;
        }
        self.foresee_end(id);
        Ok(())
    }

    /// When a run does its last step at the rate of now.
    fn foresee_end(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (rate, left) = (job.training.rate(self.speeds), job.training.steps_left());
        let Some(run) = &mut job.run else { return };
        self.ends.remove(&(run.ends_ms, id));
        let left_ms = if rate > 0.0 { (left as f64 - run.rest).max(0.0) / rate * 1_000.0 } else { 1e15 };
        run.ends_ms = run.booked_ms.max(self.now_ms) + left_ms.ceil().max(1.0) as u64;
        self.ends.insert((run.ends_ms, id));
    }

    /// Books what a run has done by now.
    fn book(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let rate = job.training.rate(self.speeds);
        let Some(run) = job.run.as_mut().filter(|run| run.booked_ms < self.now_ms) else { return };
        let worked_s = (self.now_ms - run.booked_ms) as f64 / 1_000.0;
        // An end is rounded up to the millisecond: a whole step, within that.
        let done = worked_s * rate + run.rest + rate / 1_000.0;
        let steps = (done as u64).min(job.training.steps_left());
        run.rest = (done - rate / 1_000.0 - steps as f64).max(0.0);
        run.booked_ms = self.now_ms;
        job.training.ran(steps, worked_s);
        self.out.held_s += worked_s * f64::from(job.training.asked.gpus);
    }

    /// A round of the experiment: batches change.
    fn look(&mut self) -> Result<(), ShockwaveError> {
        for id in self.jobs.keys().copied().collect::<Vec<JobId>>() {
            self.book(id);
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if job.run.is_some() {
                if job.training.steps_left() > 0 {
                    job.training.adapt(self.speeds);
                }
                let over = job.training.ran_s > (job.training.alone_s().floor() * 1.5).floor();
                if job.training.steps_left() == 0 || over {
                    self.leave(id)?;
                    continue;
                }
            }
            if let Some(job) = self.jobs.get_mut(&id) {
                job.training.look();
            }
            self.foresee_end(id);
        }
        Ok(())
    }

    fn evicted(&mut self, victims: &[Token]) -> Result<(), ShockwaveError> {
        let gone: BTreeSet<JobId> = victims
            .iter()
            .filter_map(|token| self.cluster.state().attempt(*token).map(|attempt| attempt.task.job))
            .collect();
        for id in gone {
            self.book(id);
            let Some(run) = self.jobs.get_mut(&id).and_then(|job| job.run.take()) else { continue };
            self.ends.remove(&(run.ends_ms, id));
            self.over(&run, &AttemptEnd::Preempted)?;
        }
        Ok(())
    }

    /// A job has ended: it is measured and taken out.
    fn leave(&mut self, id: JobId) -> Result<(), ShockwaveError> {
        let Some(job) = self.jobs.remove(&id) else {
            return Ok(());
        };
        if let Some(run) = &job.run {
            self.ends.remove(&(run.ends_ms, id));
            self.over(run, &AttemptEnd::Exited { code: 0 })?;
        }
        let completion_s = self.now_s() - job.training.asked.arrival_s;
        self.out.completion_s.push(completion_s);
        self.out.fairness.push(completion_s / (job.training.alone_s() * self.crowd));
        Ok(())
    }

    fn over(&mut self, run: &Run, end: &AttemptEnd) -> Result<(), ShockwaveError> {
        let ran_ms = self.now_ms - run.started_ms;
        for token in &run.tokens {
            self.cluster.end(*token, end.clone(), ran_ms)?;
        }
        Ok(())
    }
}
