//! Queues and what is held in them: rules by path, amounts held by live attempts, and decayed use for fair share.
//! Every queue counts what is held below it as well, so a ceiling is checked along one path.

use crate::state::attempt::Attempt;
pub use crate::state::tally::Tally;
use rota_protocol::limits::PRIORITY_DEFAULT;
use rota_protocol::queue::{Amounts, QueueId, QueueSpec, parent_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Time after which past use counts half, in ms: one week, so that a weekend's burst is forgotten by the next.
pub const HALF_LIFE_MS: u64 = 7 * 24 * 3_600 * 1_000;

/// Use that fades: a sum that counts half after each [`HALF_LIFE_MS`].
///
/// Integers only, so that all replicas agree: whole half-lives are shifts, the rest is a straight line between them
/// (at most 6 % above the exponential).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Faded {
    /// The sum at `at_ms`, in thousandths of a card times ms, divided by 1,000: card-milliseconds.
    pub gpu_ms: u64,
    /// The same of CPU cores: core-milliseconds.
    pub cpu_ms: u64,
    /// Log time of the sums.
    pub at_ms: u64,
}

impl Faded {
    /// The sums as they count at `now_ms`.
    #[must_use]
    pub fn at(&self, now_ms: u64) -> Self {
        let age_ms = now_ms.saturating_sub(self.at_ms);
        let fade = |sum: u64| {
            let halved =
                sum.checked_shr(u32::try_from(age_ms / HALF_LIFE_MS).unwrap_or(u32::MAX)).unwrap_or(0);
            let rest_ms = age_ms % HALF_LIFE_MS;
            halved - (u128::from(halved) * u128::from(rest_ms) / u128::from(2 * HALF_LIFE_MS)) as u64
        };
        Self { gpu_ms: fade(self.gpu_ms), cpu_ms: fade(self.cpu_ms), at_ms: self.at_ms.max(now_ms) }
    }

    fn add(&mut self, gpu_ms: u64, cpu_ms: u64, now_ms: u64) {
        *self = self.at(now_ms);
        self.gpu_ms = self.gpu_ms.saturating_add(gpu_ms);
        self.cpu_ms = self.cpu_ms.saturating_add(cpu_ms);
    }
}

/// What one user holds and held in one queue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UserShare {
    /// Held now.
    pub held: Amounts,
    /// Held above the user ceiling since it was lowered; shrinks as work ends.
    pub excess: Amounts,
    /// Held in the past.
    pub used: Faded,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its number, never reused.
    pub id: QueueId,
    /// The rules.
    pub spec: QueueSpec,
    /// The queue above it.
    pub parent: Option<QueueId>,
    /// Held now, by it and all below it.
    pub held: Amounts,
    /// What may be held although it is above the ceiling: what was held when the ceiling was lowered, shrinking as
    /// work ends.
    pub excess: Amounts,
    /// Held in the past, by it and all below it.
    pub used: Faded,
    /// By user, for work of it and all below it: a user's bound is not passed by going one queue down.
    pub users: BTreeMap<String, UserShare>,
    /// Jobs of this very queue that are not over.
    pub jobs_open: u64,
}

impl Queue {
    /// The most that may be held: the ceiling, or the guarantee where nothing is borrowed, or what a lowered ceiling
    /// has left.
    #[must_use]
    pub fn most(&self) -> Amounts {
        self.bound().zip(&self.excess, u64::max)
    }

    /// Losing `loss` while `held` would leave it below its guarantee in something that it loses.
    #[must_use]
    pub fn falls_below(&self, held: &Amounts, loss: &Amounts) -> bool {
        let rows = held.parts().into_iter().zip(loss.parts()).zip(self.spec.guarantee.parts());
        rows.into_iter().any(|((held, loss), guarantee)| {
            loss > 0 && guarantee > 0 && held.saturating_sub(loss) < guarantee
        })
    }

    /// Gaining `gain` while `held` stays within its guarantee in all that it gains and is guaranteed, and there is
    /// something such.
    #[must_use]
    pub fn is_owed(&self, held: &Amounts, gain: &Amounts) -> bool {
        let rows = held.parts().into_iter().zip(gain.parts()).zip(self.spec.guarantee.parts());
        let mut owed = false;
        for ((held, gain), guarantee) in rows {
            if gain > 0 && guarantee > 0 {
                if held.saturating_add(gain) > guarantee {
                    return false;
                }
                owed = true;
            }
        }
        owed
    }

    /// The same without what a lowered ceiling has left. A guarantee that names GPUs alone bounds no CPU: what is not
    /// named comes along with what is.
    #[must_use]
    pub fn bound(&self) -> Amounts {
        let (ceiling, guarantee) = (self.spec.ceiling.amounts(), self.spec.guarantee);
        match (self.spec.borrows, guarantee == Amounts::default()) {
            (true, _) => ceiling,
            (false, true) => Amounts::default(),
            (false, false) => {
                ceiling.zip(&guarantee, |most, own| if own == 0 { most } else { most.min(own) })
            }
        }
    }
}

