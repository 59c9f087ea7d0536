//! One shim, several attempts: each is its own in everything that can be seen of it, and a shim that sits between two of
//! them can die at any moment.
#![allow(clippy::unwrap_used, reason = "what cannot be set up should stop the test where it stands")]

mod shim_lab;

use rota_node::io::proc;
use rota_protocol::Token;
use rota_protocol::api::OutputStream::Stdout;
use rota_protocol::job::AttemptEnd;
use shim_lab::{LEASE_MS, Lab, alive, kill, wait_until};

/// Runs one that says who its shim is; that.
async fn run(lab: &mut Lab, token: u64) -> i32 {
    let mut order = lab.order(token, &["sh", "-c", "echo $PPID $NUMBER; exit $((NUMBER % 3))"]);
    order.env.push((b"NUMBER".to_vec(), token.to_string().into_bytes()));
    lab.host.launch(order).await.unwrap();
    let record = lab.ended(token).await;
    assert_eq!(record.end, AttemptEnd::Exited { code: u8::try_from(token % 3).unwrap() });
    let said = String::from_utf8(lab.output(token, Stdout).await).unwrap();
    let (shim, number) = said.trim_end().split_once(' ').unwrap();
    assert_eq!(number, token.to_string(), "the environment of another attempt");
    assert_eq!(record.stdout_bytes, said.len() as u64);
    let shim = shim.parse().unwrap();
    lab.sits(token, shim).await;
    lab.host.release(Token(token)).await;
    shim
}

#[tokio::test]
async fn one_shim_serves_one_attempt_after_the_other() {
    const ATTEMPTS: u64 = 40;
    let mut lab = Lab::new().await;
    let mut shims = Vec::new();
    for token in 1..=ATTEMPTS {
        shims.push(run(&mut lab, token).await);
    }
    shims.sort_unstable();
    shims.dedup();
    assert!(shims.len() as u64 <= ATTEMPTS / 4, "{} shims for {ATTEMPTS} attempts", shims.len());
    wait_until("shims that sit for nothing leave", || shims.iter().all(|shim| !alive(*shim))).await;
    assert_eq!(lab.run(ATTEMPTS + 1, "exit 4").await, AttemptEnd::Exited { code: 4 });
}

#[tokio::test]
async fn many_at_once_and_again_are_all_told_once() {
    let mut lab = Lab::new().await;
    for round in 0..4 {
        let tokens = (round * 100 + 1)..=(round * 100 + 50);
        for token in tokens.clone() {
            lab.sh(token, &format!("echo {token}; exit {}", token % 7)).await;
        }
        let mut left: std::collections::BTreeSet<u64> = tokens.clone().collect();
        while !left.is_empty() {
            if let rota_node::shim::ShimNote::Ended { record } = lab.note().await {
                assert!(left.remove(&record.token.0), "{record:?} was told twice, or never ordered");
                let code = u8::try_from(record.token.0 % 7).unwrap();
                assert_eq!(record.end, AttemptEnd::Exited { code });
            }
        }
        for token in tokens {
            assert_eq!(lab.output(token, Stdout).await, format!("{token}\n").as_bytes());
            lab.host.release(Token(token)).await;
        }
    }
}

#[tokio::test]
async fn a_shim_that_is_killed_while_it_sits_takes_nothing_along() {
    let mut lab = Lab::new().await;
    for token in (1..20).step_by(2) {
        let shim = run(&mut lab, token).await;
        if alive(shim) {
            kill(shim);
        }
        wait_until("it is gone", || !alive(shim)).await;
        assert_ne!(run(&mut lab, token + 1).await, shim);
    }
}

#[tokio::test]
async fn what_sits_leaves_with_its_fork_server_and_with_the_agent() {
    let mut lab = Lab::new().await;
    let first = run(&mut lab, 1).await;
    for server in lab.servers() {
        kill(server);
    }
    wait_until("the first is gone", || !alive(first)).await;
    let second = run(&mut lab, 2).await;
    let remains = lab.kill_agent().await;
    wait_until("the second is gone", || !alive(second)).await;
    let mut lab = Lab::open(remains, LEASE_MS).await;
    run(&mut lab, 3).await;
}

/// A signal or a file that came for one attempt is not there for the next.
#[tokio::test]
async fn what_is_unlike_others_has_a_shim_of_its_own() {
    let mut lab = Lab::new().await;
    let first = run(&mut lab, 1).await;
    let mut order = lab.order(2, &["sh", "-c", "cat; echo $PPID; kill -9 $$"]);
    order.output.stdin = b"typed\n".to_vec();
    lab.host.launch(order).await.unwrap();
    assert_eq!(lab.ended(2).await.end, AttemptEnd::Signalled { signal: 9 });
    let said = String::from_utf8(lab.output(2, Stdout).await).unwrap();
    let shim: i32 = said.strip_prefix("typed\n").unwrap().trim_end().parse().unwrap();
    wait_until("it is gone", || !alive(shim)).await;
    lab.sh(3, "wc -c; echo $PPID").await;
    assert_eq!(lab.ended(3).await.end, AttemptEnd::Exited { code: 0 });
    let said = String::from_utf8(lab.output(3, Stdout).await).unwrap();
    assert_eq!(said.lines().next(), Some("0"), "the input of another attempt");
    wait_until("the first is gone", || !alive(first)).await;
}

/// An order comes to one that is being killed: it is begun by another, and once.
#[tokio::test]
async fn an_order_to_a_shim_that_is_killed_while_it_sits_is_not_lost() {
    const ROUNDS: u64 = 60;
    let work = tempfile::tempdir().unwrap();
    let mut lab = Lab::new().await;
    for token in (1..2 * ROUNDS).step_by(2) {
        let shim = run(&mut lab, token).await;
        let order = |token: u64| {
            let count = format!("echo {token} >> {}/ran; echo $PPID", work.path().display());
            lab.order(token, &["sh", "-c", &count])
        };
        let (next, at) = (order(token + 1), rustix::process::Pid::from_raw(shim).unwrap());
        // Stopped, it cannot take what it is sent: its death is between the sending and the taking.
        let stopped = rustix::process::kill_process(at, rustix::process::Signal::STOP).is_ok();
        if stopped {
            wait_until("it stands still", || !proc::stat(shim).is_ok_and(|stat| stat.state != b'T')).await;
        }
        lab.host.launch(next).await.unwrap();
        // Not proof of anything: some are killed before they are sent it, some after.
        tokio::time::sleep(std::time::Duration::from_micros(token * 50)).await;
        if stopped && alive(shim) {
            kill(shim);
        }
        assert_eq!(lab.ended(token + 1).await.end, AttemptEnd::Exited { code: 0 }, "round {token}");
        let said = String::from_utf8(lab.output(token + 1, Stdout).await).unwrap();
        assert_ne!(said.trim_end(), shim.to_string());
        lab.host.release(Token(token + 1)).await;
    }
    let ran = std::fs::read_to_string(work.path().join("ran")).unwrap();
    let once: Vec<String> = (1..2 * ROUNDS).step_by(2).map(|token| (token + 1).to_string()).collect();
    assert_eq!(ran.lines().collect::<Vec<_>>(), once, "lost, or run twice");
}
