//! Properties over arbitrary commands, hostile ones included: `apply` never panics, every law holds after every
//! step, a request id gives one answer, snapshots and replays give the same state.

use crate::lab::{Lab, host_facts, job_spec, launch_failed, user};
use proptest::prelude::*;
use rota_core::state::host::LaunchRecord;
use rota_core::{Applied, Event, snapshot};
use rota_protocol::command::{Command, Outcome, Proposal, TokenUse};
use rota_protocol::device::HostRegistration;
use rota_protocol::job::{Actor, AttemptEnd, JobState, Role};
use rota_protocol::plan::{Move, Plan};
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::{BootId, ClusterId, DeviceUuid, HostId, JobId, LeaseEpoch, RequestId, TaskId, Token};
use std::collections::BTreeMap;

/// Four numbers that choose a command in the light of the state: small cases shrink well.
type Dice = (u8, u8, u8, u8);

const ASKS: [&str; 9] = [
    "gpus=1",
    "gpus=2 cpus=3 mem=1GiB",
    "gpus=1 array=0-5%2 retries=1",
    "array=3-90:7",
    "cpus=1 prio=80",
    "fpga=1",
    "gpus=1 model=h100 prio=99",
    "gpus=400",
    "gpu_milli=1500",
];

fn ends(n: u8) -> AttemptEnd {
    match n % 9 {
        0 => AttemptEnd::Exited { code: 0 },
        1 => AttemptEnd::Exited { code: n },
        2 => AttemptEnd::Signalled { signal: n },
        3 => AttemptEnd::TimeLimit,
        4 => AttemptEnd::Cancelled,
        5 => AttemptEnd::Preempted,
        6 => launch_failed(),
        7 => AttemptEnd::Fenced,
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

fn actor(n: u8) -> Actor {
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
        "h gpus=4xA100:80GiB cpus=8 mem=32GiB",
        "h gpus=2xH100:80GiB cpus=8 mem=32GiB",
        "h cpus=1 mem=1GiB fpga=2",
        "h gpus=4xA100:80GiB cpus=8 mem=32GiB dirty=GPU-h-0 order=reversed",
        "h",
    ];
    // Hosts 2 and 3 have cards of their own; the others fight for the same UUIDs.
    let line = lines[b as usize % lines.len()].replace("GPU-h-", &format!("GPU-h{}-", host.0 % 3));
    let mut facts = host_facts(&line.replacen('h', &format!("h{}", host.0 % 3), 1)).1;
    if c == 7 {
        facts.devices.extend(facts.devices.clone());
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

fn command(lab: &Lab, dice: Dice) -> Command {
    let (kind, a, b, c) = dice;
    let host = HostId(u64::from(a % 6));
    match kind % 16 {
        0 | 1 => Command::Submit { spec: job_spec(ASKS[a as usize % ASKS.len()]) },
        2 => Command::Cancel {
            job: JobId(u64::from(a % 12)),
            index: (b % 2 == 0).then_some(u32::from(c % 12)),
        },
        3 | 4 => Command::CommitPlan { plan: lab.plan() },
        5 => Command::CommitPlan { plan: mad_plan(lab, dice) },
        6 | 7 => reports(lab, a, AttemptFact::Started { pid: u32::from(b) }, c),
        8..=10 => reports(lab, a, AttemptFact::Ended { end: ends(b), ran_ms: u64::MAX >> (c % 64) }, c),
        11 => Command::Expire {
            host,
            epoch: match b % 3 {
                0 => LeaseEpoch(u64::from(c)),
                _ => lab.state.host(host).map_or(LeaseEpoch(0), |h| h.epoch),
            },
        },
        12 => Command::RegisterHost { host, registration: registration(lab, host, b, c) },
        13 => match b % 2 {
            0 => Command::DrainHost { host, reason: "é".repeat(usize::from(c) * 10) },
            _ => Command::UndrainHost { host },
        },
        14 => Command::MintToken {
            token: [a; 32],
            usage: match b % 2 {
                0 => TokenUse::Join { host_name: (c % 2 == 0).then(|| format!("h{c}")) },
                _ => TokenUse::User { actor: actor(c) },
            },
            expires_at_ms: lab.now_ms.saturating_mul(u64::from(c % 3)),
        },
        _ => match b % 2 {
            0 => Command::AdmitHost { token: [a; 32], host_name: format!("h{c}"), addr: "a:1".into() },
            _ => Command::CreateCluster {
                cluster: ClusterId(1),
                name: "again".into(),
                host_name: "h".into(),
                addr: "a:1".into(),
            },
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

/// One step; every law is checked by the lab.
fn step(lab: &mut Lab, dice: Dice) -> Vec<Event> {
    let (kind, a, b, c) = dice;
    lab.now_ms = match kind >> 4 {
        0..=3 => lab.now_ms,
        4..=9 => lab.now_ms.saturating_add(u64::from(a) * 50),
        10..=12 => lab.now_ms.saturating_add(u64::from(b) * 10_000),
        13 => lab.now_ms.saturating_sub(u64::from(c) * 1_000_000),
        14 => lab.now_ms.saturating_add(25 * 3_600_000),
        _ if a == 255 => u64::MAX,
        _ => lab.now_ms.saturating_add(1),
    };
    let command = command(lab, dice);
    // Hostile authors now and then; else whoever may.
    let actor = match (c % 5, &command) {
        (0, _) => actor(b),
        (_, Command::Submit { .. } | Command::Cancel { .. }) => user("t"),
        _ => Actor::system(),
    };
    let request = RequestId(if b % 3 == 0 { 0 } else { u128::from(lab.log.len() as u64 + 1) });
    let proposal = Proposal { request, actor, command };
    let Applied { outcomes: first, events } = lab.apply(vec![proposal.clone()]);
    if request != RequestId::NONE && c % 2 == 0 {
        resubmit(lab, &proposal, &first);
    }
    events
}

/// The same request id gives the same answer and changes nothing but index and clock.
fn resubmit(lab: &mut Lab, proposal: &Proposal, first: &[Outcome]) {
    let rows = |lab: &Lab| {
        let jobs: Vec<_> = lab.state.jobs().cloned().collect();
        let hosts: Vec<_> = lab.state.hosts().cloned().collect();
        let attempts: Vec<_> = lab.state.attempts().cloned().collect();
        (jobs, hosts, attempts)
    };
    let before = rows(lab);
    let again = lab.apply(vec![proposal.clone()]);
    assert_eq!(again.outcomes, first);
    assert_eq!(again.events, Vec::new());
    assert_eq!(rows(lab), before);
}

/// Reach (I23): the dice do lead to what matters; a generator that only ever met refusals would prove nothing.
#[test]
fn the_dice_reach_everything() {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    let mut draw = 1_u64;
    for _ in 0..60 {
        let mut lab = small_world();
        for _ in 0..60 {
            draw = rota_core::hash::mix(draw.wrapping_add(1));
            let [a, b, c, d, ..] = draw.to_le_bytes();
            let events = step(&mut lab, (a, b, c, d));
            for event in events {
                let name = match event {
                    Event::Granted { .. } => "granted",
                    Event::EndAsked { .. } => "end asked",
                    Event::AttemptEnded { .. } => "ended",
                    Event::JobChanged(_) => "job",
                    Event::HostChanged(_) => "host",
                    Event::PlanNeeded => "plan",
                };
                *seen.entry(name).or_default() += 1;
            }
        }
        for job in lab.state.jobs() {
            let state = match job.state {
                JobState::Pending => "pending",
                JobState::Running => "running",
                JobState::Ending => "ending",
                JobState::Succeeded => "succeeded",
                JobState::Failed => "failed",
                JobState::Cancelled => "cancelled",
                JobState::TimedOut => "timed out",
                JobState::Preempted => "preempted",
                JobState::DependencyFailed => "dependency failed",
                JobState::DeadlineMissed => "deadline missed",
                JobState::HostLost => "host lost",
            };
            *seen.entry(state).or_default() += 1;
            for attempt in &job.ended {
                let lost = matches!(attempt.end, AttemptEnd::Lost);
                *seen.entry(if lost { "lost" } else { "other ends" }).or_default() += 1;
            }
        }
        let suspended = lab.state.hosts().any(|h| h.launches != LaunchRecord::default());
        *seen.entry("launch record").or_default() += u32::from(suspended);
    }
    let all = [
        "granted",
        "end asked",
        "ended",
        "job",
        "host",
        "plan",
        "pending",
        "running",
        "ending",
        "succeeded",
        "failed",
        "cancelled",
        "lost",
        "other ends",
        "launch record",
    ];
    for name in all {
        assert!(seen.get(name).is_some_and(|n| *n >= 5), "{name} was hardly reached: {seen:?}");
    }
}

fn small_world() -> Lab {
    Lab::with(&["h2 gpus=4xA100:80GiB cpus=8 mem=32GiB", "h0 gpus=2xH100:80GiB fpga=1"])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_commands_keep_every_law(dice in prop::collection::vec(any::<Dice>(), 1..80)) {
        let mut lab = small_world();
        for one in dice {
            step(&mut lab, one);
        }
        lab.check_copies();
    }

    /// Whatever happened, what waits and fits is placed, and nothing that lives stays for ever (I20).
    #[test]
    fn it_always_converges(dice in prop::collection::vec(any::<Dice>(), 1..60)) {
        let mut lab = small_world();
        for one in dice {
            step(&mut lab, one);
        }
        // Heal: hosts are back, nobody is drained, every report comes, a day goes by for the back-offs.
        lab.now_ms = lab.now_ms.max(lab.state.clock_ms());
        prop_assume!(lab.now_ms < u64::MAX / 2);
        let hosts: Vec<HostId> = lab.state.hosts().map(|h| h.id).collect();
        for host in hosts {
            let facts = lab.facts(host);
            lab.register(host, facts, true);
            lab.system(Command::UndrainHost { host });
        }
        for _ in 0..2_000 {
            lab.now_ms += 60_000;
            let moves = lab.round();
            let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
            if moves == 0 && live.is_empty() {
                break;
            }
            for token in live {
                lab.start(token);
                lab.end(token, AttemptEnd::Exited { code: 0 });
            }
        }
        prop_assert!(lab.is_idle());
        for job in lab.state.jobs().filter(|j| !j.state.is_terminal()) {
            let why = rota_core::explain::why(&lab.state, job.id, lab.now_ms).expect("job");
            prop_assert!(why.impossible || why.by_reason.iter().all(|r| r.kind != "fits"), "{why:?}");
        }
    }

    /// No bytes from outside make a snapshot reader panic, and none but the true ones are believed (fault D11).
    #[test]
    fn a_damaged_snapshot_is_refused(at in any::<prop::sample::Index>(), flip in 1..=255_u8, cut in any::<bool>()) {
        let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB"]);
        lab.submit("gpus=1 array=0-3");
        lab.round();
        let mut bytes = snapshot::encode(&lab.state);
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= flip;
        }
        prop_assert!(snapshot::decode(&bytes).is_err());
    }
}
