//! What an account holds and may hold: the rows of an answer, and asks that are larger than a ceiling and so can never
//! start.

use super::lack::Lack;
use crate::fit::{self, mib, milli};
use crate::state::State;
use crate::state::job::Job;
use crate::state::queue::{OverCeiling, Queue, over};
use rota_protocol::ask::Ask;
use rota_protocol::job::JobSpec;
use rota_protocol::queue::{Amounts, QueueId};
use rota_protocol::why::WhyAccount;

/// A bound that the job alone would break even if nothing else ran; none if it has an ask that keeps them all.
pub(super) fn too_large(state: &State, spec: &JobSpec, queue: QueueId) -> Option<OverCeiling> {
    let fewest = u64::from(spec.gang.map_or(1, |gang| gang.min.max(1)));
    let mut first = None;
    for ask in spec.asks() {
        let over = first_over(state, queue, &least(ask).times(fewest))?;
        first = first.or(Some(over));
    }
    first
}

/// The queue that a submission would enter, if it exists already.
pub(super) fn queue_of(state: &State, tenant: &str, spec: &JobSpec) -> Option<QueueId> {
    let name = if spec.queue.is_empty() { tenant } else { &spec.queue };
    state.queues.named(name).map(|queue| queue.id)
}

/// The same for people, with an ask that would be accepted.
pub(super) fn lack_of_ceiling(state: &State, spec: &JobSpec, over: &OverCeiling) -> Lack {
    let who = bound_name(state, over);
    let most = amount(over.part, over.most);
    let asked = amount(over.part, over.would);
    let at_once = match spec.gang {
        Some(gang) if gang.min > 1 => format!("its {} parts take {asked} together", gang.min),
        _ => format!("it takes {asked}"),
    };
    Lack {
        field: if spec.gang.is_some() { "gang" } else { over.field() },
        message: format!("{at_once}, {who} may hold {most} at most"),
        example: format!("at most {most}"),
        offer: Some(format!("{most} for {who}")),
    }
}

/// Every bound on the way up for one part, nearest first; `full` marks the one that is broken.
pub(super) fn rows(
    state: &State,
    job: &Job,
    part: &'static str,
    full: Option<&OverCeiling>,
) -> Vec<WhyAccount> {
    let mut rows = Vec::new();
    let bound = |most: u64| (most < u64::MAX).then_some(most);
    for queue in state.queues.path(job.queue) {
        let row = |of_user: bool, held: &Amounts, most: &Amounts, guarantee: u64| WhyAccount {
            queue: queue.spec.name.clone(),
            of_user,
            part: part.to_owned(),
            held: of_part(held, part),
            ceiling: bound(of_part(most, part)),
            guarantee,
            full: full.is_some_and(|over| over.queue == queue.id && over.of_user == of_user),
        };
        rows.push(row(false, &queue.held, &queue.bound(), of_part(&queue.spec.guarantee, part)));
        let user_most = queue.spec.user_ceiling.amounts();
        if of_part(&user_most, part) < u64::MAX {
            let held = queue.users.get(&job.user).map(|share| share.held).unwrap_or_default();
            rows.push(row(true, &held, &user_most, 0));
        }
    }
    rows
}

/// The part that an ask is counted by first.
pub(super) fn main_part(ask: &Ask) -> &'static str {
    if ask.gpu_milli > 0 || ask.devices.keys().any(|kind| kind.starts_with("mig")) { "gpus" } else { "cpus" }
}

/// `queue lab/vision`, or `a user of queue lab/vision`.
pub(super) fn bound_name(state: &State, over: &OverCeiling) -> String {
    let name = state.queues.get(over.queue).map_or("?", |queue: &Queue| queue.spec.name.as_str());
    if over.of_user { format!("a user of queue {name}") } else { format!("queue {name}") }
}

/// An amount of one part for people.
pub(super) fn amount(part: &str, figure: u64) -> String {
    match part {
        "gpus" if figure.is_multiple_of(1_000) => fit::gpus(figure / 1_000),
        "gpus" => format!("{} GPUs", milli(figure)),
        "cpus" => format!("{} CPUs", milli(figure)),
        "mem" => format!("{} memory", mib(figure)),
        _ => format!("{} GPU memory", mib(figure)),
    }
}

/// What a task of an ask holds at the least, whatever card it gets.
pub(super) fn least(ask: &Ask) -> Amounts {
    Amounts {
        gpu_milli: u64::from(ask.gpu_milli),
        cpus_milli: u64::from(ask.cpus_milli),
        mem_mib: ask.mem_mib,
        vram_mib: ask.vram_mib.saturating_mul(u64::from(ask.gpus())),
    }
}

fn first_over(state: &State, queue: QueueId, more: &Amounts) -> Option<OverCeiling> {
    state.queues.path(queue).find_map(|queue| {
        over(queue.id, false, more, &queue.bound(), more)
            .and_then(|()| over(queue.id, true, more, &queue.spec.user_ceiling.amounts(), more))
            .err()
    })
}

pub(super) fn of_part(amounts: &Amounts, part: &str) -> u64 {
    match part {
        "gpus" => amounts.gpu_milli,
        "cpus" => amounts.cpus_milli,
        "mem" => amounts.mem_mib,
        _ => amounts.vram_mib,
    }
}

impl OverCeiling {
    /// The field of an ask that the part comes from.
    fn field(&self) -> &'static str {
        match self.part {
            "gpus" => "ask.gpus",
            "cpus" => "ask.cpus",
            "mem" => "ask.mem",
            _ => "ask.vram",
        }
    }
}
