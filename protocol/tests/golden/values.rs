//! The fixed values: what the others share, and the log. Every field has a value of its own, so that two that change
//! places are seen.

use rota_protocol::api::LogChunk;
use rota_protocol::ask::Ask;
use rota_protocol::cage::Used;
use rota_protocol::care::*;
use rota_protocol::command::*;
use rota_protocol::container::{ContainerSpec, Mount};
use rota_protocol::device::*;
use rota_protocol::health::*;
use rota_protocol::job::*;
use rota_protocol::pace::{Pace, Turns};
use rota_protocol::plan::*;
use rota_protocol::queue::*;
use rota_protocol::report::*;
use rota_protocol::reservation::*;
use rota_protocol::session::{SessionAsk, SessionEnd, SessionNews, SessionSpec, TerminalSize};
use rota_protocol::work::*;
use rota_protocol::*;
use std::collections::BTreeMap;

pub(crate) const CLUSTER: ClusterId = ClusterId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
pub(crate) const BOOT: BootId = BootId(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20);
pub(crate) const REQUEST: RequestId = RequestId(0x2122_2324_2526_2728_292a_2b2c_2d2e_2f30);
pub(crate) const NOW_MS: u64 = 1_790_000_000_123;

pub(crate) fn text(text: &str) -> String {
    text.to_owned()
}

pub(crate) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| (text(k), text(v))).collect()
}

pub(crate) fn token() -> Token {
    Token::new(300, 2)
}

pub(crate) fn task() -> TaskId {
    TaskId { job: JobId(70_000), index: 4 }
}

pub(crate) fn device() -> DeviceUuid {
    DeviceUuid(text("GPU-5c3f0d6e"))
}

pub(crate) fn actor() -> Actor {
    Actor { tenant: text("vision"), user: text("ada"), role: Role::Submitter }
}

pub(crate) fn error() -> PublicError {
    PublicError::invalid("ask.vram", "no card has 900 GiB", "80GiB").retry_after(250)
}

pub(crate) fn ask() -> Ask {
    Ask {
        gpu_milli: 2_000,
        gpu_models: vec![text("H100"), text("H200")],
        gpu_models_preferred: vec![text("H200")],
        vram_mib: 81_920,
        compute_cap_min: 90,
        cpus_milli: 4_000,
        mem_mib: 65_536,
        devices: BTreeMap::from([(text("fpga"), 1)]),
        labels: map(&[("zone", "b")]),
    }
}

pub(crate) fn spec() -> JobSpec {
    JobSpec {
        name: text("train"),
        argv: vec![b"python".to_vec(), vec![0xff, 0x00]],
        env: vec![(b"LANG".to_vec(), b"C".to_vec())],
        workdir: b"/home/ada".to_vec(),
        ask: ask(),
        array: Some(ArraySpec { start: 1, end: 9, step: 2, parallel_max: 3 }),
        priority: 60,
        time_limit_ms: Some(3_600_000),
        grace_ms: Some(30_000),
        retries: 5,
        uid_gid: Some((1_000, 1_001)),
        alternatives: vec![Ask { gpu_milli: 500, ..Ask::default() }],
        gang: Some(GangSpec { min: 6, max: 7 }),
        layout: Layout::SameRack,
        after: vec![
            Dependency { job: JobId(11), relation: Relation::Ok, each: true },
            Dependency { job: JobId(12), relation: Relation::NotOk, each: false },
            Dependency { job: JobId(13), relation: Relation::Any, each: false },
        ],
        queue: text("vision/night"),
        begin_ms: Some(NOW_MS + 21),
        deadline_ms: Some(NOW_MS + 22),
        hold: true,
        service: false,
        preemptible: true,
        requeue: false,
        warning: Some(Warning { signal: 10, before_ms: 60_001, leader_only: true }),
        requeue_status: Some(99),
        output: super::output::spec().held(),
        session: Some(Box::new(SessionSpec {
            size: TerminalSize { rows: 33, cols: 99 },
            hold_ms: Some(30_002),
        })),
        container: Some(Box::new(ContainerSpec {
            image: text("registry/train:7"),
            mounts: vec![Mount { source: text("/data"), target: text("/in"), read_only: true }],
            workdir: Some(text("/work")),
            entrypoint: true,
            read_only: true,
        })),
        idle_until_ms: Some(NOW_MS + 61),
        pace: Some(Box::new(Pace {
            resumes: true,
            work_ms: Some(7_200_003),
            speeds: vec![(text("H100"), 2_500), (text("K80"), 120)],
        })),
        inputs: [super::data::input()].into(),
    }
}

