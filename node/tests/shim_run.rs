//! Attempts under a living agent: ends, output, environment, faults of the user and of the host.
#![allow(clippy::unwrap_used, reason = "what cannot be read should stop the test where it stands")]

mod shim_lab;

use rota_node::io::clock::boottime_ms;
use rota_node::shim::{LaunchError, ShimNote};
use rota_protocol::Token;
use rota_protocol::api::OutputStream::{Stderr, Stdout};
use rota_protocol::job::{AttemptEnd, EndReason};
use shim_lab::{EPOCH, KILL_BUDGET_MS, Lab, alive, wait_until};
use std::time::Duration;

#[tokio::test]
async fn exit_codes_and_signals_are_told_as_they_were() {
    let mut lab = Lab::new().await;
    assert_eq!(lab.run(1, "exit 0").await, AttemptEnd::Exited { code: 0 });
    assert_eq!(lab.run(2, "exit 3").await, AttemptEnd::Exited { code: 3 });
    assert_eq!(lab.run(3, "kill -KILL $$").await, AttemptEnd::Signalled { signal: 9 }, "fault T7");
    assert_eq!(lab.run(4, "kill -SEGV $$").await, AttemptEnd::Signalled { signal: 11 });
}

#[tokio::test]
async fn output_is_kept_byte_for_byte() {
    let mut lab = Lab::new().await;
    let script = r"printf 'a\000b\n'; printf 'err\377' >&2; head -c 300000 /dev/zero";
    assert_eq!(lab.run(1, script).await, AttemptEnd::Exited { code: 0 });
    let mut expected = b"a\0b\n".to_vec();
    expected.resize(expected.len() + 300_000, 0);
    assert_eq!(lab.output(1, Stdout).await, expected);
    assert_eq!(lab.output(1, Stderr).await, b"err\xff");
    lab.host.release(Token(1)).await;
    assert_eq!(lab.output(1, Stdout).await, expected, "released output is still there");
    assert!(lab.host.read_log(Token(99), Stdout, 0, Duration::ZERO).await.is_err());
}

#[tokio::test]
async fn a_task_gets_its_environment_folder_and_nothing_else() {
    let mut lab = Lab::new().await;
    let script = r#"pwd; echo "[$CUDA_VISIBLE_DEVICES] $ROTA_TOKEN $LAB"; env | wc -l; ls -l /proc/self/fd | grep -c ' -> '
        cat; grep -E 'SigBlk|SigIgn' /proc/self/status; ps -o sid= -p $$ | tr -d ' '; echo $$"#;
    assert_eq!(lab.run(7, script).await, AttemptEnd::Exited { code: 0 });
    let output = String::from_utf8(lab.output(7, Stdout).await).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], ["/tmp", "[] 7 1"]);
    // Two of the user, seventeen of Rota, and PWD, which the shell adds.
    assert_eq!(lines[2], "20", "{output}");
    // Standard input, output, error, and the folder that `ls` itself has opened.
    assert_eq!(lines[3], "4", "{output}");
    // `cat` had nothing to read; no signal is blocked or ignored.
    assert_eq!(lines[4..6], ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"]);
    assert_eq!(lines[6], lines[7], "it leads a session of its own");
}

#[tokio::test]
async fn a_missing_program_is_the_users_fault_as_a_shell_tells_it() {
    let mut lab = Lab::new().await;
    lab.host.launch(lab.order(1, &["no-such-program-at-all"])).await.unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Exited { code: 127 });
    assert_eq!(lab.output(1, Stderr).await, b"rota: no-such-program-at-all: program not found\n");
    lab.host.launch(lab.order(2, &["/etc/passwd"])).await.unwrap();
    assert_eq!(lab.ended(2).await.end, AttemptEnd::Exited { code: 126 });
    let script = lab.data.join("script");
    std::fs::write(&script, "echo \"$1\"; exit 5\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    lab.host.launch(lab.order(3, &[script.to_str().unwrap(), "a b"])).await.unwrap();
    assert_eq!(lab.ended(3).await.end, AttemptEnd::Exited { code: 5 }, "a script without #! is the shell's");
    assert_eq!(lab.output(3, Stdout).await, b"a b\n");
    lab.host.launch(lab.order(4, &[])).await.unwrap();
    assert_eq!(lab.ended(4).await.end, AttemptEnd::Exited { code: 127 });
}

