//! Health: what a host found about its devices and itself. A finding moves a device along the one table of stages
//! ([`Stage::after`]) or changes nothing; what follows for attempts and for the host is here.

use super::{Answer, Event, Step, cancel, change_job, cut, no_host};
use crate::state::State;
use crate::state::host::{HostFault, HostLife};
use crate::state::job::Job;
use rota_protocol::command::Outcome;
use rota_protocol::health::{
    Cause, FINDINGS_MAX, Finding, HealthReport, Reason, Source, Stage, TRIAL_MS_MAX,
};
use rota_protocol::job::EndReason;
use rota_protocol::{DeviceUuid, HostId, PublicError, Token};
use std::collections::BTreeSet;

pub(super) fn apply(state: &mut State, step: &mut Step, id: HostId, report: &HealthReport) -> Answer {
    if report.findings.len() > FINDINGS_MAX {
        let message = format!("{} findings are above {FINDINGS_MAX}", report.findings.len());
        return Err(PublicError::invalid("findings", message, "256 findings"));
    }
    let Some(host) = state.hosts.get_mut(id) else {
        return Err(no_host(id));
    };
    if report.stopping {
        host.care.stopping = true;
    }
    for finding in &report.findings {
        // A host speaks for what it has, and not in an operator's place.
        let has = state.host(id).is_some_and(|host| host.device(&finding.uuid).is_some());
        let foreign = state.hosts.owner(&finding.uuid).is_some_and(|owner| owner != id);
        if has && !foreign && finding.cause.is_hosts() {
            take(state, step, id, finding);
        }
    }
    Ok(Outcome::Done)
}

fn take(state: &mut State, step: &mut Step, host: HostId, finding: &Finding) {
    let reason =
        Reason { cause: finding.cause, source: finding.source, text: cut(&finding.text), at_ms: step.now_ms };
    let trial_ms = finding.trial_ms.min(TRIAL_MS_MAX);
    state.care.change(&finding.uuid, step.now_ms, |mark| mark.trial_ms = trial_ms);
    match finding.cause {
        Cause::Program | Cause::Contained => program(state, step, host, finding, reason),
        Cause::NodeFault if !take_host_out(state, step, host, &finding.uuid, &reason) => {}
        _ => turn(state, step, Some(host), &finding.uuid, reason),
    }
    // Also a reason alone is shown.
    show(state, step, host, &finding.uuid);
}

/// Moves a device along the table; nothing but the reasons changes where that is no step.
pub(super) fn turn(
    state: &mut State,
    step: &mut Step,
    host: Option<HostId>,
    uuid: &DeviceUuid,
    reason: Reason,
) {
    let (now_ms, cause) = (step.now_ms, reason.cause);
    let moved = state.care.change(uuid, now_ms, |mark| {
        let early = cause == Cause::Served && mark.until_ms.is_none_or(|until_ms| now_ms < until_ms);
        let Some(mut to) = mark.stage.after(cause).filter(|_| !early) else {
            // More of the same is worth knowing, once; all that is well is not.
            if !is_good(cause) && (mark.stage != Stage::Well || cause == Cause::Noted) {
                mark.note(reason);
            }
            return None;
        };
        mark.note(reason);
        if cause == Cause::Fault && mark.note_reset(now_ms) {
            to = Stage::Out;
        }
        mark.stage = to;
        mark.since_ms = now_ms;
        let on_trial = matches!(to, Stage::Trial | Stage::Probation);
        mark.until_ms = on_trial.then(|| now_ms.saturating_add(mark.trial_ms));
        Some(to)
    });
    let Some(to) = moved.flatten() else {
        return;
    };
    let Some(host) = host else {
        return;
    };
    if matches!(cause, Cause::Repaired | Cause::Cleared | Cause::Served) {
        mend_host(state, step, host, uuid);
    }
    show(state, step, host, uuid);
    for token in holders(state, host, uuid) {
        if matches!(to, Stage::Quarantined | Stage::Out) {
            cancel::ask_end(state, step, token, EndReason::Device);
        }
        if to == Stage::Degraded && matches!(cause, Cause::Slow | Cause::Fabric) {
            move_away(state, step, token);
        }
        if let Some(job) = state.attempt(token).map(|attempt| attempt.task.job) {
            step.note(Event::JobChanged(job));
        }
    }
}

/// A card holds up work over several: that is ended, to start again without it. What may not be queued again stays.
fn move_away(state: &mut State, step: &mut Step, token: Token) {
    let Some(attempt) = state.attempt(token) else {
        return;
    };
    let (wide, id) = (attempt.in_gang || attempt.devices.len() > 1, attempt.task.job);
    if !wide || attempt.end_reason.is_some() || !state.job(id).is_some_and(|job| job.spec.requeue) {
        return;
    }
    let may = change_job(state, id, step.now_ms, Job::may_move_away);
    if may.is_some_and(|(may, _)| may) {
        cancel::ask_end(state, step, token, EndReason::Device);
    }
}

/// Brings a host's row in line with what is held against a device.
pub(super) fn show(state: &mut State, step: &mut Step, host: HostId, uuid: &DeviceUuid) {
    if state.hosts.remark(host, uuid, state.care.mark(uuid)) {
        step.note(Event::HostChanged(host));
        step.plan_needed = true;
    }
}

