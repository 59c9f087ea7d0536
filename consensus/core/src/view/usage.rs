//! Rows of what users held, and of what they held idle.

use crate::state::State;
use crate::state::meta::Usage;
use rota_protocol::JobId;
use rota_protocol::view::IdleRow;
use rota_protocol::why_more::UsageRow;
use std::collections::BTreeMap;

/// What users held since the cluster began, what runs counted up to `now_ms`; by tenant, user and queue.
#[must_use]
pub fn usage(state: &State, now_ms: u64) -> Vec<UsageRow> {
    let mut rows: BTreeMap<(&str, &str, &str), (Usage, Vec<JobId>)> = BTreeMap::new();
    for (tenant, user, queue, held) in state.metered().iter() {
        rows.entry((tenant, user, queue)).or_default().0.add(held);
    }
    for attempt in state.attempts() {
        let queue = state.queues.get(attempt.queue).map_or("", |queue| &*queue.spec.name);
        let held_ms = now_ms.saturating_sub(attempt.granted_ms);
        let of = |milli: u32| held_ms.saturating_mul(u64::from(milli)) / 1_000;
        let held = Usage { gpu_ms: of(attempt.gpu_milli), cpu_ms: of(attempt.cpus_milli), attempts: 1 };
        let (sum, live) = rows.entry((&attempt.tenant, &attempt.user, queue)).or_default();
        sum.add(held);
        if live.last() != Some(&attempt.task.job) {
            live.push(attempt.task.job);
        }
    }
    let row = |((tenant, user, queue), (held, mut live)): ((&str, &str, &str), (Usage, Vec<JobId>))| {
        live.sort_unstable();
        live.dedup();
        UsageRow {
            tenant: tenant.to_owned(),
            user: user.to_owned(),
            queue: queue.to_owned(),
            gpu_ms: held.gpu_ms,
            cpu_ms: held.cpu_ms,
            attempts: held.attempts,
            live,
        }
    };
    rows.into_iter().map(row).collect()
}

/// Card time held idle by users, most first.
#[must_use]
pub fn idle(state: &State) -> Vec<IdleRow> {
    let now = |tenant: &str, user: &str| {
        let theirs = state.attempts().filter(|a| a.tenant == tenant && a.user == user);
        theirs.filter(|a| a.care.as_ref().is_some_and(|care| care.idle_gpu_ms > 0)).map(|a| a.task).collect()
    };
    let row = |(tenant, user, gpu_ms): (&str, &str, u64)| IdleRow {
        tenant: tenant.to_owned(),
        user: user.to_owned(),
        gpu_ms,
        now: now(tenant, user),
    };
    let mut rows: Vec<IdleRow> = state.idle().iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.gpu_ms));
    rows
}
