//! What must hold of any plan, whoever made it: replayed move by move over the view, with the same `fits`. Runs
//! after each round in debug builds and in tests.

use super::plan::PlanConfig;
use super::view::{ReadyJob, View};
use crate::fit::{self, Want};
use crate::state::host::{Host, Used};
use rota_protocol::plan::{Move, Plan};
use rota_protocol::{HostId, JobId, TaskId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// Every way in which a plan is not sound; empty if it is.
#[must_use]
pub fn check_plan(view: &View, config: &PlanConfig, now_ms: u64, plan: &Plan) -> Vec<String> {
    let mut replay = Replay {
        jobs: view.classes.iter().flatten().map(|job| (job.id, job)).collect(),
        hosts: view.hosts.iter().map(|h| (h.id, (&**h, h.used.clone()))).collect(),
        placed: BTreeMap::new(),
        tasks: BTreeSet::new(),
    };
    let mut wrong = Vec::new();
    if plan.moves.len() > config.moves_max {
        wrong.push(format!("{} moves are above {}", plan.moves.len(), config.moves_max));
    }
    for one in &plan.moves {
        let Move::Place { task, host, .. } = one else {
            continue;
        };
        if config.avoid_hosts.contains(host) {
            wrong.push(format!("task {task}: host {host} is to be avoided"));
        }
        if let Err(why) = replay.step(one, now_ms) {
            wrong.push(format!("task {task} on host {host}: {why}"));
        }
    }
    wrong
}

struct Replay<'v> {
    jobs: BTreeMap<JobId, &'v ReadyJob>,
    hosts: BTreeMap<HostId, (&'v Host, Used)>,
    placed: BTreeMap<JobId, u32>,
    tasks: BTreeSet<TaskId>,
}

impl Replay<'_> {
    fn step(&mut self, one: &Move, now_ms: u64) -> Result<(), String> {
        let Move::Place { task, host: id, epoch, devices } = one else {
            return Ok(());
        };
        let job = *self.jobs.get(&task.job).ok_or("the job is not ready")?;
        if !job.ordinals().any(|ordinal| job.task(ordinal) == *task) {
            return Err("the task does not wait".into());
        }
        if !self.tasks.insert(*task) {
            return Err("placed twice".into());
        }
        let placed = self.placed.entry(task.job).or_default();
        *placed += 1;
        if *placed > job.room {
            return Err("above the job's cap".into());
        }
        if job.avoid.iter().any(|(host, until_ms)| host == id && now_ms < *until_ms) {
            return Err("the job keeps away from it".into());
        }
        let (host, used) = self.hosts.get_mut(id).ok_or("no such host")?;
        if host.epoch != *epoch {
            return Err("another epoch".into());
        }
        let ask = &job.spec.ask;
        let want = Want { ask, tenant: &job.tenant };
        fit::takes(host, used, want, devices, now_ms).map_err(|misfit| misfit.to_string())?;
        fit::take(host, used, want, devices, Token(0));
        Ok(())
    }
}