pub(crate) fn device_facts() -> DeviceFacts {
    DeviceFacts {
        uuid: device(),
        kind: DeviceKind::Gpu,
        model: text("NVIDIA H100 80GB HBM3"),
        vram_mib: Some(81_559),
        bus: Some(text("0000:1b:00.0")),
        index: Some(3),
        numa: Some(1),
        compute_cap: Some(89),
        island: Some(2),
        health: DeviceHealth::Dirty { reason: text("a process is left") },
        detail: DeviceDetail {
            unified: true,
            parent: Some(DeviceUuid(text("GPU-0"))),
            minor: Some(3),
            nodes: vec![text("/dev/nvidia3")],
            power_limit_mw: Some(700_000),
            profiles: vec![text("1g.10gb")],
        },
    }
}

pub(crate) fn registration() -> HostRegistration {
    let device = |uuid: &str, kind, health| DeviceFacts {
        uuid: DeviceUuid(text(uuid)),
        kind,
        health,
        ..device_facts()
    };
    let reason = text("why");
    HostRegistration {
        boot: BOOT,
        addr: text("10.0.0.7:7600"),
        facts: HostFacts {
            cpus_milli: 64_000,
            mem_mib: 515_000,
            devices: vec![
                device_facts(),
                device("MIG-1", DeviceKind::Mig, DeviceHealth::Healthy),
                device("F-1", DeviceKind::Fpga, DeviceHealth::Unknown { reason: reason.clone() }),
                device("GPU-2", DeviceKind::Gpu, DeviceHealth::Lost { reason }),
            ],
            labels: map(&[("rack", "r1")]),
            version: text("0.1.0"),
            notes: HostNotes {
                warnings: vec![text("a card does not tell its memory")],
                set_aside: vec![device("GPU-3", DeviceKind::Other, DeviceHealth::Healthy)],
                reads: 2,
            },
        },
    }
}

pub(crate) fn reading() -> DeviceReading {
    DeviceReading {
        uuid: device(),
        busy_permille: Some(990),
        vram_used_mib: Some(70_001),
        temperature_c: Some(65),
        power_mw: Some(650_002),
        clock_permille: Some(901),
    }
}

pub(crate) fn ends() -> Vec<AttemptEnd> {
    vec![
        AttemptEnd::Exited { code: 3 },
        AttemptEnd::Signalled { signal: 11 },
        AttemptEnd::TimeLimit,
        AttemptEnd::Cancelled,
        AttemptEnd::Preempted,
        AttemptEnd::LaunchFailed { reason: text("no such program") },
        AttemptEnd::Fenced,
        AttemptEnd::Lost,
        AttemptEnd::Vanished { reason: text("no record") },
    ]
}

/// The ends that format 2 brought.
pub(crate) fn later_ends() -> Vec<AttemptEnd> {
    let out_of_memory = AttemptEnd::OutOfMemory { limit_mib: 256, peak_mib: 255 };
    vec![
        AttemptEnd::Requeued { code: 99 },
        AttemptEnd::GangBroken,
        AttemptEnd::HostStopped,
        AttemptEnd::DeviceFault { reason: text("Xid 95") },
        AttemptEnd::ProgramFault { reason: text("Xid 13") },
        out_of_memory,
        AttemptEnd::VramLimit { asked_mib: 20_480, used_mib: 31_744 },
        AttemptEnd::SharedFault,
        AttemptEnd::Idle { idle_ms: 3_600_000 },
        AttemptEnd::InputsMissing { nowhere: true, reason: text("no host has it") },
        AttemptEnd::CannotStart { code: 127, reason: text("no such folder") },
    ]
}

pub(crate) fn used() -> Used {
    Used { peak_mib: 255, limit_mib: 256, oom_kills: 1 }
}

