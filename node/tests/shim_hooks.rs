//! The host's own programs around an attempt: what they are told, what becomes of those that fail or hang (fault T10).
#![allow(clippy::unwrap_used, reason = "what cannot be read should stop the test where it stands")]

mod shim_lab;

use rota_node::io::clock::boottime_ms;
use rota_node::logic::reconcile::LocalState;
use rota_node::shim::ShimNote;
use rota_protocol::Token;
use rota_protocol::api::OutputStream::Stdout;
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::session::HookOrder;
use rota_protocol::spool::LaunchOrder;
use shim_lab::{HANG, LEASE_MS, Lab, alive, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A hook in the lab's folder.
fn hook(dir: &Path, name: &str, script: &str) -> Vec<u8> {
    let path = dir.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.as_os_str().as_encoded_bytes().to_vec()
}

fn with(lab: &Lab, token: u64, script: &str, prolog: &str, epilog: &str) -> LaunchOrder {
    let mut order = lab.order(token, &["sh", "-c", script]);
    let make = |name: &str, script: &str| match script {
        "" => Vec::new(),
        script => hook(&lab.data, &format!("{name}-{token}"), script),
    };
    order.life.hooks =
        HookOrder { prolog: make("prolog", prolog), epilog: make("epilog", epilog), timeout_ms: 60_000 };
    order
}

#[tokio::test]
async fn hooks_run_around_the_task_and_see_nothing_of_its_environment() {
    let mut lab = Lab::new().await;
    let seen = lab.data.join("seen");
    let note = |what: &str| format!("{{ echo {what}; env | sort; }} >> {}", seen.display());
    let mut order = with(&lab, 7, &format!("echo task >> {}", seen.display()), &note("pro"), &note("epi"));
    order.env.extend([(b"LD_PRELOAD".to_vec(), b"/tmp/evil.so".to_vec()), (b"X".to_vec(), b"y".to_vec())]);
    order.devices =
        vec![rota_protocol::DeviceUuid("GPU-a".into()), rota_protocol::DeviceUuid("GPU-b".into())];
    order.life.user = "ann".into();
    lab.host.launch(order).await.unwrap();
    assert_eq!(lab.ended(7).await.end, AttemptEnd::Exited { code: 0 });
    let seen = std::fs::read_to_string(&seen).unwrap();
    let lines: Vec<&str> = seen.lines().collect();
    let at = |what: &str| lines.iter().position(|line| *line == what).unwrap();
    assert!(at("pro") < at("task") && at("task") < at("epi"), "{seen}");
    for wanted in [
        "ROTA_HOOK=prolog",
        "ROTA_HOOK=epilog",
        "ROTA_JOB=7",
        "ROTA_TOKEN=7",
        "ROTA_USER=ann",
        "ROTA_DEVICES=GPU-a,GPU-b",
        "ROTA_END=exit 0",
    ] {
        assert!(lines.contains(&wanted), "{wanted} is missing in {seen}");
    }
    assert!(!seen.contains("LD_PRELOAD") && !lines.contains(&"X=y") && !lines.contains(&"LAB=1"), "{seen}");
}

#[tokio::test]
async fn a_prolog_that_fails_is_the_hosts_fault_and_its_last_words_are_told() {
    let mut lab = Lab::new().await;
    let touched = lab.data.join("touched");
    let script = format!("touch {}", touched.display());
    let cleaned = lab.data.join("cleaned");
    let order = with(
        &lab,
        1,
        &script,
        "echo one; echo 'no scratch disk' >&2; exit 3",
        &format!("touch {}", cleaned.display()),
    );
    lab.host.launch(order).await.unwrap();
    match lab.ended(1).await.end {
        AttemptEnd::LaunchFailed { reason } => assert_eq!(reason, "prolog: exit 3: no scratch disk"),
        other => panic!("{other:?}"),
    }
    assert!(!touched.exists(), "the task must not have run");
    assert!(cleaned.exists(), "what a prolog began, the epilog clears up");
    let order = with(&lab, 2, &script, "kill -9 $$", "");
    lab.host.launch(order).await.unwrap();
    match lab.ended(2).await.end {
        AttemptEnd::LaunchFailed { reason } => assert_eq!(reason, "prolog: signal 9"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_prolog_that_hangs_is_killed_with_all_that_it_made() {
    let mut lab = Lab::new().await;
    let pids = lab.data.join("pids");
    let hangs = format!(
        "trap '' TERM HUP; setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; sleep 9999' & echo $$ >> {0}; sleep 9999",
        pids.display()
    );
    let mut order = with(&lab, 1, "true", &hangs, "");
    order.life.hooks.timeout_ms = 500;
    let began_ms = boottime_ms();
    lab.host.launch(order).await.unwrap();
    match lab.ended(1).await.end {
        AttemptEnd::LaunchFailed { reason } => {
            assert_eq!(reason, "prolog: killed after its time-out of 500 ms");
        }
        other => panic!("{other:?}"),
    }
    println!("told {} ms after the order, 500 of them its time-out", boottime_ms() - began_ms);
    let pids: Vec<i32> =
        std::fs::read_to_string(&pids).unwrap().lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| !alive(*pid)), "{pids:?} are left");
}

#[tokio::test]
async fn a_cancel_does_not_wait_for_a_slow_prolog() {
    let mut lab = Lab::new().await;
    let touched = lab.data.join("touched");
    let order = with(&lab, 1, &format!("touch {}", touched.display()), "sleep 9999", "");
    lab.host.launch(order).await.unwrap();
    wait_until("the prolog runs", || !lab.processes(1).is_empty()).await;
    lab.host.end(Token(1), EndReason::Cancel).await;
    assert_eq!(tokio::time::timeout(HANG, lab.ended(1)).await.unwrap().end, AttemptEnd::Cancelled);
    assert!(!touched.exists() && lab.processes(1).is_empty());
}

#[tokio::test]
async fn an_epilog_that_fails_or_hangs_is_told_and_holds_up_the_end_no_longer_than_its_time() {
    let mut lab = Lab::new().await;
    lab.host
        .launch(with(&lab, 1, "echo out; exit 5", "", "echo 'cannot reset card' >&2; exit 1"))
        .await
        .unwrap();
    let mut order = with(&lab, 2, "exit 0", "", "trap '' TERM; sleep 9999 & sleep 9999");
    order.life.hooks.timeout_ms = 400;
    let mut told = Vec::new();
    let mut hear = async |lab: &mut Lab, token: u64| loop {
        match lab.note().await {
            ShimNote::EpilogFailed { token: of, reason } => told.push((of, reason)),
            ShimNote::Ended { record } if record.token == Token(token) => return record,
            _ => {}
        }
    };
    let record = hear(&mut lab, 1).await;
    assert_eq!(record.end, AttemptEnd::Exited { code: 5 }, "the end is the task's own");
    lab.host.launch(order).await.unwrap();
    let record = hear(&mut lab, 2).await;
    assert_eq!(record.end, AttemptEnd::Exited { code: 0 });
    let words: Vec<&str> = told.iter().map(|(_, reason)| reason.as_str()).collect();
    assert_eq!(words, ["epilog: exit 1: cannot reset card", "epilog: killed after its time-out of 400 ms"]);
    assert_eq!(lab.output(1, Stdout).await, b"out\n");
    assert!(lab.processes(2).is_empty());
}

#[tokio::test]
async fn a_hook_that_others_may_write_is_not_run() {
    let mut lab = Lab::new().await;
    let order = with(&lab, 1, "true", "exit 0", "");
    let path = std::str::from_utf8(&order.life.hooks.prolog).unwrap().to_owned();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    lab.host.launch(order).await.unwrap();
    match lab.ended(1).await.end {
        AttemptEnd::LaunchFailed { reason } => assert!(reason.contains("written by others"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_agent_that_dies_during_hooks_finds_them_under_way() {
    // Report R063: what has been done is not done again because a hook was still running.
    let lab = Lab::new().await;
    let gate = lab.data.join("gate");
    let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", gate.display());
    lab.host.launch(with(&lab, 1, "echo done; exit 4", "", &wait)).await.unwrap();
    lab.host.launch(with(&lab, 2, "echo late; exit 6", &wait, "")).await.unwrap();
    let runs = |lab: &Lab, token: u64| {
        lab.processes(token).iter().any(|pid| {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|env| env.split(|b| *b == 0).any(|var| var.starts_with(b"ROTA_HOOK=")))
        })
    };
    wait_until("both hooks run", || runs(&lab, 1) && runs(&lab, 2)).await;
    let remains = lab.kill_agent().await;
    let mut lab = Lab::open(remains, LEASE_MS).await;
    assert_eq!(lab.adopted[&Token(1)], LocalState::Launching, "its devices are not free yet");
    assert_eq!(lab.adopted[&Token(2)], LocalState::Launching);
    std::fs::write(&gate, b"").unwrap();
    let (mut first, mut second) = (None, None);
    while first.is_none() || second.is_none() {
        if let ShimNote::Ended { record } = lab.note().await {
            match record.token {
                Token(1) => first = Some(record.end),
                _ => second = Some(record.end),
            }
        }
    }
    assert_eq!(first, Some(AttemptEnd::Exited { code: 4 }));
    assert_eq!(second, Some(AttemptEnd::Exited { code: 6 }));
    assert_eq!(lab.output(2, Stdout).await, b"late\n");
}