/// What somebody held in one queue until it was given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spent<'a> {
    pub(crate) queue: QueueId,
    pub(crate) user: &'a str,
    /// Card-milliseconds.
    pub(crate) gpu_ms: u64,
    /// Core-milliseconds.
    pub(crate) cpu_ms: u64,
    /// Log time at which it was given back.
    pub(crate) at_ms: u64,
}

/// The first bound that something would break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverCeiling {
    /// Whose bound.
    pub queue: QueueId,
    /// It is the bound of each user.
    pub of_user: bool,
    /// Which part, as its field is named.
    pub part: &'static str,
    /// Would be held.
    pub would: u64,
    /// The most.
    pub most: u64,
}

/// All queues.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueTable {
    map: BTreeMap<QueueId, Arc<Queue>>,
    next: u64,
    #[serde(skip)]
    by_name: BTreeMap<String, QueueId>,
}

impl QueueTable {
    /// A queue.
    #[must_use]
    pub fn get(&self, id: QueueId) -> Option<&Queue> {
        self.map.get(&id).map(|queue| &**queue)
    }

    /// A queue by its path.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Queue> {
        self.get(*self.by_name.get(name)?)
    }

    /// All queues by number.
    pub fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.map.values().map(|queue| &**queue)
    }

    /// All queues by number, shared.
    pub(crate) fn shared(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.map.values()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The queue itself, then those above it.
    pub fn path(&self, id: QueueId) -> impl Iterator<Item = &Queue> {
        // Parents are made before their children, so the walk ends even in damaged tables.
        let above = |at: &QueueId| self.get(*at)?.parent.filter(|parent| parent < at);
        std::iter::successors(Some(id), above).map_while(|at| self.get(at))
    }

    /// The highest priority that a submitter may ask in a queue: what it or the nearest queue above it says.
    #[must_use]
    pub fn priority_max(&self, id: QueueId) -> u16 {
        self.path(id).find_map(|queue| queue.spec.priority_max).unwrap_or(PRIORITY_DEFAULT)
    }

    /// How long attempts of a queue are left alone: what it or the nearest queue above it says, in ms.
    #[must_use]
    pub fn min_runtime_ms(&self, id: QueueId) -> u64 {
        self.path(id).find_map(|queue| queue.spec.min_runtime_ms).unwrap_or(0)
    }

    /// Whether `id` is `above` or lies below it.
    #[must_use]
    pub fn lies_in(&self, id: QueueId, above: &str) -> bool {
        self.path(id).any(|queue| queue.spec.name == above)
    }

    /// Would one more holder of `more` keep every bound along the path?
    ///
    /// # Errors
    /// The first bound that it would break, nearest first.
    pub fn admits(&self, id: QueueId, user: &str, more: &Amounts) -> Result<(), OverCeiling> {
        for queue in self.path(id) {
            over(queue.id, false, &queue.held.plus(more), &queue.most(), more)?;
            let none = UserShare::default();
            let share = queue.users.get(user).unwrap_or(&none);
            let most = queue.spec.user_ceiling.amounts().zip(&share.excess, u64::max);
            over(queue.id, true, &share.held.plus(more), &most, more)?;
        }
        Ok(())
    }

    /// The same at a time when `gone` was given back and `come` was taken. What a lowered ceiling has left does not
    /// count: it shrinks as work ends, and leaves no room for more.
    ///
    /// # Errors
    /// The first bound that it would break, nearest first.
    pub fn admits_after(
        &self,
        id: QueueId,
        user: &str,
        more: &Amounts,
        gone: &Tally,
        come: &Tally,
    ) -> Result<(), OverCeiling> {
        for queue in self.path(id) {
            let then = |held: &Amounts, of: Option<&str>| {
                held.minus(&gone.of(queue.id, of)).plus(&come.of(queue.id, of)).plus(more)
            };
            over(queue.id, false, &then(&queue.held, None), &queue.bound(), more)?;
            let held = queue.users.get(user).map(|share| share.held).unwrap_or_default();
            over(queue.id, true, &then(&held, Some(user)), &queue.spec.user_ceiling.amounts(), more)?;
        }
        Ok(())
    }

    /// Makes a queue, or gives it new rules. The parent must exist or be none.
    pub(crate) fn set(&mut self, spec: QueueSpec) -> QueueId {
        if let Some(id) = self.by_name.get(&spec.name).copied() {
            if let Some(queue) = self.map.get_mut(&id).map(Arc::make_mut) {
                queue.spec = spec;
                // What runs above the new bounds may stay; nothing may be added to it.
                queue.excess = queue.held;
                for share in queue.users.values_mut() {
                    share.excess = share.held;
                }
            }
            return id;
        }
        self.next += 1;
        let id = QueueId(self.next);
        let parent = parent_of(&spec.name).and_then(|name| self.by_name.get(name).copied());
        self.by_name.insert(spec.name.clone(), id);
        let queue = Queue {
            id,
            spec,
            parent,
            held: Amounts::default(),
            excess: Amounts::default(),
            used: Faded::default(),
            users: BTreeMap::new(),
            jobs_open: 0,
        };
        self.map.insert(id, Arc::new(queue));
        id
    }

    pub(crate) fn remove(&mut self, id: QueueId) {
        if let Some(queue) = self.map.remove(&id) {
            self.by_name.remove(&queue.spec.name);
        }
    }

    /// Counts a job of a queue in or out.
    pub(crate) fn count_job(&mut self, id: QueueId, opened: bool) {
        if let Some(queue) = self.map.get_mut(&id).map(Arc::make_mut) {
            queue.jobs_open =
                if opened { queue.jobs_open.saturating_add(1) } else { queue.jobs_open.saturating_sub(1) };
        }
    }

    /// Adds what an attempt holds along its path.
    pub(crate) fn hold(&mut self, attempt: &Attempt) {
        let more = attempt.amounts();
        self.along(attempt.queue, |queue| {
            queue.held = queue.held.plus(&more);
            let share = queue.users.entry(attempt.user.clone()).or_default();
            share.held = share.held.plus(&more);
        });
    }

    /// Takes it away again and adds the use to what fades.
    pub(crate) fn release(&mut self, attempt: &Attempt, gpu_ms: u64, cpu_ms: u64, now_ms: u64) {
        let less = attempt.amounts();
        self.along(attempt.queue, |queue| {
            queue.held = queue.held.minus(&less);
            queue.excess = queue.excess.zip(&queue.held, u64::min);
            queue.used.add(gpu_ms, cpu_ms, now_ms);
            let share = queue.users.entry(attempt.user.clone()).or_default();
            share.held = share.held.minus(&less);
            share.excess = share.excess.zip(&share.held, u64::min);
            share.used.add(gpu_ms, cpu_ms, now_ms);
        });
    }

    /// Adds use of the past to what fades, along its path; the oldest first.
    pub(crate) fn spend(&mut self, spent: &Spent<'_>) {
        self.along(spent.queue, |queue| {
            queue.used.add(spent.gpu_ms, spent.cpu_ms, spent.at_ms);
            let share = queue.users.entry(spent.user.to_owned()).or_default();
            share.used.add(spent.gpu_ms, spent.cpu_ms, spent.at_ms);
        });
    }

    /// Rebuilds the index from the rows, after a snapshot was read.
    pub(crate) fn rebuild(&mut self) {
        self.by_name = self.iter().map(|queue| (queue.spec.name.clone(), queue.id)).collect();
    }

    /// No queue was handed a number that the counter has not reached, and each lies in one that is older.
    pub(crate) fn numbers_are_sound(&self) -> bool {
        let rooted = |queue: &Queue| match queue.parent {
            Some(parent) => parent < queue.id && self.get(parent).is_some(),
            None => true,
        };
        self.map.iter().all(|(id, queue)| *id == queue.id && id.0 <= self.next && rooted(queue))
    }

    fn along(&mut self, id: QueueId, mut change: impl FnMut(&mut Queue)) {
        let mut next = Some(id);
        while let Some(at) = next {
            let Some(queue) = self.map.get_mut(&at).map(Arc::make_mut) else {
                return;
            };
            change(queue);
            next = queue.parent.filter(|parent| *parent < at);
        }
    }
}

