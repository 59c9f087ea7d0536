//! How a live attempt ends, whatever the reason: it leaves the table, its resources are released and metered, and
//! its task goes on to its next place. The only code that releases anything.

use super::{Event, Step, cut};
use crate::state::State;
use crate::state::attempt::{Attempt, EndedAttempt};
use crate::state::job::Job;
use crate::state::meta::Usage;
use rota_protocol::job::{AttemptEnd, AttemptState, EndReason};
use rota_protocol::{HostId, Token};

/// Ends of one task that were a host's fault; then it fails with the last reason rather than circle for ever.
pub(crate) const HOST_FAULTS_MAX: u16 = 20;

/// Where a task goes when its attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Succeeded,
    Failed,
    Cancelled,
    /// Waits again; the end counts against the user's retries.
    Retried,
    /// Waits again; the end was a host's fault.
    Moved,
    /// Waits again; it was in the way of something more urgent.
    Preempted,
}

/// Moves an attempt along its graph and keeps the host's count of launches; an illegal step changes nothing.
pub(super) fn advance(state: &mut State, token: Token, to: AttemptState) {
    let Some(attempt) = state.attempts.get_mut(token) else {
        return;
    };
    let was_granted = attempt.state == AttemptState::Granted;
    if attempt.step(to) && was_granted {
        let host = attempt.host;
        launch_over(state, host);
    }
}

/// Ends every live attempt of a host as lost.
pub(super) fn lose_all(state: &mut State, step: &mut Step, host: HostId) {
    let tokens: Vec<Token> = state.attempts_on(host).map(|a| a.token).collect();
    for token in tokens {
        end_attempt(state, step, token, &AttemptEnd::Lost, None);
    }
}

/// Ends one attempt. Unknown tokens are passed over.
pub(super) fn end_attempt(
    state: &mut State,
    step: &mut Step,
    token: Token,
    end: &AttemptEnd,
    ran_ms: Option<u64>,
) {
    let Some(attempt) = state.attempts.remove(token) else {
        return;
    };
    if attempt.state == AttemptState::Granted {
        launch_over(state, attempt.host);
    }
    // With the planted defect the cancel has released it already.
    let released = state.faults.free_on_cancel && attempt.end_reason == Some(EndReason::Cancel);
    if !released {
        state.hosts.release(&attempt);
    }
    let end = bounded(end);
    let held = meter(state, &attempt, step.now_ms);
    if let AttemptEnd::LaunchFailed { reason } = &end {
        blame_host(state, step, &attempt, reason);
    }
    let (host, id) = (attempt.host, attempt.task.job);
    state.jobs.update(id, step.now_ms, |job| {
        job.gpu_ms = job.gpu_ms.saturating_add(held.gpu_ms);
        settle(job, &attempt, &end, ran_ms, step.now_ms);
    });
    step.note(Event::AttemptEnded { host, token, job: id });
    step.note(Event::JobChanged(id));
    step.plan_needed = true;
}

/// Adds what the attempt held to its tenant's and its host's figures: from grant to release, in log time.
fn meter(state: &mut State, attempt: &Attempt, now_ms: u64) -> Usage {
    let held_ms = now_ms.saturating_sub(attempt.granted_ms);
    let held = Usage {
        gpu_ms: held_ms.saturating_mul(u64::from(attempt.gpus)),
        cpu_ms: held_ms.saturating_mul(u64::from(attempt.cpus_milli)) / 1_000,
        attempts: 1,
    };
    if let Some(job) = state.jobs.get(attempt.task.job) {
        match state.meta.usage.get_mut(&job.tenant) {
            Some(usage) => usage.add(held),
            None => {
                state.meta.usage.insert(job.tenant.clone(), held);
            }
        }
    }
    if let Some(host) = state.hosts.get_mut(attempt.host) {
        host.gpu_ms = host.gpu_ms.saturating_add(held.gpu_ms);
    }
    held
}

