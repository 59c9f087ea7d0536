//! Evict: attempts are asked to end so that a job finds room, a drained host empties, or a queue comes back under its
//! ceiling. All of it or nothing: accepted only if the rules allow every victim to be ended for this reason and the
//! slots are free once the victims are gone. The slots are then the job's own.

use super::{Event, Step, cancel};
use crate::fit::{self, Want};
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::host::Used;
use crate::state::job::{GangOver, Job, Promise};
use rota_protocol::job::{AttemptState, EndReason};
use rota_protocol::limits::VICTIMS_MAX;
use rota_protocol::plan::{Refusal, Slot};
use rota_protocol::queue::{Amounts, QueueId};
use rota_protocol::{HostId, JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// How much higher a priority must be for its job to end another: jobs of about one rank wait for each other.
pub const PREEMPT_GAP: u16 = 10;
/// Most cards that may be taken from others for one card gained.
pub const EVICTED_PER_GAINED_MAX: u64 = 2;

/// One eviction as proposed.
pub(super) struct Eviction<'p> {
    pub(super) job: Option<JobId>,
    pub(super) reason: EndReason,
    pub(super) victims: &'p [Token],
    pub(super) slots: &'p [Slot],
    pub(super) choice: u8,
}

pub(super) fn evict(state: &mut State, step: &mut Step, one: &Eviction<'_>) -> Result<(), Refusal> {
    if one.victims.is_empty() || one.victims.len() > VICTIMS_MAX {
        return Err(Refusal::NotEvictable);
    }
    let named: BTreeSet<Token> = one.victims.iter().copied().collect();
    let victims: Vec<&Attempt> = named.iter().filter_map(|token| state.attempt(*token)).collect();
    if victims.len() != one.victims.len() {
        return Err(Refusal::NotEvictable);
    }
    for victim in &victims {
        may_end(state, one, victim, step.now_ms)?;
    }
    gangs_whole(state, &victims)?;
    match one.job {
        Some(id) => {
            let job = state.job(id).filter(|job| job.is_ready()).ok_or(Refusal::NotPending)?;
            gains(state, job, one, &victims, step.now_ms)?;
        }
        None if !one.slots.is_empty() => return Err(Refusal::DoesNotFit),
        None => {}
    }
    carry_out(state, step, one, &named);
    Ok(())
}

/// The rules for one victim.
fn may_end(state: &State, one: &Eviction<'_>, victim: &Attempt, now_ms: u64) -> Result<(), Refusal> {
    if victim.state == AttemptState::Ending {
        return Err(Refusal::NotEvictable);
    }
    let beneficiary = one.job.and_then(|id| state.job(id));
    let allowed = match one.reason {
        EndReason::Preempt => {
            let above = |job: &Job| job.priority >= victim.priority.saturating_add(PREEMPT_GAP);
            victim.preemptible && beneficiary.is_some_and(above)
        }
        EndReason::Reclaim => {
            let foreign = |job: &Job| job.queue != victim.queue;
            victim.preemptible && beneficiary.is_some_and(foreign)
        }
        EndReason::Move => {
            let not_below = |job: &Job| job.priority >= victim.priority;
            victim.preemptible && beneficiary.is_some_and(not_below)
        }
        EndReason::Drain => state.host(victim.host).is_some_and(|host| {
            host.drain.is_some() && host.evict_at_ms.is_some_and(|at_ms| now_ms >= at_ms)
        }),
        EndReason::Ceiling => {
            let above = |queue: &crate::state::queue::Queue| !queue.held.within(&queue.bound());
            state.queues.path(victim.queue).any(above)
        }
        EndReason::Cancel | EndReason::Gang => false,
    };
    if !allowed {
        return Err(Refusal::NotEvictable);
    }
    let counted = matches!(one.reason, EndReason::Preempt | EndReason::Reclaim | EndReason::Move);
    let often = |job: &Job| {
        let ordinal = job.ordinal(victim.task.index).unwrap_or(0);
        now_ms < job.spared_until_ms(ordinal, now_ms)
    };
    if counted && state.job(victim.task.job).is_some_and(often) {
        return Err(Refusal::EvictedTooOften);
    }
    Ok(())
}

/// A gang is ended as a whole, unless it is elastic and enough of it stays.
fn gangs_whole(state: &State, victims: &[&Attempt]) -> Result<(), Refusal> {
    let mut taken: BTreeMap<JobId, u32> = BTreeMap::new();
    for victim in victims.iter().filter(|victim| victim.in_gang) {
        *taken.entry(victim.task.job).or_default() += 1;
    }
    for (id, taken) in taken {
        let Some(job) = state.job(id) else {
            continue;
        };
        let left = job.live.saturating_sub(taken);
        let elastic = job.spec.gang.filter(|gang| gang.is_elastic());
        if left > 0 && elastic.is_none_or(|gang| left + job.succeeded.len() < gang.min) {
            return Err(Refusal::NotEvictable);
        }
    }
    Ok(())
}