#[tokio::test]
async fn what_the_host_lacks_is_the_hosts_fault() {
    let mut lab = Lab::new().await;
    let failed = |end: AttemptEnd, part: &str| match end {
        AttemptEnd::LaunchFailed { reason } => assert!(reason.contains(part), "{reason}"),
        other => panic!("{other:?}"),
    };
    let mut order = lab.order(1, &["true"]);
    order.workdir = b"/no/such/folder".to_vec();
    lab.host.launch(order).await.unwrap();
    match lab.ended(1).await.end {
        // It may be on another host: the state tries a few, and blames none.
        AttemptEnd::CannotStart { code: 127, reason } => {
            assert!(reason.contains("working directory /no/such/folder: No such file"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let mut order = lab.order(2, &["true"]);
    order.lease_path = b"/no/such/lease".to_vec();
    lab.host.launch(order).await.unwrap();
    failed(lab.ended(2).await.end, "cannot read the lease");
    // Report R054: a folder that cannot be written to. A name that is taken refuses root too.
    let gone = lab.data.join("attempts-gone");
    std::fs::rename(lab.data.join("attempts"), &gone).unwrap();
    std::fs::remove_dir_all(&gone).unwrap();
    lab.host.launch(lab.order(3, &["true"])).await.unwrap();
    failed(lab.ended(3).await.end, "cannot write the attempt's record");
}

#[tokio::test]
async fn ending_an_attempt_leaves_no_process_however_it_hides() {
    // Faults T1, R052: double forks, sessions of their own, no environment, deaf to TERM.
    let mut lab = Lab::new().await;
    let script = r#"trap "" TERM
        setsid sh -c 'trap "" TERM; (sleep 9999)& (setsid sleep 9998)& echo $! ; exec env -i sleep 9997' &
        (trap "" TERM; sleep 9996 &) ; sh -c 'kill -STOP $$' &
        sleep 0.05; echo ready; sleep 9999"#;
    lab.sh(1, script).await;
    let pid = lab.started(1).await;
    let shim = shim_lab::parent(pid);
    wait_until("all five sleeps are there", || shim_lab::sleeps_below(shim) == 5).await;
    let all = rota_node::io::proc::descendants(shim).unwrap();
    lab.host.end(Token(1), EndReason::Cancel).await;
    lab.host.end(Token(1), EndReason::Preempt).await;
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Cancelled);
    let left: Vec<_> = all.into_iter().filter(|pid| alive(*pid)).collect();
    assert!(left.is_empty(), "told as ended while {left:?} live");
    assert!(lab.processes(1).is_empty());
    wait_until("its shim is gone", || !alive(shim)).await;
}

#[tokio::test]
async fn what_outlives_the_first_process_is_ended_before_the_end_is_told() {
    let mut lab = Lab::new().await;
    let script = "(trap '' TERM; sleep 9999) & setsid sleep 9998 & exit 4";
    assert_eq!(lab.run(1, script).await, AttemptEnd::Exited { code: 4 }, "fault T7");
    assert!(lab.processes(1).is_empty());
}

#[tokio::test]
async fn a_task_may_save_itself_in_its_grace_and_is_named_by_what_ended_it() {
    let mut lab = Lab::new().await;
    let script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut order = lab.order(1, &["sh", "-c", script]);
    order.grace_ms = 60_000;
    lab.host.launch(order).await.unwrap();
    lab.says(1, b"ready\n").await;
    lab.host.end(Token(1), EndReason::Preempt).await;
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Preempted);
    assert_eq!(lab.output(1, Stdout).await, b"ready\nsaved\n");

    let mut order = lab.order(2, &["sleep", "9999"]);
    order.time_limit_ms = Some(50);
    lab.host.launch(order).await.unwrap();
    let record = lab.ended(2).await;
    assert_eq!(record.end, AttemptEnd::TimeLimit);
    assert!(record.ran_ms >= 50);
}

#[tokio::test]
async fn an_attempt_that_is_ended_at_once_ends_as_asked_or_never_runs() {
    let mut lab = Lab::new().await;
    for token in 1..=30 {
        lab.sh(token, "sleep 9999").await;
        if token % 3 == 0 {
            tokio::time::sleep(Duration::from_millis(token % 5)).await;
        }
        lab.host.end(Token(token), EndReason::Cancel).await;
    }
    for token in 1..=30 {
        assert_eq!(wait_end(&mut lab, token).await, AttemptEnd::Cancelled);
        assert!(lab.processes(token).is_empty());
    }
}

/// Ends come in any order: looks at what the host knows.
async fn wait_end(lab: &mut Lab, token: u64) -> AttemptEnd {
    use rota_node::logic::reconcile::LocalState;
    loop {
        if let Some(LocalState::Ended(record)) = lab.host.locals().get(&Token(token)).map(|l| l.state.clone())
        {
            return record.end;
        }
        lab.note().await;
    }
}

#[tokio::test]
async fn signals_reach_every_process_of_an_attempt_and_no_other() {
    let mut lab = Lab::new().await;
    let script = "trap 'echo usr1; exit 9' USR1; echo ready; while :; do sleep 0.01; done";
    lab.sh(1, &format!("setsid sh -c \"{script}\" & wait; wait")).await;
    lab.sh(2, &script.replace("usr1", "other")).await;
    lab.says(1, b"ready\n").await;
    lab.says(2, b"ready\n").await;
    lab.host.signal(Token(1), 10).await;
    wait_end(&mut lab, 1).await;
    lab.host.end(Token(2), EndReason::Cancel).await;
    wait_end(&mut lab, 2).await;
    assert_eq!(lab.output(2, Stdout).await, b"ready\n");
}

#[tokio::test]
async fn a_follower_hears_every_byte_once_as_it_comes() {
    let mut lab = Lab::new().await;
    let script = "for i in $(seq 200); do echo line $i; [ $((i % 20)) = 0 ] && sleep 0.01; done; exit 1";
    lab.sh(1, script).await;
    let expected: String = (1..=200).map(|i| format!("line {i}\n")).collect();
    assert_eq!(String::from_utf8(lab.output(1, Stdout).await).unwrap(), expected);
    assert_eq!(lab.output(1, Stderr).await, b"");
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Exited { code: 1 });
    let chunk = lab.host.read_log(Token(1), Stdout, 1 << 40, Duration::ZERO).await.unwrap();
    assert!(chunk.last && chunk.bytes.is_empty());
}

#[tokio::test]
async fn a_token_is_launched_once() {
    let mut lab = Lab::new().await;
    let touched = lab.data.join("touched");
    let script = format!("echo x >> {}", touched.display());
    assert_eq!(lab.run(1, &script).await, AttemptEnd::Exited { code: 0 });
    let again = lab.host.launch(lab.order(1, &["sh", "-c", &script])).await;
    assert!(matches!(again, Err(LaunchError::Known(Token(1)))));
    lab.host.release(Token(1)).await;
    // Forgotten in memory, but not by the disk: the old end is found and told again.
    assert_eq!(lab.run(1, &script).await, AttemptEnd::Exited { code: 0 });
    assert_eq!(std::fs::read_to_string(touched).unwrap(), "x\n");
}

#[tokio::test]
async fn a_lease_that_ran_out_starts_nothing_and_ends_what_runs_before_its_deadline() {
    let mut lab = Lab::new().await;
    let lease = rota_node::shim::LeaseFile::open(
        &lab.data.join("lease"),
        &rota_node::io::proc::boot_id().unwrap(),
        rota_protocol::LeaseEpoch(4),
    )
    .unwrap();
    let under = |order: rota_protocol::spool::LaunchOrder| rota_protocol::spool::LaunchOrder {
        epoch: rota_protocol::LeaseEpoch(4),
        lease_path: lease.path().as_os_str().as_encoded_bytes().to_vec(),
        ..order
    };
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 9999' & echo up; sleep 9999";
    lab.host.launch(under(lab.order(1, &["sh", "-c", script]))).await.unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Fenced, "no lease was ever given");
    assert_eq!(lab.output(1, Stdout).await, b"");

    // Long enough that the machine's load does not decide, short enough to wait for.
    let deadline_ms = boottime_ms() + KILL_BUDGET_MS + 400;
    lease.extend(deadline_ms).unwrap();
    lab.host.launch(under(lab.order(2, &["sh", "-c", script]))).await.unwrap();
    let started_ms = boottime_ms();
    let record = lab.ended(2).await;
    assert_eq!(record.end, AttemptEnd::Fenced);
    assert!(started_ms + record.ran_ms <= deadline_ms, "fault P4: it ran past its deadline");
    assert!(lab.processes(2).is_empty());

    let stale = rota_protocol::spool::LaunchOrder { epoch: EPOCH, ..under(lab.order(3, &["true"])) };
    lab.host.launch(stale).await.unwrap();
    assert!(
        matches!(lab.ended(3).await.end, AttemptEnd::LaunchFailed { .. }),
        "another epoch's lease is no lease"
    );
}