/// The commands that format 1 had, with today's fields.
pub(crate) fn commands() -> Vec<(&'static str, Command)> {
    let mut reports = vec![AttemptReport { token: token(), fact: AttemptFact::Started { pid: 4_242 } }];
    reports.extend(
        ends()
            .into_iter()
            .map(|end| AttemptReport { token: token(), fact: AttemptFact::Ended { end, ran_ms: 5_005 } }),
    );
    let create = Command::CreateCluster {
        cluster: CLUSTER,
        name: text("prod"),
        host_name: text("gpu-01"),
        addr: text("10.0.0.1:7600"),
    };
    let plan = Plan {
        seen_index: 299,
        moves: vec![Move::Place {
            task: task(),
            host: HostId(7),
            epoch: LeaseEpoch(3),
            devices: vec![device()],
        }],
    };
    vec![
        ("CreateCluster", create),
        (
            "AdmitHost",
            Command::AdmitHost { token: [0xa5; 32], host_name: text("gpu-07"), addr: text("10.0.0.7:7600") },
        ),
        ("RegisterHost", Command::RegisterHost { host: HostId(7), registration: registration() }),
        ("DrainHost", Command::DrainHost { host: HostId(7), reason: text("new fans") }),
        ("UndrainHost", Command::UndrainHost { host: HostId(7) }),
        (
            "MintToken join",
            Command::MintToken {
                token: [0x5a; 32],
                usage: TokenUse::Join { host_name: Some(text("gpu-08")) },
                expires_at_ms: NOW_MS + 1,
            },
        ),
        (
            "MintToken user",
            Command::MintToken {
                token: [0x5b; 32],
                usage: TokenUse::User { actor: actor() },
                expires_at_ms: NOW_MS + 2,
            },
        ),
        ("Submit", Command::Submit { spec: spec() }),
        ("Cancel", Command::Cancel { job: JobId(70_000), index: Some(4) }),
        ("CommitPlan", Command::CommitPlan { plan }),
        ("Report", Command::Report { host: HostId(7), reports }),
        ("Expire", Command::Expire { host: HostId(7), epoch: LeaseEpoch(3) }),
    ]
}

pub(crate) fn amounts(first: u64) -> Amounts {
    Amounts { gpu_milli: first, cpus_milli: first + 1, mem_mib: first + 2, vram_mib: first + 3 }
}

pub(crate) fn queue_spec() -> QueueSpec {
    let ceiling = |first: u64| Ceiling {
        gpu_milli: Some(first),
        cpus_milli: Some(first + 1),
        mem_mib: Some(first + 2),
        vram_mib: None,
    };
    QueueSpec {
        name: text("vision/night"),
        weight: 3,
        guarantee: amounts(10),
        ceiling: ceiling(20),
        user_ceiling: ceiling(30),
        borrows: true,
        tenants: vec![text("vision"), text("speech")],
        time_limit_default_ms: Some(7_200_000),
        excess: Excess::RequeueYoungest,
        idle: IdleRule { mode: IdleMode::End, window_ms: 900_000, warnings: 3 },
        turns: Turns::Unlike,
        priority_max: Some(80),
        min_runtime_ms: Some(600_000),
    }
}

pub(crate) fn reservation(kept_for: ReservedFor) -> ReservationSpec {
    ReservationSpec {
        name: text("maintenance-7"),
        hosts: vec![HostId(7), HostId(8)],
        start_ms: NOW_MS + 31,
        end_ms: NOW_MS + 32,
        kept_for,
        reason: text("new fans"),
    }
}

/// Every move that format 2 brought, each variant of what they carry at least once.
fn later_moves() -> Vec<Move> {
    let job = JobId(70_000);
    let slots = || vec![Slot { host: HostId(7), devices: vec![device()] }];
    let part = Part { index: 4, host: HostId(7), epoch: LeaseEpoch(3), devices: vec![device()] };
    let evict = |job, reason| Move::Evict { job, reason, victims: vec![token()], slots: slots(), choice: 2 };
    let promise = |broken_by| Move::Promise { job, at_ms: NOW_MS + 41, slots: slots(), choice: 3, broken_by };
    vec![
        Move::Start { job, choice: 1, parts: vec![part] },
        evict(Some(job), EndReason::Preempt),
        evict(Some(job), EndReason::Gang),
        evict(None, EndReason::Drain),
        evict(Some(job), EndReason::Move),
        evict(Some(job), EndReason::Reclaim),
        evict(None, EndReason::Ceiling),
        evict(Some(job), EndReason::Turn),
        promise(None),
        promise(Some(PromiseBreak::HostGone)),
        promise(Some(PromiseBreak::Outranked)),
        promise(Some(PromiseBreak::Overrun)),
        Move::Lapse { job },
    ]
}