fn holders(state: &State, host: HostId, uuid: &DeviceUuid) -> Vec<Token> {
    let used = state.host(host).and_then(|host| host.used.devices.get(uuid));
    used.into_iter().flat_map(|used| &used.holders).map(|holder| holder.token).collect()
}

/// A program failed on a device. The device stays as it is, unless programs of several jobs failed on it.
fn program(state: &mut State, step: &mut Step, host: HostId, finding: &Finding, reason: Reason) {
    let own = finding.program.and_then(|(token, _)| state.attempt(token));
    let own = own.filter(|attempt| attempt.host == host && attempt.devices.contains(&finding.uuid));
    let own = own.map(|attempt| attempt.token);
    // The attempt may have ended before its fault was told.
    let job = finding.program.map(|(_, job)| job).filter(|job| state.job(*job).is_some());
    let text = reason.text.clone();
    let many = state.care.change(&finding.uuid, step.now_ms, |mark| {
        mark.note(reason);
        let many = job.is_some_and(|job| mark.note_job(job, step.now_ms));
        many.then(|| mark.jobs.iter().map(|(job, _)| job.to_string()).collect::<Vec<String>>().join(", "))
    });
    if let Some(token) = own {
        let why = if finding.cause == Cause::Program { EndReason::Program } else { EndReason::Device };
        cancel::ask_end(state, step, token, why);
    }
    if let Some(jobs) = many.flatten() {
        let text = cut(&format!("programs of several jobs failed on it within a day ({jobs}), last: {text}"));
        let reason = Reason { cause: Cause::JobsFailed, source: Source::Jobs, text, at_ms: step.now_ms };
        turn(state, step, Some(host), &finding.uuid, reason);
    }
}

/// Nothing runs on this host until it is mended, unless too many hosts were taken out lately. False if so: then only
/// the alert is kept.
fn take_host_out(state: &mut State, step: &mut Step, id: HostId, uuid: &DeviceUuid, reason: &Reason) -> bool {
    let hosts = state.hosts().filter(|host| host.life != HostLife::Joining).count();
    let faulty = state.host(id).is_some_and(|host| host.care.fault.is_some());
    if !faulty && !state.care.breaker.admits(id, hosts, step.now_ms) {
        if let Some(host) = state.hosts.get_mut(id) {
            host.care.alert = Some(reason.clone());
        }
        step.note(Event::HostChanged(id));
        return false;
    }
    if let Some(host) = state.hosts.get_mut(id) {
        host.care.alert = None;
        let first = || HostFault { reason: reason.clone(), devices: BTreeSet::new() };
        host.care.fault.get_or_insert_with(first).devices.insert(uuid.clone());
    }
    if !faulty {
        step.note(Event::HostChanged(id));
        step.plan_needed = true;
        let live: Vec<(Token, bool)> =
            state.attempts_on(id).map(|attempt| (attempt.token, attempt.devices.is_empty())).collect();
        for (token, no_devices) in live {
            // What needs no device is well, but the host must restart.
            let why = if no_devices { EndReason::Drain } else { EndReason::Device };
            cancel::ask_end(state, step, token, why);
        }
    }
    true
}

/// A device of a host is mended; its host is when all are.
fn mend_host(state: &mut State, step: &mut Step, id: HostId, uuid: &DeviceUuid) {
    let Some(host) = state.hosts.get_mut(id) else {
        return;
    };
    if let Some(fault) = &mut host.care.fault {
        fault.devices.remove(uuid);
        if fault.devices.is_empty() {
            host.care.fault = None;
            step.note(Event::HostChanged(id));
            step.plan_needed = true;
        }
    }
}

/// A host has restarted: what only that mends is mended, for the time being.
pub(super) fn rebooted(state: &mut State, step: &mut Step, id: HostId) {
    let Some(host) = state.hosts.get_mut(id) else {
        return;
    };
    host.care.fault = None;
    host.care.alert = None;
    let known: Vec<DeviceUuid> =
        host.facts.devices.iter().chain(&host.gone).map(|device| device.uuid.clone()).collect();
    for uuid in known {
        if state.care.mark(&uuid).is_some_and(|mark| mark.stage == Stage::Quarantined) {
            let text = "its host has restarted".to_owned();
            let reason = Reason { cause: Cause::Repaired, source: Source::Boot, text, at_ms: step.now_ms };
            turn(state, step, Some(id), &uuid, reason);
        }
    }
}

/// What is known of why an attempt's device failed it: the newest reason since it was granted.
pub(super) fn why_failed(
    state: &State,
    host: HostId,
    devices: &[DeviceUuid],
    since_ms: u64,
) -> Option<String> {
    let bad = |reason: &&Reason| !is_good(reason.cause) && reason.at_ms >= since_ms;
    let marks = devices.iter().filter_map(|uuid| Some((uuid, state.care.mark(uuid)?)));
    let reasons = marks.flat_map(|(uuid, mark)| mark.reasons.iter().map(move |reason| (uuid, reason)));
    let newest = reasons.filter(|(_, reason)| bad(reason)).max_by_key(|(_, reason)| reason.at_ms);
    let own = newest.map(|(uuid, reason)| format!("{} ({uuid})", reason.text));
    let fault = || state.host(host)?.care.fault.as_ref().map(|fault| fault.reason.text.clone());
    own.or_else(fault)
}

/// Nothing that is held against a device, or explains what became of an attempt.
fn is_good(cause: Cause) -> bool {
    matches!(cause, Cause::Clean | Cause::Repaired | Cause::Served | Cause::Cleared)
}
