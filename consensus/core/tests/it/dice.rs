//! Commands drawn by dice in the light of a state: plausible ones mostly, hostile ones too, of every kind and with every
//! kind of move. Four numbers choose one, so that small cases shrink well.

use crate::lab::{Lab, host_facts, job_spec, launch_failed, user};
use crate::moves::queue_spec;
use rota_core::fit;
use rota_core::state::host::Used;
use rota_protocol::ask::Ask;
use rota_protocol::cage::Used as Counted;
use rota_protocol::care::{HostCause, Release, ReleaseStep};
use rota_protocol::command::{Command, JobChange, TokenUse};
use rota_protocol::device::{DeviceFacts, DeviceKind, HostRegistration};
use rota_protocol::job::{Actor, AttemptEnd, EndReason, Role};
use rota_protocol::plan::{Move, Part, Plan, PromiseBreak, Slot};
use rota_protocol::queue::Excess;
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::{BootId, ClusterId, DeviceUuid, HostId, JobId, LeaseEpoch, TaskId, Token};

/// Four numbers: the kind of command and three choices in it.
pub(crate) type Dice = (u8, u8, u8, u8);

const ASKS: [&str; 17] = [
    "gpus=1",
    "gpus=2 cpus=3 mem=1GiB",
    "gpus=1 array=0-5%2 retries=1",
    "array=3-90:7",
    "cpus=1 prio=80",
    "fpga=1",
    "gpus=1 model=h100 prio=99",
    "gpus=400",
    "gpu_milli=1500",
    "gpu_milli=300 vram=8GiB",
    "gpu_milli=500 gang=2",
    "gpus=1 gang=2",
    "gpus=1 gang=1..3",
    "cpus=1 gang=2..4 retries=1",
    "mig=1",
    "mig=1 mig:1g=1",
    "gpus=2 or=gpu_milli~500",
];
const RULES: [&str; 14] = [
    "",
    "prio=90",
    "prio=5",
    "prio=5 requeue=no",
    "hold=yes",
    "limit=60",
    "queue=t/a",
    "preemptible=no",
    "service=yes",
    "layout=same-host",
    "requeue_status=75",
    "prio=95",
    "prio=100 queue=t/a",
    "prio=1 service=yes requeue=no",
];
const QUEUES: [&str; 9] = [
    "t gpus=3",
    "t gpus=1 excess=requeue",
    "t guarantee=2",
    "t/a user_gpus=1",
    "t/a guarantee=2 borrows=no",
    "t gpus=64",
    "other guarantee=2",
    "x/y/z",
    "t weight=0",
];

/// Kinds of commands that the first planner knew.
pub(crate) const OLD_KINDS: u8 = 16;
/// All kinds.
pub(crate) const KINDS: u8 = 38;

fn ends(n: u8) -> AttemptEnd {
    match n % 14 {
        0 | 1 => AttemptEnd::Exited { code: 0 },
        2 if n > 127 => AttemptEnd::OutOfMemory { limit_mib: u64::from(n), peak_mib: u64::MAX },
        2 => AttemptEnd::Exited { code: n },
        3 => AttemptEnd::Signalled { signal: n },
        4 => AttemptEnd::TimeLimit,
        5 => AttemptEnd::Cancelled,
        6 => AttemptEnd::Preempted,
        7 if n % 28 == 7 => AttemptEnd::CannotStart { code: 127, reason: "ü".repeat(2_000) },
        7 => launch_failed(),
        8 => AttemptEnd::Fenced,
        9 => AttemptEnd::Requeued { code: n },
        10 => AttemptEnd::GangBroken,
        11 if n % 28 == 11 => AttemptEnd::HostStopped,
        11 => AttemptEnd::DeviceFault { reason: String::new() },
        12 => AttemptEnd::ProgramFault { reason: "Xid 13".into() },
        _ => AttemptEnd::Vanished { reason: "ü".repeat(2_000) },
    }
}

/// A live token mostly, else an arbitrary one.
fn token(lab: &Lab, n: u8) -> Token {
    let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
    match live.len() {
        0 => Token(u64::from(n)),
        _ if n == 255 => Token(u64::MAX),
        len => live[n as usize % len],
    }
}

