//! Evict: attempts are asked to end so that a job finds room, a drained host empties, or a queue comes back under its
//! ceiling. All of it or nothing: accepted only if the rules allow every victim to be ended for this reason (here) and,
//! where it is for a job, that job could start once the victims are gone and not without (`gain`). The job then has a
//! promise of its slots, and no other eviction counts on them.

mod gain;
mod turn;

pub use turn::RUN_MS_MIN;

use super::{Event, Step, cancel, care};
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::job::{GangOver, Job, Promise};
use crate::state::queue::{Queue, Tally};
use rota_protocol::job::{AttemptState, EndReason};
use rota_protocol::limits::VICTIMS_MAX;
use rota_protocol::plan::{Refusal, Slot};
use rota_protocol::queue::{Amounts, Excess, QueueId};
use rota_protocol::{JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// How much higher a priority must be for its job to end another: jobs of about one rank wait for each other.
pub const PREEMPT_GAP: u16 = 10;
/// Most cards that may be taken from others for one card gained, unless a guarantee is taken back.
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
    let left = left_of_gangs(state, &victims)?;
    if one.reason == EndReason::Ceiling {
        above_ceiling(state, &victims)?;
    }
    match one.job {
        Some(id) => {
            let job = state.job(id).ok_or(Refusal::NotPending)?;
            if one.reason == EndReason::Turn && job.live > 0 {
                turn::moves(state, job, one, &victims, step.now_ms)?;
            } else if job.is_ready() {
                gain::gains(state, job, one, &victims, step.now_ms)?;
            } else {
                return Err(Refusal::NotPending);
            }
        }
        None if !one.slots.is_empty() => return Err(Refusal::DoesNotFit),
        None => {}
    }
    carry_out(state, step, one, &named, &left);
    Ok(())
}

/// The rules for one victim.
fn may_end(state: &State, one: &Eviction<'_>, victim: &Attempt, now_ms: u64) -> Result<(), Refusal> {
    let own = one.job == Some(victim.task.job);
    if victim.state == AttemptState::Ending || own && one.reason != EndReason::Turn {
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
        EndReason::Turn => turn::may_end(state, beneficiary, victim, now_ms),
        EndReason::Drain => is_drained(state, victim, now_ms),
        // Whether it must be this one shows only in sight of all victims.
        EndReason::Ceiling => true,
        // Not a planner's reasons.
        EndReason::Cancel
        | EndReason::Gang
        | EndReason::Device
        | EndReason::Program
        | EndReason::Vram
        | EndReason::SharedFault
        | EndReason::Idle => false,
    };
    if !allowed {
        return Err(Refusal::NotEvictable);
    }
    let counted =
        matches!(one.reason, EndReason::Preempt | EndReason::Reclaim | EndReason::Move | EndReason::Turn);
    let often = |job: &Job| {
        let ordinal = job.ordinal(victim.task.index).unwrap_or(0);
        now_ms < job.spared_until_ms(ordinal, now_ms)
    };
    if counted && state.job(victim.task.job).is_some_and(often) {
        return Err(Refusal::EvictedTooOften);
    }
    if counted && now_ms < victim.spared_until_ms {
        return Err(Refusal::RanTooShort);
    }
    Ok(())
}

/// Its host is to be empty by now, or that of another part of its gang.
fn is_drained(state: &State, victim: &Attempt, now_ms: u64) -> bool {
    let due = |attempt: &Attempt| {
        state
            .host(attempt.host)
            .is_some_and(|host| host.drain.is_some() && host.evict_at_ms.is_some_and(|at_ms| now_ms >= at_ms))
    };
    due(victim) || victim.in_gang && state.attempts_of(victim.task.job).any(due)
}

/// A gang is ended as a whole, unless it is elastic and enough of it stays. Gives for each job how many of its
/// attempts are asked to go on.
fn left_of_gangs(state: &State, victims: &[&Attempt]) -> Result<BTreeMap<JobId, u32>, Refusal> {
    let mut taken: BTreeMap<JobId, u32> = BTreeMap::new();
    for victim in victims {
        *taken.entry(victim.task.job).or_default() += 1;
    }
    let mut left = BTreeMap::new();
    for (id, taken) in taken {
        let Some(job) = state.job(id) else {
            continue;
        };
        // What ends already will not stay.
        let stays = state.attempts_of(id).filter(|a| a.state != AttemptState::Ending).count();
        let stays = u32::try_from(stays).unwrap_or(u32::MAX).saturating_sub(taken);
        let fewest = job.spec.gang.map_or(0, |gang| if gang.is_elastic() { gang.min } else { u32::MAX });
        if stays > 0 && stays.saturating_add(job.succeeded.len()) < fewest {
            return Err(Refusal::NotEvictable);
        }
        left.insert(id, stays);
    }
    Ok(left)
}

