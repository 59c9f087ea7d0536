//! When it will start, what it was promised, and how long each cause has kept it waiting.

use super::Case;
use super::account::of_part;
use super::cause::Cause;
use super::text::names;
use crate::placement::Evicts;
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::job::{Job, Promise, WaitCause};
use crate::state::queue::OverCeiling;
use rota_protocol::job::{AttemptState, EndReason};
use rota_protocol::plan::Slot;
use rota_protocol::why::{StartBasis, WhyPromise, WhyStart, WhyWait};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The start that can be said of a job that waits for this cause.
pub(super) fn expected(case: &Case<'_>, cause: Cause) -> Option<WhyStart> {
    let (state, job, now_ms) = (case.state, case.job, case.now_ms);
    let start = |at_ms: u64, basis, slots: &[Slot]| WhyStart { at_ms, basis, hosts: places(state, slots) };
    let earliest = case.look.expected.as_ref();
    let promise = job.promise.as_ref();
    match cause {
        Cause::Turn => {
            Some(start(now_ms, StartBasis::Now, earliest.map_or(&[][..], |opening| &opening.slots)))
        }
        Cause::Victims => {
            promise.map(|promise| start(due_ms(case, promise), StartBasis::Victims, &promise.slots))
        }
        Cause::Begin | Cause::Pause => {
            let begin_ms = job.earliest_ms();
            match earliest {
                Some(opening) if opening.at_ms > begin_ms => {
                    Some(start(opening.at_ms, basis(opening.assumed), &opening.slots))
                }
                Some(opening) => Some(start(begin_ms, StartBasis::Begin, &opening.slots)),
                None => case.tally.of("fits").map(|_| start(begin_ms, StartBasis::Begin, &[])),
            }
        }
        Cause::Ceiling => {
            let at_ms = within_ms(case, case.look.over.as_ref()?)?;
            Some(start(at_ms, StartBasis::Account, &[]))
        }
        Cause::Hosts(_) => {
            // What opens now was looked at and does not do, for a reason that no limit tells the end of.
            let opening = earliest.filter(|opening| opening.at_ms > now_ms);
            let promise = promise.filter(|one| one.at_ms >= now_ms && case.look.promise_broken.is_none());
            let room = match (opening, promise) {
                // Of two places at the same time the promised one is kept.
                (Some(opening), Some(promise)) if opening.at_ms >= promise.at_ms => {
                    Some(start(promise.at_ms, StartBasis::Promise, &promise.slots))
                }
                (None, Some(promise)) => Some(start(promise.at_ms, StartBasis::Promise, &promise.slots)),
                (Some(opening), _) => Some(start(opening.at_ms, basis(opening.assumed), &opening.slots)),
                (None, None) => None,
            };
            let evicts = case.look.evicts.as_ref();
            let made = evicts.map(|made| start(made_ms(case, made), StartBasis::Eviction, &made.slots));
            [room, made].into_iter().flatten().min_by_key(|start| start.at_ms)
        }
        _ => None,
    }
}

/// When room that is made by evictions is there at the latest.
fn made_ms(case: &Case<'_>, made: &Evicts) -> u64 {
    let victims = made.victims.iter().filter_map(|token| case.state.attempt(*token));
    let leaving = victims.map(|victim| evicted_ms(case, victim)).max();
    made.at_ms.saturating_add(leaving.unwrap_or(0))
}

/// The reservation of others at whose end the expected start lies, on a host of it.
pub(super) fn reservation(case: &Case<'_>) -> Option<String> {
    let start = case.expected.as_ref()?;
    let opening = case.look.expected.as_ref().filter(|opening| opening.at_ms == start.at_ms)?;
    let hosts = |host| opening.slots.iter().any(|slot| slot.host == host);
    let mut rows = case.state.reservations();
    let ends = rows.find(|row| row.end_ms == start.at_ms && row.hosts.iter().any(|host| hosts(*host)))?;
    Some(ends.name.clone())
}

/// An array of which some tasks have started, or are over, and others wait.
pub(super) fn is_partly(job: &Job) -> bool {
    job.spec.array.is_some() && job.started_ms.is_some() && !job.pending.is_empty()
}

/// When so much of what counts against a bound is over by its limits that the job keeps it; none if work without a
/// limit is in the way.
fn within_ms(case: &Case<'_>, over: &OverCeiling) -> Option<u64> {
    let queue = case.state.queues.get(over.queue)?;
    let counts = |attempt: &&Attempt| {
        let own = if over.of_user { attempt.user == case.job.user } else { true };
        own && case.state.queues.lies_in(attempt.queue, &queue.spec.name)
    };
    let ends = case.state.attempts().filter(counts).filter_map(|attempt| {
        let at_ms = match attempt.state {
            AttemptState::Ending => case.now_ms.saturating_add(leaving_ms(case, attempt)),
            _ => limit_over_ms(attempt, case.now_ms, case.grace_ms)?,
        };
        Some((at_ms, of_part(&attempt.amounts(), over.part)))
    });
    let mut ends: Vec<(u64, u64)> = ends.collect();
    ends.sort_unstable();
    let mut excess = over.would.saturating_sub(over.most);
    for (at_ms, freed) in ends {
        excess = excess.saturating_sub(freed);
        if excess == 0 {
            return Some(at_ms);
        }
    }
    None
}

