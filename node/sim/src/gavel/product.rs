//! The production scheduler in the experiment: each job is submitted with its speeds and the word that it resumes, and
//! the planner's moves are played in virtual time. There are no rounds: rounds of planning follow arrivals, ends and
//! the turns of the clock, as on a leader. A job that is ended keeps its work and pays for its next start.

use super::cluster::{FLEET, Outcome};
use super::rates::{MODELS, Rates};
use super::trace::{Arrival, Trace};
use super::{GavelConfig, GavelError, GavelPolicy};
use crate::cluster::{Cluster, HostKind};
use rota_core::placement::{PlanConfig, TURN_MS};
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::job::{AttemptEnd, JobSpec};
use rota_protocol::pace::Pace;
use rota_protocol::plan::Move;
use rota_protocol::work::GangSpec;
use rota_protocol::{HostId, JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs in the cluster at which a run is given up as overloaded.
const JOBS_MAX: usize = 2_500;

/// A job that is not over.
struct Active {
    arrival: Arrival,
    /// Its place in the order of arrival.
    number: u64,
    steps_left: f64,
    /// What runs of it.
    run: Option<Run>,
    /// It has run before.
    begun: bool,
    /// The sum of crowds over time when it came.
    crowd_ms: f64,
}

/// A run that goes on.
struct Run {
    tokens: Vec<Token>,
    model: usize,
    /// When it does its first step, and when its last one.
    works_ms: u64,
    ends_ms: u64,
    started_ms: u64,
}

/// Runs one seed on the production scheduler until all jobs of the window have ended.
pub(super) fn run(rates: &Rates, trace: &mut Trace<'_>, config: &GavelConfig) -> Result<Outcome, GavelError> {
    let kind = |model: usize| HostKind {
        cpus_milli: 1_000,
        mem_mib: 1,
        cards: 1,
        model: MODELS[model].to_owned(),
        vram_mib: None,
    };
    let hosts: Vec<HostKind> =
        (0..FLEET.len()).flat_map(|model| (0..FLEET[model]).map(move |_| kind(model))).collect();
    let cluster = Cluster::new(&hosts, PlanConfig { grace_ms: 0, ..PlanConfig::default() })?;
    let (start_ms, now_ms) = (cluster.now_ms(), cluster.now_ms());
    let mut replay = Replay {
        rates,
        config,
        cluster,
        start_ms,
        now_ms,
        jobs: BTreeMap::new(),
        ends: BTreeSet::new(),
        crowd_ms: 0.0,
        held_ms: 0.0,
        jobs_ms: 0.0,
        out: Outcome::default(),
    };
    replay.run(trace)?;
    let took_ms = (replay.now_ms - start_ms).max(1) as f64;
    replay.out.jobs_mean = replay.jobs_ms / took_ms;
    replay.out.utilisation = replay.held_ms / took_ms / f64::from(FLEET.iter().sum::<u32>());
    replay.out.rounds = (replay.now_ms - start_ms).div_ceil(TURN_MS);
    Ok(replay.out)
}

struct Replay<'a> {
    rates: &'a Rates,
    config: &'a GavelConfig,
    cluster: Cluster,
    /// The scheduler's time of second 0.
    start_ms: u64,
    now_ms: u64,
    jobs: BTreeMap<JobId, Active>,
    /// What ends when.
    ends: BTreeSet<(u64, JobId)>,
    /// Sums over time: workers asked per GPU, GPUs held, jobs there.
    crowd_ms: f64,
    held_ms: f64,
    jobs_ms: f64,
    out: Outcome,
}

