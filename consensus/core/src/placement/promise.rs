//! Reserve: when and where a blocked job will find room, and what may run meanwhile.
//!
//! A promise is a latest start and its slots. It is computed from limits alone, which are enforced: what is predicted
//! may order the queue, but never lets anything run past a promise. Under a promise a job may start on a promised host
//! if its own limit ends before it, or if it fits beside the promised slots (EASY backfill, by the card).

use super::sites::Ground;
use crate::fit::{self, Want};
use crate::state::attempt::Attempt;
use crate::state::host::Used;
use crate::state::job::Job;
use rota_protocol::device::DeviceFacts;
use rota_protocol::job::AttemptState;
use rota_protocol::plan::Slot;
use rota_protocol::{DeviceUuid, JobId, Token};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is left, at the least, of an attempt that has run past what was expected of it, in ms.
const OVERRUN_MS: u64 = 60_000;

/// Something that a round has placed: a pseudo attempt.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) token: Token,
    pub(super) ends_ms: u64,
    pub(super) cpus_milli: u32,
    pub(super) mem_mib: u64,
    pub(super) devices: Vec<DeviceUuid>,
    /// Promises that it was the first to come before: they hold again if it is taken back.
    pub(super) over: Vec<usize>,
}

/// What a promise is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// A time at which others will be gone.
    Promised,
    /// Slots that others were ended for: the job's own as soon as they are free.
    Evicted,
    /// So they are, and the job's queue is owed them by its guarantee: priority does not come before that, or those who
    /// were ended would take their place again.
    Owed,
}

/// A promise that binds the round.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub(super) job: Arc<Job>,
    pub(super) at_ms: u64,
    /// By site: what will be in use there when the promise falls due, the promised slots included.
    later: BTreeMap<usize, Used>,
    /// Memory that each of the slots holds, in MiB.
    mem_mib: Vec<u64>,
    /// With which of the job's asks.
    choice: u8,
    slots: Vec<(usize, Slot)>,
    kept: Kept,
    /// Promises that fall due no later and whose slots are in `later` too.
    counts: Vec<usize>,
    /// Something of higher standing has come before it: the promise cannot be relied upon.
    pub(super) outranked: bool,
}

impl Guard {
    /// What will be in use on each promised site when the promise falls due.
    pub(super) fn later(&self) -> impl Iterator<Item = (&usize, &Used)> {
        self.later.iter()
    }
}

/// All promises that bind the round, and what it has placed.
#[derive(Debug, Clone, Default)]
pub(super) struct Guards {
    pub(super) list: Vec<Guard>,
    by_site: BTreeMap<usize, Vec<usize>>,
    pub(super) placed: BTreeMap<usize, Vec<Placed>>,
    leaving: BTreeSet<Token>,
    pub(super) now_ms: u64,
    default_limit_ms: u64,
    grace_ms: u64,
}

impl Guards {
    /// No promise yet. `default_limit_ms` counts for work without a limit, `grace_ms` for the end of work without a
    /// grace of its own.
    pub(super) fn new(now_ms: u64, default_limit_ms: u64, grace_ms: u64) -> Self {
        Self { now_ms, default_limit_ms, grace_ms, ..Self::default() }
    }

    /// When a job that starts now is over at the latest.
    pub(super) fn ends_ms(&self, job: &Job) -> u64 {
        let limit_ms = job.spec.time_limit_ms.unwrap_or(self.default_limit_ms);
        let grace_ms = job.spec.grace_ms.map_or(self.grace_ms, u64::from);
        self.now_ms.saturating_add(limit_ms).saturating_add(grace_ms)
    }

