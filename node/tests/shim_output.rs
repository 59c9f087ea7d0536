//! Output and input of attempts with real processes: limits, files of the user's own, standard input, environment, and
//! what becomes of output when it is old.
#![allow(clippy::unwrap_used, reason = "what cannot be read should stop the test where it stands")]

mod shim_lab;

use rota_node::logic::env::{TaskEnv, task_env};
use rota_node::shim::KeepRules;
use rota_protocol::api::OutputStream::{self, Stderr, Stdout};
use rota_protocol::job::AttemptEnd;
use rota_protocol::output::OutputOrder;
use rota_protocol::spool::LaunchOrder;
use rota_protocol::{ErrorCode, HostId, JobId, TaskId, Token};
use shim_lab::Lab;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// Nobody, on every machine.
const NOBODY: u32 = 65_534;

fn with(order: LaunchOrder, change: impl FnOnce(&mut OutputOrder)) -> LaunchOrder {
    let mut order = order;
    change(&mut order.output);
    order
}

fn sh(lab: &Lab, token: u64, script: &str, change: impl FnOnce(&mut OutputOrder)) -> LaunchOrder {
    with(lab.order(token, &["sh", "-c", script]), change)
}

fn path(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

/// All pieces that are kept, with their positions, as a follower gets them.
async fn pieces(lab: &Lab, token: u64, stream: OutputStream) -> Vec<(u64, Vec<u8>)> {
    let (mut at, mut pieces) = (0, Vec::<(u64, Vec<u8>)>::new());
    loop {
        let chunk = lab.host.read_log(Token(token), stream, at, shim_lab::HANG).await.unwrap();
        assert!(chunk.offset >= at);
        match pieces.last_mut() {
            Some((_, bytes)) if chunk.offset == at => bytes.extend_from_slice(&chunk.bytes),
            _ => pieces.push((chunk.offset, chunk.bytes.clone())),
        }
        at = chunk.offset + chunk.bytes.len() as u64;
        if chunk.last {
            return pieces;
        }
        assert!(!chunk.bytes.is_empty(), "no byte and no end came");
    }
}

#[tokio::test]
async fn a_stream_past_its_limit_is_kept_by_head_and_tail() {
    let mut lab = Lab::new().await;
    // Sixteen bytes a line, so that each byte's place is known from what it is.
    let script = "seq -f %015.0f 0 99999; echo small >&2";
    lab.host.launch(sh(&lab, 1, script, |output| output.bytes_max = 128 << 10)).await.unwrap();
    let record = lab.ended(1).await;
    assert_eq!(record.end, AttemptEnd::Exited { code: 0 });
    assert_eq!((record.stdout_bytes, record.stderr_bytes), (1_600_000, 6));
    let found = pieces(&lab, 1, Stdout).await;
    let kept: u64 = found.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    assert_eq!(record.dropped_bytes, 1_600_000 - kept);
    assert!((112 << 10..=128 << 10).contains(&kept), "{kept}");
    assert_eq!(found.len(), 2, "a head and a tail");
    assert_eq!((found[0].0, found[0].1.len()), (0, 64 << 10));
    for (from, bytes) in &found {
        let whole = (0..100_000_u32).map(|line| format!("{line:015}\n")).collect::<String>();
        let from = usize::try_from(*from).unwrap();
        assert!(whole.as_bytes()[from..from + bytes.len()] == bytes[..], "at {from}");
    }
    assert_eq!(lab.output(1, Stderr).await, b"small\n", "one stream's flood is its own");
    let last = lab.host.find_log(Token(1), Stdout, 3).await.unwrap();
    assert_eq!(last, 1_600_000 - 48);
    lab.host.release(Token(1)).await;
    assert_eq!(pieces(&lab, 1, Stdout).await, found, "and so it stays");
}

#[tokio::test]
async fn standard_input_is_what_was_given_and_ends() {
    let mut lab = Lab::new().await;
    let mut stdin: Vec<u8> = (0..200_000_u32).map(|n| (n % 256) as u8).collect();
    stdin.extend_from_slice(b"no newline at the end");
    for token in [1, 2] {
        lab.host.launch(sh(&lab, token, "cat; cat", |output| output.stdin = stdin.clone())).await.unwrap();
        assert_eq!(lab.ended(token).await.end, AttemptEnd::Exited { code: 0 });
        assert!(lab.output(token, Stdout).await == stdin, "every attempt reads the same");
    }
    // It cannot be changed for those that read after.
    let script = "exec 3<>/proc/self/fd/0 && echo x >&3; cat";
    lab.host.launch(sh(&lab, 3, script, |output| output.stdin = b"kept".to_vec())).await.unwrap();
    lab.ended(3).await;
    assert_eq!(lab.output(3, Stdout).await, b"kept");
    assert_eq!(lab.run(4, "cat; echo over").await, AttemptEnd::Exited { code: 0 });
    assert_eq!(lab.output(4, Stdout).await, b"over\n", "none given is an empty one");
}

#[tokio::test]
async fn the_environment_arrives_byte_for_byte() {
    let mut lab = Lab::new().await;
    let mut user: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (b"PATH".to_vec(), b"/usr/bin:/bin".to_vec()),
        (b"EMPTY".to_vec(), Vec::new()),
        (b"LINES".to_vec(), b"a\nb\n\nc\n".to_vec()),
        (b"NOT_UTF8".to_vec(), vec![0xff, 0xfe, b'=', 0x80, 1, 27]),
        (b"name\xffwith bytes".to_vec(), b" = ".to_vec()),
    ];
    // One megabyte in all: the kernel takes 128 KiB in one string.
    user.extend((0..10_u8).map(|n| (vec![b'B', b'0' + n], vec![b'a' + n; 100_000])));
    let mut order = lab.order(1, &["cat", "/proc/self/environ"]);
    let task = TaskId { job: JobId(1), index: 0 };
    let notes_base = order.notes_base.clone();
    order.env = task_env(&user, TaskEnv::plain(lab.cluster, HostId(1), Token(1), task, &notes_base));
    let wanted: Vec<u8> =
        order.env.iter().flat_map(|(name, value)| [name, b"=".as_slice(), value, b"\0"].concat()).collect();
    assert!(wanted.len() > 1_000_000);
    lab.host.launch(order).await.unwrap();
    assert_eq!(lab.ended(1).await.end, AttemptEnd::Exited { code: 0 });
    let got = lab.output(1, Stdout).await;
    assert!(got == wanted, "{} bytes instead of {}", got.len(), wanted.len());
}

