//! Rows for people and programs, from one consistent copy of the state. Nothing here decides anything.

mod hosts;
mod queues;
mod reasons;
mod trust;
mod usage;

pub use hosts::{breaker, devices, hosts, hosts_at};
pub(crate) use queues::capacity;
pub use queues::{queues, reservations};
pub use trust::trust;
pub use usage::{idle, usage};

use crate::fit::{mib, milli, tenths};
use crate::state::State;
use crate::state::attempt::{Attempt, EndedAttempt};
use crate::state::job::Job;
use reasons::Reasons;
use rota_protocol::api::QueueFilter;
use rota_protocol::ask::Ask;
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind};
use rota_protocol::job::{Actor, JobSpec, JobState, Role};
use rota_protocol::limits::LIST_ROWS_MAX;
use rota_protocol::view::{AttemptRow, JobRow, JobView, Paused};
use rota_protocol::{DeviceUuid, HostId, JobId};
use std::collections::{BTreeMap, BTreeSet};

/// Names of hosts shown in a row before it says how many more.
const PLACES_SHOWN: usize = 3;
/// Shell status of a job that was cancelled.
const CANCELLED_STATUS: u8 = 130;
/// Of a job that was ended to make room for good.
const PREEMPTED_STATUS: u8 = 123;
/// Of a job that never started because of one that it waited for.
const DEPENDENCY_STATUS: u8 = 122;
/// Of a job that never started before its deadline.
const DEADLINE_STATUS: u8 = 121;

/// Jobs that the filter wants and the viewer may see, by number, and the number to ask the next page after.
#[must_use]
pub fn queue(state: &State, filter: &QueueFilter, viewer: &Actor) -> (Vec<JobRow>, Option<JobId>) {
    let limit = filter.limit.map_or(LIST_ROWS_MAX, |n| (n as usize).clamp(1, LIST_ROWS_MAX));
    let wanted = |job: &&Job| {
        let state_wanted = if filter.states.is_empty() {
            filter.all || !job.state.is_terminal()
        } else {
            filter.states.contains(&job.state)
        };
        state_wanted
            && filter.user.as_ref().is_none_or(|user| *user == job.user)
            && (viewer.role >= Role::Operator || viewer.tenant == job.tenant)
    };
    let mut jobs = state.jobs.after(filter.after.unwrap_or_default()).filter(wanted);
    let mut reasons = Reasons::default();
    let mut rows = Vec::new();
    while rows.len() < limit {
        match jobs.next() {
            Some(job) => rows.push(row(state, job, &mut reasons)),
            None => return (rows, None),
        }
    }
    let next = rows.last().map(|row| row.job).filter(|_| jobs.next().is_some());
    (rows, next)
}

/// All about one job.
#[must_use]
pub fn job(state: &State, id: JobId) -> Option<JobView> {
    let job = state.job(id)?;
    let live = state.attempts_of(id).map(|a| live_row(state, a));
    let ended = job.ended.iter().rev().map(|a| ended_row(state, job, a));
    Some(JobView {
        index: state.applied_index(),
        row: row(state, job, &mut Reasons::default()),
        spec: job.spec.whole(),
        attempts: live.chain(ended).collect(),
        attempts_forgotten: job.ended_forgotten,
        exit_status: match job.state {
            JobState::Succeeded => Some(0),
            JobState::Failed | JobState::TimedOut | JobState::HostLost => job.first_failure,
            JobState::Preempted => Some(PREEMPTED_STATUS),
            JobState::Cancelled => Some(CANCELLED_STATUS),
            JobState::DependencyFailed => Some(DEPENDENCY_STATUS),
            JobState::DeadlineMissed => Some(DEADLINE_STATUS),
            JobState::Pending | JobState::Running | JobState::Ending => None,
        },
        host_deaths: job.host_deaths(),
        held_for_deaths: job.is_held_for_deaths(),
        paused: paused(state, job),
    })
}

/// One row of the queue.
#[must_use]
pub fn job_row(state: &State, id: JobId) -> Option<JobRow> {
    Some(row(state, state.job(id)?, &mut Reasons::default()))
}

/// How many jobs are in each state; states without jobs are listed with 0.
#[must_use]
pub fn jobs_by_state(state: &State) -> BTreeMap<String, u64> {
    state.jobs.by_state().map(|(state, count)| (state.to_string(), count)).collect()
}

/// An ask in one line: `2 gpu H100 80 GiB, 4 cpu, 8 GiB`.
#[must_use]
pub fn ask_text(ask: &Ask) -> String {
    let mut parts = Vec::new();
    if ask.gpus() > 0 {
        let mut gpu = format!("{} gpu", milli(u64::from(ask.gpu_milli)));
        if !ask.gpu_models.is_empty() {
            gpu.push_str(&format!(" {}", ask.gpu_models.join("|")));
        }
        if ask.vram_mib > 0 {
            gpu.push_str(&format!(" of {}", mib(ask.vram_mib)));
        }
        if ask.compute_cap_min > 0 {
            gpu.push_str(&format!(" cc {}", tenths(ask.compute_cap_min)));
        }
        parts.push(gpu);
    }
    parts.extend(ask.devices.iter().map(|(kind, count)| format!("{count} {kind}")));
    if ask.cpus_milli > 0 {
        parts.push(format!("{} cpu", milli(u64::from(ask.cpus_milli))));
    }
    if ask.mem_mib > 0 {
        parts.push(mib(ask.mem_mib));
    }
    parts.extend(ask.labels.iter().map(|(key, value)| format!("{key}={value}")));
    if parts.is_empty() {
        return "nothing".into();
    }
    parts.join(", ")
}

