//! Evict: whom to end so that a blocked job finds room, a drained host empties, or a queue comes back under its
//! ceiling. A search gives a complete plan or nothing: victims, and the slots that they leave. Cheapest first: lowest
//! priority, then the least work lost, then the fewest cards.

use super::look::Evicts;
use super::pledge::located;
use super::promise::Kept;
use super::round::{Round, at_least};
use super::victims::Offer;
use crate::apply::{EVICTED_PER_GAINED_MAX, PREEMPT_GAP};
use crate::fit::{self, Want};
use crate::state::attempt::Attempt;
use crate::state::job::Job;
use crate::state::queue::Queue;
use rota_protocol::ask::Ask;
use rota_protocol::job::{AttemptState, EndReason};
use rota_protocol::plan::{Move, Slot};
use rota_protocol::queue::{Amounts, QueueId};
use rota_protocol::work::Layout;
use rota_protocol::{HostId, JobId, Token};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Searches of one round: each looks at every host.
const SEARCHES_MAX: usize = 16;
/// Why others may be ended for a job that waits.
const EVICTIONS: [EndReason; 2] = [EndReason::Preempt, EndReason::Reclaim];
/// Times at which somebody's protection ends that are tried for the answer to `why`.
const LOOKS_AHEAD_MAX: usize = 8;
/// Parts of one gang for which one host is searched.
const PARTS_PER_HOST_MAX: usize = 16;

/// Ask by ask, with its place among them, why others may be ended for it.
fn ways(job: &Job) -> impl Iterator<Item = (u8, &Ask, EndReason)> {
    let asks = (0_u8..).zip(job.spec.asks());
    asks.flat_map(|(choice, ask)| EVICTIONS.map(|reason| (choice, ask, reason)))
}

/// A rack, or a host: where parts lie together.
type Together<'r> = (Option<&'r String>, Option<HostId>);

impl<'p> Round<'p> {
    /// Asks for the end of others so that the job finds room; false if there is no such plan.
    pub(super) fn evict_for(&mut self, job: &Arc<Job>) -> bool {
        if !self.config.evicts || self.is_waiting_for_victims(job) {
            return false;
        }
        for (choice, ask, reason) in ways(job) {
            if !self.may_search(job, ask, reason) || !self.may_search_again() {
                continue;
            }
            if let Some((victims, slots)) = self.search(job, ask, reason) {
                self.carry_out(job, choice, reason, victims, slots);
                return true;
            }
        }
        false
    }

    /// Notes for the job that is looked at when others may be ended for it.
    pub(super) fn look_for_victims(&mut self, job: &Arc<Job>) {
        if self.probe != Some(job.id) || !self.config.evicts || self.is_waiting_for_victims(job) {
            return;
        }
        let attempts = self.view.hosts.iter().flat_map(|row| row.attempts.iter());
        let protected = attempts.filter(|a| a.preemptible && a.spared_until_ms > self.now_ms);
        let mut times: Vec<u64> = protected.map(|a| a.spared_until_ms).collect();
        times.sort_unstable();
        times.dedup();
        // The last one too: by then nobody is protected any more.
        let last = times.last().copied().filter(|_| times.len() > LOOKS_AHEAD_MAX);
        times.truncate(LOOKS_AHEAD_MAX);
        let now_ms = self.now_ms;
        let found = [now_ms].into_iter().chain(times).chain(last).find_map(|at_ms| {
            self.now_ms = at_ms;
            let found = ways(job)
                .filter(|(_, ask, reason)| self.may_search(job, ask, *reason))
                .find_map(|(_, ask, reason)| self.search(job, ask, reason));
            found.map(|(victims, slots)| Evicts { at_ms, victims, slots })
        });
        self.now_ms = now_ms;
        if let Some(look) = &mut self.look {
            look.evicts = found;
        }
    }

    /// Drained hosts whose time has come, and queues above a lowered ceiling that do not let end.
    pub(super) fn drain_and_trim(&mut self) {
        let view = self.view;
        let mut leaving: Vec<&Arc<Attempt>> = Vec::new();
        for row in &view.hosts {
            let due = row.host.drain.is_some() && row.host.evict_at_ms.is_some_and(|at| self.now_ms >= at);
            if due {
                leaving.extend(row.attempts.iter().filter(|a| a.state != AttemptState::Ending));
            }
        }
        self.evict_all(&leaving, EndReason::Drain);
        for queue in &view.queues {
            for user in queue.to_trim() {
                let youngest = self.youngest_above(queue, user);
                self.evict_all(&youngest, EndReason::Ceiling);
            }
        }
    }

