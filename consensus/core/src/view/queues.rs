//! Rows of queues and reservations.

use crate::state::State;
use crate::state::queue::Queue;
use rota_protocol::QueueId;
use rota_protocol::job::{Actor, Role};
use rota_protocol::queue::Amounts;
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::view::{HostState, QueueRow, ReservationRow};
use std::collections::BTreeMap;

/// All queues that the viewer may use, and those above them; every queue to operators. By path, with what is held and
/// waits in them and below.
#[must_use]
pub fn queues(state: &State, viewer: &Actor, now_ms: u64) -> Vec<QueueRow> {
    let counts = counts(state);
    let whole = capacity(state);
    let mut rows: Vec<QueueRow> = state
        .queues()
        .iter()
        .filter(|queue| is_shown(state, queue, viewer))
        .map(|queue| {
            let counted = counts.get(&queue.id).copied().unwrap_or_default();
            let used = queue.used.at(now_ms);
            QueueRow {
                spec: queue.spec.clone(),
                held: queue.held,
                tasks_waiting: counted.waiting,
                jobs_open: counted.open,
                tasks_running: counted.running,
                used_gpu_ms: used.gpu_ms,
                used_cpu_ms: used.cpu_ms,
                share_permille: share_permille(&queue.held, &whole),
            }
        })
        .collect();
    rows.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    rows
}

/// All reservations by start. Everybody may know when hosts are kept: it is why their jobs wait.
#[must_use]
pub fn reservations(state: &State, now_ms: u64) -> Vec<ReservationRow> {
    let mut rows: Vec<ReservationRow> = state
        .reservations()
        .filter(|spec| spec.end_ms > now_ms)
        .map(|spec| ReservationRow {
            host_names: spec
                .hosts
                .iter()
                .map(|id| state.host(*id).map_or_else(|| id.to_string(), |host| host.name.clone()))
                .collect(),
            active: spec.start_ms <= now_ms,
            foreign_tasks: foreign_tasks(state, spec),
            spec: spec.clone(),
        })
        .collect();
    rows.sort_by(|a, b| (a.spec.start_ms, &a.spec.name).cmp(&(b.spec.start_ms, &b.spec.name)));
    rows
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    waiting: u64,
    open: u64,
    running: u64,
}

/// Jobs, waiting tasks and attempts of each queue, those below it included.
fn counts(state: &State) -> BTreeMap<QueueId, Counts> {
    let mut own: BTreeMap<QueueId, Counts> = BTreeMap::new();
    for job in state.jobs().filter(|job| !job.state.is_terminal()) {
        let counted = own.entry(job.queue).or_default();
        counted.open += 1;
        counted.waiting += u64::from(job.pending.len()) + u64::from(job.blocked.len());
    }
    for attempt in state.attempts() {
        own.entry(attempt.queue).or_default().running += 1;
    }
    let mut sums: BTreeMap<QueueId, Counts> = BTreeMap::new();
    for (id, counted) in own {
        for queue in state.queues().path(id) {
            let sum = sums.entry(queue.id).or_default();
            sum.waiting += counted.waiting;
            sum.open += counted.open;
            sum.running += counted.running;
        }
    }
    sums
}

/// What the hosts that are there have.
pub(crate) fn capacity(state: &State) -> Amounts {
    let hosts = state
        .hosts()
        .filter(|host| !matches!(host.state(0), HostState::Joining | HostState::Lost | HostState::Removed));
    hosts.fold(Amounts::default(), |sum, host| {
        let cards = host.facts.devices.iter().filter(|device| device.health.is_healthy());
        let of_cards = cards.fold(Amounts::default(), |sum, card| sum.plus(&crate::fit::card_amounts(card)));
        let own = Amounts {
            cpus_milli: u64::from(host.facts.cpus_milli),
            mem_mib: host.facts.mem_mib,
            ..Amounts::default()
        };
        sum.plus(&of_cards).plus(&own)
    })
}

/// The dominant share: the largest part that is held of anything, in thousandths.
fn share_permille(held: &Amounts, whole: &Amounts) -> u32 {
    let parts = held.parts().into_iter().zip(whole.parts());
    let shares = parts.filter(|(_, whole)| *whole > 0).map(|(held, whole)| {
        let share = u128::from(held) * 1_000 / u128::from(whole);
        u32::try_from(share).unwrap_or(u32::MAX)
    });
    shares.max().unwrap_or(0)
}

fn is_shown(state: &State, queue: &Queue, viewer: &Actor) -> bool {
    viewer.role >= Role::Operator
        || admits(queue, &viewer.tenant)
        || state.queues().iter().any(|other| {
            admits(other, &viewer.tenant) && state.queues().path(other.id).any(|above| above.id == queue.id)
        })
}

/// The rule by which a tenant's jobs enter a queue.
fn admits(queue: &Queue, tenant: &str) -> bool {
    let listed = &queue.spec.tenants;
    let first = queue.spec.name.split('/').next().unwrap_or_default();
    if listed.is_empty() { first == tenant } else { listed.iter().any(|one| one == tenant) }
}

fn foreign_tasks(state: &State, spec: &ReservationSpec) -> u64 {
    let ours = |queue: QueueId| match &spec.kept_for {
        ReservedFor::Nobody => false,
        ReservedFor::Queues(names) => names.iter().any(|name| state.queues().lies_in(queue, name)),
    };
    let on_hosts = spec.hosts.iter().flat_map(|host| state.attempts_on(*host));
    on_hosts.filter(|attempt| !ours(attempt.queue)).count() as u64
}
