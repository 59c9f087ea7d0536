//! A second planner, which knows only what is legal: it starts gangs wherever they go, and ends work for other work
//! now and then. What it proposes is often refused, and that is fine: `apply` is under test, and the hosts behind it.

use super::rng::Rng;
use rota_core::apply::PREEMPT_GAP;
use rota_core::fit::{self, Want};
use rota_core::state::host::HostLife;
use rota_core::{Attempt, Host, Job, State};
use rota_protocol::HostId;

use rota_protocol::job::{AttemptState, EndReason};
use rota_protocol::plan::{Move, Part, Slot};
use std::collections::BTreeSet;

/// Chance per call of an eviction, per mille.
const EVICT_PERMILLE: u64 = 200;

/// What may be tried on this state.
pub fn moves(state: &State, avoid: &BTreeSet<HostId>, now_ms: u64, rng: &mut Rng) -> Vec<Move> {
    let mut moves = Vec::new();
    let gangs = state.jobs().filter(|job| job.spec.gang.is_some() && job.is_ready());
    for job in gangs.filter(|job| job.earliest_ms() <= now_ms) {
        // One at a time: two would be given the same cards.
        if moves.is_empty() {
            moves.extend(start_gang(state, job, avoid, now_ms, rng));
        }
    }
    let late = |job: &&Job| job.spec.deadline_ms.is_some_and(|at_ms| at_ms <= now_ms) && job.live == 0;
    let late = state.jobs().filter(|job| !job.state.is_terminal() && job.started_ms.is_none()).filter(late);
    moves.extend(late.map(|job| Move::Lapse { job: job.id }));
    moves.extend(empty_drained(state, now_ms));
    moves.extend(lower_to_ceiling(state));
    if rng.chance(EVICT_PERMILLE) {
        moves.extend(preempt(state, rng));
    }
    moves
}

/// As many parts as find room, on hosts in any order.
fn start_gang(
    state: &State,
    job: &Job,
    avoid: &BTreeSet<HostId>,
    now_ms: u64,
    rng: &mut Rng,
) -> Option<Move> {
    let (fewest, most) = job.start_range();
    // An elastic gang may start small and grow.
    let wanted = rng.range(u64::from(fewest), u64::from(most));
    let mut ordinals = job.pending.ranges().flat_map(|(start, end)| start..end);
    let mut parts = Vec::new();
    let backs_off: BTreeSet<HostId> = job.avoided(now_ms).map(|(host, _)| host).collect();
    for host in shuffled(state.hosts().collect(), rng) {
        if host.life != HostLife::Up || avoid.contains(&host.id) || backs_off.contains(&host.id) {
            continue;
        }
        for devices in room_on(host, Want::of(job, &job.spec.ask), now_ms) {
            if parts.len() as u64 == wanted {
                break;
            }
            let index = job.task(ordinals.next()?).index;
            parts.push(Part { index, host: host.id, epoch: host.epoch, devices });
        }
    }
    (parts.len() as u64 >= u64::from(fewest)).then_some(Move::Start { job: job.id, choice: 0, parts })
}

/// Sets of cards for one task each, as many as the host has room for.
fn room_on(host: &Host, want: Want<'_>, now_ms: u64) -> Vec<Vec<rota_protocol::DeviceUuid>> {
    let ask = want.ask;
    let Ok(eligible) = fit::fits(host, &host.used, want, now_ms) else {
        return Vec::new();
    };
    let cpus = u64::from(host.facts.cpus_milli).saturating_sub(host.used.cpus_milli);
    let mem = host.facts.mem_mib.saturating_sub(host.used.mem_mib);
    let tasks = (cpus / u64::from(ask.cpus_milli).max(1)).min(mem / ask.mem_mib.max(1));
    let most = usize::try_from(if host.on_probation() { tasks.min(1) } else { tasks }).unwrap_or(0);
    let cards = ask.gpus() as usize;
    if cards == 0 {
        return vec![Vec::new(); most];
    }
    let sets = eligible.chunks_exact(cards).take(most);
    sets.map(|set| set.iter().map(|device| device.uuid.clone()).collect()).collect()
}