/// A launch failure is the host's fault unless the job failed to launch elsewhere too: then the job is the likelier
/// culprit, and must not take one host after the other out of service.
fn blame_host(state: &mut State, step: &mut Step, attempt: &Attempt, reason: &str) {
    let failed_elsewhere =
        state.job(attempt.task.job).is_some_and(|job| job.avoid.keys().any(|host| *host != attempt.host));
    if failed_elsewhere {
        return;
    }
    if let Some(host) = state.hosts.get_mut(attempt.host)
        && host.note_launch_failure(reason, step.now_ms)
    {
        step.note(Event::HostChanged(attempt.host));
    }
}

/// Moves the task to its next place and keeps the record of the attempt.
fn settle(job: &mut Job, attempt: &Attempt, end: &AttemptEnd, ran_ms: Option<u64>, now_ms: u64) {
    job.live = job.live.saturating_sub(1);
    // The start's report may have been lost on the way.
    let ran = !matches!(end, AttemptEnd::LaunchFailed { .. });
    let started_ms = attempt.started_ms.or_else(|| {
        let ran_ms = ran_ms.filter(|_| ran)?;
        Some(now_ms.saturating_sub(ran_ms).max(attempt.granted_ms))
    });
    if job.started_ms.is_none() {
        job.started_ms = started_ms;
    }
    job.keep_ended(EndedAttempt {
        token: attempt.token,
        index: attempt.task.index,
        host: attempt.host,
        devices: attempt.devices.clone(),
        end: end.clone(),
        pid: attempt.pid,
        granted_ms: attempt.granted_ms,
        started_ms,
        ended_ms: now_ms,
        ran_ms,
    });
    if let AttemptEnd::LaunchFailed { .. } = end {
        job.avoid_host(attempt.host, now_ms);
    }
    let Some(ordinal) = job.ordinal(attempt.task.index) else {
        return;
    };
    let fate = fate(job, ordinal, attempt.end_reason, end);
    match fate {
        Fate::Retried => *job.retries_used.entry(ordinal).or_default() += 1,
        Fate::Moved => *job.host_faults.entry(ordinal).or_default() += 1,
        Fate::Preempted => {}
        Fate::Succeeded | Fate::Failed | Fate::Cancelled => {
            job.retries_used.remove(&ordinal);
            job.host_faults.remove(&ordinal);
        }
    }
    match fate {
        Fate::Succeeded => job.succeeded.insert(ordinal),
        Fate::Cancelled => job.cancelled.insert(ordinal),
        Fate::Retried | Fate::Moved | Fate::Preempted => job.pending.insert(ordinal),
        Fate::Failed => {
            job.first_failure.get_or_insert(end.shell_status());
            job.failed.insert(ordinal)
        }
    };
}

fn fate(job: &Job, ordinal: u32, asked: Option<EndReason>, end: &AttemptEnd) -> Fate {
    if job.cancel_asked || asked == Some(EndReason::Cancel) {
        return Fate::Cancelled;
    }
    if end.is_success() {
        return Fate::Succeeded;
    }
    if asked == Some(EndReason::Preempt) {
        return Fate::Preempted;
    }
    if end.is_users() {
        let used = job.retries_used.get(&ordinal).copied().unwrap_or(0);
        return if used < job.spec.retries { Fate::Retried } else { Fate::Failed };
    }
    // Launch failed, lost, fenced, vanished; and a host that ended it unasked.
    let faults = job.host_faults.get(&ordinal).copied().unwrap_or(0);
    if faults + 1 < HOST_FAULTS_MAX { Fate::Moved } else { Fate::Failed }
}

fn launch_over(state: &mut State, host: HostId) {
    if let Some(host) = state.hosts.get_mut(host) {
        host.used.launching = host.used.launching.saturating_sub(1);
    }
}

/// The end with its words cut to what state keeps.
fn bounded(end: &AttemptEnd) -> AttemptEnd {
    match end {
        AttemptEnd::LaunchFailed { reason } => AttemptEnd::LaunchFailed { reason: cut(reason) },
        AttemptEnd::Vanished { reason } => AttemptEnd::Vanished { reason: cut(reason) },
        other => other.clone(),
    }
}
