//! What a peer remembers of its own copy of the state, so that it can be compared with others (`compare.rs`).

use crate::config::Tuning;
use crate::machine::Shared;
use crate::runtime::{blocking, spawn};
use rota_core::State;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Rolling hashes that are kept: a peer that is further behind than this is compared later.
const ROLLING_KEPT: usize = 8_192;
/// Whole hashes that are kept.
const WHOLE_KEPT: usize = 16;
/// A whole hash may take one part in so many of the time between two of them.
const COST_PART: u32 = 100;
/// The step stops growing here.
const STEP_MAX: u64 = 1 << 20;

/// An index, and the hash of the state after that entry.
pub(crate) type Mark = (u64, u64);

/// What a peer remembers of its own copy.
#[derive(Default)]
pub(crate) struct Marks {
    kept: Mutex<Kept>,
    step: AtomicU64,
    /// The step where hashing costs little.
    least_step: u64,
}

#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) rolling: VecDeque<Mark>,
    pub(crate) whole: VecDeque<Mark>,
    hashed: Option<Instant>,
    /// A state is being hashed, and this one comes next.
    hashing: bool,
    next: Option<State>,
    /// Counts the states that took the place of others: what is of an earlier one is not kept.
    life: u64,
}

impl Kept {
    pub(crate) fn at(&self, index: u64) -> Option<u64> {
        let (first, _) = self.rolling.front()?;
        let place = usize::try_from(index.checked_sub(*first)?).ok()?;
        self.rolling.get(place).filter(|(at, _)| *at == index).map(|(_, hash)| *hash)
    }

    pub(crate) fn whole_at(&self, index: u64) -> Option<u64> {
        self.whole.iter().find(|(at, _)| *at == index).map(|(_, hash)| *hash)
    }
}

impl Marks {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        let least_step = tuning.whole_entries.next_power_of_two();
        Self { step: AtomicU64::new(least_step), least_step, ..Self::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry was applied, and left this state. Gives a copy of it where the whole of it is to be hashed.
    pub(crate) fn took(&self, index: u64, state: &State) -> Option<State> {
        self.applied(index, state.rolling_hash()).then(|| state.clone())
    }

    pub(crate) fn applied(&self, index: u64, rolling: u64) -> bool {
        let mut kept = self.lock();
        if kept.rolling.back().is_some_and(|(last, _)| last + 1 != index) {
            kept.rolling.clear();
        }
        if kept.rolling.len() >= ROLLING_KEPT {
            kept.rolling.pop_front();
        }
        kept.rolling.push_back((index, rolling));
        index.is_multiple_of(self.step.load(Ordering::Relaxed))
    }

    /// Another state has taken the place of this one.
    pub(crate) fn forget(&self) {
        let mut kept = self.lock();
        let life = kept.life + 1;
        *kept = Kept { hashing: kept.hashing, life, ..Kept::default() };
    }

    /// Gives the state that is to be hashed now; none if one is being hashed already. Of those that must wait the one at
    /// the roundest index stays: so peers of unlike speed hash the same ones.
    fn queue(&self, state: State) -> Option<(State, u64)> {
        let mut kept = self.lock();
        if !kept.hashing {
            kept.hashing = true;
            return Some((state, kept.life));
        }
        let round = |state: &State| state.applied_index().trailing_zeros();
        if kept.next.as_ref().is_none_or(|next| round(next) <= round(&state)) {
            kept.next = Some(state);
        }
        None
    }

    /// The next one that waits.
    fn next(&self) -> Option<(State, u64)> {
        let mut kept = self.lock();
        let next = kept.next.take();
        kept.hashing = next.is_some();
        next.map(|state| (state, kept.life))
    }

    fn hashed(&self, mark: Mark, life: u64, began: Instant, took: Duration) {
        let mut kept = self.lock();
        if kept.life != life {
            return;
        }
        if kept.whole.len() >= WHOLE_KEPT {
            kept.whole.pop_front();
        }
        kept.whole.push_back(mark);
        let step = self.step.load(Ordering::Relaxed);
        let since = kept.hashed.replace(began).map(|last| began.duration_since(last));
        let step = match since {
            Some(since) if since < took * COST_PART => (step * 2).min(STEP_MAX),
            Some(since) if since > took * COST_PART * 4 => (step / 2).max(self.least_step),
            _ => step,
        };
        self.step.store(step, Ordering::Relaxed);
    }
}

/// Hashes a whole state beside everything else, if there is one to be hashed.
pub(crate) fn hash_whole(shared: &Arc<Shared>, state: Option<State>) {
    let Some(state) = state else { return };
    let Some(first) = shared.marks.queue(state) else { return };
    let shared = shared.clone();
    spawn(async move {
        let mut now = Some(first);
        while let Some((state, life)) = now {
            let (began, index) = (Instant::now(), state.applied_index());
            // Ended early: the next step hashes again.
            if let Ok((hash, took)) = blocking(move || (state.full_hash(), began.elapsed())).await {
                shared.marks.hashed((index, hash), life, began, took);
            }
            now = shared.marks.next();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whole_states_that_cost_much_are_hashed_rarely() {
        let marks = Marks::new(&Tuning { whole_entries: 1_024, ..Tuning::default() });
        let took = Duration::from_millis(20);
        for (index, wait_ms, step) in [
            (1, 0, 1_024),
            (2, 2_500, 1_024),
            (3, 1_000, 2_048),
            (4, 1_900, 4_096),
            (5, 9_000, 2_048),
            (6, 9_000, 1_024),
            (7, 9_000, 1_024),
        ] {
            tokio::time::advance(Duration::from_millis(wait_ms)).await;
            marks.hashed((index, 0), 0, Instant::now(), took);
            assert_eq!(marks.step.load(Ordering::Relaxed), step, "{index}");
        }
    }
}