/// A known job mostly.
fn job(lab: &Lab, n: u8) -> JobId {
    let known: Vec<JobId> = lab.state.jobs().map(|job| job.id).collect();
    match known.len() {
        0 => JobId(u64::from(n)),
        _ if n > 250 => JobId(u64::from(n)),
        len => known[n as usize % len],
    }
}

/// A job that could start mostly.
fn ready_job(lab: &Lab, n: u8) -> JobId {
    let ready: Vec<JobId> = lab.state.jobs().filter(|job| job.is_ready()).map(|job| job.id).collect();
    if ready.is_empty() || n > 240 { job(lab, n) } else { ready[n as usize % ready.len()] }
}

pub(crate) fn actor(n: u8) -> Actor {
    match n % 8 {
        0 => Actor { role: Role::Viewer, ..user("t") },
        1 | 2 => user("other"),
        3 => Actor { role: Role::Operator, ..user("ops") },
        4 => Actor::system(),
        _ => user("t"),
    }
}

fn registration(lab: &Lab, host: HostId, b: u8, c: u8) -> HostRegistration {
    let lines = [
        "h gpus=4xA100:80GiB cpus=8 mem=32GiB rack=a",
        "h gpus=2xH100:80GiB cpus=8 mem=32GiB",
        "h cpus=1 mem=1GiB fpga=2 mig=3x1g.10gb:10GiB+1x3g.40gb:40GiB",
        "h gpus=4xA100:80GiB cpus=8 mem=32GiB dirty=GPU-h-0 order=reversed",
        "h gpus=2xGB10:1GiB cpus=8 mem=32GiB unified=yes",
        "h",
    ];
    // Hosts 2 and 3 have cards of their own; the others fight for the same UUIDs.
    let line = lines[b as usize % lines.len()].replace("GPU-h-", &format!("GPU-h{}-", host.0 % 3));
    let mut facts = host_facts(&line.replacen('h', &format!("h{}", host.0 % 3), 1)).1;
    match c {
        7 => facts.devices.extend(facts.devices.clone()),
        8 => facts.devices.iter_mut().for_each(|device| device.vram_mib = Some(u64::MAX)),
        _ => {}
    }
    let boot = match c % 3 {
        0 => BootId(u128::from(b)),
        _ => lab.state.host(host).map_or(BootId(9), |h| h.boot),
    };
    let addr = if c == 9 { String::new() } else { "a:1".into() };
    HostRegistration { boot, addr, facts }
}

/// Moves of a planner gone mad: any task, any host, any devices.
fn mad_plan(lab: &Lab, (_, a, b, c): Dice) -> Plan {
    let uuids: Vec<DeviceUuid> =
        lab.state.hosts().flat_map(|h| &h.facts.devices).map(|d| d.uuid.clone()).collect();
    let pick =
        |n: u8| uuids.get(n as usize % uuids.len().max(1)).cloned().unwrap_or(DeviceUuid(String::new()));
    let host = HostId(u64::from(b % 6));
    let epoch = lab.state.host(host).map_or(LeaseEpoch(0), |h| h.epoch);
    let place = |n: u8| Move::Place {
        task: TaskId { job: JobId(u64::from(a.wrapping_add(n) % 12)), index: u32::from(c % 8) },
        host,
        epoch: if c == 200 { LeaseEpoch(u64::MAX) } else { epoch },
        devices: (0..(a.wrapping_add(n)) % 4).map(|k| pick(c.wrapping_add(k).wrapping_add(n))).collect(),
    };
    let moves = if c == 99 { vec![place(0); 2_000] } else { (0..4).map(place).collect() };
    Plan { seen_index: u64::from(a), moves }
}

