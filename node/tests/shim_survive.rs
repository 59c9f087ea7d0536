//! Deaths: of the agent, of a shim, of the fork server. Nothing runs twice, nothing is left, no end is lost.

mod shim_lab;

use rota_node::io::clock::boottime_ms;
use rota_node::logic::reconcile::LocalState;
use rota_node::shim::ShimNote;
use rota_protocol::Token;
use rota_protocol::api::OutputStream::Stdout;
use rota_protocol::job::{AttemptEnd, EndReason};
use shim_lab::{KILL_BUDGET_MS, LEASE_MS, Lab, alive, kill, marked, parent, wait_until};

#[tokio::test]
async fn a_task_outlives_two_agents_and_its_end_and_output_are_whole() {
    // Faults P6, R061: same process, every line, the right code.
    let mut lab = Lab::new().await;
    let gate = lab.data.join("gate");
    let script = format!(
        "for i in $(seq 120); do echo $i; [ $i = 40 ] && while [ ! -e {0} ]; do sleep 0.01; done; done; exit 3",
        gate.display()
    );
    lab.sh(5, &script).await;
    let pid = lab.started(5).await;
    let ticks = rota_node::io::proc::stat(pid).unwrap().start_ticks;
    for _ in 0..2 {
        let remains = lab.kill_agent().await;
        assert!(alive(pid), "the agent's death is not the task's");
        lab = Lab::open(remains, LEASE_MS).await;
        assert_eq!(lab.adopted[&Token(5)], LocalState::Launching);
        assert_eq!(lab.started(5).await, pid, "told again by its shim");
        assert_eq!(rota_node::io::proc::stat(pid).unwrap().start_ticks, ticks);
    }
    std::fs::write(&gate, b"").unwrap();
    let expected: String = (1..=120).map(|i| format!("{i}\n")).collect();
    assert_eq!(String::from_utf8(lab.output(5, Stdout).await).unwrap(), expected);
    assert_eq!(lab.ended(5).await.end, AttemptEnd::Exited { code: 3 });
}

