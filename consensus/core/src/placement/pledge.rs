//! Promise: who is promised a start, and when that is written down. What a promise binds is in `promise.rs`.

use super::order::promised_start_ms;
use super::promise::broken;
use super::round::{Round, at_least, competes};
use super::view::View;
use crate::fit::Want;
use crate::state::job::{Job, Promise};
use rota_protocol::JobId;
use rota_protocol::plan::{Move, PromiseBreak, Slot};
use std::cmp::Reverse;
use std::sync::Arc;

/// Which ask, at what log time, and on which sites and slots.
type Earliest = (u8, u64, Vec<(usize, Slot)>);

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
            if broken(self.view, job, promise, self.now_ms).is_some() {
                continue;
            }
            let turn = promise.evicting && job.spec.takes_turns();
            if self.bind_standing(job, promise) && !turn {
                self.competing.insert(competes(job));
                self.promises += 1;
            }
        }
    }

    /// Binds the round to a promise that was made before; false if it is lost to work of higher standing.
    pub(super) fn bind_standing(&mut self, job: &Arc<Job>, promise: &Promise) -> bool {
        let slots = located(self.view, &promise.slots);
        // What is being ended for it is gone at once as far as anyone may promise, however long ago it was asked.
        let at_ms = if promise.evicting { self.now_ms } else { promise.at_ms };
        self.guards.bind(self.ground, job, at_ms, promise.choice, &slots, promise.evicting);
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
            let opening = self.guards.opening(self.ground, self.view, job, want, fewest as usize);
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
        let why_broken =
            standing.and_then(|promise| broken(self.view, job, promise, self.now_ms)).or(outranked);
        let key = competes(job);
        let taken = self.promises >= self.config.promises_max || self.competing.contains(&key);
        if standing.is_some() && why_broken.is_none() || taken || !self.has_waited(job) {
            return;
        }
        if let Some((choice, at_ms, slots)) = self.earliest(job) {
            self.guards.bind(self.ground, job, at_ms, choice, &slots, false);
            self.tell(job, at_ms, choice, slots, why_broken);
            self.competing.insert(key);
            self.promises += 1;
        }
    }

    /// The earliest opening over all asks of a job, within its ceilings.
    pub(super) fn earliest(&self, job: &Arc<Job>) -> Option<Earliest> {
        let (fewest, _) = job.start_range();
        let mut best: Option<Earliest> = None;
        for (choice, ask) in (0_u8..).zip(job.spec.asks()) {
            let want = Want::of(job, ask);
            let opening = self.guards.opening(self.ground, self.view, job, want, fewest as usize);
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