/// Room for so many tasks: what is free first, beginning at host `from`; with `held` also what is held.
fn room(lab: &Lab, ask: &Ask, count: usize, from: u8, held: bool) -> Vec<Slot> {
    let hosts: Vec<_> = lab.state.hosts().filter(|host| !host.facts.devices.is_empty()).collect();
    let mut slots = Vec::new();
    let mut taken: Vec<DeviceUuid> = Vec::new();
    for at in 0..hosts.len() {
        let host = hosts[(at + from as usize) % hosts.len()];
        while slots.len() < count {
            let (share, nothing) = (ask.share_milli().is_some(), Used::default());
            let used = if held { &nothing } else { &host.used };
            let want = fit::Want { ask, tenant: "t", in_gang: true };
            let fitting = match fit::fits(host, used, want, lab.now_ms) {
                Ok(fitting) => fitting,
                // A stale plan: the host was drained meanwhile.
                Err(fit::Misfit::Draining | fit::Misfit::Suspended) if from.is_multiple_of(2) => {
                    slots.push(Slot { host: host.id, devices: Vec::new() });
                    break;
                }
                Err(_) => break,
            };
            let new = |d: &&&DeviceFacts| !taken.contains(&d.uuid) || share && d.kind == DeviceKind::Gpu;
            let gpus = fitting.iter().filter(new).filter(|d| d.kind == DeviceKind::Gpu);
            let mut devices: Vec<DeviceUuid> =
                gpus.take(ask.gpus() as usize).map(|d| d.uuid.clone()).collect();
            for (name, count) in ask.devices.iter().rev() {
                let of_kind = fitting.iter().filter(new).filter(|d| fit::is_of_kind(d, name));
                let rest = of_kind.filter(|d| !devices.contains(&d.uuid)).take(*count as usize);
                let rest: Vec<DeviceUuid> = rest.map(|d| d.uuid.clone()).collect();
                devices.extend(rest);
            }
            let asked = ask.gpus() as usize + ask.devices.values().sum::<u32>() as usize;
            if devices.len() < asked || (asked == 0 && slots.len() > at + 4) {
                break;
            }
            taken.extend(devices.iter().cloned());
            slots.push(Slot { host: host.id, devices });
        }
    }
    slots
}

/// A start that may well be accepted.
pub(crate) fn start(lab: &Lab, id: JobId, choice: u8, count: usize, from: u8) -> Option<Move> {
    let job = lab.state.job(id)?;
    let ask = job.spec.ask_at(choice)?;
    let indices = job.pending.ranges().flat_map(|(start, end)| start..end).map(|o| job.task(o).index);
    let slots = room(lab, ask, count, from, false);
    let parts = indices.zip(slots).map(|(index, slot)| Part {
        index,
        host: slot.host,
        epoch: lab.state.host(slot.host).map_or(LeaseEpoch(0), |host| host.epoch),
        devices: slot.devices,
    });
    Some(Move::Start { job: id, choice, parts: parts.collect() })
}

/// The first way to start, for single tasks.
fn place(lab: &Lab, a: u8, c: u8) -> Option<Move> {
    let Move::Start { job, parts, .. } = start(lab, ready_job(lab, a), 0, 1, c)? else {
        return None;
    };
    let part = parts.into_iter().next()?;
    let task = TaskId { job, index: part.index };
    Some(Move::Place { task, host: part.host, epoch: part.epoch, devices: part.devices })
}

/// An eviction of any kind, mostly one that the rules might allow.
fn evict(lab: &Lab, a: u8, b: u8, c: u8) -> Move {
    use EndReason::{Cancel, Ceiling, Drain, Gang, Move as Moved, Preempt, Reclaim};
    let reasons = [Preempt, Preempt, Preempt, Reclaim, Reclaim, Moved, Drain, Ceiling, Cancel, Gang];
    let due = |attempt: &rota_core::Attempt| {
        lab.state.host(attempt.host).is_some_and(|host| host.evict_at_ms.is_some_and(|at| at <= lab.now_ms))
    };
    let above = |attempt: &rota_core::Attempt| {
        let excess = |queue: &rota_core::state::queue::Queue| {
            queue.spec.excess == Excess::RequeueYoungest && !queue.held.within(&queue.bound())
        };
        lab.state.queues().path(attempt.queue).any(excess)
    };
    let reason = match a % 4 {
        0 if lab.state.attempts().any(due) => Drain,
        1 if lab.state.attempts().any(above) => Ceiling,
        _ => reasons[b as usize % reasons.len()],
    };
    if matches!(reason, Drain | Ceiling) && !c.is_multiple_of(8) {
        return put_out(lab, reason, a);
    }
    // Whom it is for: the most urgent that waits, mostly; or one of a queue to which something is guaranteed.
    let mut ready: Vec<&rota_core::Job> = lab.state.jobs().filter(|job| job.is_ready()).collect();
    let guaranteed = |job: &rota_core::Job| {
        lab.state.queues().path(job.queue).any(|queue| queue.spec.guarantee.gpu_milli > 0)
    };
    ready.sort_by_key(|job| (reason == Reclaim && !guaranteed(job), job.place()));
    let urgent = ready.get(a as usize % 2).or(ready.first()).map(|job| job.id);
    let whom = if c > 240 { job(lab, a) } else { urgent.unwrap_or_default() };
    let ask = lab.state.job(whom).map(|job| job.spec.ask.clone()).unwrap_or_default();
    let count = lab.state.job(whom).map_or(1, |job| job.start_range().0).min(5) as usize;
    let priority = lab.state.job(whom).map_or(0, |job| job.priority);
    let lower = |attempt: &&rota_core::Attempt| {
        attempt.preemptible && (reason != Preempt || attempt.priority + 10 <= priority)
    };
    let live: Vec<&rota_core::Attempt> = lab.state.attempts().filter(lower).collect();
    let mut victims: Vec<Token> = Vec::new();
    let mut slots = Vec::new();
    // One after the other until there is room.
    for at in 0..live.len().min(4) {
        let victim = live[(at + c as usize) % live.len()];
        let mates = lab.state.attempts_of(victim.task.job).filter(|_| victim.in_gang);
        victims.extend(mates.map(|part| part.token).chain([victim.token]));
        victims.sort();
        victims.dedup();
        slots = room_without(lab, &ask, count, victim.host, &victims);
        if slots.len() == count {
            break;
        }
    }
    if c > 245 {
        victims.push(token(lab, a));
    }
    Move::Evict { job: Some(whom), reason, victims, slots, choice: 0 }
}

