//! The laws that hold at every log index, one variant and one sentence each. Checked after every step in simulation
//! and whenever a snapshot is loaded; costs a walk over the whole state.

mod care;
mod jobs;
mod queues;

use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::host::{DeviceUse, Host, HostLife, Used};
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::job::{AttemptState, JobState};
use rota_protocol::queue::QueueId;
use rota_protocol::{DeviceUuid, HostId, JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// A law that is broken, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// I1: no task has two live attempts.
    #[error("task of job {job} has two live attempts, {first} and {second}")]
    TwoAttempts {
        /// Whose.
        job: JobId,
        /// One.
        first: Token,
        /// The other.
        second: Token,
    },
    /// I2: no device is granted twice, on whatever hosts.
    #[error("device {device} is held by {first} and by {second}")]
    DeviceTwice {
        /// Which.
        device: DeviceUuid,
        /// One.
        first: Token,
        /// The other.
        second: Token,
    },
    /// I2: the shares of one card are no more than the card, in cores and in memory.
    #[error("the shares of {device} on host {host} are more than the card")]
    CardOverfull {
        /// Which.
        device: DeviceUuid,
        /// Where.
        host: HostId,
    },
    /// I7: a gang that is not being ended holds at least its fewest parts, or none.
    #[error("gang {job} holds {live} parts, fewer than it may run with")]
    GangSplit {
        /// Which.
        job: JobId,
        /// Parts live.
        live: u32,
    },
    /// I7: a gang that is being ended is ended whole: every part of it is asked to, until the last is gone.
    #[error("gang {job} is being ended, but not all of it")]
    GangEnding {
        /// Which.
        job: JobId,
    },
    /// I7: parts that must lie on one host do.
    #[error("parts of job {job} lie on several hosts")]
    LayoutBroken {
        /// Which.
        job: JobId,
    },
    /// No two gangs meet at the same ports of a host.
    #[error("two gangs meet at port {port} of host {host}")]
    PortTwice {
        /// Which.
        port: u16,
        /// Where.
        host: HostId,
    },
    /// S14: what is held of one card is held by one tenant.
    #[error("{device} on host {host} is shared by several tenants")]
    CardOfTwo {
        /// Which.
        device: DeviceUuid,
        /// Where.
        host: HostId,
    },
    /// An array has no more attempts than its cap on parallel tasks.
    #[error("job {job} has {live} live attempts, above its cap")]
    ParallelCap {
        /// Which.
        job: JobId,
        /// Attempts live.
        live: u32,
    },
    /// R008: a job waits for others only as long as one of them is not over.
    #[error("job {job} waits for jobs that are all over")]
    WaitsForNobody {
        /// Which.
        job: JobId,
    },
    /// A promise is made to a job that is not over, for as many tasks as may start at once at most.
    #[error("job {job} has a promise that it cannot use")]
    Promise {
        /// Which.
        job: JobId,
    },
    /// A queue lies in the queue that its path says, and is guaranteed no more than that has.
    #[error("queue {queue} does not lie where its path says, or its children are guaranteed too much")]
    QueueTree {
        /// Which.
        queue: QueueId,
    },
    /// A reservation names hosts and queues that exist, and ends after it begins.
    #[error("reservation '{name}' keeps nothing for anybody")]
    Reservation {
        /// Which.
        name: String,
    },
    /// I15: what a queue counts as held and open is what its attempts and jobs say.
    #[error("queue {queue} does not count what its jobs hold")]
    QueueDiffers {
        /// Which.
        queue: QueueId,
    },
    /// I15: no queue and no user of it holds more than it may.
    #[error("queue {queue} or a user of it is above its ceiling")]
    OverCeiling {
        /// Which.
        queue: QueueId,
    },
    /// I2: what a host counts as used is exactly what its live attempts hold.
    #[error("host {host} counts {counted:?} as used, its attempts hold {held:?}")]
    UsedDiffers {
        /// Where.
        host: HostId,
        /// As counted.
        counted: Box<Used>,
        /// As summed up.
        held: Box<Used>,
    },
    /// I2: every device held is known to the host that holds it.
    #[error("attempt {token} holds {device}, which host {host} does not know")]
    UnknownDevice {
        /// Whose.
        token: Token,
        /// Which.
        device: DeviceUuid,
        /// Where.
        host: HostId,
    },
    /// I2: one UUID may be offered by one host only.
    #[error("device {device} is offered by hosts {first} and {second}")]
    OfferedTwice {
        /// Which.
        device: DeviceUuid,
        /// One.
        first: HostId,
        /// The other.
        second: HostId,
    },
    /// A live attempt belongs to the present epoch of a host whose lease holds.
    #[error("attempt {token} lives on host {host}, which is gone or of another epoch")]
    DeadHost {
        /// Which.
        token: Token,
        /// Where.
        host: HostId,
    },
    /// A live attempt belongs to a job that is not terminal and a task of it that is nowhere else.
    #[error("attempt {token} belongs to job {job}, where its task is not live")]
    StrayAttempt {
        /// Which.
        token: Token,
        /// Whose.
        job: JobId,
    },
    /// I5: an attempt is `Ending` exactly if its end was asked, and started if it is `Running`.
    #[error("attempt {token} is {state:?} against its own record")]
    AttemptState {
        /// Which.
        token: Token,
        /// As stored.
        state: AttemptState,
    },
    /// I3: each task of a job is in exactly one place, and the counts add up to the job's tasks.
    #[error("job {job}: its tasks do not add up")]
    TasksDiffer {
        /// Which.
        job: JobId,
    },
    /// A job's state is the one that follows from its tasks.
    #[error("job {job} is {state}, its tasks say {should}")]
    JobState {
        /// Which.
        job: JobId,
        /// As stored.
        state: JobState,
        /// As derived.
        should: JobState,
    },
    /// I6: a terminal job holds nothing, waits for nothing and has an end date; others have none.
    #[error("job {job} is {state} and still open, or the reverse")]
    TerminalHolds {
        /// Which.
        job: JobId,
        /// As stored.
        state: JobState,
    },
    /// I14: what tenants are charged is what hosts lent.
    #[error("tenants are charged {charged} card-ms, hosts lent {lent}")]
    MeterDiffers {
        /// By tenants.
        charged: u64,
        /// By hosts.
        lent: u64,
    },
    /// I17: a device is shown as what is held against it says.
    #[error("device {device} of host {host} is not shown as its mark says")]
    MarkDiffers {
        /// Which.
        device: DeviceUuid,
        /// Where.
        host: HostId,
    },
    /// I17: a mark names its reason, and its end if it is for a time.
    #[error("the mark of device {device} has no reason, or no end")]
    Mark {
        /// Which.
        device: DeviceUuid,
    },
    /// Every index equals its rebuild from the rows.
    #[error("the index of {0} is not its rebuild")]
    Index(&'static str),
    /// I4: the queue of request ids and their answers name the same ids, in order of time.
    #[error("the request ids and their queue disagree")]
    Dedup,
    /// Numbers handed out lie below the counters.
    #[error("{what} {number} was never handed out")]
    Number {
        /// Of what.
        what: &'static str,
        /// Which.
        number: u64,
    },
}

/// Every law that is broken; empty if all hold.
#[must_use]
pub fn check(state: &State) -> Vec<Violation> {
    let mut broken = Vec::new();
    attempts(state, &mut broken);
    for host in state.hosts() {
        used(state, host, &mut broken);
    }
    offers(state, &mut broken);
    for job in state.jobs() {
        jobs::check(state, job, &mut broken);
    }
    metering(state, &mut broken);
    queues::check(state, &mut broken);
    care::check(state, &mut broken);
    indexes(state, &mut broken);
    if !state.dedup.is_sound() {
        broken.push(Violation::Dedup);
    }
    broken
}

fn attempts(state: &State, broken: &mut Vec<Violation>) {
    let mut by_task = BTreeMap::new();
    let mut by_device: BTreeMap<&DeviceUuid, (Token, bool)> = BTreeMap::new();
    for attempt in state.attempts() {
        let token = attempt.token;
        if let Some(first) = by_task.insert(attempt.task, token) {
            let job = attempt.task.job;
            broken.push(Violation::TwoAttempts { job, first, second: token });
        }
        for device in &attempt.devices {
            let shared = attempt.shares_card();
            if let Some((first, first_shared)) = by_device.insert(device, (token, shared))
                && !(shared && first_shared)
            {
                let device = device.clone();
                broken.push(Violation::DeviceTwice { device, first, second: token });
            }
        }
        attempt_alone(state, attempt, broken);
    }
}

fn attempt_alone(state: &State, attempt: &Attempt, broken: &mut Vec<Violation>) {
    let (token, host, job) = (attempt.token, attempt.host, attempt.task.job);
    match state.host(host) {
        Some(h) if h.life == HostLife::Up && h.epoch == attempt.epoch => {
            for device in attempt.devices.iter().filter(|d| h.device(d).is_none()) {
                let device = device.clone();
                broken.push(Violation::UnknownDevice { token, device, host });
            }
        }
        _ => broken.push(Violation::DeadHost { token, host }),
    }
    let is_live = state.job(job).is_some_and(|j| {
        let ordinal = j.ordinal(attempt.task.index);
        !j.state.is_terminal()
            && ordinal.is_some_and(|o| jobs::places(j, o) == 0)
            && j.priority == attempt.priority
    });
    if !is_live {
        broken.push(Violation::StrayAttempt { token, job });
    }
    let state_now = attempt.state;
    let agrees = match state_now {
        AttemptState::Granted => attempt.end_reason.is_none() && attempt.started_ms.is_none(),
        AttemptState::Running => attempt.end_reason.is_none() && attempt.started_ms.is_some(),
        AttemptState::Ending => attempt.end_reason.is_some(),
    };
    if !agrees {
        broken.push(Violation::AttemptState { token, state: state_now });
    }
    if token.log_index() > state.applied_index() {
        let (what, number) = ("token", token.0);
        broken.push(Violation::Number { what, number });
    }
}

fn used(state: &State, host: &Host, broken: &mut Vec<Violation>) {
    let mut held = Used::default();
    let mut ports = BTreeSet::new();
    for attempt in state.attempts_on(host.id) {
        if let Some(port) = attempt.port.filter(|port| !ports.insert(*port)) {
            broken.push(Violation::PortTwice { port, host: host.id });
        }
        let parts = attempt.holdings();
        held.add(&attempt.tenant, attempt.cpus_milli, attempt.mem_mib, &parts);
        held.ports.extend(attempt.port);
        held.launching += u32::from(attempt.state == AttemptState::Granted);
    }
    for (device, held) in &host.used.devices {
        let card_mib = host.device(device).and_then(|d| d.vram_mib).unwrap_or(u64::MAX);
        if held.milli() > CARD_MILLI || held.vram_mib() > card_mib {
            broken.push(Violation::CardOverfull { device: device.clone(), host: host.id });
        }
        if !is_of_one(state, held) {
            broken.push(Violation::CardOfTwo { device: device.clone(), host: host.id });
        }
    }
    if held != host.used {
        let (host, counted) = (host.id, Box::new(host.used.clone()));
        let held = Box::new(held);
        broken.push(Violation::UsedDiffers { host, counted, held });
    }
    if host.id.0 == 0 || host.id.0 >= state.meta.next_host {
        let (what, number) = ("host", host.id.0);
        broken.push(Violation::Number { what, number });
    }
}

/// All holders are attempts of the tenant that the device is noted for.
fn is_of_one(state: &State, held: &DeviceUse) -> bool {
    let tenant = |token| state.attempt(token).map(|attempt| attempt.tenant.as_str());
    held.holders.iter().all(|holder| tenant(holder.token) == Some(held.tenant.as_str()))
}

fn offers(state: &State, broken: &mut Vec<Violation>) {
    let mut offered: BTreeMap<&DeviceUuid, HostId> = BTreeMap::new();
    for host in state.hosts() {
        let healthy = host.facts.devices.iter().filter(|d| d.health.is_healthy());
        for device in healthy {
            if let Some(first) = offered.insert(&device.uuid, host.id) {
                let (device, second) = (device.uuid.clone(), host.id);
                broken.push(Violation::OfferedTwice { device, first, second });
            }
        }
    }
}

fn metering(state: &State, broken: &mut Vec<Violation>) {
    let charged = state.usage().fold(0_u64, |sum, (_, usage)| sum.saturating_add(usage.gpu_ms));
    let lent = state.hosts().fold(0_u64, |sum, host| sum.saturating_add(host.gpu_ms));
    if charged != lent {
        broken.push(Violation::MeterDiffers { charged, lent });
    }
}

fn indexes(state: &State, broken: &mut Vec<Violation>) {
    let mut rebuilt = state.clone();
    rebuilt.rebuild();
    if rebuilt.hosts != state.hosts {
        broken.push(Violation::Index("hosts"));
    }
    if rebuilt.jobs != state.jobs || !state.jobs.terminal_is_sound() {
        broken.push(Violation::Index("jobs"));
    }
    if rebuilt.queues != state.queues {
        broken.push(Violation::Index("queues"));
    }
    if rebuilt.attempts != state.attempts {
        broken.push(Violation::Index("attempts"));
    }
}
