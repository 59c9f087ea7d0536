//! Promise: who is promised a start, and when that is written down. What a promise binds is in `promise.rs`.

use super::openings::Opening;
use super::order::promised_start_ms;
use super::promise::{Guards, Kept};
use super::round::{Round, at_least, competes};
use super::view::View;
use crate::fit::{self, Want};
use crate::state::host::Used;
use crate::state::job::{Job, Promise};
use rota_protocol::device::DeviceFacts;
use rota_protocol::plan::{Move, PromiseBreak, Slot};
use rota_protocol::{DeviceUuid, HostId, JobId};
use std::cmp::Reverse;
use std::sync::Arc;

/// A promise moves to an earlier start only if that is at least this much earlier, in ms, and by this part of the time
/// that is left: so one that was made behind work without a limit moves a few dozen times in all, however often
/// something ends.
const EARLIER_MS_MIN: u64 = 1_000;
const EARLIER_PART: u64 = 8;
/// Of several promises one is looked at anew in each such span of time, in ms: a look is as dear as a promise.
const LOOK_MS: u64 = 10_000;

/// Which ask, at what log time, and on which sites and slots.
pub(super) type Earliest = (u8, u64, Vec<(usize, Slot)>);

impl<'p> Round<'p> {
    /// Standing promises bind from the start. One that is broken binds nobody; its job gets a new one in its turn.
    pub(super) fn keep_promises(&mut self) {
        let mut promised: Vec<(&Arc<Job>, &Promise)> =
            self.view.promised.iter().filter_map(|job| Some((job, job.promise.as_deref()?))).collect();
        // Each is bound beside those that fall due before it. Of slots that others were ended for the higher priority's
        // count first: `apply` lets it pass over a promise of a lower one.
        promised.sort_by_key(|(job, promise)| {
            let rank = if promise.evicting { job.priority } else { 0 };
            (!promise.evicting, Reverse(rank), promise.at_ms, job.id)
        });
        for (job, promise) in promised {
            if self.broken(job, promise).is_some() {
                continue;
            }
            let turn = promise.evicting && job.spec.takes_turns();
            if self.bind_standing(job, promise) && !turn {
                self.competing.insert(competes(job));
                self.promises += 1;
            }
        }
    }

