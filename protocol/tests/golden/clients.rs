//! The fixed values: between clients and peers.

use crate::values::*;
use rota_protocol::api::*;
use rota_protocol::care::*;
use rota_protocol::change::{Changes, StateChange};
use rota_protocol::command::{JobChange, TokenUse};
use rota_protocol::health::*;
use rota_protocol::job::*;
use rota_protocol::lead::LeadMoved;
use rota_protocol::plan::PromiseBreak;
use rota_protocol::reservation::{ReservationAsk, ReservedFor};
use rota_protocol::session::SessionCall;
use rota_protocol::view::*;
use rota_protocol::why::*;
use rota_protocol::work::Relation;
use rota_protocol::*;
use std::collections::BTreeMap;

pub(crate) fn errors() -> Vec<(&'static str, PublicError)> {
    let plain = |code| PublicError::new(code, "m");
    vec![
        ("full", error()),
        ("Invalid", plain(ErrorCode::Invalid)),
        ("NotFound", plain(ErrorCode::NotFound)),
        ("Unauthenticated", plain(ErrorCode::Unauthenticated)),
        ("Forbidden", plain(ErrorCode::Forbidden)),
        ("Conflict", plain(ErrorCode::Conflict)),
        ("Busy", plain(ErrorCode::Busy)),
        ("NoLeader", plain(ErrorCode::NoLeader)),
        ("Unknown", plain(ErrorCode::Unknown)),
        ("TooLarge", plain(ErrorCode::TooLarge)),
        ("Version", plain(ErrorCode::Version)),
        ("StorageFull", plain(ErrorCode::StorageFull)),
        ("Internal", plain(ErrorCode::Internal)),
    ]
}

pub(crate) fn api_calls() -> Vec<(&'static str, ApiCall)> {
    let filter = QueueFilter {
        user: Some(text("ada")),
        states: vec![JobState::Pending, JobState::Running],
        all: true,
        after: Some(JobId(9)),
        limit: Some(50),
    };
    let stale = Freshness::Stale;
    let request = REQUEST;
    let job = JobId(70_000);
    let requests = vec![
        ("Authenticate", ApiRequest::Authenticate { token: text("t").into() }),
        ("Submit", ApiRequest::Submit { jobs: vec![(request, spec())] }),
        ("Cancel", ApiRequest::Cancel { request, job, index: Some(4) }),
        ("Signal", ApiRequest::Signal { job, index: None, signal: 10 }),
        ("Queue", ApiRequest::Queue { filter, freshness: Freshness::Linearizable }),
        ("Show", ApiRequest::Show { job, freshness: stale }),
        ("Why", ApiRequest::Why { job }),
        ("Watch", ApiRequest::Watch { job }),
        (
            "Logs",
            ApiRequest::Logs {
                job,
                index: 4,
                attempt: Some(token()),
                stream: OutputStream::Stdout,
                offset: 4_096,
                follow: true,
            },
        ),
        ("Hosts", ApiRequest::Hosts { freshness: stale }),
        ("Devices", ApiRequest::Devices { freshness: stale }),
        ("Drain", ApiRequest::Drain { request, host: text("gpu-07"), reason: text("new fans") }),
        ("Undrain", ApiRequest::Undrain { request, host: text("7") }),
        ("Cluster", ApiRequest::Cluster { freshness: stale }),
        (
            "MintToken",
            ApiRequest::MintToken { request, usage: TokenUse::Join { host_name: None }, ttl_ms: 3_600_000 },
        ),
        ("Doctor", ApiRequest::Doctor),
        ("Digest", ApiRequest::Digest { at_least: 301 }),
        ("Me", ApiRequest::Me),
        ("SubmitNoted", ApiRequest::SubmitNoted { jobs: vec![(request, spec())] }),
        ("SetQueue", ApiRequest::SetQueue { request, queue: queue_spec() }),
        ("RemoveQueue", ApiRequest::RemoveQueue { request, name: text("vision/night") }),
        ("Queues", ApiRequest::Queues { freshness: stale }),
        ("Adjust", ApiRequest::Adjust { request, job, change: JobChange::Priority(61) }),
        ("Reserve", ApiRequest::Reserve { request, reservation: reservation_ask() }),
        ("Unreserve", ApiRequest::Unreserve { request, name: text("maintenance-7") }),
        ("Reservations", ApiRequest::Reservations { freshness: stale }),
        ("Idle", ApiRequest::Idle(stale)),
        (
            "DrainWith",
            ApiRequest::DrainWith {
                request,
                host: text("gpu-07"),
                reason: text("new fans"),
                evict_in_ms: Some(300_000),
            },
        ),
        ("Output", ApiRequest::Output { ask: super::output::ask() }),
        ("Tend", ApiRequest::Tend { request, tending: Tending::Clear { uuid: device() } }),
        ("MoveLead", ApiRequest::MoveLead { to: Some(text("gpu-07")) }),
        ("Changes", ApiRequest::Changes { after: Some(301) }),
        ("Hosts within", ApiRequest::Hosts { freshness: Freshness::Within(2_000) }),
        ("Usage", ApiRequest::Usage(stale)),
    ];
    let requests: Vec<_> =
        requests.into_iter().chain(super::trust::requests()).chain(super::data::requests()).collect();
    let session = |(label, ask)| {
        let call = SessionCall { job: JobId(70_000), index: 3, attempt: Some(token()), session: 9, ask };
        (label, ApiRequest::Session(Box::new(call)))
    };
    let requests = requests.into_iter().chain(session_asks().into_iter().map(session));
    let requests = requests
        .chain(super::members::asks().into_iter().map(|(label, ask)| (label, ApiRequest::Members(ask))));
    (1_000..).zip(requests).map(|(seq, (label, request))| (label, ApiCall { seq, request })).collect()
}

