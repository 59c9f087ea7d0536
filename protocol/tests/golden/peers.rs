//! The fixed values: between peers, and in the spool.

use crate::values::*;
use rota_protocol::api::OutputStream;
use rota_protocol::around::{Around, EndHook, RuntimeOrder, TaskFile};
use rota_protocol::cage::{Cage, Controller, DeviceRule, Group, Isolation};
use rota_protocol::command::Command;
use rota_protocol::device::DeviceReading;
use rota_protocol::frame::{self, FrameKind, Hello};
use rota_protocol::gossip::*;
use rota_protocol::job::EndReason;
use rota_protocol::lead::{LeadAsk, LeadMoved, LeadNews};
use rota_protocol::peer::*;
use rota_protocol::session::{HookOrder, LifeOrder, SessionSpec, TerminalSize};
use rota_protocol::spool::*;
use rota_protocol::*;

pub(crate) fn peer_requests() -> Vec<(&'static str, PeerRequest)> {
    let raft = |call| PeerRequest::Raft { call, body: vec![1, 0xff, 3] };
    vec![
        ("Raft append", raft(RaftCall::Append)),
        ("Raft vote", raft(RaftCall::Vote)),
        ("Raft snapshot", raft(RaftCall::Snapshot)),
        ("Raft transfer", raft(RaftCall::Transfer)),
        ("Raft follow", raft(RaftCall::Follow)),
        ("Raft compare", raft(RaftCall::Compare)),
        (
            "Propose",
            PeerRequest::Propose { proposals: vec![proposal(Command::UndrainHost { host: HostId(7) })] },
        ),
        ("ReadIndex", PeerRequest::ReadIndex),
        ("Renew", PeerRequest::Renew { host: HostId(7), epoch: LeaseEpoch(3), relayed: true }),
        (
            "ReadLog",
            PeerRequest::ReadLog {
                attempt: token(),
                stream: OutputStream::Stderr,
                offset: 4_096,
                wait_ms: 20_000,
            },
        ),
        ("Signal", PeerRequest::Signal { attempt: token(), signal: 15 }),
        ("FindLog", PeerRequest::FindLog { attempt: token(), stream: OutputStream::Stderr, lines: 20 }),
        (
            "Session",
            PeerRequest::Session {
                job: JobId(70_000),
                attempt: token(),
                actor: actor(),
                session: 9,
                ask: session_asks().remove(1).1,
            },
        ),
        ("Lead fit", PeerRequest::Lead(LeadAsk::Fit)),
        ("Lead move", PeerRequest::Lead(LeadAsk::Move { to: Some(HostId(2)) })),
        ("Authority", super::trust::peer_request()),
        ("Hail", PeerRequest::Hail(super::members::peer_life())),
        ("Clock", PeerRequest::Clock),
        ("Renewals", super::members::renewals()),
        ("FindTask", PeerRequest::FindTask { task: TaskId { job: JobId(70_000), index: 3 } }),
    ]
    .into_iter()
    .chain(super::data::peer_requests())
    .collect()
}

/// Labels of the answers to a hail.
pub(crate) const ADMISSIONS: [&str; 7] =
    ["let in", "not yet", "removed", "in use", "copied", "older", "other data"];

pub(crate) fn peer_replies() -> Vec<(&'static str, PeerReply)> {
    let admissions = super::members::admissions().into_iter().map(|one| PeerReply::Admission(Box::new(one)));
    let mut replies = vec![
        ("Raft", PeerReply::Raft { body: vec![1, 0xff, 3] }),
        (
            "Proposed",
            PeerReply::Proposed { outcomes: outcomes().into_iter().map(|(_, outcome)| outcome).collect() },
        ),
        ("NotLeader", PeerReply::NotLeader { leader: Some(HostId(2)) }),
        ("ReadIndex", PeerReply::ReadIndex { index: 301 }),
        ("Renewed", PeerReply::Renewed),
        ("Log", PeerReply::Log(log_chunk())),
        ("Done", PeerReply::Done),
        ("Refused", PeerReply::Refused(error())),
        ("LogAt", PeerReply::LogAt { offset: 4_097 }),
        ("Session", PeerReply::Session(Box::new(session_news()))),
        ("Lead fit", PeerReply::Lead(LeadNews::Fit)),
        (
            "Lead moved",
            PeerReply::Lead(LeadNews::Moved(LeadMoved { from: HostId(1), to: HostId(2), took_ms: 31 })),
        ),
        ("Authority", super::trust::peer_reply()),
        ("Renewals", super::members::renewed()),
    ];
    replies.extend(ADMISSIONS.into_iter().zip(admissions));
    replies.push(("Attempts", PeerReply::Attempts(vec![token()])));
    replies.extend(super::data::peer_replies());
    replies.push(("Clock", PeerReply::Clock { boot: BootId(7), boottime_us: 86_400_000_000 }));
    replies
}