    /// Binds the round to a promise.
    pub(super) fn bind(
        &mut self,
        ground: &Ground,
        job: &Arc<Job>,
        at_ms: u64,
        choice: u8,
        slots: &[(usize, Slot)],
        kept: Kept,
    ) {
        let Some(ask) = job.spec.ask_at(choice) else {
            return;
        };
        let want = Want::of(job, ask);
        let (mut later, mut mem_mib) = (BTreeMap::<usize, Used>::new(), Vec::new());
        for (number, (at, slot)) in (0_u64..).zip(slots) {
            let used = match later.entry(*at) {
                Entry::Occupied(used) => used.into_mut(),
                Entry::Vacant(place) => place.insert(self.used_at(ground, *at, at_ms)),
            };
            let (host, token) = (&ground.sites[*at].row.host, slot_token(self.list.len(), number));
            fit::take(host, used, want, &slot.devices, token);
            mem_mib.push(fit::mem_held_mib(host, ask, &slot.devices));
            used.launching = 0;
        }
        let guard = self.list.len();
        for at in later.keys() {
            self.by_site.entry(*at).or_default().push(guard);
        }
        // What a promise has lost to others is in use already.
        let earlier = |other: &usize| self.list[*other].at_ms <= at_ms && !self.list[*other].outranked;
        let beside = later.keys().filter_map(|at| self.by_site.get(at)).flatten().copied();
        let counts: BTreeSet<usize> = beside.filter(|other| *other != guard && earlier(other)).collect();
        let slots = slots.to_vec();
        self.list.push(Guard {
            mem_mib,
            job: Arc::clone(job),
            at_ms,
            later,
            choice,
            slots,
            counts: counts.into_iter().collect(),
            kept,
            outranked: false,
        });
    }

    /// What will be in use on a site once all that is being ended for others is gone and they have come; none if a
    /// promise of another kind to somebody else binds the job there: it neither outranks that nor is over by then. The
    /// job's own is given up for what it gets now.
    pub(super) fn after_evictions(&self, ground: &Ground, at: usize, job: &Job) -> Option<Used> {
        let guards = || self.by_site.get(&at).into_iter().flatten().map(|guard| &self.list[*guard]);
        if self.binding(at, job, self.ends_ms(job)).any(|guard| guard.kept == Kept::Promised) {
            return None;
        }
        // What ends for nobody in particular is gone as well, also for the state machine.
        let ends = |attempt: &Arc<Attempt>| {
            attempt.state == AttemptState::Ending || self.leaving.contains(&attempt.token)
        };
        if guards().next().is_none() && !ground.sites[at].row.attempts.iter().any(ends) {
            return Some(ground.sites[at].used().clone());
        }
        Some(self.used_at(ground, at, self.now_ms))
    }

    /// What stands in the way of a job's promise will still be there when it falls due.
    pub(super) fn is_lost(&self, ground: &Ground, job: JobId) -> bool {
        let overfull = |(at, used): (&usize, &Used)| !super::post::fits_on(ground, *at, used);
        self.bound(job).is_some_and(|guard| self.list[guard].later.iter().any(overfull))
    }

    /// The row of a job's promise; those that bind no more have no sites left.
    fn bound(&self, job: JobId) -> Option<usize> {
        self.list.iter().rposition(|guard| guard.job.id == job && !guard.later.is_empty())
    }

    /// A promise of the job binds the round, and nothing has come before it.
    pub(super) fn holds(&self, job: JobId) -> bool {
        self.bound(job).is_some_and(|guard| !self.list[guard].outranked)
    }

    /// So it does, and its slots are the job's own: they were evicted for it.
    pub(super) fn owns(&self, job: JobId) -> bool {
        self.holds(job) && self.bound(job).is_some_and(|guard| self.list[guard].kept != Kept::Promised)
    }

    /// The promise of a job binds no more.
    pub(super) fn unbind(&mut self, job: JobId) {
        let Some(guard) = self.bound(job) else {
            return;
        };
        self.uncount(guard);
        // The row stays, so that the others keep their places; without sites it binds nobody.
        for at in std::mem::take(&mut self.list[guard].later).into_keys() {
            if let Some(guards) = self.by_site.get_mut(&at) {
                guards.retain(|other| *other != guard);
                if guards.is_empty() {
                    self.by_site.remove(&at);
                }
            }
        }
    }