/// When an attempt has reached its limit and had its grace, at the latest; none if it has no limit. `grace_ms` is for one
/// without a grace of its own.
pub(super) fn limit_over_ms(attempt: &Attempt, now_ms: u64, grace_ms: u64) -> Option<u64> {
    let grace_ms = attempt.grace_ms.map_or(grace_ms, u64::from);
    Some(attempt.ends_by_ms()?.saturating_add(grace_ms).max(now_ms))
}

/// From the wish to end an attempt to its end, in ms, at the most: an evicted one has so much of its warning as its host
/// gives (`node`'s life of an attempt has the same sum), then its grace.
fn leaving_ms(case: &Case<'_>, attempt: &Attempt) -> u64 {
    if attempt.end_reason.is_some_and(EndReason::is_eviction) {
        return evicted_ms(case, attempt);
    }
    attempt.grace_ms.map_or(case.grace_ms, u64::from)
}

/// The same of one that is evicted.
fn evicted_ms(case: &Case<'_>, attempt: &Attempt) -> u64 {
    let warning = case.state.job(attempt.task.job).and_then(|job| job.spec.warning);
    let warning_ms = warning.map_or(0, |warning| u64::from(warning.eviction_ms()));
    attempt.grace_ms.map_or(case.grace_ms, u64::from).saturating_add(warning_ms)
}

/// When a promise falls due. One for which room is being made counts from the evictions: their warnings and graces are
/// still to pass.
fn due_ms(case: &Case<'_>, promise: &Promise) -> u64 {
    let leaving = ending(case.state, promise).map(|attempt| leaving_ms(case, attempt)).max();
    match leaving.filter(|_| promise.evicting) {
        Some(ms) => promise.at_ms.saturating_add(ms).max(case.now_ms),
        None => promise.at_ms,
    }
}

/// A stored promise for people.
pub(super) fn promised(case: &Case<'_>, promise: &Promise) -> WhyPromise {
    WhyPromise {
        at_ms: due_ms(case, promise),
        made_ms: promise.made_ms,
        broken_by: promise.broken_by,
        broken_now: case.look.promise_broken,
        hosts: places(case.state, &promise.slots),
    }
}

/// Attempts that are being ended and hold what is promised to the job; 0 unless the promise is of that kind.
pub(super) fn victims(state: &State, job: &Job) -> u32 {
    let Some(promise) = job.promise.as_ref().filter(|promise| promise.evicting) else {
        return 0;
    };
    u32::try_from(ending(state, promise).count()).unwrap_or(u32::MAX)
}

/// What is being ended on the hosts of a promise.
fn ending<'s>(state: &'s State, promise: &Promise) -> impl Iterator<Item = &'s Attempt> {
    let mut hosts: Vec<_> = promise.slots.iter().map(|slot| slot.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let ending = hosts.into_iter().flat_map(|host| state.attempts_on(host));
    ending.filter(|attempt| attempt.state == AttemptState::Ending)
}

/// From submission to the first start, to the end, or to now, and what it waited again since, in ms.
pub(super) fn waited_ms(job: &Job, now_ms: u64) -> u64 {
    if is_partly(job) {
        return now_ms.saturating_sub(job.submitted_ms);
    }
    let until_ms = job.started_ms.or(job.ended_ms).unwrap_or(now_ms);
    let causes: u64 = waits(job, now_ms).iter().filter(|row| row.cause != "runs").map(|row| row.ms).sum();
    causes.max(until_ms.saturating_sub(job.submitted_ms))
}

/// How long each cause kept it waiting, the longest first. Time before its begin time is told from time for room.
pub(super) fn waits(job: &Job, now_ms: u64) -> Vec<WhyWait> {
    let until_ms = job.ended_ms.unwrap_or(now_ms);
    let begin_ms = job.spec.begin_ms.unwrap_or(0);
    let ends = job.waits().skip(1).map(|(at_ms, _)| at_ms).chain([until_ms]);
    let mut sums: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut add = |name, ms| *sums.entry(name).or_default() += ms;
    for ((from_ms, cause), end_ms) in job.waits().zip(ends) {
        let ms = end_ms.saturating_sub(from_ms);
        match cause {
            WaitCause::Room => {
                let before_ms = begin_ms.min(end_ms).saturating_sub(from_ms);
                add("begin", before_ms);
                add("room", ms.saturating_sub(before_ms));
            }
            WaitCause::Dependency => add("dependency", ms),
            WaitCause::Hold => add("hold", ms),
            WaitCause::Runs => add("runs", ms),
        }
    }
    let rows = sums.into_iter().filter(|(_, ms)| *ms > 0);
    let mut rows: Vec<WhyWait> = rows.map(|(cause, ms)| WhyWait { cause: cause.to_owned(), ms }).collect();
    rows.sort_by_key(|row| Reverse(row.ms));
    rows
}

fn basis(assumed: bool) -> StartBasis {
    if assumed { StartBasis::AssumedLimits } else { StartBasis::Limits }
}

fn places(state: &State, slots: &[Slot]) -> Vec<String> {
    names(slots.iter().filter_map(|slot| Some(state.host(slot.host)?.name.clone())))
}