#[tokio::test]
async fn an_end_without_an_agent_is_found_by_the_next_one() {
    let mut lab = Lab::new().await;
    let gate = lab.data.join("gate");
    lab.sh(5, &format!("while [ ! -e {} ]; do sleep 0.01; done; echo bye; exit 7", gate.display())).await;
    let pid = lab.started(5).await;
    let shim = parent(pid);
    let remains = lab.kill_agent().await;
    std::fs::write(&gate, b"").unwrap();
    wait_until("its shim is gone", || !alive(shim)).await;
    let lab = Lab::open(remains, LEASE_MS).await;
    match &lab.adopted[&Token(5)] {
        LocalState::Ended(record) => {
            assert_eq!(record.end, AttemptEnd::Exited { code: 7 });
            assert_eq!(record.stdout_bytes, 4);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(lab.output(5, Stdout).await, b"bye\n");
}

#[tokio::test]
async fn an_adopted_attempt_can_be_ended_and_followed() {
    let lab = Lab::new().await;
    lab.sh(5, "trap 'echo bye; exit 0' TERM; echo hello; while :; do sleep 0.01; done").await;
    lab.says(5, b"hello\n").await;
    let remains = lab.kill_agent().await;
    let mut lab = Lab::open(remains, LEASE_MS).await;
    // Before its shim has attached: the wish is kept.
    lab.host.end(Token(5), EndReason::Preempt).await;
    assert_eq!(lab.ended(5).await.end, AttemptEnd::Preempted);
    assert_eq!(lab.output(5, Stdout).await, b"hello\nbye\n");
}

#[tokio::test]
async fn a_killed_shim_takes_its_task_along_and_the_end_is_told() {
    // Fault P7, with a child that left the session and cleared its environment.
    let mut lab = Lab::new().await;
    lab.sh(5, "setsid env -i sh -c 'trap \"\" TERM HUP; (sleep 9999)& sleep 9998' & echo up; sleep 9999")
        .await;
    let pid = lab.started(5).await;
    let shim = parent(pid);
    wait_until("all three sleeps are there", || shim_lab::sleeps_below(shim) == 3).await;
    let all = rota_node::io::proc::descendants(shim).unwrap();
    let killed_ms = boottime_ms();
    kill(shim);
    let end = lab.ended(5).await.end;
    assert!(matches!(end, AttemptEnd::Vanished { .. }), "{end:?}");
    let left: Vec<_> = all.into_iter().filter(|pid| alive(*pid)).collect();
    assert!(left.is_empty(), "{left:?} are left");
    println!("gone and told after {} ms", boottime_ms() - killed_ms);
    assert_eq!(lab.output(5, Stdout).await, b"up\n");
    // The seal holds for every later agent.
    let remains = lab.kill_agent().await;
    let lab = Lab::open(remains, LEASE_MS).await;
    assert!(matches!(&lab.adopted[&Token(5)], LocalState::Ended(r) if r.end == end));
}

#[tokio::test]
async fn a_shim_killed_while_no_agent_watches_is_cleared_up_by_the_next() {
    let mut lab = Lab::new().await;
    lab.sh(5, "setsid sleep 9999 & echo up; sleep 9999").await;
    let pid = lab.started(5).await;
    let cluster = lab.cluster;
    let shim = parent(pid);
    wait_until("both sleeps are there", || shim_lab::sleeps_below(shim) == 2).await;
    assert!(marked(cluster, 5).len() >= 2);
    let remains = lab.kill_agent().await;
    kill(shim);
    wait_until("its shim is gone", || !alive(shim)).await;
    let lab = Lab::open(remains, LEASE_MS).await;
    assert!(
        matches!(&lab.adopted[&Token(5)], LocalState::Ended(r) if matches!(r.end, AttemptEnd::Vanished { .. })),
        "{:?}",
        lab.adopted
    );
    assert!(lab.processes(5).is_empty());
}

#[tokio::test]
async fn an_adopted_shim_that_is_killed_is_noticed() {
    let mut lab = Lab::new().await;
    lab.sh(5, "setsid sleep 9999 & sleep 9999").await;
    let shim = parent(lab.started(5).await);
    let remains = lab.kill_agent().await;
    let mut lab = Lab::open(remains, LEASE_MS).await;
    lab.started(5).await;
    kill(shim);
    assert!(matches!(lab.ended(5).await.end, AttemptEnd::Vanished { .. }));
    assert!(lab.processes(5).is_empty());
}

#[tokio::test]
async fn without_any_agent_the_lease_ends_the_task_in_time() {
    // Fault P7: nobody renews any more.
    let lab = Lab::new().await;
    let lease = rota_node::shim::LeaseFile::open(
        &lab.data.join("lease"),
        &rota_node::io::proc::boot_id().unwrap(),
        rota_protocol::LeaseEpoch(9),
    )
    .unwrap();
    let deadline_ms = boottime_ms() + KILL_BUDGET_MS + 1_000;
    lease.extend(deadline_ms).unwrap();
    let mut order = lab.order(5, &["sh", "-c", "trap '' TERM; setsid sleep 9999 & sleep 9999"]);
    order.epoch = rota_protocol::LeaseEpoch(9);
    order.lease_path = lease.path().as_os_str().as_encoded_bytes().to_vec();
    lab.host.launch(order).await.unwrap();
    let cluster = lab.cluster;
    wait_until("it runs", || marked(cluster, 5).len() >= 2).await;
    let remains = lab.kill_agent().await;
    wait_until("it is gone", || marked(cluster, 5).is_empty()).await;
    assert!(boottime_ms() <= deadline_ms + 20, "gone only after its deadline");
    let mut lab = Lab::open(remains, LEASE_MS).await;
    let end = match lab.adopted[&Token(5)].clone() {
        LocalState::Ended(record) => record.end,
        // Its shim was still writing.
        _ => lab.ended(5).await.end,
    };
    assert_eq!(end, AttemptEnd::Fenced);
}

#[tokio::test]
async fn a_killed_fork_server_is_replaced_and_its_shims_are_kept() {
    let mut lab = Lab::new().await;
    let gate = lab.data.join("gate");
    lab.sh(5, &format!("while [ ! -e {} ]; do sleep 0.01; done; exit 2", gate.display())).await;
    lab.sh(6, "sleep 9999").await;
    lab.started_or_local(5).await;
    let six = lab.started_or_local(6).await;
    kill(lab.servers()[0]);
    for token in 10..40 {
        lab.host.launch(lab.order(token, &["sh", "-c", "echo ran"])).await.unwrap();
    }
    for token in 10..40 {
        wait_until_ended(&mut lab, token).await;
        assert_eq!(lab.output(token, Stdout).await, b"ran\n", "once, not twice");
    }
    kill(parent(six));
    wait_until_ended(&mut lab, 6).await;
    assert!(lab.processes(6).is_empty());
    std::fs::write(&gate, b"").unwrap();
    assert_eq!(wait_until_ended(&mut lab, 5).await, AttemptEnd::Exited { code: 2 });
}

async fn wait_until_ended(lab: &mut Lab, token: u64) -> AttemptEnd {
    loop {
        if let Some(LocalState::Ended(record)) = lab.host.locals().get(&Token(token)).map(|l| l.state.clone())
        {
            return record.end;
        }
        match lab.note().await {
            ShimNote::Ended { .. } | ShimNote::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_shutdown_of_the_machine_warns_a_task_and_it_will_run_again() {
    let mut lab = Lab::new().await;
    lab.sh(5, "trap 'echo warned; exit 0' TERM; echo up; while :; do sleep 0.01; done").await;
    lab.says(5, b"up\n").await;
    let shim = parent(lab.started_or_local(5).await);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(shim).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert_eq!(lab.ended(5).await.end, AttemptEnd::HostStopped, "planned, so no one's fault");
    assert_eq!(lab.output(5, Stdout).await, b"up\nwarned\n");
}

#[tokio::test]
async fn records_of_another_boot_are_ends_and_their_numbers_are_not_searched_for() {
    // Fault T11, report R063: the number in the record belongs to a stranger now.
    let lab = Lab::new().await;
    let remains = lab.kill_agent().await;
    let mut stranger = std::process::Command::new("sleep").arg("9999").spawn().unwrap();
    shim_lab::forge_record(&remains, 5, rota_protocol::BootId(1), stranger.id());
    let lab = Lab::open(remains, LEASE_MS).await;
    match &lab.adopted[&Token(5)] {
        LocalState::Ended(record) => {
            assert_eq!(record.end, AttemptEnd::Vanished { reason: "the host was restarted".into() });
        }
        other => panic!("{other:?}"),
    }
    assert!(stranger.try_wait().unwrap().is_none(), "a stranger was hit");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