fn reservation_ask() -> ReservationAsk {
    ReservationAsk {
        name: text("maintenance-7"),
        hosts: vec![text("gpu-07"), text("8")],
        start_ms: NOW_MS + 31,
        end_ms: NOW_MS + 32,
        kept_for: ReservedFor::Queues(vec![text("vision")]),
        reason: text("new fans"),
    }
}

fn accepted() -> Accepted {
    Accepted {
        job: JobId(70_000),
        queue: text("vision/night"),
        time_limit_ms: Some(7_200_000),
        notes: vec![text("time limit 2h")],
    }
}

fn queue_row() -> QueueRow {
    QueueRow {
        spec: queue_spec(),
        held: amounts(40),
        tasks_waiting: 1,
        jobs_open: 2,
        tasks_running: 3,
        used_gpu_ms: 4,
        used_cpu_ms: 5,
        share_permille: 750,
    }
}

fn reservation_row() -> ReservationRow {
    ReservationRow {
        spec: reservation(ReservedFor::Nobody),
        host_names: vec![text("gpu-07"), text("gpu-08")],
        active: true,
        foreign_tasks: 1,
    }
}

fn job_row(state: JobState) -> JobRow {
    JobRow {
        job: JobId(70_000),
        name: text("train"),
        tenant: text("vision"),
        user: text("ada"),
        state,
        priority: 60,
        submitted_ms: NOW_MS,
        started_ms: Some(NOW_MS + 10),
        ended_ms: Some(NOW_MS + 20),
        tasks: TaskCounts { pending: 1, live: 2, succeeded: 3, failed: 4, cancelled: 5 },
        ask: text("2 gpu"),
        place: text("gpu-07"),
    }
}

fn job_view() -> JobView {
    JobView {
        index: 301,
        row: job_row(JobState::Running),
        spec: spec(),
        attempts: vec![AttemptRow {
            token: token(),
            task: task(),
            host: HostId(7),
            host_name: text("gpu-07"),
            devices: vec![device_facts()],
            state: Some(AttemptState::Ending),
            end: Some(AttemptEnd::Fenced),
            granted_ms: NOW_MS + 5,
            started_ms: Some(NOW_MS + 10),
            ended_ms: Some(NOW_MS + 15),
            pid: Some(4_242),
            used: used(),
            care: Some(Box::new(Care {
                release: Some(Release { steps: vec![ReleaseStep::Memory], took_ms: 9, dirty: None }),
                notes: vec![text("idle")],
                cause: Some(HostCause::SharedFault),
                idle_gpu_ms: 10,
            })),
            asked: Some(EndReason::Preempt),
            number: 2,
        }],
        attempts_forgotten: 8,
        exit_status: Some(125),
        host_deaths: 3,
        held_for_deaths: true,
        paused: Some(Paused { until_ms: 9, tasks: 3 }),
    }
}

