//! Rota's own rule on equal processors: the order of `rota_core::placement::order`, one promise to the job that has
//! waited longest, and backfill judged by limits. The same rule without hosts; the planner of the product has them.

use super::easy::reservation;
use super::machine::{Machine, Policy, Queued};
use rota_core::placement::order::{OrderKey, PROMISE_SLACK_LIMITS, Waiting, order_key, promised_start_ms};

/// Slack of promises where predictions keep a place for the first job in order, see [`Rota::soft`].
const SOFT_SLACK_LIMITS: u64 = 4;

/// The rule, and the promise that stands between rounds, if one does.
pub(super) struct Rota {
    promise: Option<Promise>,
    slack_limits: u64,
    soft: bool,
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
        loop {
            self.start_if_due(machine);
            // What a promise held back may start once the promise is kept.
            while self.pass(machine) {}
            if self.promise.is_some() {
                break;
            }
            let Some(oldest) = machine.waiting.first() else { break };
            let promise = self.promise_to(machine, oldest);
            machine.promise(promise.job, promise.start_s);
            self.promise = Some(promise);
            // Only what predictions alone keep waiting can be promised this very second.
            if promise.start_s > machine.now_s {
                break;
            }
        }
        if let Some(promise) = self.promise {
            machine.wake(promise.start_s);
        }
    }
}

impl Rota {
    /// The rule of the product.
    pub(super) fn firm() -> Self {
        Self { promise: None, slack_limits: PROMISE_SLACK_LIMITS, soft: false }
    }

    /// A variant for machines whose limits say little: besides, no job may delay the first in order that does not fit
    /// beyond its predicted start. That is nothing anyone is told, only a further condition; the promise comes later.
    pub(super) fn soft() -> Self {
        Self { promise: None, slack_limits: SOFT_SLACK_LIMITS, soft: true }
    }

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
        // When the first that does not fit is expected to start, and what it leaves free then.
        let mut head: Option<(u64, u32)> = None;
        for (_, queued) in order {
            if queued.width > machine.free {
                if self.soft && head.is_none() {
                    head = Some(reservation(machine, &queued));
                }
                continue;
            }
            if !self.leaves_promise(machine, &queued) {
                continue;
            }
            if let Some((shadow_s, spare)) = &mut head
                && machine.now_s + queued.foreseen.ms / 1_000 > *shadow_s
            {
                if queued.width > *spare {
                    continue;
                }
                *spare -= queued.width;
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

    /// The promise to a job that cannot start now.
    fn promise_to(&self, machine: &Machine<'_>, queued: &Queued) -> Promise {
        let submitted_ms = machine.log.jobs[queued.job].submit_s * 1_000;
        let earliest_ms = earliest_s(machine, queued.width) * 1_000;
        let limit_ms = Some(queued.limit_s * 1_000);
        let start_ms = promised_start_ms(earliest_ms, submitted_ms, limit_ms, self.slack_limits);
        Promise { job: queued.job, width: queued.width, start_s: start_ms / 1_000 }
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

/// When that many processors are free for certain: all that runs ends at its limit.
fn earliest_s(machine: &Machine<'_>, width: u32) -> u64 {
    let mut ends: Vec<(u64, u32)> = machine.running.iter().map(|job| (job.limit_end_s, job.width)).collect();
    ends.sort_unstable();
    let (mut free, mut earliest_s) = (machine.free, machine.now_s);
    for (end_s, ended) in ends {
        if free >= width {
            break;
        }
        free += ended;
        earliest_s = end_s;
    }
    earliest_s
}