/// For a drain or a lowered ceiling: what they are about, for nobody.
fn put_out(lab: &Lab, reason: EndReason, a: u8) -> Move {
    let drained = |host| lab.state.host(host).is_some_and(|host| host.evict_at_ms.is_some());
    let above = |queue| lab.state.queues().path(queue).any(|queue| !queue.held.within(&queue.bound()));
    let wanted = |attempt: &&rota_core::Attempt| match reason {
        EndReason::Drain => drained(attempt.host) || a > 240,
        _ => above(attempt.queue) || a > 240,
    };
    // The youngest first.
    let youngest = lab.state.attempts().filter(wanted).max_by_key(|attempt| attempt.token);
    let mates = youngest.into_iter().filter(|a| a.in_gang).flat_map(|a| lab.state.attempts_of(a.task.job));
    let mut victims: Vec<Token> = mates.chain(youngest).map(|attempt| attempt.token).collect();
    victims.sort();
    victims.dedup();
    Move::Evict { job: None, reason, victims, slots: Vec::new(), choice: 0 }
}

/// Room on one host for so many tasks, of devices that are free or held by the victims alone.
fn room_without(lab: &Lab, ask: &Ask, count: usize, host: HostId, victims: &[Token]) -> Vec<Slot> {
    let Some(host) = lab.state.host(host) else {
        return Vec::new();
    };
    let want = fit::Want { ask, tenant: "t", in_gang: true };
    let fitting = fit::fits(host, &Used::default(), want, lab.now_ms).unwrap_or_default();
    let frees = |d: &&DeviceFacts| {
        let held = host.used.devices.get(&d.uuid);
        held.is_none_or(|held| held.holders.iter().all(|holder| victims.contains(&holder.token)))
    };
    let mut left: Vec<&DeviceFacts> = fitting.into_iter().filter(frees).collect();
    let mut slots = Vec::new();
    for _ in 0..count {
        let mut devices = Vec::new();
        let kinds = ask.devices.iter().rev().map(|(kind, count)| (kind.as_str(), *count));
        for (kind, count) in kinds.chain([("gpu", ask.gpus())]) {
            for _ in 0..count {
                let is = |d: &&DeviceFacts| match kind {
                    "gpu" => d.kind == DeviceKind::Gpu,
                    kind => fit::is_of_kind(d, kind),
                };
                match left.iter().position(is) {
                    Some(at) => devices.push(left.remove(at).uuid.clone()),
                    None => return slots,
                }
            }
        }
        slots.push(Slot { host: host.id, devices });
    }
    slots
}

