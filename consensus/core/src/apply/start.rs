//! Start (and Place): grants devices to tasks of one job, all of them or none, each re-checked with the planner's own
//! `fits` against the state as it is now.

use super::{Event, Step};
use crate::fit::{self, Misfit, Want};
use crate::state::State;
use crate::state::attempt::{Attempt, GANG_PORT_BLOCKS, GANG_PORT_FIRST, PORTS_OF_A_GANG};
use crate::state::host::{Host, HostLife, Used};
use crate::state::job::Job;
use crate::state::reservation::in_the_way;
use crate::state::speeds;
use rota_protocol::ask::Ask;
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::job::AttemptState;
use rota_protocol::plan::{Part, Refusal};
use rota_protocol::queue::Amounts;
use rota_protocol::work::Layout;
use rota_protocol::{DeviceUuid, HostId, JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// Tokens of one entry are told apart by this many values (20 bits of `Token`).
const GRANTS_PER_ENTRY_MAX: u32 = 1 << 20;

pub(super) fn start(
    state: &mut State,
    step: &mut Step,
    id: JobId,
    choice: u8,
    parts: &[Part],
) -> Result<(), Refusal> {
    let job = state.job(id).ok_or(Refusal::NotPending)?;
    let ask = job.spec.ask_at(choice).ok_or(Refusal::DoesNotFit)?;
    check_job(job, parts, step.now_ms)?;
    let amounts: Vec<Amounts> = check_parts(state, job, ask, parts, step.now_ms)?;
    let places: Vec<Spot<'_>> = parts.iter().map(|part| (part.host, part.devices.as_slice())).collect();
    if !layout_holds(state, job, &places) {
        return Err(Refusal::DoesNotFit);
    }
    let total = amounts.iter().fold(Amounts::default(), |sum, part| sum.plus(part));
    state.queues.admits(job.queue, &job.user, &total).map_err(|_| Refusal::OverCeiling)?;
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    if step.grants.saturating_add(count) > GRANTS_PER_ENTRY_MAX {
        return Err(Refusal::DoesNotFit);
    }
    let port = meeting_port(state, step, job, parts)?;
    let mut grants: Vec<(u32, Attempt)> = parts
        .iter()
        .zip(&amounts)
        .filter_map(|(part, amounts)| {
            let token = Token::new(step.index, step.grants);
            step.grants += 1;
            let mut attempt = attempt(job, ask, choice, part, amounts, token, step.now_ms);
            attempt.spared_until_ms = spared_until_ms(state, job, part.index, step.now_ms);
            attempt.predicted_ms = predicted_ms(state, job, ask, part).or(job.predicted_ms);
            card_first(state, &mut attempt);
            Some((job.ordinal(part.index)?, attempt))
        })
        .collect();
    if let Some((_, first)) = grants.iter_mut().min_by_key(|(ordinal, _)| *ordinal) {
        first.port = port;
    }
    for (ordinal, attempt) in grants {
        grant(state, step, ordinal, attempt);
    }
    Ok(())
}

/// The job itself may start these tasks now.
fn check_job(job: &Job, parts: &[Part], now_ms: u64) -> Result<(), Refusal> {
    if job.cancel_asked || parts.is_empty() {
        return Err(Refusal::NotPending);
    }
    let mut seen = BTreeSet::new();
    for part in parts {
        let ordinal = job.ordinal(part.index).ok_or(Refusal::NotPending)?;
        if !job.pending.contains(ordinal) || !seen.insert(ordinal) {
            return Err(Refusal::NotPending);
        }
        if now_ms < job.rests_until_ms(ordinal) {
            return Err(Refusal::NotYet);
        }
    }
    check_time(job, now_ms)?;
    check_count(job, parts.len())
}

/// The job may start something at this time.
pub(super) fn check_time(job: &Job, now_ms: u64) -> Result<(), Refusal> {
    let late = job.spec.deadline_ms.is_some_and(|at| now_ms > at && job.started_ms.is_none());
    if job.held || job.gang_ending || now_ms < job.earliest_ms() || late {
        return Err(Refusal::NotYet);
    }
    Ok(())
}

/// The job may start so many tasks at once.
pub(super) fn check_count(job: &Job, count: usize) -> Result<(), Refusal> {
    let (fewest, most) = job.start_range();
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    if count < fewest || count > most {
        return Err(if job.spec.gang.is_some() { Refusal::GangSize } else { Refusal::ParallelCap });
    }
    Ok(())
}

/// Every part fits beside the others; gives what each would hold.
fn check_parts(
    state: &State,
    job: &Job,
    ask: &Ask,
    parts: &[Part],
    now_ms: u64,
) -> Result<Vec<Amounts>, Refusal> {
    let want = Want::of(job, ask);
    // Only parts of one move can be in each other's way; a single one needs no copy.
    let mut taken: BTreeMap<HostId, Used> = BTreeMap::new();
    let mut amounts = Vec::with_capacity(parts.len());
    for part in parts {
        let host = state.host(part.host).ok_or(Refusal::HostGone)?;
        if host.life != HostLife::Up || host.epoch != part.epoch {
            return Err(Refusal::HostGone);
        }
        let used = taken.get(&part.host).unwrap_or(&host.used);
        fit::takes(host, used, want, &part.devices, now_ms).map_err(refusal)?;
        if is_reserved(state, job, part.host, now_ms) {
            return Err(Refusal::Reserved);
        }
        if parts.len() > 1 {
            let used = taken.entry(part.host).or_insert_with(|| host.used.clone());
            fit::take(host, used, want, &part.devices, Token(0));
        }
        amounts.push(fit::amounts(host, ask, &part.devices));
    }
    Ok(amounts)
}

/// How a misfit is called in the answer to a plan.
pub(super) fn refusal(misfit: Misfit) -> Refusal {
    match misfit {
        Misfit::Joining | Misfit::Lost => Refusal::HostGone,
        Misfit::Draining | Misfit::Suspended | Misfit::Probation | Misfit::Faulty | Misfit::Shunned => {
            Refusal::HostDraining
        }
        _ => Refusal::DoesNotFit,
    }
}

/// The host is kept for others at some time before the job's limit.
pub(super) fn is_reserved(state: &State, job: &Job, host: HostId, now_ms: u64) -> bool {
    let ends_ms = job.spec.time_limit_ms.map(|limit| now_ms.saturating_add(limit));
    in_the_way(state.reservations.iter(), &state.queues, job.queue, host, now_ms, ends_ms).is_some()
}

/// Where one task is to lie.
pub(super) type Spot<'p> = (HostId, &'p [DeviceUuid]);