pub(crate) fn join_requests() -> Vec<(&'static str, JoinRequest)> {
    let request = JoinRequest {
        token: text("rota-join-00-11").into(),
        host_name: text("gpu-07"),
        addr: text("10.0.0.7:7600"),
        public_key_der: vec![0x30, 0x59],
    };
    vec![("request", request)]
}

pub(crate) fn join_listenings() -> Vec<(&'static str, JoinListening)> {
    join_requests()
        .into_iter()
        .map(|(label, request)| (label, JoinListening { request, key: [7; 32] }))
        .collect()
}

pub(crate) fn join_replies() -> Vec<(&'static str, JoinReply)> {
    let grant = JoinGrant {
        cluster: CLUSTER,
        cluster_name: text("prod"),
        host: HostId(7),
        certificate_pem: text("cert"),
        ca_pem: text("ca"),
        ca_key_pem: text("key").into(),
        peers: vec![(HostId(1), text("10.0.0.1:7600"))],
    };
    vec![("Granted", JoinReply::Granted(Box::new(grant))), ("Refused", JoinReply::Refused(error()))]
}

pub(crate) fn hellos() -> Vec<(&'static str, Hello)> {
    let peer = Hello {
        version_min: 1,
        version_max: 2,
        cluster: Some(CLUSTER),
        host: Some(HostId(7)),
        build: text("rota 0.1.0"),
    };
    let client = Hello { cluster: None, host: None, ..peer.clone() };
    vec![("peer", peer), ("client", client)]
}

/// Whole frames, header and body: the header itself is written by hand, not by the codec.
pub(crate) fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |kind, body: &[u8]| frame::frame(1, kind, body).unwrap();
    vec![
        ("Hello", frame(FrameKind::Hello, &[1, 2, 3])),
        ("PeerRequest", frame(FrameKind::PeerRequest, &[])),
        ("PeerReply", frame(FrameKind::PeerReply, &[])),
        ("ApiCall", frame(FrameKind::ApiCall, &[])),
        ("ApiAnswer", frame(FrameKind::ApiAnswer, &[])),
        ("Gossip", frame(FrameKind::Gossip, &[])),
        ("JoinRequest", frame(FrameKind::JoinRequest, &[])),
        ("JoinReply", frame(FrameKind::JoinReply, &[])),
        ("Shim", frame(FrameKind::Shim, &[0; 258])),
    ]
}

pub(crate) fn status_digests() -> Vec<(&'static str, StatusDigest)> {
    let digest = StatusDigest {
        host: HostId(7),
        incarnation: NOW_MS,
        version: 12,
        boot: BOOT,
        at_ms: NOW_MS + 3,
        addr: text("10.0.0.7:7600"),
        applied: 301,
        attempts: 4,
        load_milli: 1_500,
        devices: vec![
            reading(),
            DeviceReading {
                uuid: device(),
                busy_permille: None,
                vram_used_mib: None,
                temperature_c: None,
                power_mw: None,
                clock_permille: None,
            },
        ],
    };
    vec![("digest", digest)]
}

pub(crate) fn gossip_packets() -> Vec<(&'static str, GossipPacket)> {
    let packet = GossipPacket { bytes: vec![1, 0xff, 3] };
    vec![("packet", packet)]
}

pub(crate) fn gossip_members() -> Vec<(&'static str, GossipMember)> {
    let member = GossipMember { host: HostId(7), incarnation: NOW_MS, addr: text("10.0.0.7:7600") };
    vec![("member", member)]
}

pub(crate) fn launch_orders() -> Vec<(&'static str, LaunchOrder)> {
    let order = LaunchOrder {
        cluster: CLUSTER,
        host: HostId(7),
        epoch: LeaseEpoch(3),
        token: token(),
        task: task(),
        argv: vec![b"python".to_vec()],
        env: vec![(b"CUDA_VISIBLE_DEVICES".to_vec(), b"GPU-5c3f0d6e".to_vec())],
        workdir: b"/home/ada".to_vec(),
        uid_gid: Some((1_000, 1_001)),
        devices: vec![device()],
        time_limit_ms: Some(3_600_000),
        grace_ms: 30_000,
        kill_budget_ms: 5_000,
        lease_path: b"/var/lib/rota/lease/lease".to_vec(),
        notes_base: b"/var/lib/rota/tasks/9".to_vec(),
        warning: Some(rota_protocol::work::Warning { signal: 10, before_ms: 60_000, leader_only: true }),
        requeue_status: Some(75),
        gang: b"size=2\n".to_vec(),
        output: super::output::order(),
        life: LifeOrder {
            user: text("ada"),
            hooks: HookOrder {
                prolog: b"/etc/rota/prolog".to_vec(),
                epilog: b"/etc/rota/epilog".to_vec(),
                timeout_ms: 60_003,
            },
            session: Some(SessionSpec { size: TerminalSize { rows: 24, cols: 80 }, hold_ms: Some(30_001) }),
            idle_ms: Some(7_200_000),
        },
        around: Around {
            files: vec![TaskFile { name: text("env"), bytes: b"A=1\n".to_vec(), private: true }],
            ports: (24_016, 16),
            runtime: Some(RuntimeOrder {
                name: text("podman"),
                passes_signals: true,
                failed_status: Some(125),
                remove: Some(EndHook {
                    argv: vec![b"/usr/bin/podman".to_vec(), b"rm".to_vec()],
                    env: vec![(b"HOME".to_vec(), b"/home/ada".to_vec())],
                    uid_gid: Some((1_000, 1_001)),
                }),
            }),
        },
        inputs: b"/var/lib/rota/inputs/9".to_vec(),
        cage: cage(),
    };
    vec![("order", order)]
}