fn why_view() -> WhyView {
    WhyView {
        index: 301,
        job: JobId(70_000),
        state: JobState::Pending,
        verdict: text("no host is free"),
        impossible: true,
        ask: text("2 gpu"),
        hosts: 9,
        by_reason: vec![WhyReason {
            kind: text("gpus_busy"),
            hosts: 8,
            detail: text("asks 2 GPUs, 1 is free"),
        }],
        ahead_tasks: 11,
        ahead_gpus: 22,
        largest_offer: Some(text("1 gpu")),
        hint: Some(text("ask for 1")),
        waited_ms: 5_000,
        cause: text("gpus_busy"),
        expected: Some(WhyStart {
            at_ms: NOW_MS + 9,
            basis: StartBasis::AssumedLimits,
            hosts: vec![text("gpu-07")],
        }),
        promise: Some(WhyPromise {
            at_ms: NOW_MS + 10,
            made_ms: NOW_MS,
            broken_by: Some(PromiseBreak::Outranked),
            broken_now: Some(PromiseBreak::HostGone),
            hosts: vec![text("gpu-08"), text("2 more")],
        }),
        victims: 3,
        account: vec![WhyAccount {
            queue: text("lab/vision"),
            of_user: true,
            part: text("gpus"),
            held: 4_000,
            ceiling: Some(5_000),
            guarantee: 1_000,
            full: true,
        }],
        dependencies: vec![WhyDependency {
            job: JobId(69_999),
            relation: Relation::NotOk,
            each: true,
            state: JobState::Running,
        }],
        held: true,
        begin_ms: Some(NOW_MS + 1),
        deadline_ms: Some(NOW_MS + 2),
        paused_until_ms: Some(NOW_MS + 3),
        parallel_max: Some(4),
        parts: Some(WhyParts { needed: 6, fit: 5 }),
        smaller_ask: Some(text("1 gpu on gpu-07")),
        shorter_limit_ms: Some(60_000),
        waits: vec![WhyWait { cause: text("room"), ms: 5_000 }],
        more: super::further::more(),
    }
}

fn host_row(state: HostState) -> HostRow {
    HostRow {
        host: HostId(7),
        name: text("gpu-07"),
        addr: text("10.0.0.7:7600"),
        state,
        reason: Some(text("new fans")),
        boot: BOOT,
        epoch: LeaseEpoch(3),
        cpus_milli: 64_000,
        cpus_milli_used: 4_000,
        mem_mib: 515_000,
        mem_mib_used: 65_536,
        gpus: 8,
        gpus_used: 2,
        attempts: 1,
        labels: map(&[("rack", "r1")]),
        version: text("0.1.0"),
        warnings: vec![text("a card is slow")],
        care: HostCareView { fault: Some(reason()), alert: Some(reason()), failed_jobs: 3, shunned: true },
    }
}

fn reason() -> Reason {
    let (cause, source) = (Cause::NodeFault, Source::Kmsg);
    Reason { cause, source, text: text("Xid 79"), at_ms: NOW_MS + 4 }
}

fn mark_view() -> MarkView {
    MarkView {
        stage: Stage::Probation,
        since_ms: NOW_MS + 1,
        until_ms: Some(NOW_MS + 2),
        cordon: Some(Reason { source: Source::Operator, ..reason() }),
        reasons: vec![reason()],
        resets: 2,
    }
}

fn cluster_view() -> ClusterView {
    ClusterView {
        cluster: CLUSTER,
        name: text("prod"),
        answered_by: HostId(7),
        leader: Some(HostId(2)),
        term: 5,
        applied: 301,
        state_hash: 0x1234_5678_9abc_def0,
        linearizable: true,
        peers: vec![PeerRow {
            host: HostId(2),
            name: text("gpu-02"),
            addr: text("10.0.0.2:7600"),
            role: text("leader"),
            seen: text("alive"),
        }],
        jobs: BTreeMap::from([(text("pending"), 3)]),
        breaker: BreakerView {
            taken_out: vec![HostId(7)],
            cap: 2,
            open_since_ms: Some(NOW_MS + 3),
            alerts: 5,
        },
        log: LogUse { written_bytes: 4_096, fsyncs: 6, snapshot_bytes: 9 },
        members: super::members::view(),
    }
}