/// Layouts that are conditions, with the parts that live already. A rack that is not known is no rack that two hosts
/// share.
pub(super) fn layout_holds(state: &State, job: &Job, places: &[Spot<'_>]) -> bool {
    // Those that live lie together by this same rule: one speaks for all, however many they are.
    let hosts = || -> BTreeSet<HostId> {
        let live = state.attempts_of(job.id).next().map(|attempt| attempt.host);
        places.iter().map(|(host, _)| *host).chain(live).collect()
    };
    match job.spec.layout {
        Layout::Any | Layout::Pack | Layout::Spread => true,
        Layout::SameHost => hosts().len() < 2,
        Layout::SameRack => {
            let hosts = hosts();
            let rack = |id: &HostId| state.host(*id).and_then(|host| host.facts.labels.get(fit::RACK_LABEL));
            let mut racks = hosts.iter().map(rack);
            let first = racks.next().flatten();
            hosts.len() < 2 || first.is_some() && racks.all(|other| other == first)
        }
        Layout::SameIsland => places
            .iter()
            .all(|(host, devices)| state.host(*host).is_some_and(|host| in_one_island(host, devices))),
    }
}

/// A block of ports for a gang that starts, or that has lost the part that had it: on the host of the new part of
/// lowest rank. The search for a free block begins elsewhere with every grant: whatever else holds a port of one block,
/// another part of this machine or a stranger, the next try gets another block, and a block that was given back rests.
fn meeting_port(state: &State, step: &Step, job: &Job, parts: &[Part]) -> Result<Option<u16>, Refusal> {
    if job.spec.gang.is_none() || state.attempts_of(job.id).any(|attempt| attempt.port.is_some()) {
        return Ok(None);
    }
    let first = parts.iter().min_by_key(|part| part.index);
    let used = first.and_then(|part| state.host(part.host)).map(|host| &host.used.ports);
    let begin = (step.index + u64::from(step.grants)) % u64::from(GANG_PORT_BLOCKS);
    let begin = u16::try_from(begin).unwrap_or(0);
    let mut blocks = (0..GANG_PORT_BLOCKS)
        .map(|block| GANG_PORT_FIRST + (begin + block) % GANG_PORT_BLOCKS * PORTS_OF_A_GANG);
    let free = blocks.find(|port| used.is_none_or(|used| !used.contains(port)));
    free.map(Some).ok_or(Refusal::NoPorts)
}

fn in_one_island(host: &Host, devices: &[DeviceUuid]) -> bool {
    let cards = devices.iter().filter_map(|uuid| host.device(uuid)).filter(|d| d.kind == DeviceKind::Gpu);
    let islands: Vec<&DeviceFacts> = cards.collect();
    islands.len() < 2
        || islands.iter().all(|d| d.island.is_some()) && all_equal(islands.iter().map(|d| d.island))
}

fn all_equal<T: PartialEq>(mut items: impl Iterator<Item = T>) -> bool {
    items.next().is_none_or(|first| items.all(|other| other == first))
}

fn attempt(
    job: &Job,
    ask: &Ask,
    choice: u8,
    part: &Part,
    amounts: &Amounts,
    token: Token,
    now_ms: u64,
) -> Attempt {
    Attempt {
        token,
        task: rota_protocol::TaskId { job: job.id, index: part.index },
        host: part.host,
        epoch: part.epoch,
        devices: part.devices.clone(),
        choice,
        gpu_milli: u32::try_from(amounts.gpu_milli).unwrap_or(u32::MAX),
        vram_mib: amounts.vram_mib,
        card_milli: ask.card_milli(),
        card_vram_mib: if ask.share_milli().is_some() { amounts.vram_mib } else { 0 },
        cpus_milli: ask.cpus_milli,
        mem_mib: amounts.mem_mib,
        state: AttemptState::Granted,
        end_reason: None,
        pid: None,
        granted_ms: now_ms,
        started_ms: None,
        tenant: job.tenant.clone(),
        user: job.user.clone(),
        queue: job.queue,
        priority: job.priority,
        limit_ms: job.spec.time_limit_ms,
        grace_ms: job.spec.grace_ms,
        predicted_ms: None,
        preemptible: job.spec.preemptible,
        in_gang: job.spec.gang.is_some(),
        care: None,
        spared_until_ms: 0,
        port: None,
    }
}

/// Until when a new attempt is not ended to make room: its task was often enough, or its queue lets it run so long.
fn spared_until_ms(state: &State, job: &Job, index: u32, now_ms: u64) -> u64 {
    let often = job.ordinal(index).map_or(0, |ordinal| job.spared_until_ms(ordinal, now_ms));
    match state.queues.min_runtime_ms(job.queue) {
        0 => often,
        ms => often.max(now_ms.saturating_add(ms)),
    }
}

/// How long such work runs on the model that it gets, if it has run there before.
fn predicted_ms(state: &State, job: &Job, ask: &Ask, part: &Part) -> Option<u64> {
    let host = state.host(part.host)?;
    let model = speeds::one_model(part.devices.iter().filter_map(|uuid| host.device(uuid)))?;
    let mean_ms = state.speeds.mean_ms(speeds::kind(job, ask)?, model)?;
    Some(mean_ms.min(job.spec.time_limit_ms.unwrap_or(u64::MAX)).max(1))
}

/// Of an attempt that shares a card that one is named first.
fn card_first(state: &State, attempt: &mut Attempt) {
    let is_card = |uuid: &DeviceUuid| {
        state.host(attempt.host).and_then(|h| h.device(uuid)).map(|d| d.kind) == Some(DeviceKind::Gpu)
    };
    if attempt.shares_card()
        && let Some(at) = attempt.devices.iter().position(is_card)
    {
        attempt.devices.swap(0, at);
    }
}

fn grant(state: &mut State, step: &mut Step, ordinal: u32, attempt: Attempt) {
    let (token, host, job) = (attempt.token, attempt.host, attempt.task.job);
    state.jobs.update(job, step.now_ms, |job| {
        job.pending.remove(ordinal);
        job.end_rest(ordinal, false);
        job.live += 1;
        // Whatever it was promised, it has begun.
        job.promise = None;
    });
    state.hosts.hold(&attempt);
    state.queues.hold(&attempt);
    state.attempts.insert(attempt);
    step.note(Event::Granted { host, token });
    step.note(Event::JobChanged(job));
}