#[tokio::test]
async fn an_extended_lease_lets_a_task_run_on() {
    let mut lab = Lab::new().await;
    let lease = rota_node::shim::LeaseFile::open(
        &lab.data.join("lease"),
        &rota_node::io::proc::boot_id().unwrap(),
        rota_protocol::LeaseEpoch(4),
    )
    .unwrap();
    lease.extend(boottime_ms() + KILL_BUDGET_MS + 300).unwrap();
    let mut order = lab.order(1, &["sh", "-c", "sleep 1.2; exit 6"]);
    order.epoch = rota_protocol::LeaseEpoch(4);
    order.lease_path = lease.path().as_os_str().as_encoded_bytes().to_vec();
    lab.host.launch(order).await.unwrap();
    lab.started(1).await;
    let renew = async {
        loop {
            lease.extend(boottime_ms() + 10 * KILL_BUDGET_MS).unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let record = tokio::select! { record = lab.ended(1) => record, () = renew => unreachable!() };
    assert_eq!(record.end, AttemptEnd::Exited { code: 6 });
}

#[tokio::test]
async fn a_flood_without_lines_reaches_the_file_and_not_the_agents_memory() {
    let mut lab = Lab::new().await;
    let before = resident_kib();
    assert_eq!(lab.run(1, "head -c 100000000 /dev/zero").await, AttemptEnd::Exited { code: 0 });
    let len = std::fs::metadata(lab.data.join("attempts/1.stdout")).unwrap().len();
    assert_eq!(len, 100_000_000, "fault T9");
    let chunk = lab.host.read_log(Token(1), Stdout, 0, Duration::ZERO).await.unwrap();
    assert_eq!(chunk.bytes.len(), rota_protocol::limits::LOG_CHUNK_BYTES_MAX);
    assert!(resident_kib() < before + 20_000);
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_burst_leaves_no_descriptor_no_zombie_and_no_shim() {
    let mut lab = Lab::new().await;
    lab.run(1, "true").await;
    let server = lab.servers()[0];
    wait_until("its shim does not sit any more", || {
        rota_node::io::proc::children(server).unwrap().is_empty()
    })
    .await;
    let fds = |pid: &str| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let server_before = fds(&server.to_string());
    for token in 2..=201 {
        lab.host.launch(lab.order(token, &["true"])).await.unwrap();
    }
    let mut ended = 0;
    while ended < 200 {
        match lab.note().await {
            ShimNote::Ended { record } => {
                assert_eq!(record.end, AttemptEnd::Exited { code: 0 });
                lab.host.release(record.token).await;
                ended += 1;
            }
            ShimNote::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    wait_until("all shims are reaped", || {
        rota_node::io::proc::pids().unwrap().iter().all(|pid| {
            rota_node::io::proc::stat(*pid).is_ok_and(|stat| stat.ppid != server)
                || *pid == server
                || !exists(*pid)
        })
    })
    .await;
    assert_eq!(fds(&server.to_string()), server_before);
    assert!(lab.host.locals().len() <= 1);
}

fn exists(pid: i32) -> bool {
    rota_node::io::proc::stat(pid).is_ok()
}

#[tokio::test]
async fn a_sleeping_attempt_costs_less_than_a_mebibyte() {
    // Pages of a program that was only just linked count as dirty until they are on the disk.
    std::fs::File::open(env!("CARGO_BIN_EXE_rota")).unwrap().sync_all().unwrap();
    let mut lab = Lab::new().await;
    lab.sh(1, "sleep 9999").await;
    let shim = shim_lab::parent(lab.started(1).await);
    let rollup = std::fs::read_to_string(format!("/proc/{shim}/smaps_rollup")).unwrap();
    let private_kib: u64 = rollup
        .lines()
        // Clean pages are the program's file: whether they count as private depends on who else runs it just now.
        .filter(|line| line.starts_with("Private_Dirty"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    println!("{private_kib} KiB of its own");
    assert!(private_kib < 1_024);
    lab.host.end(Token(1), EndReason::Cancel).await;
    lab.ended(1).await;
}