pub(crate) fn api_answers() -> Vec<(&'static str, ApiAnswer)> {
    let states = [
        JobState::Pending,
        JobState::Running,
        JobState::Ending,
        JobState::Succeeded,
        JobState::Failed,
        JobState::Cancelled,
    ];
    let later_states = [
        JobState::TimedOut,
        JobState::Preempted,
        JobState::DependencyFailed,
        JobState::DeadlineMissed,
        JobState::HostLost,
    ];
    let host_states =
        [HostState::Joining, HostState::Up, HostState::Draining, HostState::Suspended, HostState::Lost];
    let later_host_states = [HostState::Faulty, HostState::Shunned];
    let replies = vec![
        ("Done", ApiReply::Done),
        ("Submitted", ApiReply::Submitted(vec![Ok(JobId(70_000)), Err(error())])),
        ("Cancelling", ApiReply::Cancelling { live: 2 }),
        (
            "Queue",
            ApiReply::Queue {
                index: 301,
                rows: states.into_iter().map(job_row).collect(),
                next: Some(JobId(70_000)),
            },
        ),
        ("Job", ApiReply::Job(Box::new(job_view()))),
        ("Why", ApiReply::Why(Box::new(why_view()))),
        ("Changed", ApiReply::Changed(Box::new(job_row(JobState::Failed)))),
        ("Log", ApiReply::Log(log_chunk())),
        ("Hosts", ApiReply::Hosts { index: 301, rows: host_states.into_iter().map(host_row).collect() }),
        (
            "Devices",
            ApiReply::Devices {
                index: 301,
                rows: vec![DeviceRow {
                    host: HostId(7),
                    host_name: text("gpu-07"),
                    facts: device_facts(),
                    held_by: vec![DeviceHold { task: task(), token: token(), milli: 500, vram_mib: 40_000 }],
                    reading: Some(reading()),
                    mark: Some(mark_view()),
                    offered: true,
                }],
            },
        ),
        ("Cluster", ApiReply::Cluster(Box::new(cluster_view()))),
        ("Token", ApiReply::Token { secret: text("s").into() }),
        (
            "Doctor",
            ApiReply::Doctor(vec![DoctorRow {
                check: text("nvml"),
                verdict: text("fail"),
                found: text("no driver"),
                next: Some(text("install it")),
            }]),
        ),
        ("Digest", ApiReply::Digest { index: 301, rolling: 17, full: 18, host: HostId(7) }),
        ("Me", ApiReply::Me { actor: actor(), last: Some(JobId(70_000)) }),
        (
            "Queue later states",
            ApiReply::Queue { index: 301, rows: later_states.into_iter().map(job_row).collect(), next: None },
        ),
        ("Accepted", ApiReply::Accepted(vec![Ok(accepted()), Err(error())])),
        ("Queues", ApiReply::Queues { index: 301, rows: vec![queue_row()] }),
        ("Reservations", ApiReply::Reservations { index: 301, rows: vec![reservation_row()] }),
        ("LogNote", ApiReply::LogNote(super::output::begins())),
        ("LogNote unreachable", ApiReply::LogNote(super::output::unreachable())),
        ("Session", ApiReply::Session(Box::new(session_news()))),
        (
            "Hosts later states",
            ApiReply::Hosts { index: 301, rows: later_host_states.into_iter().map(host_row).collect() },
        ),
        (
            "Idle",
            ApiReply::Idle(vec![IdleRow {
                tenant: text("vision"),
                user: text("ada"),
                gpu_ms: 91,
                now: vec![task()],
            }]),
        ),
        ("LeadMoved", ApiReply::LeadMoved(LeadMoved { from: HostId(1), to: HostId(2), took_ms: 31 })),
        (
            "Changes",
            ApiReply::Changes(Changes {
                upto: 305,
                changes: vec![StateChange { index: 302, job: JobId(70_000), state: JobState::Running }],
            }),
        ),
        ("Aged", ApiReply::Aged { age_ms: 120, reply: Box::new(ApiReply::Done) }),
        ("Trust", super::trust::reply()),
        ("Usage", super::further::usage()),
    ];
    let members = super::members::answers().into_iter();
    let replies =
        replies.into_iter().chain(members.map(|(label, answer)| (label, ApiReply::Members(answer))));
    let replies = replies.chain(super::data::replies());
    let mut answers: Vec<_> = (1_000..)
        .zip(replies)
        .map(|(seq, (label, reply))| {
            let answer = ApiAnswer { seq, more: seq % 2 == 0, result: Ok(reply) };
            (label, answer)
        })
        .collect();
    let refused = ApiAnswer { seq: 7, more: false, result: Err(error()) };
    answers.push(("refused", refused));
    answers
}