fn promise(lab: &Lab, a: u8, b: u8, c: u8) -> Move {
    let id = ready_job(lab, a);
    let job = lab.state.job(id);
    let ask = job.map(|job| job.spec.ask.clone()).unwrap_or_default();
    let fewest = job.map_or(1, |job| job.start_range().0).min(5) as usize;
    let at_ms = lab.now_ms.saturating_add(u64::from(c) * 1_000);
    let causes = [
        None,
        None,
        Some(PromiseBreak::HostGone),
        Some(PromiseBreak::Outranked),
        Some(PromiseBreak::Overrun),
    ];
    let broken_by = causes[b as usize % causes.len()];
    Move::Promise { job: id, at_ms, slots: room(lab, &ask, fewest, c, true), choice: 0, broken_by }
}

fn submit(lab: &Lab, a: u8, b: u8, c: u8) -> Command {
    let ask = ASKS[a as usize % ASKS.len()];
    let rule = RULES[b as usize % RULES.len()];
    let relation = ["ok", "not-ok", "any"][b as usize % 3];
    let more = match c % 8 {
        0 => format!("after={relation}:{}", job(lab, c)),
        1 | 5 | 7 if ask.contains("0-5") => {
            let twin = lab.state.jobs().find(|job| job.spec.array.is_some_and(|array| array.end == 5));
            format!("after=each-{relation}:{}", twin.map_or(JobId(9), |job| job.id))
        }
        2 => format!("deadline={}", lab.now_ms.saturating_add(u64::from(c) * 500)),
        3 => format!("begin={}", lab.now_ms.saturating_add(u64::from(c) * 100)),
        _ => String::new(),
    };
    Command::Submit { spec: job_spec(&format!("{ask} {rule} {more}")) }
}

fn reservation(lab: &Lab, a: u8, b: u8, c: u8) -> ReservationSpec {
    let start_ms = lab.now_ms.saturating_add(u64::from(b) * 1_000);
    ReservationSpec {
        name: format!("r{}", a % 3),
        hosts: vec![HostId(u64::from(c % 5)), HostId(2)],
        start_ms,
        end_ms: start_ms.saturating_add(u64::from(c) * 1_000),
        kept_for: match a % 3 {
            0 => ReservedFor::Nobody,
            n => ReservedFor::Queues(vec![["t", "t/a"][n as usize % 2].into()]),
        },
        reason: String::new(),
    }
}

fn plan_of(moves: Vec<Move>) -> Command {
    Command::CommitPlan { plan: Plan { seen_index: 0, moves } }
}

/// The command of four numbers, of the first `kinds` kinds.
pub(crate) fn command(lab: &Lab, dice: Dice, kinds: u8) -> Command {
    let (kind, a, b, c) = dice;
    let host = HostId(u64::from(a % 6));
    match kind % kinds {
        0 | 1 if kinds == OLD_KINDS => Command::Submit { spec: job_spec(ASKS[a as usize % 9]) },
        0 | 1 | 16..=18 => submit(lab, a, b, c),
        2 => Command::Cancel { job: job(lab, a), index: (b % 2 == 0).then_some(u32::from(c % 12)) },
        3 | 4 if kinds == OLD_KINDS => Command::CommitPlan { plan: lab.plan() },
        5 if kinds > OLD_KINDS && b % 4 == 0 => plan_of(place(lab, a, c).into_iter().collect()),
        5 => Command::CommitPlan { plan: mad_plan(lab, dice) },
        6 | 7 => reports(lab, a, AttemptFact::Started { pid: u32::from(b) }, c),
        8 if c % 2 == 1 => {
            let used = Counted { peak_mib: u64::from(b), limit_mib: u64::MAX, oom_kills: u32::from(c) };
            reports(lab, a, AttemptFact::EndedWith { end: ends(b), ran_ms: u64::from(c), used }, c)
        }
        8..=10 => reports(lab, a, AttemptFact::Ended { end: ends(b), ran_ms: u64::MAX >> (c % 64) }, c),
        11 => Command::Expire {
            host,
            epoch: match b % 3 {
                0 => LeaseEpoch(u64::from(c)),
                _ => lab.state.host(host).map_or(LeaseEpoch(0), |h| h.epoch),
            },
        },
        12 => Command::RegisterHost { host, registration: registration(lab, host, b, c) },
        13 => match b % 3 {
            0 => Command::DrainHost { host, reason: "é".repeat(usize::from(c) * 10) },
            1 if kinds > OLD_KINDS => {
                let evict_at_ms = (c % 4 != 0).then_some(lab.now_ms.saturating_add(u64::from(c % 2) * 1_000));
                Command::DrainWith { host, reason: String::new(), evict_at_ms }
            }
            _ => Command::UndrainHost { host },
        },
        14 | 15 => admission(a, b, c, kind % kinds, lab.now_ms),
        3 | 4 | 19..=23 => {
            let from = ready_job(lab, a);
            let count = lab.state.job(from).map_or(1, |job| job.start_range().0).min(5) as usize;
            plan_of(start(lab, from, u8::from(c == 3), count + usize::from(b % 2), c).into_iter().collect())
        }
        24..=28 => plan_of(vec![evict(lab, a, b, c)]),
        29 => plan_of(vec![evict(lab, a, b, c), evict(lab, b, a, c), promise(lab, c, b, a)]),
        30 => plan_of(vec![promise(lab, a, b, c)]),
        31 => plan_of(lab.state.jobs().take(64).map(|job| Move::Lapse { job: job.id }).collect()),
        32 => Command::SetQueue { queue: queue_spec(QUEUES[a as usize % QUEUES.len()]) },
        33 => {
            let changes =
                [JobChange::Hold, JobChange::Release, JobChange::Priority(u16::from(c)), JobChange::Requeue];
            Command::Adjust { job: job(lab, a), change: changes[b as usize % 4] }
        }
        34 => match b % 4 {
            0 => Command::RemoveQueue { name: ["t/a", "t", "other"][a as usize % 3].into() },
            1 => Command::Unreserve { name: format!("r{}", a % 3) },
            _ => {
                let known = lab.state.reservations().next().map(|row| row.name.clone());
                Command::Unreserve { name: known.unwrap_or_default() }
            }
        },
        35 if c % 4 == 3 => care(lab, a, b, c),
        35 => Command::Reserve { reservation: reservation(lab, a, b, c) },
        _ => crate::health::command(lab, kind, a, b, c),
    }
}