#[tokio::test]
async fn a_file_of_the_users_own_is_gone_on_with_attempt_by_attempt() {
    let mut lab = Lab::new().await;
    let (out, err) = (lab.data.join("out"), lab.data.join("err"));
    for token in [1, 2] {
        let order = sh(&lab, token, "echo out $ROTA_TOKEN; sleep 0.05; echo err >&2", |output| {
            output.stdout = path(&out);
            output.separator = format!("--- {token}\n").into_bytes();
        });
        lab.host.launch(order).await.unwrap();
        assert_eq!(lab.ended(token).await.end, AttemptEnd::Exited { code: 0 });
        assert_eq!(
            lab.output(token, Stdout).await,
            format!("out {token}\n").into_bytes(),
            "the spool as well"
        );
    }
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "out 1\nerr\n--- 2\nout 2\nerr\n");
    let order = sh(&lab, 3, "echo new; echo err >&2", |output| {
        (output.stdout, output.stderr, output.replace) = (path(&out), path(&err), true);
    });
    lab.host.launch(order).await.unwrap();
    lab.ended(3).await;
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "new\n");
    assert_eq!(std::fs::read_to_string(&err).unwrap(), "err\n");
    // Of a program that cannot be run the word is there too.
    let order = with(lab.order(4, &["no-such-program"]), |output| output.stderr = path(&err));
    lab.host.launch(order).await.unwrap();
    assert_eq!(lab.ended(4).await.end, AttemptEnd::Exited { code: 127 });
    assert!(std::fs::read_to_string(&err).unwrap().ends_with("rota: no-such-program: program not found\n"));
    // Much output, and no lost byte.
    let order = sh(&lab, 5, "seq 1 400000", |output| (output.stdout, output.replace) = (path(&out), true));
    lab.host.launch(order).await.unwrap();
    lab.ended(5).await;
    assert!(std::fs::read(&out).unwrap() == lab.output(5, Stdout).await);
    let order = sh(&lab, 6, "echo hello", |output| output.stdout = b"/no/such/folder/x".to_vec());
    lab.host.launch(order).await.unwrap();
    assert_eq!(lab.ended(6).await.end, AttemptEnd::Exited { code: 126 });
    let said = String::from_utf8(lab.output(6, Stderr).await).unwrap();
    assert!(said.starts_with("rota: cannot write output to /no/such/folder/x: No such file"), "{said}");
}