    /// What a promise keeps is kept no more by those that fall due after it.
    fn uncount(&mut self, guard: usize) {
        let gone = &self.list[guard];
        let Some(ask) = gone.job.spec.ask_at(gone.choice) else {
            return;
        };
        let (cpus_milli, mem_mib, slots) = (ask.cpus_milli, gone.mem_mib.clone(), gone.slots.clone());
        for other in self.list.iter_mut().filter(|other| other.counts.contains(&guard)) {
            for (number, ((at, slot), mem_mib)) in (0_u64..).zip(slots.iter().zip(&mem_mib)) {
                if let Some(used) = other.later.get_mut(at) {
                    used.subtract(slot_token(guard, number), cpus_milli, *mem_mib, &slot.devices);
                }
            }
            other.counts.retain(|counted| *counted != guard);
        }
    }

    /// Devices of a site that promises keep.
    pub(super) fn kept_on(&self, at: usize) -> impl Iterator<Item = &DeviceUuid> {
        let slots = self.by_site.get(&at).into_iter().flatten().flat_map(|guard| &self.list[*guard].slots);
        slots.filter(move |(place, _)| *place == at).flat_map(|(_, slot)| &slot.devices)
    }

    /// A promise names this site.
    pub(super) fn is_promised(&self, at: usize) -> bool {
        self.by_site.contains_key(&at)
    }

    /// The first promise that binds a job on a site: whose it is, and from when.
    pub(super) fn first_on(&self, at: usize, job: &Job) -> Option<(JobId, u64)> {
        let ends_ms = self.ends_ms(job);
        self.binding(at, job, ends_ms).map(|guard| (guard.job.id, guard.at_ms)).next()
    }

    /// A promise is in the way of a job of this kind on a site.
    pub(super) fn in_the_way(
        &self,
        ground: &Ground,
        at: usize,
        job: &Job,
        want: Want<'_>,
        ends_ms: u64,
    ) -> bool {
        let host = &ground.sites[at].row.host;
        self.binding(at, job, ends_ms).any(|guard| {
            let later = guard.later.get(&at);
            later.is_some_and(|used| fit::fits(host, used, want, self.now_ms).is_err())
        })
    }

