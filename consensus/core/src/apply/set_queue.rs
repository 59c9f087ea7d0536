//! SetQueue, RemoveQueue: the tree of queues and its rules. A queue's parent must exist; children never promise more
//! than their parent has.

use super::{Answer, Step};
use crate::spec::{check_name, twice};
use crate::state::State;
use rota_protocol::care::{IDLE_WINDOW_MS_MAX, IDLE_WINDOW_MS_MIN};
use rota_protocol::command::Outcome;
use rota_protocol::limits::{NAME_BYTES_MAX, PRIORITY_DEFAULT, PRIORITY_MAX, QUEUES_MAX, TIME_LIMIT_MS_MAX};
use rota_protocol::queue::{Amounts, QueueSpec, is_queue_name, parent_of};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::{ErrorCode, PublicError};

/// Highest weight: enough to tell any two queues apart.
const WEIGHT_MAX: u32 = 1_000_000;
/// Most tenants that one queue lists.
const TENANTS_MAX: usize = 1_024;

pub(super) fn apply(state: &mut State, step: &mut Step, spec: &QueueSpec) -> Answer {
    check(spec)?;
    if let Some(parent) = parent_of(&spec.name)
        && state.queues.named(parent).is_none()
    {
        let message = format!("'{}' lies in no queue: there is no '{parent}'", spec.name);
        return Err(PublicError::invalid("queue.name", message, "a queue below one that exists"));
    }
    check_family(state, spec)?;
    if state.queues.named(&spec.name).is_none() && state.queues.len() >= QUEUES_MAX {
        return Err(PublicError::new(ErrorCode::TooLarge, format!("{QUEUES_MAX} queues are the most")));
    }
    state.queues.set(spec.clone());
    step.plan_needed = true;
    Ok(Outcome::Done)
}