/// What a host tells and asks of its cards.
fn care(lab: &Lab, a: u8, b: u8, c: u8) -> Command {
    let token = token(lab, a);
    let host = lab.state.attempt(token).map_or(HostId(u64::from(c % 5)), |attempt| attempt.host);
    match b % 6 {
        0 => reports(lab, a, AttemptFact::Noted { text: "é".repeat(usize::from(c) * 4) }, c),
        1 => reports(lab, a, AttemptFact::HeldIdle { gpu_ms: u64::MAX >> (c % 64) }, c),
        2 => {
            let steps = vec![ReleaseStep::Processes; usize::from(c)];
            let release =
                Release { steps, took_ms: 1, dirty: (c.is_multiple_of(2)).then(|| "x".repeat(2_000)) };
            reports(lab, a, AttemptFact::Released { release }, c)
        }
        kind => {
            let vram = HostCause::Vram { asked_mib: 1, used_mib: u64::from(c) };
            let cause = [vram, HostCause::SharedFault, HostCause::Idle { idle_ms: 9 }][usize::from(kind) - 3];
            Command::EndOwn { host, ends: vec![(token, cause); 1 + usize::from(c % 2)] }
        }
    }
}

fn admission(a: u8, b: u8, c: u8, kind: u8, now_ms: u64) -> Command {
    match (kind, b % 2) {
        (14, 0) => Command::MintToken {
            token: [a; 32],
            usage: TokenUse::Join { host_name: c.is_multiple_of(2).then(|| format!("h{c}")) },
            expires_at_ms: now_ms.saturating_mul(u64::from(c % 3)),
        },
        (14, _) => Command::MintToken {
            token: [a; 32],
            usage: TokenUse::User { actor: actor(c) },
            expires_at_ms: now_ms.saturating_mul(u64::from(c % 3)),
        },
        (_, 0) => Command::AdmitHost { token: [a; 32], host_name: format!("h{c}"), addr: "a:1".into() },
        _ => Command::CreateCluster {
            cluster: ClusterId(1),
            name: "again".into(),
            host_name: "h".into(),
            addr: "a:1".into(),
        },
    }
}

fn reports(lab: &Lab, a: u8, fact: AttemptFact, c: u8) -> Command {
    let token = token(lab, a);
    // Now and then another host speaks.
    let host = match (lab.state.attempt(token), c % 8) {
        (Some(attempt), 1..) => attempt.host,
        _ => HostId(u64::from(c % 5)),
    };
    Command::Report { host, reports: vec![AttemptReport { token, fact }; 1 + usize::from(c % 2)] }
}
