//! Sessions at a shim: a terminal on a task, commands inside one, over deaths of the agent.
#![allow(clippy::unwrap_used, reason = "what cannot be read should stop the test where it stands")]

mod shim_lab;

use rota_protocol::api::OutputStream::{self, Stderr, Stdout};
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::session::{MAIN_SESSION, SessionAsk, SessionEnd, SessionNews, SessionSpec, TerminalSize};
use rota_protocol::spool::LaunchOrder;
use rota_protocol::{ErrorCode, PublicError, Token};
use shim_lab::{HANG, LEASE_MS, Lab, alive, wait_until};

const SIZE: TerminalSize = TerminalSize { rows: 33, cols: 99 };

fn on_terminal(lab: &Lab, token: u64, script: &str) -> LaunchOrder {
    let mut order = lab.order(token, &["sh", "-c", script]);
    order.life.session = Some(SessionSpec { size: SIZE, hold_ms: None });
    order
}

fn keys(offset: u64, bytes: &[u8], last: bool) -> SessionAsk {
    SessionAsk::Send { client: 7, offset, bytes: bytes.to_vec(), last, size: None, hold_ms: None }
}

async fn ask(lab: &Lab, token: u64, session: u64, ask: SessionAsk) -> Result<SessionNews, PublicError> {
    tokio::time::timeout(HANG, lab.host.session(Token(token), session, ask)).await.unwrap()
}

fn run(script: &str, terminal: Option<TerminalSize>) -> SessionAsk {
    let argv = ["sh", "-c", script].map(|word| word.as_bytes().to_vec()).to_vec();
    SessionAsk::Start { argv, terminal, term: b"xterm".to_vec() }
}

/// All output of a command, and its end.
async fn all(lab: &Lab, token: u64, session: u64, stream: OutputStream) -> (String, Option<SessionEnd>) {
    let mut bytes = Vec::new();
    loop {
        let read = SessionAsk::Read { stream, offset: bytes.len() as u64, wait_ms: 5_000 };
        let news = ask(lab, token, session, read).await.unwrap();
        let chunk = news.chunk.unwrap();
        bytes.extend_from_slice(&chunk.bytes);
        if chunk.last {
            return (String::from_utf8_lossy(&bytes).into_owned(), news.end);
        }
    }
}

