//! What the job for which others are ended gains by it: it could start in the slots once the victims are gone, it could
//! not without, and nobody pays more than is fair.

use super::{EVICTED_PER_GAINED_MAX, Eviction, tally, tally_of};
use crate::apply::start::{self, Spot};
use crate::fit::{self, Want};
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::host::Used;
use crate::state::job::Job;
use crate::state::queue::{Queue, Tally};
use rota_protocol::ask::Ask;
use rota_protocol::job::{AttemptState, EndReason};
use rota_protocol::plan::{Refusal, Slot};
use rota_protocol::queue::{Amounts, QueueId};
use rota_protocol::{HostId, JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn gains(
    state: &State,
    job: &Job,
    one: &Eviction<'_>,
    victims: &[&Attempt],
    now_ms: u64,
) -> Result<(), Refusal> {
    let ask = job.spec.ask_at(one.choice).ok_or(Refusal::DoesNotFit)?;
    start::check_time(job, now_ms)?;
    start::check_count(job, one.slots.len())?;
    let places: Vec<Spot<'_>> = one.slots.iter().map(|slot| (slot.host, slot.devices.as_slice())).collect();
    if !start::layout_holds(state, job, &places) {
        return Err(Refusal::DoesNotFit);
    }
    if one.slots.iter().any(|slot| start::is_reserved(state, job, slot.host, now_ms)) {
        return Err(Refusal::Reserved);
    }
    let then = Then::of(state, job, one.slots);
    let tokens: BTreeSet<Token> = victims.iter().map(|victim| victim.token).collect();
    let (going, nobody) =
        (Going { victims, tokens: &tokens }, Going { victims: &[], tokens: &BTreeSet::new() });
    let gained = then.room(ask, one.slots, going, now_ms)?;
    let lost = victims.iter().fold(Amounts::default(), |sum, victim| sum.plus(&victim.amounts()));
    // Those whose turn is over are many at once where a wide job goes and narrow ones come. What a queue is guaranteed it
    // gets, however wide those are who have borrowed it.
    let bounded = !matches!(one.reason, EndReason::Turn | EndReason::Reclaim) && gained.gpu_milli > 0;
    if bounded && lost.gpu_milli > gained.gpu_milli.saturating_mul(EVICTED_PER_GAINED_MAX) {
        return Err(Refusal::NotEvictable);
    }
    then.quota(&gained, going)?;
    let short_of_quota = then.quota(&gained, nobody).is_err();
    let short_of_room = then.room(ask, one.slots, nobody, now_ms).is_err();
    if !short_of_quota && !short_of_room {
        return Err(Refusal::NotEvictable);
    }
    all_of_use(state, job, one.slots, victims, short_of_quota)?;
    fair(state, job, one.reason, victims, &gained)
}

/// Who is to be ended now; what ends already goes too.
#[derive(Clone, Copy)]
pub(super) struct Going<'v> {
    pub(super) victims: &'v [&'v Attempt],
    pub(super) tokens: &'v BTreeSet<Token>,
}

impl Going<'_> {
    fn takes(self, attempt: &Attempt) -> bool {
        attempt.state == AttemptState::Ending || self.tokens.contains(&attempt.token)
    }
}

/// The world once everything is gone that ends by now, and every job has come that others were ended for.
pub(super) struct Then<'s> {
    state: &'s State,
    job: &'s Job,
    /// Jobs that others were ended for before: their slots are spoken for. A job of lower priority may be passed over.
    before: Vec<&'s Job>,
    hosts: BTreeSet<HostId>,
}

impl<'s> Then<'s> {
    pub(super) fn of(state: &'s State, job: &'s Job, slots: &[Slot]) -> Self {
        let promised = state.jobs.promised().filter(|id| *id != job.id).filter_map(|id| state.job(id));
        let evicts = |other: &&Job| other.promise.as_ref().is_some_and(|promise| promise.evicting);
        let before =
            promised.filter(evicts).filter(|other| other.priority >= job.priority && other.is_ready());
        Self { state, job, before: before.collect(), hosts: slots.iter().map(|slot| slot.host).collect() }
    }

    /// All slots are free once the victims are gone too; gives what the job holds in them.
    pub(super) fn room(
        &self,
        ask: &Ask,
        slots: &[Slot],
        going: Going<'_>,
        now_ms: u64,
    ) -> Result<Amounts, Refusal> {
        let want = Want::of(self.job, ask);
        let mut used: BTreeMap<HostId, Used> =
            self.hosts.iter().map(|host| (*host, self.used(*host, going))).collect();
        let mut gained = Amounts::default();
        for slot in slots {
            let host = self.state.host(slot.host).ok_or(Refusal::HostGone)?;
            let used = used.entry(slot.host).or_default();
            fit::takes(host, used, want, &slot.devices, now_ms).map_err(|_| Refusal::DoesNotFit)?;
            fit::take(host, used, want, &slot.devices, Token(0));
            // Probation counts launches that are under way, not those that are planned.
            used.launching = 0;
            gained = gained.plus(&fit::amounts(host, ask, &slot.devices));
        }
        Ok(gained)
    }