/// Names the first part that is asked for more of than there may be.
pub(crate) fn over(
    queue: QueueId,
    of_user: bool,
    would: &Amounts,
    most: &Amounts,
    more: &Amounts,
) -> Result<(), OverCeiling> {
    const PARTS: [&str; 4] = ["gpus", "cpus", "mem", "vram"];
    let rows = PARTS.into_iter().zip(would.parts()).zip(most.parts()).zip(more.parts());
    for (((part, would), most), more) in rows {
        if more > 0 && would > most {
            return Err(OverCeiling { queue, of_user, part, would, most });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_fades_by_half_each_half_life() {
        let mut used = Faded::default();
        used.add(1_000, 10, 5);
        assert_eq!(used.at(5 + HALF_LIFE_MS).gpu_ms, 500);
        assert_eq!(used.at(5 + HALF_LIFE_MS / 2).gpu_ms, 750);
        assert_eq!(used.at(5 + 3 * HALF_LIFE_MS).gpu_ms, 125);
        assert_eq!(used.at(u64::MAX).gpu_ms, 0);
        // A clock that stands still or lags changes nothing.
        assert_eq!(used.at(0).gpu_ms, 1_000);
    }

    #[test]
    fn a_bound_is_checked_along_the_path() {
        let mut table = QueueTable::default();
        let mut top = QueueSpec::open("lab");
        top.ceiling.gpu_milli = Some(4_000);
        table.set(top);
        let leaf = table.set(QueueSpec::open("lab/vision"));
        let three = Amounts { gpu_milli: 3_000, ..Amounts::default() };
        assert_eq!(table.admits(leaf, "u", &three), Ok(()));
        let five = Amounts { gpu_milli: 5_000, ..Amounts::default() };
        let over = table.admits(leaf, "u", &five).expect_err("above the parent's ceiling");
        assert_eq!((over.part, over.would, over.most), ("gpus", 5_000, 4_000));
        // What is not asked for is not in the way.
        let cpus = Amounts { cpus_milli: 9_000, ..Amounts::default() };
        assert_eq!(table.admits(leaf, "u", &cpus), Ok(()));
    }
}
