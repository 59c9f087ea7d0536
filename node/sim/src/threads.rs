//! Independent runs on several threads, answers in the order of the runs. Each run is as on one thread; only times
//! that are measured in it differ, because cores and caches are shared.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Threads that this machine runs at once; 1 where it does not say.
#[must_use]
pub fn most() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// `run` of each item, on up to `threads` threads, never more than there are items or the machine has.
///
/// # Panics
/// If a run does.
pub fn map<T: Sync, R: Send>(items: &[T], threads: usize, run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads.min(most()).min(items.len());
    if threads <= 1 {
        return items.iter().map(run).collect();
    }
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return done;
            };
            done.push((at, run(item)));
        }
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_the_runs() {
        let items: Vec<u64> = (0..100).collect();
        let squares: Vec<u64> = items.iter().map(|item| item * item).collect();
        for threads in [0, 1, 2, 64] {
            assert_eq!(map(&items, threads, |item| item * item), squares);
        }
        assert!(map(&[], 4, |item: &u64| *item).is_empty());
    }
}