    fn evict_all(&mut self, attempts: &[&Arc<Attempt>], reason: EndReason) {
        let mut victims: BTreeSet<Token> =
            attempts.iter().map(|a| a.token).filter(|token| !self.victims.contains(token)).collect();
        for job in attempts.iter().filter(|a| a.in_gang).map(|a| a.task.job).collect::<BTreeSet<JobId>>() {
            victims.extend(self.live_parts(job));
        }
        if victims.is_empty() || self.is_full() {
            return;
        }
        self.victims.extend(&victims);
        let count = victims.len();
        let victims = victims.into_iter().collect();
        self.emit(Move::Evict { job: None, reason, victims, slots: Vec::new(), choice: 0 }, count / 4);
    }

    /// Every part of a gang that nobody has asked to end.
    fn live_parts(&self, job: JobId) -> Vec<Token> {
        let rows = self.view.hosts.iter().flat_map(|row| row.attempts.iter());
        let parts = rows.filter(|a| a.task.job == job && a.state != AttemptState::Ending);
        parts.map(|a| a.token).filter(|token| !self.victims.contains(token)).collect()
    }

    /// The youngest attempts of a queue, or of one user of it, that are too many for its bound. What ends anyway is as
    /// good as gone.
    fn youngest_above(&self, queue: &Queue, user: Option<&str>) -> Vec<&'p Arc<Attempt>> {
        let lies_in = |attempt: &Attempt| {
            user.is_none_or(|user| user == attempt.user)
                && self.view.queue_path(attempt.queue).any(|q| q.id == queue.id)
        };
        let ends = |a: &Arc<Attempt>| a.state == AttemptState::Ending || self.victims.contains(&a.token);
        let live = self.view.hosts.iter().flat_map(|row| row.attempts.iter());
        let mut live: Vec<&Arc<Attempt>> = live.filter(|a| lies_in(a)).collect();
        live.sort_by_key(|a| Reverse((a.granted_ms, a.token)));
        let (held, bound) = queue.held_and_bound(user);
        let mut held = live.iter().filter(|a| ends(a)).fold(held, |held, a| held.minus(&a.amounts()));
        let mut youngest = Vec::new();
        for attempt in live.into_iter().filter(|a| !ends(a)) {
            if held.within(&bound) {
                break;
            }
            held = held.minus(&attempt.amounts());
            youngest.push(attempt);
        }
        youngest
    }

    /// Attempts are being ended for it already.
    pub(super) fn is_waiting_for_victims(&self, job: &Job) -> bool {
        let Some(promise) = job.promise.as_ref().filter(|promise| promise.evicting) else {
            return false;
        };
        promise.slots.iter().any(|slot| {
            let row = self.view.host_at(slot.host).map(|at| &self.view.hosts[at]);
            row.is_some_and(|row| row.attempts.iter().any(|a| a.state == AttemptState::Ending))
        })
    }

    /// The lowest priority of anything that may be ended. It holds for the whole round.
    fn lowest_priority(&self) -> Option<u16> {
        *self.lowest.get_or_init(|| self.ground.sites.iter().filter_map(|site| site.lowest).min())
    }

    /// Another look at every host may be afforded in this round.
    pub(super) fn may_search_again(&mut self) -> bool {
        self.searches += 1;
        self.searches <= SEARCHES_MAX
    }

    fn may_search(&self, job: &Job, ask: &Ask, reason: EndReason) -> bool {
        let (fewest, _) = job.start_range();
        let more = at_least(ask).times(u64::from(fewest));
        match reason {
            EndReason::Preempt => self
                .lowest_priority()
                .is_some_and(|lowest| job.priority >= lowest.saturating_add(PREEMPT_GAP)),
            _ => self.is_owed(job, &more),
        }
    }

    /// Some queue of the job's is guaranteed so much more than it holds.
    fn is_owed(&self, job: &Job, more: &Amounts) -> bool {
        self.view.queue_path(job.queue).any(|queue| queue.is_owed(&self.shares.held(queue), more))
    }

    /// What a promise of slots is made of, with which of the job's asks and whether others were ended for it.
    pub(super) fn kept_for(&self, job: &Job, choice: u8, evicting: bool) -> Kept {
        let (fewest, _) = job.start_range();
        let more = job.spec.ask_at(choice).map(|ask| at_least(ask).times(u64::from(fewest)));
        match evicting {
            false => Kept::Promised,
            true if more.is_some_and(|more| self.is_owed(job, &more)) => Kept::Owed,
            true => Kept::Evicted,
        }
    }

    pub(super) fn search(
        &self,
        job: &Arc<Job>,
        ask: &Ask,
        reason: EndReason,
    ) -> Option<(Vec<Token>, Vec<Slot>)> {
        let want = Want::of(job, ask);
        let parts = parts_of(job);
        let mut offers: Vec<Offer> = Vec::new();
        for at in 0..self.ground.sites.len() {
            let too_high = |lowest: u16| job.priority < lowest.saturating_add(PREEMPT_GAP);
            let none =
                self.ground.sites[at].lowest.is_none_or(|low| reason == EndReason::Preempt && too_high(low));
            if none && !self.ground.has_room(at, want) {
                continue;
            }
            if reason == EndReason::Turn && !self.has_leavers(at) && !self.ground.has_room(at, want) {
                continue;
            }
            if !self.is_candidate(at, job) {
                continue;
            }
            offers.extend(self.offers(at, job, want, reason, parts.min(PARTS_PER_HOST_MAX)));
        }
        offers.sort_by_key(|offer| (offer.cost, offer.order, offer.slot.host));
        // Parts that must lie together are seated in one such place; the one with the cheapest offer is tried first.
        let mut places: Vec<(Together<'_>, Vec<Offer>)> = Vec::new();
        for offer in offers {
            let place = self.together(job.spec.layout, offer.slot.host);
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, of_place)) => of_place.push(offer),
                None => places.push((place, vec![offer])),
            }
        }
        places.into_iter().find_map(|(_, offers)| self.pick_offers(job, ask, reason, parts, offers))
    }

    /// Hosts that are equal in this are near enough to each other for a layout.
    fn together(&self, layout: Layout, host: HostId) -> Together<'_> {
        match layout {
            Layout::Any | Layout::Pack | Layout::Spread | Layout::SameIsland => (None, None),
            Layout::SameHost => (None, Some(host)),
            Layout::SameRack => {
                let labels = self.view.host_at(host).map(|at| &self.view.hosts[at].host.facts.labels);
                // Hosts that say nothing of their rack share none.
                labels
                    .and_then(|labels| labels.get(fit::RACK_LABEL))
                    .map_or((None, Some(host)), |rack| (Some(rack), None))
            }
        }
    }

    /// Takes the cheapest offers that together seat the job, keep every rule, and do not cost more than they gain.
    fn pick_offers(
        &self,
        job: &Arc<Job>,
        ask: &Ask,
        reason: EndReason,
        parts: usize,
        offers: Vec<Offer>,
    ) -> Option<(Vec<Token>, Vec<Slot>)> {
        let gained = at_least(ask).times(parts as u64);
        let bounded = gained.gpu_milli > 0 && !matches!(reason, EndReason::Turn | EndReason::Reclaim);
        let mut most_lost =
            if bounded { gained.gpu_milli.saturating_mul(EVICTED_PER_GAINED_MAX) } else { u64::MAX };
        let mut lost: BTreeMap<QueueId, Amounts> = BTreeMap::new();
        // One that moves gives up what it has.
        let mut victims: BTreeSet<Token> = self.own_attempts(job).collect();
        let mut slots = Vec::new();
        let mut next_of_host: BTreeMap<HostId, usize> = BTreeMap::new();
        for offer in offers {
            if slots.len() == parts {
                break;
            }
            let next = next_of_host.entry(offer.slot.host).or_default();
            if offer.order != *next {
                continue;
            }
            let Some(whole) = self.with_gangs(&offer, job, reason) else {
                continue;
            };
            let fresh: Vec<&Arc<Attempt>> =
                whole.into_iter().filter(|a| !victims.contains(&a.token)).collect();
            let cards: u64 = fresh.iter().map(|a| u64::from(a.gpu_milli)).sum();
            if cards > most_lost || !self.keeps_guarantees(&fresh, job, &mut lost) {
                continue;
            }
            most_lost -= cards;
            *next += 1;
            victims.extend(fresh.iter().map(|a| a.token));
            slots.push(offer.slot);
        }
        let seated = slots.len() == parts && !victims.is_empty();
        (seated && self.within_ceilings(job, &gained, &victims))
            .then(|| (victims.into_iter().collect(), slots))
    }

    /// The victims of an offer with the other parts of their gangs; none if one of those may not be ended.
    fn with_gangs(&self, offer: &Offer, job: &Job, reason: EndReason) -> Option<Vec<&'p Arc<Attempt>>> {
        let live = &self.view.hosts[self.view.host_at(offer.slot.host)?].attempts;
        let find = |token: &Token| live.binary_search_by_key(token, |a| a.token).ok().map(|at| &live[at]);
        let mut whole: Vec<&Arc<Attempt>> = Vec::new();
        for attempt in offer.victims.iter().filter_map(find) {
            whole.push(attempt);
            if attempt.in_gang {
                let rows = self.view.hosts.iter().flat_map(|row| row.attempts.iter());
                whole.extend(rows.filter(|a| a.task.job == attempt.task.job && a.token != attempt.token));
            }
        }
        let fair = whole.iter().all(|a| a.state != AttemptState::Ending && self.may_end(a, job, reason));
        fair.then_some(whole)
    }

    /// Nobody falls below a guarantee by it; what is taken is noted.
    fn keeps_guarantees(
        &self,
        victims: &[&Arc<Attempt>],
        job: &Job,
        lost: &mut BTreeMap<QueueId, Amounts>,
    ) -> bool {
        let mut after = lost.clone();
        for victim in victims {
            for queue in self.unshared(victim, job) {
                let sum = after.entry(queue.id).or_default();
                *sum = sum.plus(&victim.amounts());
                if queue.falls_below(&self.shares.held(queue), sum) {
                    return false;
                }
            }
        }
        *lost = after;
        true
    }

    /// The job's own account allows it once those of the same queue are gone.
    fn within_ceilings(&self, job: &Arc<Job>, gained: &Amounts, victims: &BTreeSet<Token>) -> bool {
        if self.shares.admits(self.view, job, gained) {
            return true;
        }
        let rows = self.view.hosts.iter().flat_map(|row| row.attempts.iter());
        let own = rows.filter(|a| a.queue == job.queue && victims.contains(&a.token));
        let freed = own.fold(Amounts::default(), |sum, a| sum.plus(&a.amounts()));
        self.shares.admits(self.view, job, &gained.minus(&freed))
    }

    /// What runs of a job that is to move; nothing of one that waits.
    fn own_attempts(&self, job: &Job) -> impl Iterator<Item = Token> + '_ {
        let own = self.view.turning.binary_search_by_key(&job.id, |row| row.job.id).ok();
        let attempts = own.filter(|_| job.live > 0).map(|at| &self.view.turning[at].attempts);
        attempts.into_iter().flatten().map(|attempt| attempt.token)
    }

    pub(super) fn carry_out(
        &mut self,
        job: &Arc<Job>,
        choice: u8,
        reason: EndReason,
        victims: Vec<Token>,
        slots: Vec<Slot>,
    ) {
        self.victims.extend(victims.iter().copied());
        let located = located(self.view, &slots);
        self.guards.unbind(job.id);
        self.guards.leave(&victims);
        let kept = self.kept_for(job, choice, true);
        self.guards.bind(self.ground, job, self.now_ms, choice, &located, kept);
        let size = victims.len() / 4 + slots.iter().map(|slot| slot.devices.len() + 1).sum::<usize>();
        self.emit(Move::Evict { job: Some(job.id), reason, victims, slots, choice }, size);
    }
}

/// Parts that a job needs at once: the fewest of one that waits, all of one that moves.
fn parts_of(job: &Job) -> usize {
    let (fewest, _) = job.start_range();
    let moves = job.live > 0 && job.spec.takes_turns();
    if moves { job.live as usize } else { fewest as usize }
}
