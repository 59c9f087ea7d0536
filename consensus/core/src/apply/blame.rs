//! Whose fault it was: hosts on which jobs fail that run well elsewhere (fault G14), and jobs under which hosts are
//! lost (R053).

use super::{Event, Step};
use crate::state::State;
use crate::state::attempt::{Attempt, EndedAttempt};
use crate::state::host::HostLife;
use crate::state::job::Job;
use rota_protocol::job::AttemptEnd;
use rota_protocol::{HostId, JobId};
use std::collections::BTreeSet;

/// Hosts that may be shunned at one time: one in so many, but at least one. Jobs that fail by chance would else shun
/// one host after the other.
const SHUNNED_ONE_IN: usize = 10;

/// An attempt has ended: does it say something about its host, or about others where its job failed before?
pub(super) fn judge(state: &mut State, step: &mut Step, attempt: &Attempt, end: &AttemptEnd) {
    let failed = is_failure(end);
    if attempt.end_reason.is_some() || attempt.in_gang || !failed && !end.is_success() {
        return;
    }
    let Some(job) = state.job(attempt.task.job).filter(|job| !job.spec.service) else {
        return;
    };
    let blamed = if failed { ran_elsewhere(job, attempt.host) } else { failed_elsewhere(job, attempt.host) };
    let id = job.id;
    for host in blamed {
        blame(state, step, host, id);
    }
    if !failed
        && let Some(host) = state.hosts.get_mut_if(attempt.host, |host| host.care.blamed(step.now_ms) > 0)
    {
        host.care.pass();
    }
}

/// The program gave up, or was ended by a signal of its own.
fn is_failure(end: &AttemptEnd) -> bool {
    !end.is_success() && matches!(end, AttemptEnd::Exited { .. } | AttemptEnd::Signalled { .. })
}

/// The job failed here and has run well elsewhere, but never here, and failed nowhere else.
fn ran_elsewhere(job: &Job, here: HostId) -> BTreeSet<HostId> {
    let well = |host: &EndedAttempt| host.end.is_success();
    let elsewhere = job.ended.iter().any(|ended| well(ended) && ended.host != here);
    let also_here = job.ended.iter().any(|ended| well(ended) && ended.host == here);
    let failed_elsewhere = failed_on(job).any(|host| host != here);
    if elsewhere && !also_here && !failed_elsewhere { [here].into() } else { BTreeSet::new() }
}

/// Hosts on which it failed by itself.
fn failed_on(job: &Job) -> impl Iterator<Item = HostId> {
    let failed = job.ended.iter().filter(|ended| ended.asked.is_none() && is_failure(&ended.end));
    failed.map(|ended| ended.host)
}

/// Where a job that has just run well here had failed, and never run well. One that failed in several places fails
/// wherever it is, now and then: it says nothing about any of them.
fn failed_elsewhere(job: &Job, here: HostId) -> BTreeSet<HostId> {
    let mut hosts: BTreeSet<HostId> = failed_on(job).collect();
    if hosts.len() > 1 {
        return BTreeSet::new();
    }
    hosts.remove(&here);
    if !hosts.is_empty() {
        let well = job.ended.iter().filter(|ended| ended.end.is_success());
        let well: BTreeSet<HostId> = well.map(|ended| ended.host).collect();
        hosts.retain(|host| !well.contains(host));
    }
    hosts
}

fn blame(state: &mut State, step: &mut Step, id: HostId, job: JobId) {
    let shunned = state.hosts().filter(|host| host.id != id && host.care.is_shunned(step.now_ms)).count();
    let hosts = state.hosts().filter(|host| host.life != HostLife::Joining).count();
    let may_shun = shunned < (hosts / SHUNNED_ONE_IN).max(1);
    let Some(host) = state.hosts.get_mut(id) else {
        return;
    };
    if host.care.blame(job, step.now_ms) && may_shun {
        host.care.shunned = true;
        step.note(Event::HostChanged(id));
        step.plan_needed = true;
    }
}

/// A host is lost with all that ran there. Unless that was somebody's plan, it counts for each job once, and one under
/// which too many hosts were lost waits until somebody has looked at it. That its row changed is told with its end.
pub(super) fn host_died(state: &mut State, step: &mut Step, id: HostId) {
    let planned = state.host(id).is_none_or(|host| host.care.stopping || host.drain.is_some());
    if planned {
        return;
    }
    let mut under: Vec<(JobId, u32)> = Vec::new();
    for attempt in state.attempts_on(id) {
        let again = attempt.in_gang && under.iter().any(|(job, _)| *job == attempt.task.job);
        if !again {
            under.push((attempt.task.job, attempt.task.index));
        }
    }
    let now_ms = step.now_ms;
    for (id, index) in under {
        state.jobs.update(id, now_ms, |job| {
            let Some(ordinal) = job.ordinal(index) else {
                return;
            };
            if job.note_host_death(ordinal, now_ms) && !job.cancel_asked {
                job.held = true;
                job.toll.holds = true;
                job.promise = None;
            }
        });
    }
}