impl Replay<'_> {
    fn run(&mut self, trace: &mut Trace<'_>) -> Result<(), GavelError> {
        let wanted = (self.config.window.1 - self.config.window.0) as usize;
        let mut arrived = 0;
        while self.out.completion_s.len() < wanted {
            let arrival_ms = self.start_ms + (trace.next_at_s() * 1_000.0) as u64;
            let end_ms = self.ends.first().map_or(u64::MAX, |(at_ms, _)| *at_ms);
            let turn_ms = if self.jobs.is_empty() { u64::MAX } else { (self.now_ms / TURN_MS + 1) * TURN_MS };
            self.go_to(arrival_ms.min(end_ms).min(turn_ms));
            while let Some((at_ms, id)) =
                self.ends.first().copied().filter(|(at_ms, _)| *at_ms <= self.now_ms)
            {
                self.ends.remove(&(at_ms, id));
                self.finish(id)?;
            }
            while self.start_ms + (trace.next_at_s() * 1_000.0) as u64 <= self.now_ms {
                self.submit(trace.draw()?, arrived)?;
                arrived += 1;
            }
            while self.round()? {}
            self.out.jobs_max = self.out.jobs_max.max(self.jobs.len());
            if self.jobs.len() > JOBS_MAX {
                return Err(GavelError::Endless);
            }
        }
        Ok(())
    }

    /// Time passes.
    fn go_to(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.now_ms) as f64;
        let workers = |run: bool| {
            let jobs = self.jobs.values().filter(|job| !run || job.run.is_some());
            jobs.map(|job| f64::from(job.arrival.workers)).sum::<f64>()
        };
        self.crowd_ms += passed_ms * workers(false) / f64::from(FLEET.iter().sum::<u32>());
        self.held_ms += passed_ms * workers(true);
        self.jobs_ms += passed_ms * self.jobs.len() as f64;
        self.now_ms = self.now_ms.max(now_ms);
        self.cluster.advance_to(now_ms);
    }

    fn submit(&mut self, arrival: Arrival, number: u64) -> Result<(), GavelError> {
        let spec = self.spec(&arrival);
        let id = self.cluster.submit("gavel", "all", spec)?;
        let (steps_left, crowd_ms) = (arrival.steps, self.crowd_ms);
        self.jobs.insert(id, Active { arrival, number, steps_left, run: None, begun: false, crowd_ms });
        Ok(())
    }

    fn spec(&self, arrival: &Arrival) -> JobSpec {
        let alone = &self.rates.alone[arrival.class];
        let best = alone.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let can_run = |(_, rate): &(&&str, &f64)| **rate > 0.0;
        let speed = |(model, rate): (&&str, &f64)| {
            ((*model).to_owned(), (rate / best * 1_000.0).round().max(1.0) as u32)
        };
        let speeds: Vec<(String, u32)> = MODELS.iter().zip(alone).filter(can_run).map(speed).collect();
        let models = speeds.iter().map(|(model, _)| model.clone()).collect();
        let work_ms = (arrival.steps / best * 1_000.0) as u64;
        let stated = self.config.policy == GavelPolicy::RotaStated;
        JobSpec {
            name: self.rates.classes[arrival.class].0.clone(),
            argv: vec![b"job".to_vec()],
            ask: Ask { gpu_milli: CARD_MILLI, gpu_models: models, ..Ask::default() },
            gang: (arrival.workers > 1).then_some(GangSpec { min: arrival.workers, max: arrival.workers }),
            pace: Some(Box::new(Pace { resumes: true, work_ms: stated.then_some(work_ms.max(1)), speeds })),
            ..JobSpec::default()
        }
    }

    /// One round of planning; whether it did anything.
    fn round(&mut self) -> Result<bool, GavelError> {
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

    fn started(&mut self, id: JobId) -> Result<(), GavelError> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let attempts: Vec<(Token, HostId)> =
            self.cluster.state().attempts_of(id).map(|attempt| (attempt.token, attempt.host)).collect();
        let Some(model) = attempts.first().map(|(_, host)| model_of(*host)) else {
            return Ok(());
        };
        for (token, _) in &attempts {
            self.cluster.started(*token)?;
        }
        let cost_ms = if job.begun { self.config.restart_ms } else { 0 };
        let works_ms = self.now_ms + cost_ms;
        let rate = self.rates.alone[job.arrival.class][model];
        let ends_ms = works_ms + (job.steps_left / rate * 1_000.0).ceil().max(1.0) as u64;
        let tokens = attempts.into_iter().map(|(token, _)| token).collect();
        job.begun = true;
        job.run = Some(Run { tokens, model, works_ms, ends_ms, started_ms: self.now_ms });
        self.ends.insert((ends_ms, id));
        self.out.moves += 1;
        Ok(())
    }

    fn evicted(&mut self, victims: &[Token]) -> Result<(), GavelError> {
        let gone: BTreeSet<JobId> = victims
            .iter()
            .filter_map(|token| self.cluster.state().attempt(*token).map(|attempt| attempt.task.job))
            .collect();
        for id in gone {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(run) = job.run.take() else { continue };
            self.ends.remove(&(run.ends_ms, id));
            let worked_s = self.now_ms.saturating_sub(run.works_ms) as f64 / 1_000.0;
            job.steps_left =
                (job.steps_left - worked_s * self.rates.alone[job.arrival.class][run.model]).max(0.0);
            self.over(&run, &AttemptEnd::Preempted)?;
        }
        Ok(())
    }

    fn finish(&mut self, id: JobId) -> Result<(), GavelError> {
        let Some(job) = self.jobs.remove(&id) else {
            return Ok(());
        };
        if let Some(run) = &job.run {
            self.over(run, &AttemptEnd::Exited { code: 0 })?;
        }
        if (self.config.window.0..self.config.window.1).contains(&job.number) {
            let took_ms = (self.now_ms - self.start_ms) as f64 - job.arrival.at_s * 1_000.0;
            self.out.completion_s.push(took_ms / 1_000.0);
            let crowd = ((self.crowd_ms - job.crowd_ms) / took_ms.max(1.0)).max(1.0);
            self.out.fairness.push(took_ms / (equal_ms(self.rates, &job.arrival) * crowd));
        }
        Ok(())
    }

    fn over(&mut self, run: &Run, end: &AttemptEnd) -> Result<(), GavelError> {
        let ran_ms = self.now_ms - run.started_ms;
        for token in &run.tokens {
            self.cluster.end(*token, end.clone(), ran_ms)?;
        }
        Ok(())
    }
}