/// Each victim lies in a queue that is above a lowered ceiling and whose rule is to end work for that, and of the
/// victims of one queue at least the last was needed: without it the rest would still be too much.
fn above_ceiling(state: &State, victims: &[&Attempt]) -> Result<(), Refusal> {
    let ending = tally(state, |attempt| attempt.state == AttemptState::Ending);
    let going = tally_of(state, victims);
    // A gang goes as a whole: all of it is one unit.
    let mut units: BTreeMap<Token, Amounts> = BTreeMap::new();
    let mut first_of: BTreeMap<JobId, Token> = BTreeMap::new();
    let mut bounds: BTreeMap<(QueueId, Option<&str>), Vec<Token>> = BTreeMap::new();
    for victim in victims {
        let unit = match victim.in_gang {
            true => *first_of.entry(victim.task.job).or_insert(victim.token),
            false => victim.token,
        };
        let sum = units.entry(unit).or_default();
        *sum = sum.plus(&victim.amounts());
        let broken = state.queues.path(victim.queue).find_map(|queue| broken_bound(queue, victim, &ending));
        bounds.entry(broken.ok_or(Refusal::NotEvictable)?).or_default().push(unit);
    }
    for ((id, user), named) in bounds {
        let Some(queue) = state.queues.get(id) else {
            continue;
        };
        let (held, bound) = queue.held_and_bound(user);
        let rest = held.minus(&ending.of(id, user)).minus(&going.of(id, user));
        let needed = |unit: &Token| units.get(unit).is_some_and(|unit| !rest.plus(unit).within(&bound));
        if !named.iter().any(needed) {
            return Err(Refusal::NotEvictable);
        }
    }
    Ok(())
}

/// The bound of a queue, or of the victim's user in it, that is broken even when all that ends is gone, if its rule is
/// to end work for that.
fn broken_bound<'a>(
    queue: &Queue,
    victim: &'a Attempt,
    ending: &Tally,
) -> Option<(QueueId, Option<&'a str>)> {
    let above = |user: &Option<&str>| {
        let (held, bound) = queue.held_and_bound(*user);
        !held.minus(&ending.of(queue.id, *user)).within(&bound)
    };
    let candidates = [None, Some(victim.user.as_str())];
    let broken = candidates.into_iter().find(above)?;
    (queue.spec.excess == Excess::RequeueYoungest).then_some((queue.id, broken))
}

/// What the attempts hold that are wanted, along their queues' paths.
fn tally(state: &State, wanted: impl Fn(&Attempt) -> bool) -> Tally {
    let attempts: Vec<&Attempt> = state.attempts().filter(|attempt| wanted(attempt)).collect();
    tally_of(state, &attempts)
}

fn tally_of(state: &State, attempts: &[&Attempt]) -> Tally {
    let mut sums = Tally::default();
    for attempt in attempts {
        sums.add(&state.queues, attempt.queue, &attempt.user, &attempt.amounts());
    }
    sums
}

fn carry_out(
    state: &mut State,
    step: &mut Step,
    one: &Eviction<'_>,
    victims: &BTreeSet<Token>,
    left: &BTreeMap<JobId, u32>,
) {
    let now_ms = step.now_ms;
    let told = told(state, one);
    let mut taken: BTreeMap<JobId, Vec<u32>> = BTreeMap::new();
    for token in victims {
        if let Some(attempt) = state.attempt(*token) {
            taken.entry(attempt.task.job).or_default().push(attempt.task.index);
        }
        cancel::ask_end(state, step, *token, one.reason);
        care::noted(state, step, *token, &told);
    }
    for (id, taken) in taken {
        let left = left.get(&id).copied().unwrap_or(0);
        state.jobs.update(id, now_ms, |job| note_evictions(job, &taken, left, one.reason, now_ms));
    }
    if let Some(id) = one.job {
        let (slots, choice) = (one.slots.to_vec(), one.choice);
        state.jobs.update(id, now_ms, |job| {
            // What was promised before stays promised: no later than that.
            let old = job.promise.as_ref();
            job.promise = Some(Box::new(Promise {
                at_ms: old.map_or(now_ms, |old| old.at_ms.min(now_ms)),
                made_ms: old.map_or(now_ms, |old| old.made_ms),
                broken_by: old.and_then(|old| old.broken_by),
                slots,
                choice,
                evicting: true,
            }));
        });
        step.note(Event::JobChanged(id));
    }
    step.plan_needed = true;
}

/// For the owner of what is put out: why, and for whom.
fn told(state: &State, one: &Eviction<'_>) -> String {
    let whom = one.job.and_then(|id| state.job(id)).map_or_else(String::new, |job| {
        let queue = state.queues.get(job.queue).map_or("", |queue| &*queue.spec.name);
        format!(" for job {} (priority {}, queue {queue})", job.id, job.priority)
    });
    let why = match one.reason {
        EndReason::Preempt => "to make room",
        EndReason::Reclaim => "a queue takes back what it is guaranteed",
        EndReason::Move => "it is moved to make room in one piece",
        EndReason::Turn => "the turn of others has come",
        EndReason::Drain => "its host is drained",
        EndReason::Ceiling => "its queue is above its ceiling",
        EndReason::Cancel
        | EndReason::Gang
        | EndReason::Device
        | EndReason::Program
        | EndReason::Vram
        | EndReason::SharedFault
        | EndReason::Idle => "as asked",
    };
    format!("{}{why}{whom}", crate::explain::TOLD)
}

fn note_evictions(job: &mut Job, taken: &[u32], left: u32, reason: EndReason, now_ms: u64) {
    for ordinal in taken.iter().filter_map(|index| job.ordinal(*index)).collect::<Vec<u32>>() {
        job.note_eviction(ordinal, now_ms);
    }
    if job.spec.gang.is_some() && left == 0 {
        job.gang_ending = true;
        let stays =
            job.spec.requeue || matches!(reason, EndReason::Drain | EndReason::Move | EndReason::Turn);
        if !stays {
            job.gang_over.get_or_insert(GangOver::Preempted);
        }
    }
}
