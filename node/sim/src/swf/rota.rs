//! Rota's own rule on equal processors: the order of `rota_core::placement::order`, one promise to the job that has
//! waited longest, and backfill judged by limits. The same rule without hosts; the planner of the product has them.

use super::machine::{Machine, Policy, Queued};
use rota_core::placement::order::{OrderKey, Waiting, order_key, promised_start_ms};

/// The promise that stands between rounds, if one does.
#[derive(Default)]
pub(super) struct Rota {
    promise: Option<Promise>,
}

/// A job that will have started by a second, whatever running jobs do within their limits.
#[derive(Clone, Copy)]
struct Promise {
    job: usize,
    width: u32,
    start_s: u64,
}

impl Policy for Rota {
    fn round(&mut self, machine: &mut Machine<'_>) {
        self.start_if_due(machine);
        // What a promise held back may start once the promise is kept.
        while self.pass(machine) {}
        if self.promise.is_none() {
            self.promise = machine.waiting.first().map(|oldest| promise(machine, oldest));
            if let Some(Promise { job, start_s, .. }) = self.promise {
                machine.promise(job, start_s);
            }
        }
        if let Some(promise) = self.promise {
            machine.wake(promise.start_s);
        }
    }
}

impl Rota {
    /// At the promised second the job goes before all others. All that ran past it by its limit left room for it.
    fn start_if_due(&mut self, machine: &mut Machine<'_>) {
        let Some(promise) = self.promise.filter(|promise| promise.start_s <= machine.now_s) else { return };
        if promise.width <= machine.free
            && let Some(at) = machine.waiting.iter().position(|queued| queued.job == promise.job)
        {
            machine.start(at);
            self.promise = None;
        }
    }

    /// Starts what fits, in order, as far as the promise allows. Whether the promise was kept in this pass.
    fn pass(&mut self, machine: &mut Machine<'_>) -> bool {
        let mut order: Vec<(OrderKey, Queued)> =
            machine.waiting.iter().map(|queued| (key(machine, queued), *queued)).collect();
        order.sort_by_key(|(key, queued)| (*key, queued.job));
        let mut kept = false;
        for (_, queued) in order {
            if queued.width > machine.free || !self.leaves_promise(machine, &queued) {
                continue;
            }
            if let Some(at) = machine.waiting.iter().position(|waiting| waiting.job == queued.job) {
                machine.start(at);
            }
            if self.promise.is_some_and(|promise| promise.job == queued.job) {
                self.promise = None;
                kept = true;
            }
        }
        kept
    }

    /// Even if this job, and all that run, take as long as they may, the promised one finds its processors in time.
    fn leaves_promise(&self, machine: &Machine<'_>, queued: &Queued) -> bool {
        let Some(promise) = self.promise else { return true };
        if promise.job == queued.job || machine.now_s + queued.limit_s <= promise.start_s {
            return true;
        }
        let beyond = machine.running.iter().filter(|job| job.limit_end_s > promise.start_s);
        let held: u32 = beyond.map(|job| job.width).sum();
        held + promise.width + queued.width <= machine.log.processors
    }
}

fn key(machine: &Machine<'_>, queued: &Queued) -> OrderKey {
    let waiting = Waiting {
        priority: 0,
        submitted_ms: machine.log.jobs[queued.job].submit_s * 1_000,
        predicted_ms: queued.foreseen.ms,
        limit_ms: Some(queued.limit_s * 1_000),
        width: queued.width,
    };
    order_key(&waiting, machine.now_s * 1_000)
}

fn promise(machine: &Machine<'_>, queued: &Queued) -> Promise {
    let mut ends: Vec<(u64, u32)> = machine.running.iter().map(|job| (job.limit_end_s, job.width)).collect();
    ends.sort_unstable();
    let (mut free, mut earliest_s) = (machine.free, machine.now_s);
    for (end_s, width) in ends {
        if free >= queued.width {
            break;
        }
        free += width;
        earliest_s = end_s;
    }
    let submitted_ms = machine.log.jobs[queued.job].submit_s * 1_000;
    let start_ms = promised_start_ms(earliest_s * 1_000, submitted_ms, Some(queued.limit_s * 1_000));
    Promise { job: queued.job, width: queued.width, start_s: start_ms / 1_000 }
}
