//! Specs that are refused (FAULTS 6, "Job spec"): each names the field, the value and one that would do. And the
//! nearest ones that are not.

use crate::lab::{Lab, job_spec, user};
use rota_core::spec::validate;
use rota_protocol::job::JobSpec;
use rota_protocol::limits::{
    ALTERNATIVES_MAX, DEPENDENCIES_MAX, GANG_PARTS_MAX, GPUS_PER_TASK_MAX, GRACE_MS_MAX, RETRIES_MAX,
    TIME_LIMIT_MS_MAX, WARN_MS_MAX,
};
use rota_protocol::work::{GangSpec, Warning};
use rota_protocol::{ErrorCode, JobId};

/// Lines that are refused with field and a word of the message, and beside each the nearest that is accepted.
const LINES: [(&str, &str, &str, &str); 35] = [
    ("gpu_milli=1001", "ask.gpus", "1.001", "gpu_milli=1000"),
    ("gpu_milli=2500", "ask.gpus", "2.5", "gpu_milli=999"),
    ("gpus=129", "ask.gpus", "129", "gpus=128"),
    ("gpus=4000000", "ask.gpus", "4000000", "gpus=0"),
    ("vram=1GiB", "ask.vram", "1024 MiB", "gpus=1 vram=1GiB"),
    ("gpus=1 vram=1025TiB", "ask.vram", "1074790400", "gpus=1 vram=1024TiB"),
    ("mem=1025TiB", "ask.mem", "1074790400", "mem=1024TiB"),
    ("gpu_milli=500 mig=1", "ask.devices", "together", "gpus=1 mig=1"),
    ("gpu_milli=500 mig:1g.10gb=1", "ask.devices", "together", "mig:1g.10gb=1"),
    ("model=H100", "ask.model", "H100", "gpus=1 model=H100"),
    ("prefer=H100", "ask.model", "H100", "gpus=1 prefer=H100"),
    ("mig=129", "ask.devices", "129", "mig=128"),
    ("mig:3g.40gb=0", "ask.devices", "0 mig:3g.40gb", "mig:3g.40gb=1"),
    ("npu=1", "ask.devices", "npu", "fpga=1"),
    ("gpus=1 or=gpu_milli~1500", "alternatives.1.gpus", "1.5", "gpus=1 or=gpu_milli~500"),
    ("gpus=1 or=gpus~2 or=model~L4", "alternatives.2.model", "L4", "gpus=1 or=gpus~2 or=gpus~1;model~L4"),
    ("gang=0", "gang", "0..0", "gang=1"),
    ("gang=0..4", "gang", "0..4", "gang=1..4"),
    ("gang=4..2", "gang", "4..2", "gang=2..4"),
    ("gang=1025", "gang", "1025", "gang=1024"),
    ("gang=2..1000000", "gang", "1000000", "gang=2..1024"),
    ("gang=2 array=0-3", "gang", "not both", "gang=2"),
    ("gang=2 layout=same-host or=cpus~1", "alternatives", "one ask", "gang=2 layout=same-host"),
    ("after=ok:0", "after", "job 0", "after=ok:1"),
    ("after=ok:7,ok:7", "after", "ok:7", "after=ok:7,any:7"),
    ("after=each-ok:7", "after", "7", "array=0-1 after=each-ok:7"),
    ("queue=a//b", "queue", "a//b", "queue=a/b"),
    ("queue=/a", "queue", "/a", "queue=a"),
    ("queue=a/b/c/d/e/f/g/h/i", "queue", "a/b/c", "queue=a/b/c/d/e/f/g/h"),
    ("begin=10 deadline=10", "deadline", "begin itself", "begin=10 deadline=11"),
    ("begin=3600010 deadline=10", "deadline", "1 h before the begin", "begin=3600010 deadline=3600011"),
    ("requeue_status=0", "requeue_status", "0", "requeue_status=1"),
    ("service=yes array=0-1", "service", "array", "service=yes gang=2 after=any:1"),
    ("array=0-9999999%3 prio=101", "priority", "101", "array=0-9999999%3 prio=100"),
    ("limit=316224001", "time_limit", "316224001000", "limit=316224000"),
];

#[test]
fn refused_and_accepted_lines() {
    for (bad, field, word, good) in LINES {
        let error = validate(&job_spec(bad)).expect_err(bad);
        assert_eq!((error.code, error.field.as_deref()), (ErrorCode::Invalid, Some(field)), "{bad}: {error}");
        assert!(error.message.contains(word), "{bad}: {error}");
        assert!(error.example.as_ref().is_some_and(|example| !example.is_empty()), "{bad}");
        assert!(!error.message.ends_with('.'), "{bad}: {error}");
        assert_eq!(validate(&job_spec(good)), Ok(()), "{good}");
    }
}