async fn shows(lab: &Lab, token: u64, wanted: &str) {
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains(wanted) {
        let read = SessionAsk::Read { stream: Stdout, offset: bytes.len() as u64, wait_ms: 5_000 };
        let chunk = ask(lab, token, MAIN_SESSION, read).await.unwrap().chunk.unwrap();
        assert!(!chunk.last, "it showed only {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&chunk.bytes);
    }
}

#[tokio::test]
async fn a_terminal_is_typed_into_resized_interrupted_and_ended() {
    let mut lab = Lab::new().await;
    let script = "tty; stty size; trap 'echo winch; stty size' WINCH; trap 'echo int' INT; echo up
        while :; do line=; read line; [ \"$line\" = bye ] && break; [ -n \"$line\" ] && echo \"got $line\"; done
        echo over; exit 7";
    lab.host.launch(on_terminal(&lab, 1, script)).await.unwrap();
    lab.started(1).await;
    shows(&lab, 1, "up").await;
    shows(&lab, 1, "33 99").await;
    assert_eq!(ask(&lab, 1, MAIN_SESSION, keys(0, b"hello\n", false)).await.unwrap().taken, 6);
    assert_eq!(ask(&lab, 1, MAIN_SESSION, keys(0, b"hello\n", false)).await.unwrap().taken, 6, "taken once");
    shows(&lab, 1, "got hello").await;
    let size = Some(TerminalSize { rows: 10, cols: 20 });
    let resize = SessionAsk::Send { client: 7, offset: 6, bytes: vec![], last: false, size, hold_ms: None };
    ask(&lab, 1, MAIN_SESSION, resize).await.unwrap();
    shows(&lab, 1, "10 20").await;
    ask(&lab, 1, MAIN_SESSION, keys(6, b"\x03", false)).await.unwrap();
    shows(&lab, 1, "int").await;
    ask(&lab, 1, MAIN_SESSION, keys(7, b"bye\n", false)).await.unwrap();
    let record = lab.ended(1).await;
    let shown = String::from_utf8_lossy(&lab.output(1, Stdout).await).into_owned();
    assert_eq!(record.end, AttemptEnd::Exited { code: 7 }, "{shown}");
    assert!(shown.contains("/dev/pts/") && shown.ends_with("over\r\n"), "{shown}");
    assert_eq!(shown.matches("got hello").count(), 1, "{shown}");
    assert_eq!(lab.output(1, Stderr).await, b"", "one stream");
}

#[tokio::test]
async fn a_command_inside_has_what_the_task_has_and_its_own_end() {
    let mut lab = Lab::new().await;
    lab.sh(1, "sleep 9999").await;
    let main = lab.started(1).await;
    let script = "cat; echo err >&2; pwd; echo $ROTA_TOKEN $LAB; exit 9";
    ask(&lab, 1, 5, run(script, None)).await.unwrap();
    ask(&lab, 1, 5, run("echo twice", None)).await.unwrap();
    ask(&lab, 1, 5, keys(0, b"typed", true)).await.unwrap();
    let (out, end) = all(&lab, 1, 5, Stdout).await;
    assert_eq!((out.as_str(), end), ("typed/tmp\n1 1\n", Some(SessionEnd::Exited { code: 9 })));
    assert_eq!(all(&lab, 1, 5, Stderr).await.0, "err\n");
    ask(&lab, 1, 5, SessionAsk::Close).await.unwrap();
    let left: Vec<_> = std::fs::read_dir(lab.data.join("attempts")).unwrap().flatten().collect();
    assert!(!left.iter().any(|e| e.file_name().to_string_lossy().contains(".x")), "{left:?}");
    // On a terminal.
    ask(&lab, 1, 6, run("stty size; echo $TERM; kill -9 $$", Some(SIZE))).await.unwrap();
    let (out, end) = all(&lab, 1, 6, Stdout).await;
    assert_eq!((out.as_str(), end), ("33 99\r\nxterm\r\n", Some(SessionEnd::Signalled { signal: 9 })));
    // One that does not exist.
    let argv = vec![b"no-such-program".to_vec()];
    let news = ask(&lab, 1, 8, SessionAsk::Start { argv, terminal: None, term: vec![] }).await.unwrap();
    assert!(
        matches!(&news.end, Some(SessionEnd::NotStarted { reason }) if reason.contains("not found")),
        "{news:?}"
    );
    let error = ask(&lab, 1, MAIN_SESSION, keys(0, b"x", false)).await.unwrap_err();
    assert!(error.message.contains("no terminal"), "{error}");
    assert!(alive(main), "the task goes on");
    lab.host.end(Token(1), EndReason::Cancel).await;
    lab.ended(1).await;
}

#[tokio::test]
async fn a_command_inside_dies_with_its_task_and_keeps_it_from_being_over() {
    let mut lab = Lab::new().await;
    let gate = lab.data.join("gate");
    lab.sh(1, &format!("while [ ! -e {} ]; do :; done; exit 3", gate.display())).await;
    let shim = shim_lab::parent(lab.started(1).await);
    let stubborn = "trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; sleep 9999' & echo in; sleep 9999";
    ask(&lab, 1, 5, run(stubborn, None)).await.unwrap();
    wait_until("both run", || shim_lab::sleeps_below(shim) >= 2).await;
    std::fs::write(&gate, b"").unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Exited { code: 3 });
    assert!(lab.processes(1).is_empty(), "fault T1");
    let (out, end) = all(&lab, 1, 5, Stdout).await;
    assert_eq!((out.as_str(), end), ("in\n", Some(SessionEnd::WithTask)));
    let error = ask(&lab, 1, 6, run("true", None)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NotFound, "nothing is started in what is over");
}

#[tokio::test]
async fn a_new_agent_goes_on_with_the_sessions_of_the_old_one() {
    let mut lab = Lab::new().await;
    lab.host.launch(on_terminal(&lab, 1, "while read line; do echo got $line; done; exit 2")).await.unwrap();
    lab.started(1).await;
    ask(&lab, 1, MAIN_SESSION, keys(0, b"one\n", false)).await.unwrap();
    ask(&lab, 1, 5, run("read a; echo $a; exit 4", None)).await.unwrap();
    let remains = lab.kill_agent().await;
    let mut lab = Lab::open(remains, LEASE_MS).await;
    lab.started(1).await;
    assert_eq!(ask(&lab, 1, MAIN_SESSION, keys(0, b"one\n", false)).await.unwrap().taken, 4);
    ask(&lab, 1, MAIN_SESSION, keys(4, b"two\n", false)).await.unwrap();
    ask(&lab, 1, 5, keys(0, b"kept\n", false)).await.unwrap();
    assert_eq!(all(&lab, 1, 5, Stdout).await, ("kept\n".into(), Some(SessionEnd::Exited { code: 4 })));
    shows(&lab, 1, "got two").await;
    ask(&lab, 1, MAIN_SESSION, keys(8, b"", true)).await.unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Exited { code: 2 });
    let shown = String::from_utf8_lossy(&lab.output(1, Stdout).await).into_owned();
    assert_eq!(shown.matches("got one").count(), 1, "{shown}");
}

