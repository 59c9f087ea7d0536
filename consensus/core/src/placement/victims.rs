//! Who may be ended on one host, what that costs, and what room it leaves.

use super::choose::choose;
use super::round::Round;
use crate::apply::PREEMPT_GAP;
use crate::fit::{self, Want};
use crate::state::attempt::Attempt;
use crate::state::host::Used;
use crate::state::job::Job;
use crate::state::queue::Queue;
use rota_protocol::job::{AttemptState, EndReason};
use rota_protocol::plan::Slot;
use rota_protocol::{DeviceUuid, Token};
use std::cmp::Reverse;
use std::sync::Arc;

/// What ending some attempts on one host costs, least first.
pub(super) type Cost = (u16, u64, u64);

/// Room for one task, and who has to go for it.
pub(super) struct Offer {
    pub(super) cost: Cost,
    pub(super) victims: Vec<Token>,
    pub(super) slot: Slot,
    /// Place among the offers of its host: the earlier ones come with it.
    pub(super) order: usize,
}

impl<'p> Round<'p> {
    pub(super) fn is_candidate(&self, at: usize, job: &Job) -> bool {
        let site = &self.ground.sites[at];
        let open = fit::open(&site.row.host, &Used::default(), self.now_ms).is_ok();
        let kept_off = self.keeps_away(at, job) || !self.lies_right(job, at);
        open && !kept_off && !self.config.avoid_hosts.contains(&site.id())
    }

    /// Room for one task after the other on one host, with those who would have to go for it.
    pub(super) fn offers(
        &self,
        at: usize,
        job: &Job,
        want: Want<'_>,
        reason: EndReason,
        parts: usize,
    ) -> Vec<Offer> {
        let site = &self.ground.sites[at];
        let host = &site.row.host;
        if fit::capable(host, want.ask).is_err() {
            return Vec::new();
        }
        let Some(mut used) = self.guards.after_evictions(self.ground, at, job) else {
            return Vec::new();
        };
        used.launching = 0;
        let mut candidates: Vec<&Arc<Attempt>> = Vec::new();
        for attempt in site.row.attempts.iter() {
            if attempt.state == AttemptState::Ending || self.victims.contains(&attempt.token) {
                // What is ending already is somebody's gain elsewhere in the plan: not counted again.
                continue;
            }
            if self.may_end(attempt, job, reason) {
                candidates.push(attempt);
            }
        }
        candidates.sort_by_key(|a| (a.priority, self.work_lost(a), a.gpu_milli, Reverse(a.token)));
        let mut candidates = candidates.into_iter();
        let mut offers = Vec::new();
        let mut gone: Vec<&Arc<Attempt>> = Vec::new();
        while offers.len() < parts {
            let devices = fit::fits(host, &used, want, self.now_ms)
                .ok()
                .and_then(|eligible| choose(self.ground, at, want, job.spec.layout, &eligible));
            if let Some(devices) = devices {
                let needed = self.needed(at, &used, want, &devices, std::mem::take(&mut gone));
                for spared in &needed.spared {
                    // Back where it was: it does not have to go after all.
                    used.add(&spared.tenant, spared.cpus_milli, spared.mem_mib, &spared.holdings());
                }
                fit::take(host, &mut used, want, &devices, Token(offers.len() as u64 + 1));
                used.launching = 0;
                let cost = self.cost(&needed.victims);
                let victims = needed.victims.iter().map(|a| a.token).collect();
                let order = offers.len();
                offers.push(Offer { cost, victims, slot: Slot { host: host.id, devices }, order });
                continue;
            }
            let Some(next) = candidates.next() else {
                return offers;
            };
            used.subtract(next.token, next.cpus_milli, next.mem_mib, &next.devices);
            gone.push(next);
        }
        offers
    }

    /// Of those taken away, the ones without whom the slot would not be free. The dearest are spared first.
    pub(super) fn needed<'a>(
        &self,
        at: usize,
        used: &Used,
        want: Want<'_>,
        devices: &[DeviceUuid],
        gone: Vec<&'a Arc<Attempt>>,
    ) -> Needed<'a> {
        let host = &self.ground.sites[at].row.host;
        let mut used = used.clone();
        let mut needed = Needed { victims: Vec::new(), spared: Vec::new() };
        for attempt in gone.into_iter().rev() {
            used.add(&attempt.tenant, attempt.cpus_milli, attempt.mem_mib, &attempt.holdings());
            if fit::takes(host, &used, want, devices, self.now_ms).is_ok() {
                needed.spared.push(attempt);
            } else {
                used.subtract(attempt.token, attempt.cpus_milli, attempt.mem_mib, &attempt.devices);
                needed.victims.push(attempt);
            }
        }
        needed
    }

    pub(super) fn may_end(&self, attempt: &Attempt, job: &Job, reason: EndReason) -> bool {
        let allowed = match reason {
            EndReason::Preempt => job.priority >= attempt.priority.saturating_add(PREEMPT_GAP),
            // Moved work is whole tasks that start again elsewhere; slices have no elsewhere of their own kind.
            EndReason::Move => {
                job.priority >= attempt.priority
                    && !attempt.in_gang
                    && attempt.devices.len() == cards_of(attempt)
            }
            EndReason::Turn => self.leavers.contains(&attempt.token),
            _ => attempt.queue != job.queue,
        };
        if attempt.preemptible && allowed {
            self.wake_at(attempt.spared_until_ms);
        }
        attempt.preemptible
            && allowed
            && self.now_ms >= attempt.spared_until_ms
            && self.leaves_guarantee(attempt, job)
    }

    /// The queues of an attempt, below what they share with the job's, stay at their guarantees without it.
    fn leaves_guarantee(&self, attempt: &Attempt, job: &Job) -> bool {
        self.unshared(attempt, job)
            .all(|queue| !queue.falls_below(&self.shares.held(queue), &attempt.amounts()))
    }

    /// The queues of an attempt below those that the job's lie in too.
    pub(super) fn unshared(&self, attempt: &Attempt, job: &Job) -> impl Iterator<Item = &'p Arc<Queue>> {
        let (view, of_job) = (self.view, job.queue);
        view.queue_path(attempt.queue)
            .filter(move |queue| view.queue_path(of_job).all(|shared| shared.id != queue.id))
    }

    pub(super) fn work_lost(&self, attempt: &Attempt) -> u64 {
        let ran_ms = self.now_ms.saturating_sub(attempt.started_ms.unwrap_or(self.now_ms));
        ran_ms.saturating_mul(u64::from(attempt.gpu_milli.max(1))) / 1_000
    }

    pub(super) fn cost(&self, victims: &[&Arc<Attempt>]) -> Cost {
        let highest = victims.iter().map(|a| a.priority).max().unwrap_or(0);
        let lost = victims.iter().map(|a| self.work_lost(a)).sum();
        let cards = victims.iter().map(|a| u64::from(a.gpu_milli)).sum();
        (highest, lost, cards)
    }
}

/// Cards that its share or its whole cards come to.
fn cards_of(attempt: &Attempt) -> usize {
    attempt.gpu_milli.div_ceil(rota_protocol::ask::CARD_MILLI) as usize
}

/// Who has to go and who may stay after all.
pub(super) struct Needed<'a> {
    pub(super) victims: Vec<&'a Arc<Attempt>>,
    pub(super) spared: Vec<&'a Arc<Attempt>>,
}
