//! How a live attempt ends, whatever the reason: it leaves the table, its resources are released and metered, and
//! its task goes on to its next place (`settle`). The only code that releases anything.

use super::{Event, Step, blame, cancel, change_job, cut, depend, health, settle, unstartable};
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::job::Job;
use crate::state::meta::Usage;
use crate::state::pace::KnownSpeeds;
use crate::state::speeds;
use rota_protocol::job::{AttemptEnd, AttemptState, EndReason};
use rota_protocol::{DeviceUuid, HostId, Token};
use std::sync::Arc;

/// Moves an attempt along its graph and keeps the host's count of launches; an illegal step changes nothing.
pub(super) fn advance(state: &mut State, token: Token, to: AttemptState) {
    let stepped = state.attempts.change(token, |attempt| {
        let was_granted = attempt.state == AttemptState::Granted;
        (attempt.step(to) && was_granted).then_some(attempt.host)
    });
    if let Some(host) = stepped.flatten() {
        launch_over(state, host);
    }
}

/// Ends every live attempt of a host as lost.
pub(super) fn lose_all(state: &mut State, step: &mut Step, host: HostId) {
    blame::host_died(state, step, host);
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
    let end = bounded(&as_asked(&attempt, &with_fault(state, &attempt, end)));
    let held = meter(state, &attempt, step.now_ms);
    if let AttemptEnd::LaunchFailed { reason } = &end {
        blame_host(state, step, &attempt, reason);
    }
    let (host, id, index) = (attempt.host, attempt.task.job, attempt.task.index);
    let ran_on = model_in_turn(state, &attempt).zip(ran_ms);
    remember_run(state, &attempt, &end, ran_ms);
    let is_final = unstartable::is_final(state, &attempt, &end);
    let settled = change_job(state, id, step.now_ms, |job| {
        job.gpu_ms = job.gpu_ms.saturating_add(held.gpu_ms);
        if let Some((model, ran_ms)) = &ran_on {
            job.note_served(&attempt, model, *ran_ms);
        }
        settle::settle(job, &attempt, &end, is_final, ran_ms, step.now_ms)
    });
    if end.is_success() && ran_on.is_some() {
        remember_length(state, &attempt);
    }
    blame::judge(state, step, &attempt, &end);
    step.note(Event::AttemptEnded { host, token, job: id });
    step.note(Event::JobChanged(id));
    step.plan_needed = true;
    let Some((settled, job_over)) = settled else {
        return;
    };
    if job_over || settled.task_over {
        depend::parent_changed(state, step, id, Some(index));
    }
    if settled.gang_broken {
        let tokens: Vec<Token> = state.attempts_of(id).map(|a| a.token).collect();
        for token in tokens {
            cancel::ask_end(state, step, token, EndReason::Gang);
        }
    }
}

/// The model that an attempt of a job that takes turns ran on.
fn model_in_turn(state: &State, attempt: &Attempt) -> Option<String> {
    state.jobs.get(attempt.task.job).filter(|job| job.spec.takes_turns())?;
    let host = state.host(attempt.host)?;
    let model = speeds::one_model(attempt.devices.iter().filter_map(|uuid| host.device(uuid)));
    model.map(str::to_owned)
}

/// A job that took turns has ended well: how much work it was says how much others may be.
fn remember_length(state: &mut State, attempt: &Attempt) {
    let Some(job) = state.jobs.get(attempt.task.job).filter(|job| job.ordinal(attempt.task.index) == Some(0))
    else {
        return;
    };
    let Some(ask) = job.spec.ask_at(attempt.choice) else {
        return;
    };
    let done_ms = job.done_ms(&KnownSpeeds::of(job, ask, &state.speeds));
    Arc::make_mut(&mut state.lengths).observe(done_ms);
}

/// A run that ended by itself or at its limit says how long such jobs run. Of a gang the first part speaks.
fn remember_run(state: &mut State, attempt: &Attempt, end: &AttemptEnd, ran_ms: Option<u64>) {
    let failed_there = matches!(end, AttemptEnd::ProgramFault { .. } | AttemptEnd::InputsMissing { .. });
    let by_itself = attempt.end_reason.is_none() && end.is_users() && !failed_there;
    let (Some(ran_ms), Some(job)) = (ran_ms.filter(|_| by_itself), state.jobs.get(attempt.task.job)) else {
        return;
    };
    if job.spec.service || attempt.in_gang && attempt.task.index > 0 {
        return;
    }
    // What went on where it had stopped ran for longer than its last attempt.
    let ran_ms = job.served().values().fold(ran_ms, |sum, before_ms| sum.saturating_add(*before_ms));
    let learned = if end.is_success() { whole_run(state, job, attempt) } else { None };
    let history = Arc::make_mut(&mut state.history);
    history.record(&job.history_key(), job.spec.time_limit_ms, ran_ms);
    if let Some((kind, model)) = learned {
        Arc::make_mut(&mut state.speeds).record(kind, &model, ran_ms);
    }
}