/// What the line language cannot say.
#[test]
fn refused_and_accepted_values() {
    type Change = fn(&mut JobSpec);
    let cases: [(&str, Change, &str, Change); 20] = [
        ("warn", |s| s.warning = warning(0, 1), "0 is no signal", |s| s.warning = warning(1, 0)),
        ("warn", |s| s.warning = warning(65, 1), "65", |s| s.warning = warning(64, 1)),
        (
            "warn",
            |s| s.warning = warning(10, WARN_MS_MAX + 1),
            "86400001",
            |s| s.warning = warning(10, WARN_MS_MAX),
        ),
        ("grace", |s| s.grace_ms = Some(GRACE_MS_MAX + 1), "3600001", |s| s.grace_ms = Some(GRACE_MS_MAX)),
        ("retries", |s| s.retries = u16::MAX, "65535", |s| s.retries = RETRIES_MAX),
        ("time_limit", |s| s.time_limit_ms = Some(0), "zero", |s| s.time_limit_ms = Some(1)),
        (
            "time_limit",
            |s| s.time_limit_ms = Some(u64::MAX),
            "18446744073709551615",
            |s| s.time_limit_ms = Some(TIME_LIMIT_MS_MAX),
        ),
        (
            "ask.compute_cap",
            |s| s.ask.compute_cap_min = 80,
            "8.0",
            |s| (s.ask.gpu_milli, s.ask.compute_cap_min) = (1_000, 80),
        ),
        (
            "ask.compute_cap",
            |s| (s.ask.gpu_milli, s.ask.compute_cap_min) = (1_000, 1_000),
            "1000",
            |s| (s.ask.gpu_milli, s.ask.compute_cap_min) = (1_000, 999),
        ),
        (
            "ask.gpus",
            |s| s.ask.gpu_milli = u32::MAX,
            "4294967.295",
            |s| s.ask.gpu_milli = GPUS_PER_TASK_MAX * 1_000,
        ),
        (
            "ask.labels",
            |s| drop(s.ask.labels.insert(String::new(), "x".into())),
            "without a name",
            |s| drop(s.ask.labels.insert("x".into(), String::new())),
        ),
        (
            "ask.labels",
            |s| s.ask.labels = (0..65).map(|n| (n.to_string(), String::new())).collect(),
            "65",
            |s| s.ask.labels = (0..64).map(|n| (n.to_string(), String::new())).collect(),
        ),
        (
            "ask.model",
            |s| (s.ask.gpu_milli, s.ask.gpu_models) = (1_000, vec![" ".into()]),
            "empty",
            // A pattern is plain text, and matches nothing.
            |s| (s.ask.gpu_milli, s.ask.gpu_models) = (1_000, vec![".*".into()]),
        ),
        (
            "alternatives",
            |s| s.alternatives = vec![s.ask.clone(); ALTERNATIVES_MAX + 1],
            "9",
            |s| s.alternatives = vec![s.ask.clone(); ALTERNATIVES_MAX],
        ),
        (
            "after",
            |s| s.after = parents(DEPENDENCIES_MAX as u64 + 1),
            "257",
            |s| s.after = parents(DEPENDENCIES_MAX as u64),
        ),
        (
            "gang",
            |s| s.gang = Some(GangSpec { min: u32::MAX, max: u32::MAX }),
            "4294967295",
            |s| s.gang = Some(GangSpec { min: GANG_PARTS_MAX, max: GANG_PARTS_MAX }),
        ),
        ("name", |s| s.name = "a\u{0}b".into(), "control", |s| s.name = "a b".into()),
        ("name", |s| s.name = "x".repeat(129), "129", |s| s.name = "x".repeat(128)),
        (
            "env",
            |s| s.env = vec![(b"A=B".to_vec(), vec![])],
            "A=B",
            |s| s.env = vec![(b"A".to_vec(), b"=B\xff".to_vec())],
        ),
        ("workdir", |s| s.workdir = b"here".to_vec(), "here", |s| s.workdir = b"/there".to_vec()),
    ];
    for (field, bad, word, good) in cases {
        let mut spec = job_spec("");
        bad(&mut spec);
        let error = validate(&spec).expect_err(field);
        assert_eq!((error.code, error.field.as_deref()), (ErrorCode::Invalid, Some(field)), "{error}");
        assert!(error.message.contains(word), "{word}: {error}");
        assert!(error.example.is_some(), "{error}");
        let mut spec = job_spec("");
        good(&mut spec);
        assert_eq!(validate(&spec), Ok(()), "{field}, beside {word}");
    }
}

fn warning(signal: u8, before_ms: u32) -> Option<Warning> {
    Some(Warning { signal, before_ms, leader_only: false })
}

fn parents(count: u64) -> Vec<rota_protocol::work::Dependency> {
    let relation = rota_protocol::work::Relation::Any;
    (1..=count).map(|n| rota_protocol::work::Dependency { job: JobId(n), relation, each: false }).collect()
}

/// What only the state can tell: a deadline that has passed, parents and queues that are not there. Nothing is kept.
#[test]
fn refused_by_the_state() {
    let mut lab = Lab::new();
    let now = lab.now_ms;
    for (line, field, word) in [
        (format!("deadline={now}"), "deadline", "passed 0 s ago"),
        ("deadline=1".to_owned(), "deadline", "passed 17 min ago"),
        ("after=ok:1".to_owned(), "after", "no job 1"),
        ("queue=nowhere".to_owned(), "queue", "nowhere"),
        ("queue=other".to_owned(), "queue", "other"),
    ] {
        let error = lab.try_submit(user("t"), &line).expect_err(&line);
        assert_eq!((error.code, error.field.as_deref()), (ErrorCode::Invalid, Some(field)), "{line}");
        assert!(error.message.contains(word), "{line}: {error}");
        assert!(error.example.is_some());
    }
    assert_eq!((lab.state.jobs().count(), lab.state.queues().len()), (0, 0));
    assert!(lab.try_submit(user("t"), &format!("deadline={}", now + 1)).is_ok());
}
