//! EASY backfilling as published (Lifka 1995; Tsafrir, Etsion and Feitelson 2007 for EASY++): the first job in order
//! of submission has a reservation, others may pass it if they do not delay it. A baseline, not what Rota does.

use super::machine::{Machine, Policy, Queued, Running};

/// EASY and its variants.
pub(super) struct Easy {
    /// Backfill the shortest first, not the oldest.
    pub shortest_first: bool,
}

impl Policy for Easy {
    fn round(&mut self, machine: &mut Machine<'_>) {
        while machine.waiting.first().is_some_and(|head| head.width <= machine.free) {
            machine.start(0);
        }
        if let Some(head) = machine.waiting.first().copied() {
            let (shadow_s, spare) = reservation(machine, &head);
            machine.promise(head.job, shadow_s);
            self.backfill(machine, shadow_s, spare);
        }
        // A prediction that runs out moves the reservation, and so what may pass.
        let expiries = machine.running.iter().map(|job| job.start_s + job.foreseen.ms / 1_000);
        if let Some(next_s) = expiries.filter(|expiry_s| *expiry_s > machine.now_s).min() {
            machine.wake(next_s);
        }
    }
}

impl Easy {
    /// Starts what is over before the head's turn, or takes only processors that the head leaves.
    fn backfill(&self, machine: &mut Machine<'_>, shadow_s: u64, mut spare: u32) {
        let mut order: Vec<Queued> = machine.waiting.iter().skip(1).copied().collect();
        if self.shortest_first {
            order.sort_by_key(|queued| (queued.foreseen.ms, queued.job));
        }
        for queued in order {
            let in_time = machine.now_s + queued.foreseen.ms / 1_000 <= shadow_s;
            if queued.width > machine.free || !(in_time || queued.width <= spare) {
                continue;
            }
            if !in_time {
                spare -= queued.width;
            }
            if let Some(at) = machine.waiting.iter().position(|waiting| waiting.job == queued.job) {
                machine.start(at);
            }
        }
    }
}

/// When the head can start if running jobs end as expected, and the processors that it leaves free then.
pub(super) fn reservation(machine: &Machine<'_>, head: &Queued) -> (u64, u32) {
    let mut ends: Vec<(u64, u32)> =
        machine.running.iter().map(|job| (expected_end_s(job, machine.now_s), job.width)).collect();
    ends.sort_unstable();
    let (mut free, mut shadow_s) = (machine.free, machine.now_s);
    for (end_s, width) in ends {
        if free >= head.width && end_s > shadow_s {
            break;
        }
        free += width;
        shadow_s = end_s;
    }
    (shadow_s, free.saturating_sub(head.width))
}

/// As foreseen; once that has passed, at the limit.
fn expected_end_s(job: &Running, now_s: u64) -> u64 {
    let foreseen_s = job.start_s + job.foreseen.ms / 1_000;
    if foreseen_s > now_s { foreseen_s } else { job.limit_end_s }
}
