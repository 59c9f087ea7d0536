//! Warnings, notices and requests to be queued again, with real processes: what a task hears of its end, when, and what
//! it can answer without any program of ours.
#![allow(clippy::unwrap_used, reason = "what cannot be read should stop the test where it stands")]

mod shim_lab;

use rota_node::io::clock::wall_ms;
use rota_protocol::Token;
use rota_protocol::api::OutputStream::Stdout;
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::spool::LaunchOrder;
use rota_protocol::work::Warning;
use shim_lab::Lab;

const USR1: u8 = 10;

/// A program that knows what to do: it says so, saves, and ends with the status that asks for another run. Python,
/// because a shell runs its traps only between two commands.
const PROGRAM: &str = r#"
import os, signal, sys, time
def heard(number, frame):
    # Not print: the signal may come in the middle of one.
    os.write(1, b"heard %d\n" % number + open(os.environ["ROTA_NOTICE_FILE"], "rb").read())
    sys.exit(75)
signal.signal(signal.SIGUSR1, heard)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"#;

fn ordered(lab: &Lab, token: u64, argv: &[&str], before_ms: u32) -> LaunchOrder {
    let warning = Some(Warning { signal: USR1, before_ms, leader_only: false });
    LaunchOrder { warning, requeue_status: Some(75), grace_ms: 30_000, ..lab.order(token, argv) }
}

async fn said(lab: &Lab, token: u64) -> String {
    String::from_utf8(lab.output(token, Stdout).await).unwrap()
}

/// The value of a line `name=value`.
fn field<'t>(text: &'t str, name: &str) -> &'t str {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap()
}

#[tokio::test]
async fn a_warning_reaches_the_program_below_a_shell_that_knows_nothing_of_it() {
    // Report R047. The second command keeps the shell from becoming the program itself; USR1 would end it.
    let mut lab = Lab::new().await;
    let script = r#"python3 -c "$1"; code=$?; echo "code $code"; exit $code"#;
    lab.host.launch(ordered(&lab, 1, &["bash", "-c", script, "bash", PROGRAM], 10_000)).await.unwrap();
    lab.says(1, b"ready\n").await;
    let asked_ms = wall_ms();
    lab.host.end(Token(1), EndReason::Preempt).await;
    let record = lab.ended(1).await;
    assert!(wall_ms() - asked_ms < 2_000, "it was heard too late");
    // It was put out: that names the end, and brings it back by itself.
    assert_eq!(record.end, AttemptEnd::Preempted);
    let said = said(&lab, 1).await;
    assert!(said.starts_with("ready\nheard 10\nreason=preempt\n") && said.ends_with("code 75\n"), "{said}");
    let deadline_ms: u64 = field(&said, "deadline_ms").parse().unwrap();
    let term_ms: u64 = field(&said, "term_ms").parse().unwrap();
    assert!((asked_ms + 40_000..asked_ms + 42_000).contains(&deadline_ms), "{said}");
    assert_eq!(deadline_ms - term_ms, 30_000, "{said}");
    assert_eq!(notes(&lab, 1), 0, "its notes go with the task");
}

#[tokio::test]
async fn a_limit_is_warned_of_in_time_and_the_program_asks_for_another_run() {
    let mut lab = Lab::new().await;
    let mut order = ordered(&lab, 1, &["python3", "-c", PROGRAM], 57_000);
    order.time_limit_ms = Some(60_000);
    lab.host.launch(order).await.unwrap();
    let record = lab.ended(1).await;
    assert_eq!(record.end, AttemptEnd::Requeued { code: 75 });
    assert!((3_000..5_000).contains(&record.ran_ms), "warned {} ms after the start, not 3 s", record.ran_ms);
    let said = said(&lab, 1).await;
    assert!(said.starts_with("ready\nheard 10\nreason=time_limit\n"), "{said}");
}

#[tokio::test]
async fn a_limit_shorter_than_the_warning_warns_as_soon_as_the_program_is_ready() {
    let mut lab = Lab::new().await;
    // The interpreter is still starting when the warning is due: it must neither die of it nor miss it.
    let mut order = ordered(&lab, 1, &["python3", "-c", PROGRAM], 60_000);
    order.time_limit_ms = Some(50_000);
    lab.host.launch(order).await.unwrap();
    let record = lab.ended(1).await;
    assert_eq!(record.end, AttemptEnd::Requeued { code: 75 });
    assert!(said(&lab, 1).await.starts_with("ready\nheard 10\nreason=time_limit\n"));
}