/// What hosts tell of their cards beside start and end.
fn care_reports() -> Vec<AttemptReport> {
    use ReleaseStep::{Memory, Nodes, Processes, Scrub, Verify};
    let steps = vec![Processes, Nodes, Memory, Scrub, Verify];
    let facts = [
        AttemptFact::Released { release: Release { steps, took_ms: 71, dirty: Some(text("pid 7")) } },
        AttemptFact::Noted { text: text("idle") },
        AttemptFact::HeldIdle { gpu_ms: 81 },
    ];
    facts.into_iter().map(|fact| AttemptReport { token: token(), fact }).collect()
}

fn own_ends() -> Vec<(Token, HostCause)> {
    let causes = [
        HostCause::Vram { asked_mib: 20_480, used_mib: 31_744 },
        HostCause::SharedFault,
        HostCause::Idle { idle_ms: 3_600_000 },
    ];
    causes.into_iter().map(|cause| (token(), cause)).collect()
}

/// The commands that format 2 brought, and the new variants inside older ones.
pub(crate) fn later_commands() -> Vec<(&'static str, Command)> {
    let job = JobId(70_000);
    let adjust = |change| Command::Adjust { job, change };
    let counted = |end| AttemptFact::EndedWith { end, ran_ms: 5_005, used: used() };
    let facts = later_ends().into_iter().map(|end| AttemptFact::Ended { end, ran_ms: 5_005 });
    let reports = facts
        .chain([counted(AttemptEnd::Exited { code: 0 })])
        .map(|fact| AttemptReport { token: token(), fact })
        .collect();
    let closed = QueueSpec { borrows: false, excess: Excess::LetEnd, ..queue_spec() };
    let mut commands = vec![
        ("SetQueue", Command::SetQueue { queue: queue_spec() }),
        ("SetQueue closed", Command::SetQueue { queue: closed }),
        ("RemoveQueue", Command::RemoveQueue { name: text("vision/night") }),
        ("Adjust hold", adjust(JobChange::Hold)),
        ("Adjust release", adjust(JobChange::Release)),
        ("Adjust priority", adjust(JobChange::Priority(61))),
        ("Adjust requeue", adjust(JobChange::Requeue)),
        ("Reserve nobody", Command::Reserve { reservation: reservation(ReservedFor::Nobody) }),
        (
            "Reserve queues",
            Command::Reserve { reservation: reservation(ReservedFor::Queues(vec![text("vision/night")])) },
        ),
        ("Unreserve", Command::Unreserve { name: text("maintenance-7") }),
        (
            "DrainWith",
            Command::DrainWith { host: HostId(7), reason: text("new fans"), evict_at_ms: Some(NOW_MS + 51) },
        ),
        ("Report later ends", Command::Report { host: HostId(7), reports }),
        ("Report care", Command::Report { host: HostId(7), reports: care_reports() }),
        ("EndOwn", Command::EndOwn { host: HostId(7), ends: own_ends() }),
        (
            "CommitPlan later moves",
            Command::CommitPlan { plan: Plan { seen_index: 299, moves: later_moves() } },
        ),
        ("Health", Command::Health { host: HostId(7), report: health_report() }),
        ("Tend cordon", tend(Tending::Cordon { uuid: device(), reason: text("a loud fan") })),
        ("Tend clear", tend(Tending::Clear { uuid: device() })),
        ("Tend cap", tend(Tending::BreakerCap { hosts: Some(3) })),
        ("Tend reset", tend(Tending::BreakerReset)),
        ("RaiseVersion", Command::RaiseVersion { to: 3 }),
    ];
    let layouts = [
        ("Submit any", Layout::Any),
        ("Submit pack", Layout::Pack),
        ("Submit spread", Layout::Spread),
        ("Submit same host", Layout::SameHost),
        ("Submit same island", Layout::SameIsland),
    ];
    let submit = |layout| Command::Submit { spec: JobSpec { layout, service: true, ..JobSpec::default() } };
    commands.extend(layouts.map(|(label, layout)| (label, submit(layout))));
    commands.extend(super::members::commands());
    commands
}