    /// Of the devices that fit now, those that also leave every promise alone.
    pub(super) fn spared<'h>(
        &self,
        ground: &'h Ground,
        at: usize,
        job: &Job,
        want: Want<'_>,
        ends_ms: u64,
        mut eligible: Vec<&'h DeviceFacts>,
    ) -> Vec<&'h DeviceFacts> {
        let host = &ground.sites[at].row.host;
        for used in self.binding(at, job, ends_ms).filter_map(|guard| guard.later.get(&at)) {
            let later = fit::fits(host, used, want, self.now_ms).unwrap_or_default();
            eligible.retain(|d| later.iter().any(|other| other.uuid == d.uuid));
        }
        eligible
    }

    /// Attempts that the round asks to end: they are gone as far as anyone may promise.
    pub(super) fn leave(&mut self, victims: &[Token]) {
        self.leaving.extend(victims);
    }

    /// Notes what the round has placed on a site.
    pub(super) fn place(&mut self, ground: &Ground, at: usize, job: &Job, want: Want<'_>, mut one: Placed) {
        let host = &ground.sites[at].row.host;
        for number in self.by_site.get(&at).into_iter().flatten() {
            let guard = &mut self.list[*number];
            let before = outranks(job, guard);
            let Some(used) = guard.later.get_mut(&at).filter(|_| one.ends_ms > guard.at_ms) else {
                continue;
            };
            fit::take(host, used, want, &one.devices, one.token);
            used.launching = 0;
            // What fits beside a promise takes nothing from it.
            if !guard.outranked && before && !super::post::fits_on(ground, at, used) {
                guard.outranked = true;
                one.over.push(*number);
            }
        }
        self.placed.entry(at).or_default().push(one);
    }

    /// Takes a site's newest placement back.
    pub(super) fn unplace(&mut self, at: usize) {
        let Some(one) = self.placed.get_mut(&at).and_then(Vec::pop) else {
            return;
        };
        for number in &one.over {
            self.list[*number].outranked = false;
        }
        for guard in self.by_site.get(&at).into_iter().flatten() {
            let guard = &mut self.list[*guard];
            if let Some(used) = guard.later.get_mut(&at) {
                let held = |uuid| used.devices.get(uuid).is_some_and(|held| held.is_held_by(one.token));
                let holds = one.devices.first().is_none_or(held);
                if one.ends_ms > guard.at_ms && holds {
                    used.subtract(one.token, one.cpus_milli, one.mem_mib, &one.devices);
                }
            }
        }
    }

    fn binding<'g>(&'g self, at: usize, job: &'g Job, ends_ms: u64) -> impl Iterator<Item = &'g Guard> {
        let guards = self.by_site.get(&at).into_iter().flatten().map(|guard| &self.list[*guard]);
        guards.filter(move |guard| guard.job.id != job.id && ends_ms > guard.at_ms && !outranks(job, guard))
    }

    /// What is in use on a site at a later time, if everything runs to its limit and nothing more starts.
    fn used_at(&self, ground: &Ground, at: usize, at_ms: u64) -> Used {
        let site = &ground.sites[at];
        let mut used = site.used().clone();
        for end in self.ends(ground, at).iter().filter(|end| end.at_ms <= at_ms) {
            used.subtract(end.token, end.cpus_milli, end.mem_mib, end.devices);
        }
        // Whoever was promised room here before has come by then.
        for guard in self.by_site.get(&at).into_iter().flatten() {
            let other = &self.list[*guard];
            let Some(ask) =
                other.job.spec.ask_at(other.choice).filter(|_| other.at_ms <= at_ms && !other.outranked)
            else {
                continue;
            };
            let want = Want::of(&other.job, ask);
            for (number, (_, slot)) in (0_u64..).zip(&other.slots).filter(|(_, (place, _))| *place == at) {
                fit::take(&site.row.host, &mut used, want, &slot.devices, slot_token(*guard, number));
            }
        }
        used.launching = 0;
        used
    }

    /// Everything that runs on a site, in the order in which it is over.
    pub(super) fn ends<'g>(&'g self, ground: &'g Ground, at: usize) -> Vec<End<'g>> {
        let live = ground.sites[at].row.attempts.iter().map(|attempt| End {
            at_ms: self.attempt_ends_ms(attempt),
            token: attempt.token,
            cpus_milli: attempt.cpus_milli,
            mem_mib: attempt.mem_mib,
            devices: &attempt.devices,
        });
        let placed = self.placed.get(&at).into_iter().flatten().map(|one| End {
            at_ms: one.ends_ms,
            token: one.token,
            cpus_milli: one.cpus_milli,
            mem_mib: one.mem_mib,
            devices: &one.devices,
        });
        let mut ends: Vec<End<'_>> = live.chain(placed).collect();
        ends.sort_by_key(|end| (end.at_ms, end.token));
        ends
    }

    pub(super) fn attempt_ends_ms(&self, attempt: &Attempt) -> u64 {
        if attempt.state == AttemptState::Ending || self.leaving.contains(&attempt.token) {
            // Whatever ends it does so now, as far as anyone may promise.
            return self.now_ms;
        }
        let from_ms = attempt.started_ms.unwrap_or(attempt.granted_ms);
        let limit_ms = attempt.limit_ms.unwrap_or(self.default_limit_ms);
        let grace_ms = attempt.grace_ms.map_or(self.grace_ms, u64::from);
        let ends_ms = from_ms.saturating_add(limit_ms).saturating_add(grace_ms);
        if ends_ms > self.now_ms { ends_ms } else { self.now_ms.saturating_add(OVERRUN_MS) }
    }
}

/// Something that runs, with the time by which it is over.
pub(super) struct End<'g> {
    pub(super) at_ms: u64,
    pub(super) token: Token,
    pub(super) cpus_milli: u32,
    pub(super) mem_mib: u64,
    pub(super) devices: &'g [DeviceUuid],
}

/// Tokens of promised slots: above all that a round gives its placements, below all real ones.
pub(super) fn slot_token(guard: usize, number: u64) -> Token {
    Token((1 << 19) + (guard as u64) * 4_096 + number)
}

/// Those who may end others may also come before their promises.
fn outranks(job: &Job, guard: &Guard) -> bool {
    let owed = guard.kept == Kept::Owed && job.queue != guard.job.queue;
    !owed && job.priority >= guard.job.priority.saturating_add(crate::apply::PREEMPT_GAP)
}