    /// What ran in the way may have ended long before its limit, and then a promise may be kept earlier. Without this
    /// others would pass its job, as they may, until the day that was named for it.
    pub(super) fn draw_promises_near(&mut self) {
        let far = |job: &&Arc<Job>| {
            let promise = job.promise.as_ref().filter(|promise| !promise.evicting)?;
            let may = !job.spec.takes_turns() && self.shares.admits(self.view, job, &at_least(&job.spec.ask));
            let left_ms = promise.at_ms.checked_sub(self.now_ms)?;
            let earlier_ms = (left_ms / EARLIER_PART).max(EARLIER_MS_MIN);
            // One that is no further away than its job is long costs others more than the job gains.
            let is_far = left_ms > earlier_ms.max(job.spec.time_limit_ms.unwrap_or(0));
            (may && is_far && self.guards.holds(job.id)).then_some(promise.at_ms - earlier_ms)
        };
        let far: Vec<(&'p Arc<Job>, u64)> =
            self.view.promised.iter().filter_map(|job| Some((job, far(&job)?))).collect();
        if far.len() > 1 {
            self.wake_at((self.now_ms / LOOK_MS + 1).saturating_mul(LOOK_MS));
        }
        let turn = usize::try_from(self.now_ms / LOOK_MS).unwrap_or(0) % far.len().max(1);
        let Some((job, before_ms)) = far.get(turn) else {
            return;
        };
        let mut others = self.guards.clone();
        others.unbind(job.id);
        // Room that is there now is kept for a moment, until the job's turn comes.
        let soonest_ms = self.now_ms.saturating_add(EARLIER_MS_MIN);
        if let Some((choice, at_ms, slots)) = self.earliest_beside(&others, job)
            && let at_ms = at_ms.max(soonest_ms)
            && at_ms <= *before_ms
        {
            self.guards.unbind(job.id);
            self.guards.bind(self.ground, job, at_ms, choice, &slots, Kept::Promised);
            self.drawn = Some((job, (choice, at_ms, slots)));
        }
    }

    /// It is written down unless the job has started after all, others are ended for it, or it has lost it again.
    pub(super) fn tell_drawn(&mut self) {
        if let Some((job, (choice, at_ms, slots))) = self.drawn.take()
            && self.guards.holds(job.id)
            && !self.guards.owns(job.id)
            && !self.has_started(job.id)
            && !self.is_full()
        {
            self.tell(job, at_ms, choice, slots, None);
        }
    }

    /// Why a standing promise cannot be kept as it is; none if it can.
    pub(super) fn broken(&self, job: &Job, promise: &Promise) -> Option<PromiseBreak> {
        let view = self.view;
        let sound = |slot: &Slot| {
            view.host_at(slot.host).is_some_and(|at| {
                let host = &view.hosts[at].host;
                let want = job.spec.ask_at(promise.choice).map(|ask| Want::of(job, ask));
                let fit = |d: &DeviceFacts| want.is_some_and(|want| want.accepts(d));
                let healthy =
                    |uuid: &DeviceUuid| host.facts.devices.iter().any(|d| d.uuid == *uuid && fit(d));
                fit::open(host, &Used::default(), self.now_ms).is_ok() && slot.devices.iter().all(healthy)
            })
        };
        if !promise.slots.iter().all(sound) {
            return Some(PromiseBreak::HostGone);
        }
        if promise.evicting {
            return None;
        }
        if self.now_ms > promise.at_ms {
            return Some(PromiseBreak::Overrun);
        }
        let opens = |slot: &Slot| self.reserved_until(slot.host, job, promise.at_ms) == Some(promise.at_ms);
        (!promise.slots.iter().all(opens)).then_some(PromiseBreak::Reserved)
    }

    /// From when on reservations leave a host to a job that could come at `from_ms`; none: not before they are changed.
    pub(super) fn reserved_until(&self, host: HostId, job: &Job, from_ms: u64) -> Option<u64> {
        if !self.reserved.any(host) {
            return Some(from_ms);
        }
        let ours = |name: &String| self.view.queue_path(job.queue).any(|queue| queue.spec.name == *name);
        let length_ms = job.spec.time_limit_ms.map(|_| self.guards.ends_ms(job).saturating_sub(self.now_ms));
        self.reserved.free_from(host, from_ms, length_ms, ours)
    }

    /// The earliest time at which `parts` tasks of an ask find room together beside `guards`, and where.
    pub(super) fn opening(
        &self,
        guards: &Guards,
        job: &Job,
        want: Want<'_>,
        parts: usize,
    ) -> Option<Opening> {
        let opens_ms = |host: HostId, from_ms: u64| {
            let avoided_ms = job.avoid.get(&host).map_or(0, |avoid| avoid.until_ms);
            self.reserved_until(host, job, from_ms.max(avoided_ms))
        };
        guards.opening(self.ground, self.view, job, want, parts, &opens_ms)
    }

    /// Binds the round to a promise that was made before; false if it is lost to work of higher standing.
    pub(super) fn bind_standing(&mut self, job: &Arc<Job>, promise: &Promise) -> bool {
        let slots = located(self.view, &promise.slots);
        // What is being ended for it is gone at once as far as anyone may promise, however long ago it was asked.
        let at_ms = if promise.evicting { self.now_ms } else { promise.at_ms };
        let kept = self.kept_for(job, promise.choice, promise.evicting);
        self.guards.bind(self.ground, job, at_ms, promise.choice, &slots, kept);
        if self.guards.is_lost(self.ground, job.id) {
            self.guards.unbind(job.id);
            self.outranked.insert(job.id);
            return false;
        }
        true
    }

    /// Who has waited long enough and does not fit is promised a start before anybody else's turn: in the round in
    /// which the promise is made it binds already.
    pub(super) fn promise_to_the_patient(&mut self) {
        let view = self.view;
        for job in view.classes.iter().filter_map(|jobs| jobs.first()) {
            if self.has_waited(job) && !self.turns.contains_key(&job.id) {
                self.blocked(job);
            }
        }
        for job in self.oldest_first().into_iter().take(self.config.promises_max) {
            let waits = job.promise.is_none() && !self.is_late(job) && !self.would_start(job);
            if waits && self.shares.admits(view, job, &at_least(&job.spec.ask)) {
                self.promise(job);
            }
        }
    }

    /// Long enough to want a promise.
    fn has_waited(&self, job: &Job) -> bool {
        let since_ms = job.submitted_ms.max(job.earliest_ms());
        self.wake_at(since_ms.saturating_add(self.config.promise_after_ms));
        self.now_ms >= since_ms && self.now_ms - since_ms >= self.config.promise_after_ms
    }

    /// One task of a job, or the whole gang, would find room now.
    fn would_start(&mut self, job: &Arc<Job>) -> bool {
        let (fewest, _) = job.start_range();
        job.spec.asks().any(|ask| {
            let want = Want::of(job, ask);
            if fewest == 1 {
                return self.find(job, ask, &|_| true).is_ok();
            }
            let opening = self.opening(&self.guards, job, want, fewest as usize);
            opening.is_some_and(|opening| opening.at_ms <= self.now_ms)
        })
    }

    /// Of the blocked jobs of each kind the oldest gets a promise, not the one whose turn came first: short jobs may
    /// go first, but not for ever.
    pub(super) fn blocked(&mut self, job: &'p Arc<Job>) {
        // A job that runs already, if not as wide as it would like, has begun.
        if job.live > 0 || self.begun.contains_key(&job.id) {
            return;
        }
        let oldest = self.oldest.entry(competes(job)).or_insert(job);
        if age(job) < age(oldest) {
            *oldest = job;
        }
    }

    /// Promise: who has waited longest is told when and where it starts at the latest.
    pub(super) fn promise_to_the_oldest(&mut self) {
        for job in self.oldest_first() {
            if self.is_full() {
                return;
            }
            self.promise(job);
        }
    }

    /// The oldest blocked jobs of all kinds, in the order in which they are promised a start; none is left noted.
    fn oldest_first(&mut self) -> Vec<&'p Arc<Job>> {
        let mut oldest: Vec<&'p Arc<Job>> = std::mem::take(&mut self.oldest).into_values().collect();
        oldest.sort_by_key(|job| age(job));
        oldest
    }