#[tokio::test]
async fn such_a_file_is_opened_with_the_rights_of_its_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT EXERCISED: files of another user, because this is not root");
        return;
    }
    let mut lab = Lab::new().await;
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let own = home.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    let secret = home.path().join("secret");
    std::fs::write(&secret, "of root").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&secret, own.join("link")).unwrap();
    let mut run = async |token: u64, file: &[u8]| {
        let mut order = sh(&lab, token, "id -u", |output| output.stdout = file.to_vec());
        order.uid_gid = Some((NOBODY, NOBODY));
        lab.host.launch(order).await.unwrap();
        let end = lab.ended(token).await.end;
        (end, String::from_utf8(lab.output(token, Stderr).await).unwrap())
    };
    let refused = AttemptEnd::Exited { code: 126 };
    assert_eq!(run(1, &path(&own.join("x"))).await.0, AttemptEnd::Exited { code: 0 });
    let meta = std::fs::metadata(own.join("x")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (NOBODY, NOBODY));
    let (end, said) = run(2, &path(&own.join("link"))).await;
    assert!(end == refused && said.contains("symbolic link"), "{end:?} {said}");
    let (end, said) = run(3, &path(&secret)).await;
    assert!(end == refused && said.contains("Permission denied"), "{end:?} {said}");
    assert_eq!(run(4, &path(&home.path().join("new"))).await.0, refused, "not the user's folder");
    // What the shim itself has open is nobody's to reach.
    assert_eq!(run(5, b"/proc/self/fd/3").await.0, refused);
    assert_eq!(run(6, b"/proc/self/cwd/7.stdout").await.0, refused);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of root");
}

#[tokio::test]
async fn old_output_is_removed_by_rule_and_says_so() {
    // Report R056: nothing but the rules removes output; a failure stays longer than a success.
    let mut lab = Lab::new().await;
    lab.run(1, "echo failed; exit 1").await;
    lab.host.release(Token(1)).await;
    for token in 2..52 {
        lab.run(token, "echo ok").await;
        lab.host.release(Token(token)).await;
    }
    assert_eq!(lab.output(1, Stdout).await, b"failed\n", "50 replacements later");
    lab.host.keep_by(KeepRules { succeeded_ms: 1, ..KeepRules::default() });
    shim_lab::wait_until("the successes are removed", || !lab.data.join("attempts/51.stdout").exists()).await;
    shim_lab::wait_until("their records too", || !lab.data.join("attempts/51.record").exists()).await;
    let gone = lab.host.read_log(Token(51), Stdout, 0, Duration::ZERO).await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
    assert!(
        gone.message.contains("was removed at 20") && gone.message.ends_with("by the rule output.keep"),
        "{gone}"
    );
    assert_eq!(lab.output(1, Stdout).await, b"failed\n", "a failure stays");
    // The rule of an earlier agent is told by the next.
    let lab = Lab::open(lab.kill_agent().await, shim_lab::LEASE_MS).await;
    let gone = lab.host.read_log(Token(20), Stdout, 0, Duration::ZERO).await.unwrap_err();
    assert!(gone.message.contains("was removed at"), "{gone}");
    let never = lab.host.read_log(Token(777), Stdout, 0, Duration::ZERO).await.unwrap_err();
    assert!(never.code == ErrorCode::NotFound && never.message.contains("never ran here"), "{never}");
}