#[tokio::test]
async fn a_client_that_is_gone_hangs_up_only_what_needs_one() {
    let mut lab = Lab::new().await;
    let mut order = on_terminal(&lab, 1, "sleep 9999");
    order.life.session = Some(SessionSpec { size: SIZE, hold_ms: Some(300) });
    lab.host.launch(order).await.unwrap();
    lab.host.launch(on_terminal(&lab, 2, "sleep 9999")).await.unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Signalled { signal: 1 });
    assert!(!lab.processes(2).is_empty(), "the other goes on without anybody");
    lab.started_or_local(2).await;
    // A command inside always needs its client.
    ask(&lab, 2, 5, run("sleep 9999", None)).await.unwrap();
    let short =
        SessionAsk::Send { client: 7, offset: 0, bytes: vec![], last: false, size: None, hold_ms: Some(50) };
    ask(&lab, 2, 5, short).await.unwrap();
    assert_eq!(all(&lab, 2, 5, Stdout).await.1, Some(SessionEnd::Signalled { signal: 1 }));
    lab.host.end(Token(2), EndReason::Cancel).await;
    lab.ended(2).await;
}

#[tokio::test]
async fn an_idle_terminal_is_warned_then_ended_and_use_keeps_it() {
    let mut lab = Lab::new().await;
    let mut order = on_terminal(
        &lab,
        1,
        "trap 'cat $ROTA_NOTICE_FILE; exit 0' HUP TERM; echo up; while :; do read x; done",
    );
    order.life.idle_ms = Some(1_500);
    order.grace_ms = 10_000;
    lab.host.launch(order).await.unwrap();
    lab.started(1).await;
    let mut typed = 0;
    let until = tokio::time::Instant::now() + std::time::Duration::from_millis(2_500);
    while tokio::time::Instant::now() < until {
        typed = ask(&lab, 1, MAIN_SESSION, keys(typed, b"\n", false)).await.unwrap().taken;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(!lab.processes(1).is_empty(), "it was used all the time");
    let record = lab.ended(1).await;
    let shown = String::from_utf8_lossy(&lab.output(1, Stdout).await).into_owned();
    assert_eq!(record.end, AttemptEnd::TimeLimit, "{shown}");
    assert_eq!(shown.matches("this terminal is idle").count(), 1, "{shown}");
    assert!(shown.contains("reason=idle"), "{shown}");
}