/// Hosts that are to be emptied by now.
fn empty_drained(state: &State, now_ms: u64) -> Option<Move> {
    let due = |host: &&Host| host.drain.is_some() && host.evict_at_ms.is_some_and(|at_ms| at_ms <= now_ms);
    state.hosts().filter(due).find_map(|host| {
        let live = state.attempts_on(host.id).filter(|attempt| attempt.state != AttemptState::Ending);
        // A gang ends as a whole; one that lies on other hosts too is not for this move.
        let alone = |attempt: &&Attempt| {
            !attempt.in_gang || state.attempts_of(attempt.task.job).all(|part| part.host == host.id)
        };
        let victims: Vec<_> = live.filter(alone).map(|attempt| attempt.token).collect();
        (!victims.is_empty()).then(|| Move::Evict {
            job: None,
            reason: EndReason::Drain,
            victims,
            slots: Vec::new(),
            choice: 0,
        })
    })
}

/// The youngest attempts of a queue that is above its ceiling, until it is not.
fn lower_to_ceiling(state: &State) -> Option<Move> {
    let queue = state.queues().iter().find(|queue| !queue.held.within(&queue.bound()))?;
    let mut over = queue.held.gpu_milli.saturating_sub(queue.bound().gpu_milli);
    let own: Vec<&Attempt> = state.attempts().filter(|attempt| attempt.queue == queue.id).collect();
    // What ends already counts as gone.
    let ending = own.iter().filter(|attempt| attempt.state == AttemptState::Ending);
    over = over.saturating_sub(ending.map(|attempt| u64::from(attempt.gpu_milli)).sum());
    let mut victims = Vec::new();
    for attempt in own.iter().rev().filter(|a| a.state != AttemptState::Ending && !a.in_gang) {
        if over == 0 {
            break;
        }
        over = over.saturating_sub(u64::from(attempt.gpu_milli));
        victims.push(attempt.token);
    }
    let reason = EndReason::Ceiling;
    (!victims.is_empty()).then(|| Move::Evict { job: None, reason, victims, slots: Vec::new(), choice: 0 })
}

/// Ends work for a job that waits, by any of the rules that allow it; it then has the slots.
fn preempt(state: &State, rng: &mut Rng) -> Option<Move> {
    let waits = |job: &&Job| job.is_ready() && job.spec.ask.gpus() > 0;
    let waiting: Vec<&Job> = state.jobs().filter(waits).collect();
    let job = waiting.get(usize::try_from(rng.below(waiting.len() as u64)).ok()?)?;
    let guaranteed = state.queues().get(job.queue).is_some_and(|queue| queue.spec.guarantee.gpu_milli > 0);
    let reason = match rng.below(10) {
        _ if guaranteed && rng.chance(700) => EndReason::Reclaim,
        0 | 1 => EndReason::Move,
        _ => EndReason::Preempt,
    };
    let may_end = |attempt: &Attempt| match reason {
        EndReason::Reclaim => job.queue != attempt.queue,
        EndReason::Move => job.priority >= attempt.priority,
        _ => job.priority >= attempt.priority.saturating_add(PREEMPT_GAP),
    };
    let below = |attempt: &&Attempt| {
        let other = attempt.task.job != job.id && attempt.state != AttemptState::Ending;
        other && attempt.preemptible && may_end(attempt)
    };
    let (fewest, cards) = (job.start_range().0 as usize, job.spec.ask.gpus() as usize);
    let (mut victims, mut slots) = (Vec::new(), Vec::new());
    for attempt in shuffled(state.attempts().filter(below).collect(), rng) {
        if slots.len() >= fewest || victims.contains(&attempt.token) {
            continue;
        }
        // A gang is ended as a whole.
        let unit: Vec<&Attempt> =
            if attempt.in_gang { state.attempts_of(attempt.task.job).collect() } else { vec![attempt] };
        let fitting = unit.iter().filter(|one| one.devices.len() == cards && one.card_milli == 1_000);
        let free: Vec<Slot> =
            fitting.map(|one| Slot { host: one.host, devices: one.devices.clone() }).collect();
        if !free.is_empty() {
            victims.extend(unit.iter().map(|one| one.token));
            slots.extend(free);
        }
    }
    slots.truncate(fewest);
    (slots.len() == fewest).then_some(Move::Evict { job: Some(job.id), reason, victims, slots, choice: 0 })
}

fn shuffled<T>(mut items: Vec<T>, rng: &mut Rng) -> Vec<T> {
    for at in (1..items.len()).rev() {
        let other = usize::try_from(rng.below(at as u64 + 1)).unwrap_or(0);
        items.swap(at, other);
    }
    items
}