#[tokio::test]
async fn whoever_is_not_ready_for_a_warning_does_not_die_of_it() {
    let mut lab = Lab::new().await;
    let mut order = ordered(&lab, 1, &["sleep", "9999"], 200);
    order.grace_ms = 600;
    lab.host.launch(order).await.unwrap();
    lab.started(1).await;
    lab.host.end(Token(1), EndReason::Drain).await;
    let record = lab.ended(1).await;
    assert_eq!(record.end, AttemptEnd::Preempted);
    // By TERM, which comes when the warning's time is over; USR1 would have ended it at once.
    assert!(record.ran_ms >= 200, "it lived {} ms", record.ran_ms);
}

#[tokio::test]
async fn a_warning_longer_than_the_grace_still_ends_in_term() {
    let mut lab = Lab::new().await;
    let script = r#"trap 'echo warned' USR1; trap 'echo termed; exit 0' TERM; echo ready; while :; do sleep 0.01; done"#;
    let mut order = ordered(&lab, 1, &["bash", "-c", script], 700);
    order.grace_ms = 300;
    lab.host.launch(order).await.unwrap();
    lab.says(1, b"ready\n").await;
    lab.host.end(Token(1), EndReason::Preempt).await;
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Preempted);
    assert_eq!(said(&lab, 1).await, "ready\nwarned\ntermed\n");
}

#[tokio::test]
async fn only_the_first_process_hears_what_is_for_it_alone() {
    let mut lab = Lab::new().await;
    let child = r#"trap "echo child" USR1; echo up; while :; do sleep 0.01; done"#;
    let script = format!("trap 'echo leader; exit 75' USR1; sh -c '{child}' & while :; do sleep 0.01; done");
    for (token, leader_only) in [(1, true), (2, false)] {
        let mut order = ordered(&lab, token, &["bash", "-c", &script], 10_000);
        order.warning = Some(Warning { signal: USR1, before_ms: 10_000, leader_only });
        lab.host.launch(order).await.unwrap();
        lab.says(token, b"up\n").await;
        lab.host.end(Token(token), EndReason::Move).await;
        assert_eq!(lab.ended(token).await.end, AttemptEnd::Preempted);
    }
    assert_eq!(said(&lab, 1).await, "up\nleader\n");
    // Both are warned; which of them comes to say so before the first ends both is chance.
    assert!(said(&lab, 2).await.contains("leader\n"));
}

#[tokio::test]
async fn every_process_that_is_ready_is_warned_once() {
    let mut lab = Lab::new().await;
    let child = r#"trap "echo heard" USR1; echo up; while :; do sleep 0.01; done"#;
    let script = format!("for i in 1 2 3; do setsid sh -c '{child}' & done; wait");
    lab.host.launch(ordered(&lab, 1, &["bash", "-c", &script], 20_000)).await.unwrap();
    lab.says(1, b"up\nup\nup\n").await;
    lab.host.end(Token(1), EndReason::Reclaim).await;
    lab.says(1, b"up\nup\nup\nheard\nheard\nheard\n").await;
    // Several more looks pass.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    lab.host.end(Token(1), EndReason::Cancel).await;
    // A cancel waits neither for the warning's time nor for another reason's grace.
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Preempted);
    assert_eq!(said(&lab, 1).await.matches("heard").count(), 3);
}

#[tokio::test]
async fn without_a_warning_a_task_is_asked_to_end_at_once_and_can_read_why() {
    let mut lab = Lab::new().await;
    let script = r#"trap 'cat "$ROTA_NOTICE_FILE"; exit 0' TERM; trap 'echo warned' USR1; echo ready
        while :; do sleep 0.01; done"#;
    for (token, reason) in [(1, "cancel"), (2, "ceiling")] {
        let mut order = lab.order(token, &["sh", "-c", script]);
        order.grace_ms = 30_000;
        lab.host.launch(order).await.unwrap();
        lab.says(token, b"ready\n").await;
        let asked = if token == 1 { EndReason::Cancel } else { EndReason::Ceiling };
        lab.host.end(Token(token), asked).await;
        assert_eq!(lab.ended(token).await.end, asked.end());
        let said = said(&lab, token).await;
        assert!(said.starts_with(&format!("ready\nreason={reason}\n")), "{said}");
    }
}

