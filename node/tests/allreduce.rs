//! A real collective over two hosts (`deploy/tour/allreduce.sh`), unmodified: by plain sockets always, by
//! torch.distributed with gloo where some Python has torch. `ROTA_TORCH=1` installs it where none has.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A slow machine of two cores takes a tenth of it, without an installation.
const BUDGET: Duration = Duration::from_secs(180);
/// With one.
const BUDGET_INSTALLS: Duration = Duration::from_secs(1_200);

#[test]
fn two_hosts_sum_their_vectors() {
    let missing = ["bash", "python3"].into_iter().find(|program| !runs(program, &["--version"]));
    if let Some(program) = missing {
        return skipped(&format!("the all-reduce over two hosts needs {program}"));
    }
    let installs = std::env::var_os("ROTA_TORCH").is_some_and(|value| value == "1");
    let has_torch = ["python3", "/usr/bin/python3"]
        .iter()
        .any(|python| runs(python, &["-c", "import torch.distributed"]));
    let torch = installs || has_torch;
    if !torch {
        skipped("the all-reduce by torch.distributed: no Python here has torch, and ROTA_TORCH is not 1");
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let out = std::fs::File::create(&log).unwrap();
    let mut command = Command::new("bash");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/tour/allreduce.sh"));
    command.args(torch.then_some("--torch")).env("ROTA", env!("CARGO_BIN_EXE_rota"));
    let mut tour = command.stdin(Stdio::null()).stderr(out.try_clone().unwrap()).stdout(out).spawn().unwrap();
    let started = Instant::now();
    let budget = if installs && !has_torch { BUDGET_INSTALLS } else { BUDGET };
    let status = loop {
        if let Some(status) = tour.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > budget {
            // It cleans up after itself.
            rustix::process::kill_process(
                rustix::process::Pid::from_child(&tour),
                rustix::process::Signal::TERM,
            )
            .unwrap();
            break tour.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(status.success(), "{status} after {:?}\n{text}", started.elapsed());
    let said = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!(said("allreduce over sockets: rank"), 2, "{text}");
    assert!(!torch || said(" gloo: rank") >= 2, "{text}");
    if let Some(line) = text.lines().find(|line| line.starts_with("SKIPPED")) {
        skipped(line);
    }
}

/// Past the capture of the harness: it must be seen that something was not checked. Behind what is there, which may be a
/// file.
fn skipped(what: &str) {
    let what = what.trim_start_matches("SKIPPED: ");
    let stderr = std::fs::OpenOptions::new().append(true).open("/dev/stderr");
    stderr.and_then(|mut stderr| writeln!(stderr, "SKIPPED: {what}")).ok();
}

fn runs(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
