//! What stands in front of a job, in the planner's own order: by priority, then by whose account has had less, then by
//! the place on the account. And what its account has had.

use super::lack::{lack_among, registered};
use super::rivals::Wanted;
use crate::placement::{ShareKey, Shares, View, standing};
use crate::state::State;
use crate::state::job::Job;
use crate::state::queue::Queue;
use rota_protocol::queue::QueueId;
use rota_protocol::why_more::WhyShare;
use std::collections::BTreeMap;

/// Waiting tasks of ready jobs that stand before it, and the GPUs they ask. With each start the shares move: of accounts
/// that have had less, all that waits is counted; but not what no host will ever run, nor what is after other things or
/// held back by its own cap.
pub(super) fn ahead(state: &State, view: &View, wanted: &Wanted<'_>, job: &Job, now_ms: u64) -> (u64, u64) {
    let shares = Shares::new(view, now_ms);
    let own = standing(job, now_ms);
    let own_key = shares.key(view, job.queue, &job.user);
    let mut keys: BTreeMap<(QueueId, &str), ShareKey> = BTreeMap::new();
    let mut sums = (0_u64, 0_u64);
    let hosts = registered(state);
    for (class, jobs) in state.jobs.ready() {
        let account = (class.queue, class.user.as_str());
        let same = account == (job.queue, job.user.as_str());
        let key = *keys.entry(account).or_insert_with(|| shares.key(view, class.queue, &class.user));
        // Each class is in the order of priority.
        let rivals = jobs.iter().map(|(place, ())| place).take_while(|(priority, _, _)| *priority <= own.0);
        let rivals = rivals.filter_map(|(_, _, id)| state.job(*id));
        let mut before = rivals
            .filter(|other| !wanted.is_kept_from(other))
            .filter(|other| {
                let place = standing(other, now_ms);
                if same { place < own } else { (place.0, key, place) < (own.0, own_key, own) }
            })
            .peekable();
        // Those of a class ask alike.
        if before
            .peek()
            .is_none_or(|first| !wanted.is_sought_by(first) || lack_among(&hosts, &first.spec).is_some())
        {
            continue;
        }
        let tasks: u64 = before.map(|j| u64::from(j.pending.len().min(j.parallel_room()))).sum();
        sums.0 += tasks;
        sums.1 = sums.1.saturating_add(tasks.saturating_mul(u64::from(class.ask.gpus())));
    }
    sums
}

/// What the queues on the job's path hold against their siblings, nearest first; empty where it is alone.
pub(super) fn shares(state: &State, job: &Job, part: &'static str) -> Vec<WhyShare> {
    let whole = crate::view::capacity(state);
    let by_cards = part == "gpus" || part == "vram";
    let figure = |amounts: &rota_protocol::queue::Amounts| {
        if by_cards { amounts.gpu_milli } else { amounts.cpus_milli }
    };
    let parent = |name: &str| name.rsplit_once('/').map(|(parent, _)| parent.to_owned());
    let counts = |queue: &Queue| queue.jobs_open > 0 || figure(&queue.held) > 0;
    let row = |queue: &Queue| {
        let siblings = state.queues.iter().filter(|other| {
            other.id == queue.id || counts(other) && parent(&other.spec.name) == parent(&queue.spec.name)
        });
        let held_by = |share: &&crate::state::queue::UserShare| figure(&share.held) > 0;
        WhyShare {
            queue: queue.spec.name.clone(),
            part: if by_cards { "gpus" } else { "cpus" }.to_owned(),
            held: figure(&queue.held),
            held_by_user: queue.users.get(&job.user).map_or(0, |share| figure(&share.held)),
            whole: figure(&whole),
            weight: queue.spec.weight,
            weights: siblings.map(|other| u64::from(other.spec.weight)).sum(),
            users: u32::try_from(queue.users.values().filter(held_by).count()).unwrap_or(u32::MAX),
        }
    };
    let rows = state.queues.path(job.queue).map(row);
    rows.filter(|row| row.weights > u64::from(row.weight) || row.users > 1).collect()
}
