//! The tour of the shapes of work (`deploy/tour/shapes.sh`): three real agents, real tasks, and every assertion of the
//! script. What a newcomer is told to run must work. Not here: what the scenes show and check; the script says that.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A slow machine of two cores takes half of it.
const BUDGET: Duration = Duration::from_secs(180);
/// For the script to clean up after it was told to end: it first waits for its present command, which has a limit.
const CLEANUP: Duration = Duration::from_secs(60);

#[test]
fn every_scene_holds_on_three_live_peers() {
    let missing = ["bash", "python3"].into_iter().find(|program| !runs(program));
    if let Some(program) = missing {
        // Past the capture of the harness: it must be seen that nothing was checked.
        std::fs::write("/dev/stderr", format!("SKIPPED: the tour of the shapes of work needs {program}\n"))
            .ok();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("tour.log");
    let out = File::create(&log).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/tour/shapes.sh");
    let mut tour = Command::new("bash")
        .arg(script)
        .env("ROTA", env!("CARGO_BIN_EXE_rota"))
        .stdin(Stdio::null())
        .stderr(out.try_clone().unwrap())
        .stdout(out)
        .spawn()
        .unwrap();
    let started = Instant::now();
    let mut told = false;
    let status = loop {
        if let Some(status) = tour.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > BUDGET && !told {
            told = true;
            kill_process(Pid::from_child(&tour), Signal::TERM).unwrap();
        }
        assert!(started.elapsed() < BUDGET + CLEANUP, "the tour does not end");
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(status.success() && !told, "{status} after {:?}\n{text}", started.elapsed());
    // The table at its end names every scene.
    let table = text.rsplit_once("\nfeature ").unwrap_or_else(|| panic!("no table\n{text}")).1;
    for scene in "gang array after share preempt promise reserve queues start drain".split(' ') {
        assert!(table.lines().any(|line| line.starts_with(&format!("{scene} "))), "no {scene} in\n{table}");
    }
    println!("feature {table}");
}

fn runs(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}
