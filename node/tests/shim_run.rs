//! Attempts under a living agent: ends, output, environment, faults of the user and of the host.

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