#[tokio::test]
async fn a_task_asks_for_another_run_by_status_or_by_a_file() {
    let mut lab = Lab::new().await;
    let run = |order: LaunchOrder| LaunchOrder { requeue_status: Some(75), ..order };
    for (token, script, end) in [
        (1, "exit 75", AttemptEnd::Requeued { code: 75 }),
        (2, "exit 74", AttemptEnd::Exited { code: 74 }),
        (3, "touch \"$ROTA_REQUEUE_FILE\"", AttemptEnd::Requeued { code: 0 }),
        (4, "touch \"$ROTA_REQUEUE_FILE\"; kill -KILL $$", AttemptEnd::Requeued { code: 137 }),
        (
            5,
            "touch \"$ROTA_REQUEUE_FILE\"; rm \"$ROTA_REQUEUE_FILE\"; exit 3",
            AttemptEnd::Exited { code: 3 },
        ),
    ] {
        lab.host.launch(run(lab.order(token, &["bash", "-c", script]))).await.unwrap();
        assert_eq!(lab.ended(token).await.end, end, "{script}");
    }
    // Nobody said that 75 means it; the file always does.
    assert_eq!(lab.run(6, "exit 75").await, AttemptEnd::Exited { code: 75 });
    assert_eq!(lab.run(7, "touch \"$ROTA_REQUEUE_FILE\"; exit 2").await, AttemptEnd::Requeued { code: 2 });
}

#[tokio::test]
async fn a_task_that_is_out_of_time_may_still_ask_for_another_run() {
    let mut lab = Lab::new().await;
    let script = r#"trap 'touch "$ROTA_REQUEUE_FILE"; exit 0' TERM; while :; do sleep 0.01; done"#;
    let mut order = lab.order(1, &["sh", "-c", script]);
    (order.time_limit_ms, order.grace_ms) = (Some(300), 30_000);
    lab.host.launch(order).await.unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Requeued { code: 0 });
    let mut order = lab.order(2, &["sleep", "9999"]);
    order.time_limit_ms = Some(100);
    lab.host.launch(order).await.unwrap();
    assert_eq!(lab.ended(2).await.end, AttemptEnd::TimeLimit);
}

#[tokio::test]
async fn a_part_reads_the_list_of_its_gang_as_it_is() {
    let mut lab = Lab::new().await;
    let script = r#"gang=${ROTA_NOTICE_FILE%.notice}.gang; cat "$gang"; echo ready
        while ! grep -q size=3 "$gang"; do sleep 0.01; done; echo three"#;
    let mut order = lab.order(1, &["sh", "-c", script]);
    order.gang = b"size=2\n".to_vec();
    lab.host.launch(order).await.unwrap();
    lab.says(1, b"size=2\nready\n").await;
    lab.host.tell_gang(Token(1), "size=3\n".to_owned()).await.unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Exited { code: 0 });
    assert!(lab.host.tell_gang(Token(1), "size=4\n".to_owned()).await.is_err(), "there is nobody to tell");
}

/// Files between Rota and a task.
fn notes(lab: &Lab, token: u64) -> usize {
    let names = std::fs::read_dir(lab.data.join("tasks")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with(&format!("{token}-"))).count()
}

#[tokio::test]
async fn what_a_dead_shim_leaves_of_a_tasks_notes_is_cleared() {
    let mut lab = Lab::new().await;
    let mut pids = Vec::new();
    for token in [1, 2] {
        lab.sh(token, "touch \"$ROTA_REQUEUE_FILE\"; echo x; sleep 9999").await;
        lab.says(token, b"x\n").await;
        pids.push(lab.started_or_local(token).await);
    }
    assert_eq!((notes(&lab, 1), notes(&lab, 2)), (1, 1));
    shim_lab::kill(shim_lab::parent(pids[0]));
    lab.ended(1).await;
    assert_eq!((notes(&lab, 1), notes(&lab, 2)), (0, 1));
    // What nobody knows of any more, a new agent clears.
    std::fs::write(lab.data.join("tasks/1-0.requeue"), "").unwrap();
    let remains = lab.kill_agent().await;
    let mut lab = Lab::open(remains, shim_lab::LEASE_MS).await;
    assert_eq!((notes(&lab, 1), notes(&lab, 2)), (0, 1));
    lab.host.end(Token(2), EndReason::Cancel).await;
    assert_eq!(lab.ended(2).await.end, AttemptEnd::Cancelled);
    assert_eq!(notes(&lab, 2), 0);
}