    fn promise(&mut self, job: &'p Arc<Job>) {
        let standing = job.promise.as_ref();
        let outranked = self.outranked.contains(&job.id).then_some(PromiseBreak::Outranked);
        let why_broken = standing.and_then(|promise| self.broken(job, promise)).or(outranked);
        let key = competes(job);
        let taken = self.promises >= self.config.promises_max || self.competing.contains(&key);
        if standing.is_some() && why_broken.is_none() || taken || !self.has_waited(job) {
            return;
        }
        if let Some((choice, at_ms, slots)) = self.earliest(job) {
            self.guards.bind(self.ground, job, at_ms, choice, &slots, Kept::Promised);
            self.tell(job, at_ms, choice, slots, why_broken);
            self.competing.insert(key);
            self.promises += 1;
        }
    }

    /// The earliest opening over all asks of a job, within its ceilings.
    pub(super) fn earliest(&self, job: &Arc<Job>) -> Option<Earliest> {
        self.earliest_beside(&self.guards, job)
    }

    fn earliest_beside(&self, guards: &Guards, job: &Arc<Job>) -> Option<Earliest> {
        let (fewest, _) = job.start_range();
        let mut best: Option<Earliest> = None;
        for (choice, ask) in (0_u8..).zip(job.spec.asks()) {
            let want = Want::of(job, ask);
            let opening = self.opening(guards, job, want, fewest as usize);
            if let Some(opening) = opening
                && best.as_ref().is_none_or(|(_, at_ms, _)| opening.at_ms < *at_ms)
            {
                best = Some((choice, opening.at_ms, opening.slots));
            }
        }
        let slack_limits = self.config.promise_slack_limits;
        if let Some((_, at_ms, _)) = &mut best {
            *at_ms = promised_start_ms(*at_ms, job.submitted_ms, job.spec.time_limit_ms, slack_limits);
        }
        best
    }

    /// Writes a promise down.
    fn tell(
        &mut self,
        job: &Job,
        at_ms: u64,
        choice: u8,
        slots: Vec<(usize, Slot)>,
        why_broken: Option<PromiseBreak>,
    ) {
        let slots: Vec<Slot> = slots.into_iter().map(|(_, slot)| slot).collect();
        let devices = slots.iter().map(|slot| slot.devices.len() + 1).sum();
        self.emit(Move::Promise { job: job.id, at_ms, slots, choice, broken_by: why_broken }, devices);
    }
}

/// Of two blocked jobs the one with the lesser key is promised a start first.
fn age(job: &Job) -> (Reverse<u16>, u64, JobId) {
    (Reverse(job.priority), job.submitted_ms, job.id)
}

/// A stored promise's slots with the places of their hosts.
pub(super) fn located(view: &View, slots: &[Slot]) -> Vec<(usize, Slot)> {
    slots.iter().filter_map(|slot| Some((view.host_at(slot.host)?, slot.clone()))).collect()
}