/// What each task of a job asks; the parts of a gang, and further asks, by their number.
fn paused(state: &State, job: &Job) -> Option<Paused> {
    let now_ms = state.clock_ms();
    match job.resting(now_ms) {
        Some((until_ms, tasks)) => Some(Paused { until_ms, tasks: u32::try_from(tasks).unwrap_or(u32::MAX) }),
        None => Some(Paused { until_ms: job.pause_until_ms, tasks: job.pending.len() })
            .filter(|paused| paused.until_ms > now_ms && paused.tasks > 0),
    }
}

fn asks_text(spec: &JobSpec) -> String {
    let ask = ask_text(&spec.ask);
    let parts = match spec.gang {
        Some(gang) if gang.is_elastic() => format!("{}..{} x {ask}", gang.min, gang.max),
        Some(gang) => format!("{} x {ask}", gang.max),
        None => ask,
    };
    match spec.alternatives.len() {
        0 => parts,
        more => format!("{parts} (or {more} other)"),
    }
}

fn row(state: &State, job: &Job, reasons: &mut Reasons) -> JobRow {
    let place = match job.state {
        JobState::Pending => reasons.of(state, job),
        JobState::Running | JobState::Ending => places(state, job.id),
        JobState::DependencyFailed => reasons::parent_at_fault(state, job),
        JobState::DeadlineMissed => "(deadline passed)".into(),
        _ => last_place(state, job),
    };
    JobRow {
        job: job.id,
        name: job.spec.name.clone(),
        tenant: job.tenant.clone(),
        user: job.user.clone(),
        state: job.state,
        priority: job.priority,
        submitted_ms: job.submitted_ms,
        started_ms: job.started_ms,
        ended_ms: job.ended_ms,
        tasks: job.counts(),
        ask: asks_text(&job.spec),
        place,
    }
}

/// Hosts of live attempts: a few names, then how many more.
fn places(state: &State, id: JobId) -> String {
    host_names(state, state.attempts_of(id).map(|attempt| attempt.host).collect())
}

fn host_names(state: &State, counted: BTreeSet<HostId>) -> String {
    let names: Vec<String> = counted.iter().take(PLACES_SHOWN).map(|id| host_name(state, *id)).collect();
    match counted.len().saturating_sub(PLACES_SHOWN) {
        0 => names.join(","),
        more => format!("{},+{more}", names.join(",")),
    }
}

fn last_place(state: &State, job: &Job) -> String {
    let Some(last) = job.ended.back() else { return String::new() };
    // The parts of a gang were granted together.
    let entry = last.token.log_index();
    let part = |other: &&EndedAttempt| job.spec.gang.is_some() && other.token.log_index() == entry;
    host_names(state, job.ended.iter().filter(part).map(|a| a.host).chain([last.host]).collect())
}

fn host_name(state: &State, id: HostId) -> String {
    state.host(id).map_or_else(|| id.to_string(), |h| h.name.clone())
}

fn live_row(state: &State, attempt: &Attempt) -> AttemptRow {
    AttemptRow {
        token: attempt.token,
        task: attempt.task,
        host: attempt.host,
        host_name: host_name(state, attempt.host),
        devices: device_facts(state, attempt.host, &attempt.devices),
        state: Some(attempt.state),
        end: None,
        granted_ms: attempt.granted_ms,
        started_ms: attempt.started_ms,
        ended_ms: None,
        pid: attempt.pid,
        used: rota_protocol::cage::Used::default(),
        care: attempt.care.clone(),
        asked: attempt.end_reason,
        number: 0,
    }
}

fn ended_row(state: &State, job: &Job, attempt: &EndedAttempt) -> AttemptRow {
    AttemptRow {
        token: attempt.token,
        task: rota_protocol::TaskId { job: job.id, index: attempt.index },
        host: attempt.host,
        host_name: host_name(state, attempt.host),
        devices: device_facts(state, attempt.host, &attempt.devices),
        state: None,
        end: Some(attempt.end.clone()),
        granted_ms: attempt.granted_ms,
        started_ms: attempt.started_ms,
        ended_ms: Some(attempt.ended_ms),
        pid: attempt.pid,
        used: attempt.used,
        care: attempt.care.clone(),
        asked: attempt.asked,
        number: 0,
    }
}

/// Facts of devices by UUID; one that the host no longer knows keeps its UUID and says so.
fn device_facts(state: &State, host: HostId, uuids: &[DeviceUuid]) -> Vec<DeviceFacts> {
    let known = |uuid: &DeviceUuid| state.host(host).and_then(|h| h.device(uuid)).cloned();
    let unknown = |uuid: &DeviceUuid| DeviceFacts {
        uuid: uuid.clone(),
        kind: DeviceKind::Gpu,
        model: String::new(),
        vram_mib: None,
        bus: None,
        index: None,
        numa: None,
        compute_cap: None,
        island: None,
        health: DeviceHealth::Lost { reason: "its host no longer knows it".into() },
        detail: Default::default(),
    };
    uuids.iter().map(|uuid| known(uuid).unwrap_or_else(|| unknown(uuid))).collect()
}
