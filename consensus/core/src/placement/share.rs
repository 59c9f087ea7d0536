//! Whose turn it is: fair shares of queues and users, as they stand with what the round has placed.
//!
//! A queue's share is the largest part that it holds of anything scarce (dominant resource), plus its faded past use
//! of GPUs and CPUs, divided by its weight, in millionths of the cluster. A queue below its guarantee comes before all
//! that are above theirs. What a round places counts at once, so a burst cannot outrun the accounting.

use super::view::View;
use crate::fit;
use crate::state::job::Job;
use crate::state::queue::{self, HALF_LIFE_MS, OverCeiling, Queue, UserShare};
use rota_protocol::device::DeviceKind;
use rota_protocol::queue::{Amounts, Ceiling, QueueId};
use std::collections::BTreeMap;

/// Levels of the tree that are told apart; deeper ones count as the lowest of them.
const LEVELS: usize = 4;
const MILLION: u128 = 1_000_000;
/// Added to the share of a queue that is above its guarantee.
const ABOVE_GUARANTEE: u64 = 1 << 48;

/// Place of a job's account among all, lower goes first: shares from the top of the tree down, then the user's.
pub(crate) type ShareKey = [u64; LEVELS + 1];

/// What queues and users hold in a round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shares {
    capacity: Amounts,
    /// What the round has placed, by queue (all of the path) and by user.
    placed: BTreeMap<QueueId, Amounts>,
    placed_by_user: BTreeMap<(QueueId, String), Amounts>,
    now_ms: u64,
}