pub(crate) fn shim_records() -> Vec<(&'static str, ShimRecord)> {
    let record =
        ShimRecord { cluster: CLUSTER, token: token(), epoch: LeaseEpoch(3), boot: BOOT, shim_pid: 4_241 };
    vec![("record", record)]
}

fn cage() -> Cage {
    Cage {
        isolation: Isolation::Full,
        groups: vec![Group {
            controller: Controller::Memory,
            path: b"/sys/fs/cgroup/memory/rota-1-2/9".to_vec(),
        }],
        mem_mib: 2_048,
        cpus_milli: 1_500,
        cpus_hard: true,
        pids: 16_384,
        devices: DeviceRule::Program,
        nodes: vec![b"/dev/nvidia1".to_vec()],
        probe: Some(b"/dev/nvidia0".to_vec()),
        private_tmp: true,
        private_ipc: false,
        hidden: vec![b"/var/lib/rota/identity".to_vec()],
        keep_caps: true,
        nofile: 65_536,
        nproc: 4_096,
    }
}

pub(crate) fn exit_records() -> Vec<(&'static str, ExitRecord)> {
    let labels = [
        "Exited",
        "Signalled",
        "TimeLimit",
        "Cancelled",
        "Preempted",
        "LaunchFailed",
        "Fenced",
        "Lost",
        "Vanished",
        "Requeued",
        "GangBroken",
        "HostStopped",
        "OutOfMemory",
    ];
    let record = |end| ExitRecord {
        token: token(),
        end,
        ran_ms: 5_005,
        stdout_bytes: 100,
        stderr_bytes: 200,
        dropped_bytes: 300,
        used: used(),
    };
    labels.into_iter().zip(ends().into_iter().chain(later_ends()).map(record)).collect()
}

pub(crate) fn shim_calls() -> Vec<(&'static str, ShimCall)> {
    vec![
        ("End cancel", ShimCall::End { reason: EndReason::Cancel }),
        ("End preempt", ShimCall::End { reason: EndReason::Preempt }),
        ("Signal", ShimCall::Signal { signal: 10 }),
        ("Attach", ShimCall::Attach),
        ("Sessions", ShimCall::Sessions),
        ("End gang", ShimCall::End { reason: EndReason::Gang }),
        ("End drain", ShimCall::End { reason: EndReason::Drain }),
        ("End move", ShimCall::End { reason: EndReason::Move }),
        ("End reclaim", ShimCall::End { reason: EndReason::Reclaim }),
        ("End ceiling", ShimCall::End { reason: EndReason::Ceiling }),
        ("End vram", ShimCall::End { reason: EndReason::Vram }),
        ("End shared fault", ShimCall::End { reason: EndReason::SharedFault }),
        ("End idle", ShimCall::End { reason: EndReason::Idle }),
        ("End turn", ShimCall::End { reason: EndReason::Turn }),
    ]
}

pub(crate) fn shim_events() -> Vec<(&'static str, ShimEvent)> {
    let ended = exit_records().remove(0).1;
    vec![
        ("Started", ShimEvent::Started { shim_pid: 4_241, task_pid: 4_242 }),
        ("Output", ShimEvent::Output { stdout: 100, stderr: 200 }),
        ("Ended", ShimEvent::Ended(ended)),
        ("Stuck", ShimEvent::Stuck { left: 2 }),
        ("ShimDied", ShimEvent::ShimDied),
        ("Exists", ShimEvent::Exists),
        ("Preparing", ShimEvent::Preparing { shim_pid: 4_243 }),
        ("EpilogFailed", ShimEvent::EpilogFailed { reason: text("epilog: exit 1") }),
        ("Session", ShimEvent::Session),
    ]
}