/// The job is served by it, and nobody pays more than is fair.
fn gains(
    state: &State,
    job: &Job,
    one: &Eviction<'_>,
    victims: &[&Attempt],
    now_ms: u64,
) -> Result<(), Refusal> {
    let ask = job.spec.ask_at(one.choice).ok_or(Refusal::DoesNotFit)?;
    let (fewest, most) = job.start_range();
    let count = u32::try_from(one.slots.len()).unwrap_or(u32::MAX);
    if count < fewest || count > most {
        return Err(Refusal::GangSize);
    }
    let want = Want { ask, tenant: &job.tenant };
    let mut after: BTreeMap<HostId, Used> = BTreeMap::new();
    let mut gained = Amounts::default();
    for slot in one.slots {
        let host = state.host(slot.host).ok_or(Refusal::HostGone)?;
        let used = after.entry(slot.host).or_insert_with(|| once_gone(state, slot.host, victims));
        fit::takes(host, used, want, &slot.devices, now_ms).map_err(|_| Refusal::DoesNotFit)?;
        fit::take(host, used, want, &slot.devices, Token(0));
        // Probation counts launches that are under way, not those that are planned.
        used.launching = 0;
        gained = gained.plus(&fit::amounts(host, ask, &slot.devices));
    }
    let lost = victims.iter().fold(Amounts::default(), |sum, victim| sum.plus(&victim.amounts()));
    if gained.gpu_milli > 0 && lost.gpu_milli > gained.gpu_milli.saturating_mul(EVICTED_PER_GAINED_MAX) {
        return Err(Refusal::NotEvictable);
    }
    if matches!(one.reason, EndReason::Preempt | EndReason::Reclaim) && !spares(state, job, victims) {
        return Err(Refusal::NotEvictable);
    }
    let owed = || state.queues.path(job.queue).any(|queue| queue.is_owed(&queue.held, &gained));
    if one.reason == EndReason::Reclaim && !owed() {
        return Err(Refusal::NotEvictable);
    }
    if state.queues.admits(job.queue, &job.user, &gained).is_ok() {
        return Ok(());
    }
    // Ending work of its own queue makes room below the ceiling too.
    let own = victims.iter().filter(|victim| victim.queue == job.queue);
    let freed = own.fold(Amounts::default(), |sum, victim| sum.plus(&victim.amounts()));
    let net = gained.minus(&freed);
    state.queues.admits(job.queue, &job.user, &net).map_err(|_| Refusal::OverCeiling)
}

/// What a host has in use once the victims, and all that is ending already, are gone.
fn once_gone(state: &State, host: HostId, victims: &[&Attempt]) -> Used {
    let mut used = state.host(host).map(|host| host.used.clone()).unwrap_or_default();
    let victim = |attempt: &Attempt| victims.iter().any(|victim| victim.token == attempt.token);
    for attempt in state.attempts_on(host).filter(|a| a.state == AttemptState::Ending || victim(a)) {
        used.subtract(attempt.token, attempt.cpus_milli, attempt.mem_mib, &attempt.devices);
    }
    used.launching = 0;
    used
}

/// Nobody falls below their guarantee by it. Below a queue that both lie in, nothing leaves it.
fn spares(state: &State, job: &Job, victims: &[&Attempt]) -> bool {
    let shared: BTreeSet<QueueId> = state.queues.path(job.queue).map(|queue| queue.id).collect();
    let mut lost: BTreeMap<QueueId, Amounts> = BTreeMap::new();
    for victim in victims {
        for queue in state.queues.path(victim.queue).filter(|queue| !shared.contains(&queue.id)) {
            let sum = lost.entry(queue.id).or_default();
            *sum = sum.plus(&victim.amounts());
        }
    }
    lost.iter()
        .all(|(id, lost)| state.queues.get(*id).is_none_or(|queue| !queue.falls_below(&queue.held, lost)))
}

fn carry_out(state: &mut State, step: &mut Step, one: &Eviction<'_>, victims: &BTreeSet<Token>) {
    let now_ms = step.now_ms;
    let mut jobs: BTreeMap<JobId, Vec<u32>> = BTreeMap::new();
    for token in victims {
        if let Some(attempt) = state.attempt(*token) {
            jobs.entry(attempt.task.job).or_default().push(attempt.task.index);
        }
        cancel::ask_end(state, step, *token, one.reason);
    }
    for (id, taken) in jobs {
        state.jobs.update(id, now_ms, |job| note_evictions(job, &taken, one.reason, now_ms));
    }
    if let Some(id) = one.job.filter(|_| !one.slots.is_empty()) {
        let promise = Promise {
            at_ms: now_ms,
            made_ms: now_ms,
            slots: one.slots.to_vec(),
            choice: one.choice,
            evicting: true,
            broken_by: None,
        };
        state.jobs.update(id, now_ms, |job| job.promise = Some(promise));
        step.note(Event::JobChanged(id));
    }
    step.plan_needed = true;
}

fn note_evictions(job: &mut Job, taken: &[u32], reason: EndReason, now_ms: u64) {
    for ordinal in taken.iter().filter_map(|index| job.ordinal(*index)).collect::<Vec<u32>>() {
        job.note_eviction(ordinal, now_ms);
    }
    if job.spec.gang.is_some() && taken.len() >= job.live as usize {
        job.gang_ending = true;
        let stays = job.spec.requeue || matches!(reason, EndReason::Drain | EndReason::Move);
        if !stays {
            job.gang_over = Some(GangOver::Preempted);
        }
    }
}
