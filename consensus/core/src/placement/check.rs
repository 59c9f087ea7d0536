//! What must hold of any plan, whoever made it: replayed move by move over the view, with the same `fits`. Runs
//! after each round in debug builds and in tests.

use super::PlanConfig;
use super::view::View;
use crate::fit::{self, Want};
use crate::state::host::{Host, Used};
use crate::state::job::Job;
use rota_protocol::job::AttemptState;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::{Move, Part, Plan, Slot};
use rota_protocol::{HostId, JobId, TaskId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// Every way in which a plan is not sound; empty if it is.
#[must_use]
pub fn check_plan(view: &View, config: &PlanConfig, now_ms: u64, plan: &Plan) -> Vec<String> {
    let hosts = view.hosts.iter().map(|row| (row.host.id, (&*row.host, row.host.used.clone())));
    let attempts = view.hosts.iter().flat_map(|row| row.attempts.iter());
    let mut replay = Replay {
        jobs: view.classes.iter().flatten().map(|job| (job.id, &**job)).collect(),
        hosts: hosts.collect(),
        live: attempts.filter(|a| a.state != AttemptState::Ending).map(|a| a.token).collect(),
        placed: BTreeMap::new(),
        tasks: BTreeSet::new(),
        config,
        now_ms,
        next_token: 1,
    };
    let mut wrong = Vec::new();
    if plan.moves.len() > config.moves_max.min(PLAN_MOVES_MAX) {
        wrong.push(format!("{} moves are above {}", plan.moves.len(), config.moves_max));
    }
    for one in &plan.moves {
        if let Err(why) = replay.step(view, one) {
            wrong.push(format!("{one:?}: {why}"));
        }
    }
    wrong
}

struct Replay<'v> {
    jobs: BTreeMap<JobId, &'v Job>,
    hosts: BTreeMap<HostId, (&'v Host, Used)>,
    /// Attempts that nobody has asked to end yet.
    live: BTreeSet<Token>,
    placed: BTreeMap<JobId, u32>,
    tasks: BTreeSet<TaskId>,
    config: &'v PlanConfig,
    now_ms: u64,
    next_token: u64,
}

impl Replay<'_> {
    fn step(&mut self, view: &View, one: &Move) -> Result<(), String> {
        match one {
            Move::Place { task, host, epoch, devices } => {
                let part = Part { index: task.index, host: *host, epoch: *epoch, devices: devices.clone() };
                self.start(task.job, 0, &[part])
            }
            Move::Start { job, choice, parts } => self.start(*job, *choice, parts),
            Move::Evict { job, victims, slots, .. } => {
                for token in victims {
                    if !self.live.remove(token) {
                        return Err(format!("{token} is not live, or a victim twice"));
                    }
                }
                let known =
                    |job| self.jobs.contains_key(&job) || view.turning.iter().any(|row| row.job.id == job);
                if job.is_some_and(|job| !known(job)) || job.is_none() != slots.is_empty() {
                    return Err("the job is not ready, or the slots are nobody's".into());
                }
                self.known(slots)
            }
            Move::Promise { job, at_ms, slots, .. } => {
                if !self.jobs.contains_key(job) || slots.is_empty() || *at_ms < self.now_ms {
                    return Err("the job is not ready, or the promise is empty or past".into());
                }
                self.known(slots)
            }
            Move::Lapse { job } if view.lapsed.contains(job) => Ok(()),
            Move::Lapse { .. } => Err("its deadline has not passed".into()),
        }
    }

    fn known(&self, slots: &[Slot]) -> Result<(), String> {
        let unknown = slots.iter().find(|slot| {
            let host = self.hosts.get(&slot.host);
            host.is_none_or(|(host, _)| slot.devices.iter().any(|uuid| host.device(uuid).is_none()))
        });
        unknown.map_or(Ok(()), |slot| Err(format!("no such host or device: {slot:?}")))
    }

    fn start(&mut self, id: JobId, choice: u8, parts: &[Part]) -> Result<(), String> {
        let job = *self.jobs.get(&id).ok_or("the job is not ready")?;
        let ask = job.spec.ask_at(choice).ok_or("no such choice")?;
        let placed = self.placed.entry(id).or_default();
        let (fewest, most) = job.start_range();
        let count = parts.len() as u32;
        *placed += count;
        if *placed > most || count < fewest {
            return Err(format!("{count} parts, {placed} in all, where {fewest} to {most} may start"));
        }
        if self.now_ms < job.earliest_ms() {
            return Err("it may not start yet".into());
        }
        let want = Want::of(job, ask);
        for part in parts {
            let ordinal = job.ordinal(part.index).ok_or("no such task")?;
            if !job.pending.contains(ordinal) || !self.tasks.insert(TaskId { job: id, index: part.index }) {
                return Err("the task does not wait, or is placed twice".into());
            }
            let avoided = job.avoid.get(&part.host).is_some_and(|avoid| self.now_ms < avoid.until_ms);
            if avoided || self.config.avoid_hosts.contains(&part.host) {
                return Err(format!("host {} is to be avoided", part.host));
            }
            let (host, used) = self.hosts.get_mut(&part.host).ok_or("no such host")?;
            if host.epoch != part.epoch {
                return Err("another epoch".into());
            }
            fit::takes(host, used, want, &part.devices, self.now_ms).map_err(|misfit| misfit.to_string())?;
            fit::take(host, used, want, &part.devices, Token(self.next_token));
            self.next_token += 1;
        }
        Ok(())
    }
}