fn tend(tending: Tending) -> Command {
    Command::Tend { tending }
}

/// One finding of each cause and source.
fn health_report() -> HealthReport {
    let sources = [
        Source::Kmsg,
        Source::Nvml,
        Source::Probe,
        Source::Operator,
        Source::CleanCheck,
        Source::Jobs,
        Source::Boot,
    ];
    let finding = |(cause, source)| Finding {
        uuid: device(),
        cause,
        source,
        text: text("Xid 95"),
        program: Some((token(), JobId(70_000))),
        trial_ms: 600_000,
    };
    let pairs = Cause::ALL.into_iter().zip(sources.into_iter().cycle());
    HealthReport { findings: pairs.map(finding).collect(), stopping: true }
}

pub(crate) fn proposal(command: Command) -> Proposal {
    Proposal { request: REQUEST, actor: actor(), command }
}

pub(crate) fn log_chunk() -> LogChunk {
    LogChunk { attempt: token(), offset: 4_096, bytes: vec![0, 10, 255], last: true }
}

pub(crate) fn entry(command: Command) -> Entry {
    Entry { format: LOG_FORMAT, at_ms: NOW_MS, proposals: vec![proposal(command)] }
}

pub(crate) fn entries() -> Vec<(&'static str, Entry)> {
    let commands = commands().into_iter().chain(later_commands());
    let mut entries: Vec<_> = commands.map(|(label, command)| (label, entry(command))).collect();
    let empty = Entry { format: LOG_FORMAT, at_ms: 0, proposals: Vec::new() };
    entries.push(("empty", empty));
    entries
}

pub(crate) fn outcomes() -> Vec<(&'static str, Outcome)> {
    let refusals = [
        Refusal::NotPending,
        Refusal::HostGone,
        Refusal::HostDraining,
        Refusal::DoesNotFit,
        Refusal::ParallelCap,
    ];
    vec![
        ("Done", Outcome::Done),
        ("Refused", Outcome::Refused(error())),
        ("HostAdmitted", Outcome::HostAdmitted { host: HostId(7) }),
        ("HostRegistered", Outcome::HostRegistered { epoch: LeaseEpoch(3) }),
        ("Submitted", Outcome::Submitted { job: JobId(70_000) }),
        ("Planned", Outcome::Planned { refused: (1..).zip(refusals).collect() }),
        ("Cancelling", Outcome::Cancelling { live: 2 }),
    ]
}

/// The refusals that format 2 brought.
pub(crate) fn later_outcomes() -> Vec<(&'static str, Outcome)> {
    let refusals = [
        Refusal::OverCeiling,
        Refusal::GangSize,
        Refusal::NotEvictable,
        Refusal::EvictedTooOften,
        Refusal::Reserved,
        Refusal::NoPorts,
        Refusal::NotYet,
        Refusal::RanTooShort,
    ];
    vec![("Planned later refusals", Outcome::Planned { refused: (1..).zip(refusals).collect() })]
}

pub(crate) fn session_asks() -> Vec<(&'static str, SessionAsk)> {
    let size = TerminalSize { rows: 33, cols: 99 };
    vec![
        (
            "Session start",
            SessionAsk::Start { argv: vec![b"sh".to_vec()], terminal: Some(size), term: b"xterm".to_vec() },
        ),
        (
            "Session send",
            SessionAsk::Send {
                client: 5,
                offset: 300,
                bytes: b"ls\r".to_vec(),
                last: true,
                size: Some(size),
                hold_ms: Some(30_001),
            },
        ),
        (
            "Session read",
            SessionAsk::Read {
                stream: rota_protocol::api::OutputStream::Stderr,
                offset: 301,
                wait_ms: 5_000,
            },
        ),
        ("Session close", SessionAsk::Close),
    ]
}

pub(crate) fn session_news() -> SessionNews {
    SessionNews {
        attempt: token(),
        taken: 302,
        stdout: 303,
        stderr: 304,
        chunk: Some(log_chunk()),
        end: Some(SessionEnd::NotStarted { reason: text("program not found") }),
    }
}