/// The kind and the model of a run that says how fast the model is: on cards of one model, and from its beginning. A
/// task that had started before may have gone on from a checkpoint.
fn whole_run(state: &State, job: &Job, attempt: &Attempt) -> Option<(u64, String)> {
    let kind = speeds::kind(job, job.spec.ask_at(attempt.choice)?)?;
    let mut parts: Vec<(HostId, &[DeviceUuid])> = vec![(attempt.host, &attempt.devices)];
    if attempt.in_gang {
        // A gang runs as fast as its slowest part; those that are over count too.
        let live = state.attempts_of(job.id).map(|part| (part.host, part.devices.as_slice()));
        let over = job.ended.iter().filter(|part| part.granted_ms >= attempt.granted_ms);
        parts.extend(live.chain(over.map(|part| (part.host, part.devices.as_slice()))));
    }
    let all_known = job.ended_forgotten == 0 || !attempt.in_gang;
    if !all_known || job.stopped.contains(job.ordinal(attempt.task.index)?) {
        return None;
    }
    let cards = parts.into_iter().filter_map(|(host, devices)| Some((state.host(host)?, devices)));
    let cards = cards.flat_map(|(host, devices)| devices.iter().filter_map(|uuid| host.device(uuid)));
    speeds::one_model(cards).map(|model| (kind, model.to_owned()))
}

/// Adds what the attempt held to its tenant's and its host's figures: from grant to release, in log time.
fn meter(state: &mut State, attempt: &Attempt, now_ms: u64) -> Usage {
    let held_ms = now_ms.saturating_sub(attempt.granted_ms);
    let held = Usage {
        gpu_ms: held_ms.saturating_mul(u64::from(attempt.gpu_milli)) / 1_000,
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
    let queue = state.queues.get(attempt.queue).map_or("", |queue| &queue.spec.name);
    state.metered.add(&attempt.tenant, &attempt.user, queue, held);
    state.queues.release(attempt, held.gpu_ms, held.cpu_ms, now_ms);
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

fn launch_over(state: &mut State, host: HostId) {
    if let Some(host) = state.hosts.get_mut(host) {
        host.used.launching = host.used.launching.saturating_sub(1);
    }
}

/// The end of an attempt that was ended because of its device, or whose program failed there, with what was found.
/// Whatever the process made of that, it is no longer the point; but work that was done is done.
fn with_fault(state: &State, attempt: &Attempt, end: &AttemptEnd) -> AttemptEnd {
    let asked = attempt.end_reason.filter(|_| !end.is_success());
    let why = || {
        let found = health::why_failed(state, attempt.host, &attempt.devices, attempt.granted_ms);
        found.unwrap_or_else(|| "its device or its host failed".to_owned())
    };
    match (asked, end) {
        // Its host has told the same already, in its own words.
        (_, AttemptEnd::DeviceFault { reason } | AttemptEnd::ProgramFault { reason })
            if !reason.is_empty() =>
        {
            end.clone()
        }
        // Lost is lost, whatever ailed it before.
        (_, AttemptEnd::Lost | AttemptEnd::LaunchFailed { .. } | AttemptEnd::HostStopped) => end.clone(),
        (_, AttemptEnd::CannotStart { .. }) => end.clone(),
        (Some(EndReason::Device), _) | (_, AttemptEnd::DeviceFault { .. }) => {
            AttemptEnd::DeviceFault { reason: why() }
        }
        (Some(EndReason::Program), _) | (_, AttemptEnd::ProgramFault { .. }) => {
            AttemptEnd::ProgramFault { reason: why() }
        }
        _ => end.clone(),
    }
}

/// An end that the host asked for carries its figures, which a shim does not know.
fn as_asked(attempt: &Attempt, end: &AttemptEnd) -> AttemptEnd {
    let cause = attempt.care.as_ref().and_then(|care| care.cause);
    match cause.filter(|cause| *end == cause.reason().end()) {
        Some(cause) => cause.end(),
        None => end.clone(),
    }
}

/// The end with its words cut to what state keeps.
fn bounded(end: &AttemptEnd) -> AttemptEnd {
    match end {
        AttemptEnd::LaunchFailed { reason } => AttemptEnd::LaunchFailed { reason: cut(reason) },
        AttemptEnd::CannotStart { code, reason } => {
            AttemptEnd::CannotStart { code: *code, reason: cut(reason) }
        }
        AttemptEnd::Vanished { reason } => AttemptEnd::Vanished { reason: cut(reason) },
        AttemptEnd::DeviceFault { reason } => AttemptEnd::DeviceFault { reason: cut(reason) },
        AttemptEnd::ProgramFault { reason } => AttemptEnd::ProgramFault { reason: cut(reason) },
        AttemptEnd::InputsMissing { nowhere, reason } => {
            AttemptEnd::InputsMissing { nowhere: *nowhere, reason: cut(reason) }
        }
        other => other.clone(),
    }
}
