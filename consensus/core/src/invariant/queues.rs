//! Laws of queues and reservations: what is counted, what may be held, and how they lie to one another.

use super::Violation;
use crate::state::State;
use rota_protocol::queue::{Amounts, QueueId, parent_of};
use rota_protocol::reservation::ReservedFor;
use std::collections::BTreeMap;

/// What queues and users count as held is what their attempts hold, and no more than they may.
pub(super) fn check(state: &State, broken: &mut Vec<Violation>) {
    let mut held: BTreeMap<QueueId, Amounts> = BTreeMap::new();
    let mut by_user: BTreeMap<(QueueId, &str), Amounts> = BTreeMap::new();
    for attempt in state.attempts() {
        for queue in state.queues.path(attempt.queue) {
            let sum = held.entry(queue.id).or_default();
            *sum = sum.plus(&attempt.amounts());
        }
        for queue in state.queues.path(attempt.queue) {
            let sum = by_user.entry((queue.id, &attempt.user)).or_default();
            *sum = sum.plus(&attempt.amounts());
        }
    }
    let mut open: BTreeMap<QueueId, u64> = BTreeMap::new();
    for job in state.jobs().filter(|job| !job.state.is_terminal()) {
        *open.entry(job.queue).or_default() += 1;
    }
    for queue in state.queues.iter() {
        let users_held = queue.users.iter().all(|(user, share)| {
            share.held == by_user.get(&(queue.id, user.as_str())).copied().unwrap_or_default()
        });
        let same = queue.held == held.get(&queue.id).copied().unwrap_or_default();
        let counted = queue.jobs_open == open.get(&queue.id).copied().unwrap_or(0);
        if !(same && users_held && counted) {
            broken.push(Violation::QueueDiffers { queue: queue.id });
        }
        let most = queue.spec.user_ceiling.amounts();
        let users_within =
            queue.users.values().all(|share| share.held.within(&most.zip(&share.excess, u64::max)));
        if !queue.held.within(&queue.most()) || !users_within {
            broken.push(Violation::OverCeiling { queue: queue.id });
        }
    }
    tree(state, broken);
    reservations(state, broken);
    if held.keys().chain(open.keys()).any(|id| state.queues.get(*id).is_none())
        || !state.queues.numbers_are_sound()
        || !state.demand.is_sound()
    {
        broken.push(Violation::Index("queues"));
    }
}

/// Paths and parents agree; children are guaranteed no more than their parent is, where it is, and no more than it may
/// hold.
fn tree(state: &State, broken: &mut Vec<Violation>) {
    let mut below: BTreeMap<QueueId, Amounts> = BTreeMap::new();
    for queue in state.queues.iter() {
        let named = parent_of(&queue.spec.name).map(|name| state.queues.named(name).map(|parent| parent.id));
        if named.unwrap_or(None) != queue.parent || named == Some(None) {
            broken.push(Violation::QueueTree { queue: queue.id });
        }
        if let Some(parent) = queue.parent {
            let sum = below.entry(parent).or_default();
            *sum = sum.plus(&queue.spec.guarantee);
        }
    }
    for queue in state.queues.iter() {
        let (guarantee, ceiling) = (queue.spec.guarantee, queue.spec.ceiling.amounts());
        let sum = below.get(&queue.id).copied().unwrap_or_default();
        let own = guarantee == Amounts::default() || sum.within(&guarantee);
        if !own || !sum.within(&ceiling) || !guarantee.within(&ceiling) {
            broken.push(Violation::QueueTree { queue: queue.id });
        }
    }
}

fn reservations(state: &State, broken: &mut Vec<Violation>) {
    for row in state.reservations() {
        let hosts = !row.hosts.is_empty() && row.hosts.iter().all(|host| state.host(*host).is_some());
        let queues = match &row.kept_for {
            ReservedFor::Nobody => true,
            ReservedFor::Queues(names) => names.iter().all(|name| state.queues.named(name).is_some()),
        };
        if !hosts || !queues || row.end_ms <= row.start_ms {
            broken.push(Violation::Reservation { name: row.name.clone() });
        }
    }
}