impl Shares {
    pub(crate) fn new(view: &View, now_ms: u64) -> Self {
        let mut capacity = Amounts::default();
        for row in &view.hosts {
            let facts = &row.host.facts;
            // A state of an older version may hold facts that no host has: sums stay at the largest number.
            let (cpus_milli, mem_mib) = (u64::from(facts.cpus_milli), facts.mem_mib);
            capacity = capacity.plus(&Amounts { cpus_milli, mem_mib, ..Amounts::default() });
            for device in facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu) {
                capacity = capacity.plus(&fit::card_amounts(device));
            }
        }
        Self { capacity, placed: BTreeMap::new(), placed_by_user: BTreeMap::new(), now_ms }
    }

    /// What a queue holds now.
    pub(super) fn held(&self, queue: &Queue) -> Amounts {
        self.placed.get(&queue.id).map_or(queue.held, |placed| queue.held.plus(placed))
    }

    /// Counts something placed (or, with `undo`, taken back).
    pub(super) fn place(&mut self, view: &View, job: &Job, amounts: &Amounts, undo: bool) {
        let add = |sum: &mut Amounts| *sum = if undo { sum.minus(amounts) } else { sum.plus(amounts) };
        for queue in view.queue_path(job.queue) {
            add(self.placed.entry(queue.id).or_default());
            add(self.placed_by_user.entry((queue.id, job.user.clone())).or_default());
        }
    }

    /// Would one more holder of `more` keep every ceiling along the path?
    pub(super) fn admits(&self, view: &View, job: &Job, more: &Amounts) -> bool {
        self.over(view, job, more).is_none()
    }

    /// The first bound that one more holder of `more` would break, nearest first, as
    /// [`crate::state::queue::QueueTable::admits`] has it, with what the round has placed.
    pub(super) fn over(&self, view: &View, job: &Job, more: &Amounts) -> Option<OverCeiling> {
        view.queue_path(job.queue).find_map(|queue| {
            let would = self.held(queue).plus(more);
            queue::over(queue.id, false, &would, &queue.most(), more)
                .and_then(|()| self.over_of_user(queue, job, more))
                .err()
        })
    }

    /// The bound of each user holds on every level: what a user holds below counts as well.
    fn over_of_user(&self, queue: &Queue, job: &Job, more: &Amounts) -> Result<(), OverCeiling> {
        let bound = queue.spec.user_ceiling.amounts();
        if bound == Ceiling::default().amounts() {
            return Ok(());
        }
        let none = UserShare::default();
        let share = queue.users.get(&job.user).unwrap_or(&none);
        let placed = self.placed_by_user.get(&(queue.id, job.user.clone())).copied().unwrap_or_default();
        let would = share.held.plus(&placed).plus(more);
        queue::over(queue.id, true, &would, &bound.zip(&share.excess, u64::max), more)
    }

    /// Where the account of a job stands.
    pub(crate) fn key(&self, view: &View, queue: QueueId, user: &str) -> ShareKey {
        let mut key = [0; LEVELS + 1];
        let path: Vec<u64> = view.queue_path(queue).map(|queue| self.of_queue(queue)).collect();
        for (level, share) in path.iter().rev().enumerate() {
            let slot = &mut key[level.min(LEVELS - 1)];
            *slot = (*slot).max(*share);
        }
        key[LEVELS] = view.queue(queue).map_or(0, |row| self.of_user(row, user));
        key
    }

    /// Share of a queue in millionths.
    fn of_queue(&self, queue: &Queue) -> u64 {
        let held = self.held(queue);
        let used = queue.used.at(self.now_ms);
        let guarantee = queue.spec.guarantee;
        let below = guarantee != Amounts::default()
            && held.within(&guarantee)
            && held.gpu_milli < guarantee.gpu_milli.max(1);
        let share = (self.dominant(&held) + self.past(used.gpu_ms, used.cpu_ms))
            / u128::from(queue.spec.weight.max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX >> 8);
        if below { share } else { share.saturating_add(ABOVE_GUARANTEE) }
    }

    fn of_user(&self, queue: &Queue, user: &str) -> u64 {
        let placed = self.placed_by_user.get(&(queue.id, user.to_owned())).copied().unwrap_or_default();
        let share = queue.users.get(user);
        let held = share.map_or(placed, |share| share.held.plus(&placed));
        let used = share.map(|share| share.used.at(self.now_ms)).unwrap_or_default();
        u64::try_from(self.dominant(&held) + self.past(used.gpu_ms, used.cpu_ms)).unwrap_or(u64::MAX)
    }

    /// The largest part of anything scarce, in millionths of the cluster. GPU memory follows the cards and CPU and
    /// memory are held by everybody, so each counts by its own part.
    fn dominant(&self, held: &Amounts) -> u128 {
        let parts = held.parts().into_iter().zip(self.capacity.parts());
        parts.map(|(held, all)| u128::from(held) * MILLION / u128::from(all.max(1))).max().unwrap_or(0)
    }

    /// Faded use in millionths of what the cluster gives in one half-life.
    fn past(&self, gpu_ms: u64, cpu_ms: u64) -> u128 {
        let part = |used: u64, capacity_milli: u64| {
            let all = u128::from(capacity_milli) * u128::from(HALF_LIFE_MS) / 1_000;
            u128::from(used) * MILLION / all.max(1)
        };
        part(gpu_ms, self.capacity.gpu_milli).max(part(cpu_ms, self.capacity.cpus_milli))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::view::HostView;
    use crate::state::host::Host;
    use rota_protocol::HostId;
    use std::sync::Arc;

    #[test]
    fn facts_that_no_host_has_leave_the_capacity_at_the_largest_number() {
        let host = |number: u64| {
            let mut host = Host::new(HostId(number), format!("h{number}"), "10.0.0.1:4600".to_owned());
            Arc::make_mut(&mut host.facts).mem_mib = u64::MAX;
            HostView { host: Arc::new(host), attempts: Arc::default() }
        };
        let view = View { hosts: vec![host(1), host(2)], ..View::default() };
        let shares = Shares::new(&view, 0);
        assert_eq!(shares.capacity, Amounts { mem_mib: u64::MAX, ..Amounts::default() });
        assert_eq!(shares.dominant(&shares.capacity), MILLION);
    }
}