/// A job's time alone with an equal share of every model, in ms.
pub(super) fn equal_ms(rates: &Rates, arrival: &Arrival) -> f64 {
    let total: u32 = FLEET.iter().sum();
    let alone = rates.alone[arrival.class].iter().zip(FLEET);
    let equal: f64 = alone.map(|(rate, have)| rate * f64::from(have) / f64::from(total)).sum();
    arrival.steps / equal * 1_000.0
}

/// Hosts are numbered in the order of models, from 2 on.
fn model_of(host: HostId) -> usize {
    let mut at = host.0.saturating_sub(2);
    for (model, have) in FLEET.iter().enumerate() {
        match at.checked_sub(u64::from(*have)) {
            None => return model,
            Some(rest) => at = rest,
        }
    }
    FLEET.len() - 1
}

#[cfg(test)]
mod tests {
    use super::super::{cluster, tests::rates};
    use super::*;

    const WINDOW: (u64, u64) = (2, 8);

    fn config(policy: GavelPolicy, restart_ms: u64) -> GavelConfig {
        let throughputs = "speeds.json".into();
        GavelConfig {
            throughputs,
            jobs_per_hour: 1.0,
            multi_gpu: false,
            policy,
            seeds: vec![1],
            window: WINDOW,
            restart_ms,
        }
    }

    fn replayed(config: &GavelConfig) -> Outcome {
        let rates = rates();
        let mut trace = Trace::new(&rates, config.jobs_per_hour, config.multi_gpu, 1);
        let out = run(&rates, &mut trace, config).expect("the cluster keeps up");
        assert_eq!(out.completion_s.len() as u64, WINDOW.1 - WINDOW.0);
        out
    }

    fn hours(out: &Outcome) -> f64 {
        out.completion_s.iter().sum::<f64>() / out.completion_s.len() as f64 / 3_600.0
    }

    /// The same jobs on the same cards, by what is known of speeds: they end sooner than with equal shares of every
    /// model, and no job sooner than alone on its best one.
    #[test]
    fn speeds_that_jobs_state_bring_them_to_their_model() {
        let (rates, stated) = (rates(), config(GavelPolicy::RotaStated, 0));
        let mut trace = Trace::new(&rates, stated.jobs_per_hour, false, 1);
        let blind = cluster::run(&rates, &mut trace, GavelPolicy::LasBlind, 1, WINDOW).expect("it keeps up");
        let ours = replayed(&stated);
        assert!(hours(&ours) < hours(&blind), "{} {}", hours(&ours), hours(&blind));
        let mut trace = Trace::new(&rates, stated.jobs_per_hour, false, 1);
        let alone = |arrival: &Arrival| {
            let best = rates.alone[arrival.class].iter().copied().fold(f64::MIN_POSITIVE, f64::max);
            arrival.steps / best
        };
        let shortest: f64 = (0..WINDOW.1)
            .map(|_| alone(&trace.draw().expect("the trace goes on")))
            .skip(WINDOW.0 as usize)
            .fold(f64::MAX, f64::min);
        assert!(ours.completion_s.iter().all(|took_s| *took_s >= shortest - 1.0), "{shortest}");
        assert!(ours.utilisation > 0.0 && ours.utilisation <= 1.0, "{}", ours.utilisation);
    }

    #[test]
    fn a_run_repeats_with_gangs_too() {
        let gangs = GavelConfig { multi_gpu: true, ..config(GavelPolicy::Rota, 60_000) };
        let (once, again) = (replayed(&gangs), replayed(&gangs));
        assert_eq!(once.completion_s, again.completion_s);
        assert!(once.moves >= WINDOW.1 - WINDOW.0, "every job starts once: {}", once.moves);
        assert!(once.fairness.iter().all(|fairness| *fairness > 0.0));
    }
}