pub(super) fn remove(state: &mut State, step: &mut Step, name: &str) -> Answer {
    let Some(queue) = state.queues.named(name) else {
        return Err(PublicError::new(ErrorCode::NotFound, format!("no queue '{name}'")));
    };
    let id = queue.id;
    if queue.jobs_open > 0 {
        let message = format!("{} jobs of queue '{name}' are not over", queue.jobs_open);
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    if let Some(child) = state.queues.iter().find(|queue| queue.parent == Some(id)) {
        let message = format!("queue '{}' lies in '{name}'", child.spec.name);
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    let names = |row: &&ReservationSpec| match &row.kept_for {
        ReservedFor::Queues(queues) => queues.iter().any(|queue| queue == name),
        ReservedFor::Nobody => false,
    };
    if let Some(row) = state.reservations.iter().find(names) {
        let message = format!("reservation '{}' is for queue '{name}'", row.name);
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    state.queues.remove(id);
    step.plan_needed = true;
    Ok(Outcome::Done)
}

fn check(spec: &QueueSpec) -> Result<(), PublicError> {
    if !is_queue_name(&spec.name) {
        let shown: String = spec.name.chars().filter(|c| !c.is_control()).take(NAME_BYTES_MAX).collect();
        let message = format!("'{shown}' is no queue's path");
        return Err(PublicError::invalid("queue.name", message, "research/vision"));
    }
    if spec.weight == 0 || spec.weight > WEIGHT_MAX {
        let message = format!("{} is not between 1 and {WEIGHT_MAX}", spec.weight);
        return Err(PublicError::invalid("queue.weight", message, "1"));
    }
    if !spec.guarantee.within(&spec.ceiling.amounts()) {
        let parts = [
            ("gpus", spec.guarantee.gpu_milli, spec.ceiling.gpu_milli, 1_000),
            ("cpus", spec.guarantee.cpus_milli, spec.ceiling.cpus_milli, 1_000),
            ("mem", spec.guarantee.mem_mib, spec.ceiling.mem_mib, 1),
            ("vram", spec.guarantee.vram_mib, spec.ceiling.vram_mib, 1),
        ];
        let above = parts.into_iter().find(|(_, own, most, _)| most.is_some_and(|most| *own > most));
        let (part, own, most, unit) = above.unwrap_or(("gpus", 0, Some(0), 1));
        let most = most.unwrap_or(0) / unit;
        let message = format!("{part}={} is above the ceiling, {part}={most}", own / unit);
        return Err(PublicError::invalid("queue.guarantee", message, &format!("{part}={most}")));
    }
    if spec.tenants.len() > TENANTS_MAX {
        let message = format!("{} tenants are above {TENANTS_MAX}", spec.tenants.len());
        return Err(PublicError::invalid("queue.tenants", message, "1 tenant"));
    }
    for tenant in &spec.tenants {
        check_name("queue.tenants", tenant)?;
    }
    if let Some(tenant) = twice(&spec.tenants) {
        let message = format!("'{tenant}' is given twice");
        return Err(PublicError::invalid("queue.tenants", message, "each tenant once"));
    }
    let windows = IDLE_WINDOW_MS_MIN..=IDLE_WINDOW_MS_MAX;
    if !windows.contains(&spec.idle.window_ms) || spec.idle.warnings == 0 {
        let message = "needs a window of one minute to seven days and at least one warning";
        return Err(PublicError::invalid("queue.idle", message, "end, 1h, 2 warnings"));
    }
    if let Some(most) = spec.priority_max.filter(|most| !(PRIORITY_DEFAULT..=PRIORITY_MAX).contains(most)) {
        let message =
            format!("{most} is not between {PRIORITY_DEFAULT}, which anybody may ask, and {PRIORITY_MAX}");
        return Err(PublicError::invalid("queue.priority_max", message, "80"));
    }
    if let Some(ms) = spec.min_runtime_ms.filter(|ms| *ms > TIME_LIMIT_MS_MAX) {
        let message = format!("{ms} ms is above ten years");
        return Err(PublicError::invalid("queue.min_runtime", message, "10m"));
    }
    match spec.time_limit_default_ms {
        Some(ms) if ms == 0 || ms > TIME_LIMIT_MS_MAX => {
            let message = format!("{ms} ms is not between 1 ms and ten years");
            Err(PublicError::invalid("queue.time_limit", message, "1h"))
        }
        _ => Ok(()),
    }
}

/// Guarantees of siblings together fit into their parent's, where the parent has one, and under its ceiling: a
/// promise that can never be kept is none.
fn check_family(state: &State, spec: &QueueSpec) -> Result<(), PublicError> {
    let children_of = |parent: &str| {
        let named = parent.to_owned();
        state.queues.iter().filter(move |queue| parent_of(&queue.spec.name) == Some(named.as_str()))
    };
    let sum = |parent: &str, but: &str| {
        let others = children_of(parent).filter(|queue| queue.spec.name != but);
        others.fold(Amounts::default(), |sum, queue| sum.plus(&queue.spec.guarantee))
    };
    if let Some(parent) = parent_of(&spec.name).and_then(|name| state.queues.named(name)) {
        let together = sum(&parent.spec.name, &spec.name).plus(&spec.guarantee);
        let own = parent.spec.guarantee;
        if own != Amounts::default() && !together.within(&own) {
            let message = format!("the queues in '{}' would be guaranteed more than it is", parent.spec.name);
            return Err(PublicError::invalid("queue.guarantee", message, "the rest of the parent's"));
        }
        if !together.within(&parent.spec.ceiling.amounts()) {
            let message =
                format!("the queues in '{}' would be guaranteed more than its ceiling", parent.spec.name);
            return Err(PublicError::invalid("queue.guarantee", message, "the rest of the parent's ceiling"));
        }
    }
    let below = sum(&spec.name, "");
    if spec.guarantee != Amounts::default() && !below.within(&spec.guarantee) {
        let message = format!("is below what the queues in '{}' are guaranteed together", spec.name);
        return Err(PublicError::invalid("queue.guarantee", message, "at least their sum"));
    }
    if !below.within(&spec.ceiling.amounts()) {
        let message = format!("is below what the queues in '{}' are guaranteed together", spec.name);
        return Err(PublicError::invalid("queue.ceiling", message, "at least their sum"));
    }
    Ok(())
}