    fn used(&self, id: HostId, going: Going<'_>) -> Used {
        let Some(host) = self.state.host(id) else {
            return Used::default();
        };
        let mut used = host.used.clone();
        for attempt in self.state.attempts_on(id).filter(|attempt| going.takes(attempt)) {
            used.subtract(attempt.token, attempt.cpus_milli, attempt.mem_mib, &attempt.devices);
        }
        for (other, ask, slot) in self.spoken_for().filter(|(_, _, slot)| slot.host == id) {
            fit::take(host, &mut used, Want::of(other, ask), &slot.devices, Token(0));
        }
        used.launching = 0;
        used
    }

    /// Slots that belong to other jobs.
    fn spoken_for(&self) -> impl Iterator<Item = (&'s Job, &'s Ask, &'s Slot)> + '_ {
        self.before.iter().flat_map(|other| {
            let promise = other.promise.as_ref();
            let ask = promise.and_then(|promise| other.spec.ask_at(promise.choice));
            let slots = promise.into_iter().flat_map(|promise| &promise.slots);
            slots.filter_map(move |slot| Some((*other, ask?, slot)))
        })
    }

    /// Every ceiling along the job's path holds with what it gains.
    pub(super) fn quota(&self, gained: &Amounts, going: Going<'_>) -> Result<(), Refusal> {
        let (queues, job) = (&self.state.queues, self.job);
        let mut come = Tally::default();
        for (other, ask, slot) in self.spoken_for() {
            if let Some(host) = self.state.host(slot.host) {
                come.add(queues, other.queue, &other.user, &fit::amounts(host, ask, &slot.devices));
            }
        }
        // Without a look at every attempt if it can be.
        let freed = tally_of(self.state, going.victims);
        if queues.admits_after(job.queue, &job.user, gained, &freed, &come).is_ok() {
            return Ok(());
        }
        let gone = tally(self.state, |attempt| going.takes(attempt));
        queues.admits_after(job.queue, &job.user, gained, &gone, &come).map_err(|_| Refusal::OverCeiling)
    }
}

/// Nobody is ended in vain: each job that loses something loses it on a host of the slots, or where the quota is short
/// in a queue above both.
fn all_of_use(
    state: &State,
    job: &Job,
    slots: &[Slot],
    victims: &[&Attempt],
    short_of_quota: bool,
) -> Result<(), Refusal> {
    let hosts: BTreeSet<HostId> = slots.iter().map(|slot| slot.host).collect();
    let shared: BTreeSet<QueueId> = state.queues.path(job.queue).map(|queue| queue.id).collect();
    let mut useful: BTreeMap<JobId, bool> = BTreeMap::new();
    for victim in victims {
        let frees_quota =
            || short_of_quota && state.queues.path(victim.queue).any(|queue| shared.contains(&queue.id));
        // Tasks of an array stand each for itself.
        let of_use = hosts.contains(&victim.host) || frees_quota();
        if !victim.in_gang && !of_use {
            return Err(Refusal::NotEvictable);
        }
        *useful.entry(victim.task.job).or_default() |= of_use;
    }
    if useful.values().all(|useful| *useful) { Ok(()) } else { Err(Refusal::NotEvictable) }
}

/// A queue takes back what it was promised and no more, and nobody falls below theirs by it, nor for priority. What is
/// only moved is not lost.
fn fair(
    state: &State,
    job: &Job,
    reason: EndReason,
    victims: &[&Attempt],
    gained: &Amounts,
) -> Result<(), Refusal> {
    let owed = || state.queues.path(job.queue).any(|queue| queue.is_owed(&queue.held, gained));
    let fair = match reason {
        EndReason::Reclaim => owed() && spares_guarantees(state, job, victims),
        EndReason::Preempt => spares_guarantees(state, job, victims),
        _ => true,
    };
    if fair { Ok(()) } else { Err(Refusal::NotEvictable) }
}

/// No queue falls below its guarantee in anything that it loses. Below a queue that both lie in, nothing leaves it.
fn spares_guarantees(state: &State, job: &Job, victims: &[&Attempt]) -> bool {
    let shared: BTreeSet<QueueId> = state.queues.path(job.queue).map(|queue| queue.id).collect();
    let lost = tally_of(state, victims);
    // What ends already is as good as gone.
    let ending = tally(state, |attempt| attempt.state == AttemptState::Ending);
    lost.queues().filter(|(id, _)| !shared.contains(id)).all(|(id, lost)| {
        let left = |queue: &Queue| queue.held.minus(&ending.of(id, None));
        state.queues.get(id).is_none_or(|queue| !queue.falls_below(&left(queue), lost))
    })
}
