//! The program `rota` as a user meets it: real processes, pipes and signals, against a small agent.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod agent;
mod keys;

use agent::{Agent, CAPPED, CUT, ENDS, HELD};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

fn rota(agent: &Agent) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rota"));
    command.env("ROTA_SOCKET", &agent.socket).env_remove("ROTA_PEER").stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn ask(agent: &Agent, args: &[&str]) -> (i32, String, String) {
    output(rota(agent).args(args))
}

/// Waits for a line of its output, sends it a signal, and gives the rest of its output and its status.
fn signalled(mut child: Child, line: &str, signals: &[Signal]) -> (i32, String) {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    if !line.is_empty() {
        stdout.read_line(&mut first).unwrap();
        assert_eq!(first.trim(), line);
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    for signal in signals {
        kill_process(pid, *signal).unwrap();
    }
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    (child.wait().unwrap().code().unwrap(), rest)
}

#[test]
fn run_is_like_a_local_command() {
    let agent = Agent::start();
    let script = "echo out; echo err >&2; printf %s \"$X\"; exit 7";
    let (status, out, err) = ask(&agent, &["run", "--env", "X=a b", "--", "sh", "-c", script]);
    assert_eq!((status, out.as_str(), err.as_str()), (7, "out\na b", "err\n"));
    assert_eq!(ask(&agent, &["run", "true"]), (0, String::new(), String::new()));
    assert_eq!(ask(&agent, &["run", "sh", "-c", "kill -9 $$"]).0, 137);
    // Flags after the command are the command's.
    assert_eq!(ask(&agent, &["run", "--gpus", "0", "echo", "--json", "-v"]).1, "--json -v\n");
    let (status, _, err) = ask(&agent, &["run", "--", "/no/such/program"]);
    assert_eq!(status, 127);
    assert!(!err.contains("panicked"), "{err}");
    let (status, out, _) = ask(&agent, &["run", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]);
    assert_eq!((status, out.len()), (0, 3_000_000));
}

#[test]
fn signals_go_to_the_job() {
    let agent = Agent::start();
    let run = |script: &str, name: &str| {
        let mut command = rota(&agent);
        command.args(["run", "--name", name, "--", "sh", "-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    for (signal, name) in [(Signal::INT, "INT"), (Signal::USR1, "USR1"), (Signal::TERM, "TERM")] {
        let script = format!("trap 'echo caught; exit 3' {name}; echo ready; while :; do sleep 0.02; done");
        assert_eq!(signalled(run(&script, "traps"), "ready", &[signal]), (3, "caught\n".into()));
    }
    // Two interrupts end even a job that takes none.
    let child = run("trap '' INT; echo ready; while :; do sleep 0.02; done", "deaf");
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let mut child = child;
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    while child.try_wait().unwrap().is_none() {
        kill_process(pid, Signal::INT).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn an_interrupt_ends_a_job_that_still_waits() {
    let agent = Agent::start();
    let mut command = rota(&agent);
    command.args(["run", "--name", HELD, "-v", "true"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("job ") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0);
    }
    assert_eq!(signalled(child, "", &[Signal::INT]).0, 130);
}

#[test]
fn a_reader_that_goes_away_ends_the_writer() {
    let agent = Agent::start();
    let mut command = rota(&agent);
    let mut child =
        command.args(["run", "yes"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 2];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let end = child.wait_with_output().unwrap();
    assert_eq!((end.status.code(), &first), (Some(141), b"y\n"));
    ask(&agent, &["submit", "--name", HELD, "true"]);
    for args in [["queue", "--all"], ["queue", "--json"], ["show", "last"], ["logs", "1"]] {
        let mut command = rota(&agent);
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let end = child.wait_with_output().unwrap();
        assert_eq!(end.status.code(), Some(141), "{args:?}");
        assert!(end.stderr.is_empty(), "{}", String::from_utf8_lossy(&end.stderr));
    }
}

#[test]
fn output_comes_whole_and_once_over_a_broken_connection() {
    let agent = Agent::start();
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.01; done; exit 4";
    let wanted: String = (1..10).map(|i| format!("line {i}\n")).collect();
    let (status, out, _) = ask(&agent, &["run", "--name", CUT, "sh", "-c", script]);
    assert_eq!((status, out), (4, wanted.clone()));
    let (status, out, _) = ask(&agent, &["logs", "-f", "last"]);
    assert_eq!((status, out), (4, wanted));
}

#[test]
fn what_cannot_be_accepted_is_refused_in_one_line_before_anything_is_sent() {
    let agent = Agent::start();
    for (args, says) in [
        (&["submit", "--gpus", "1.5", "true"][..], "error: gpus: "),
        (&["submit", "--gang", "0", "true"], "error: gang: \"0\" is not a whole number from 1 to "),
        (&["submit", "--after", "12", "true"], "(for example: ok:12)"),
        (&["submit", "--or", "gpuz=1", "true"], "error: or: gpuz: "),
        (&["submit", "--device", "fpag=1", "true"], "did you mean fpga?"),
        (&["submit", "--deadline", "2020-01-01", "true"], "error: deadline: has passed already"),
        (&["submit", "--array", "1-20000000", "true"], "the limit is 10000000"),
        (&["submit", "--warn", "KILL@5s", "true"], "cannot be caught"),
        (&["queues", "set", "a//b"], "error: queue: "),
        (&["queues", "set", "lab", "--ceiling", "gpuz=1"], "did you mean gpus?"),
        (&["priority", "1", "101"], "not a whole number from 0 to 100"),
        (&["hold", "1_2"], "takes whole jobs"),
        (&["reserve", "m", "--hosts", "a", "--for", "0", "--maintenance"], "error: for: "),
        (&["drain", "n1", "--deadline", "soon"], "error: deadline: "),
        (&["submit", "--mem", "12X", "true"], "(for example: 16G)"),
        (&["submit", "--time", "-5m", "true"], "error: "),
        (&["submit", "--time=-5m", "true"], "error: time: \"-5m\" is negative"),
        (&["submit", "--gpuz", "1", "true"], "--gpus"),
        (&["submit", "--gpus", "1", "--gpus", "2", "true"], "--gpus"),
        (&["submit", "--env", "NO_SUCH_VARIABLE", "true"], "error: env: "),
        (&["submit"], "error: command: names no program"),
        (&["run", "--array", "1-2", "true"], "--array"),
        (&["logs", "x"], "error: job: "),
        (&["queue", "--state", "runing"], "did you mean running?"),
        (&["cancel", "--signal", "USR9", "1"], "USR1"),
        (&["wait", "1_2"], "takes whole jobs"),
        (&["no-such-command"], "no-such-command"),
    ] {
        let (status, out, err) = ask(&agent, args);
        assert_eq!((status, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
    let (status, out, err) = ask(&agent, &["submit", "--json", "--vram", "x", "--gpus", "1", "true"]);
    assert_eq!((status, out.as_str()), (2, ""));
    let error: serde_json::Value = serde_json::from_str(&err).unwrap();
    assert_eq!(error["error"]["code"], "invalid");
    assert_eq!(error["error"]["field"], "vram");
    assert!(agent.specs().is_empty());
    let gone = Command::new(env!("CARGO_BIN_EXE_rota"))
        .args(["queue", "--socket", "/no/such/socket"])
        .output()
        .unwrap();
    assert_eq!(gone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no socket at /no/such/socket"));
}

#[test]
fn a_script_asks_the_same_however_it_is_given() {
    // Field report R004.
    let agent = Agent::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sh");
    std::fs::write(&path, "#!/bin/sh\n#ROTA --mem 1G --time=5m\necho \"$1\"\n").unwrap();
    let whole = path.to_str().unwrap();
    for args in [
        &["submit", "s.sh", "x"][..],
        &["submit", "./s.sh", "x"],
        &["submit", whole, "x"],
        &["submit", "--script", "s.sh", "x"],
        &["submit", "--time", "7m", "./s.sh", "x"],
    ] {
        let (status, _, err) = output(rota(&agent).current_dir(dir.path()).args(args));
        assert_eq!((status, err.as_str()), (0, ""), "{args:?}");
    }
    let mut from_stdin = rota(&agent);
    from_stdin.args(["submit", "--script", "-", "x"]).stdin(std::fs::File::open(&path).unwrap());
    assert_eq!(output(&mut from_stdin).0, 0);
    let specs = agent.specs();
    assert_eq!(specs.len(), 6);
    for (at, spec) in specs.iter().enumerate() {
        assert_eq!(spec.ask.mem_mib, 1_024);
        assert_eq!(spec.time_limit_ms, Some(if at == 4 { 420_000 } else { 300_000 }));
    }
    assert_eq!(ask(&agent, &["logs", "-f", "1"]), (0, "x\n".into(), String::new()));
    let (status, _, err) = output(rota(&agent).current_dir(dir.path()).args(["submit", "sh", "s.sh"]));
    assert_eq!(status, 0);
    assert!(err.contains("#ROTA lines") && err.lines().count() == 1, "{err}");
}

#[test]
fn lists_are_whole_clean_and_readable_by_programs() {
    let agent = Agent::start();
    for name in ["a", HELD, "b\u{202e}c", "d"] {
        assert_eq!(ask(&agent, &["submit", "--name", name, "sleep", "600"]).0, 0);
    }
    let (status, out, _) = ask(&agent, &["queue"]);
    assert_eq!((status, out.lines().count()), (0, 5));
    assert!(out.contains("PD") && out.contains("(gpus_busy)") && !out.contains('\u{202e}'), "{out}");
    let (_, out, _) = ask(&agent, &["queue", "--json", "--limit", "3"]);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["jobs"].as_array().unwrap().len(), 3);
    assert_eq!(document["jobs"][2]["name"], "b\u{202e}c");
    let (_, out, _) = ask(&agent, &["show", "last", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["row"]["job"], 4);
    assert_eq!(document["spec"]["argv"], serde_json::json!(["sleep", "600"]));
    for _ in 0..2 {
        assert_eq!(ask(&agent, &["cancel", "1", "2", "3", "last"]).0, 0);
    }
    let (status, out, _) = ask(&agent, &["wait", "1", "2"]);
    assert_eq!((status, out.lines().count()), (130, 2));
    let (status, out, err) = ask(&agent, &["cancel", "1", "99"]);
    assert_eq!((status, err.as_str()), (1, ""));
    assert!(out.contains("no job 99"), "{out}");
}

#[test]
fn what_was_understood_is_echoed() {
    let agent = Agent::start();
    let dir = tempfile::tempdir().unwrap();
    let spec = dir.path().join("job.toml");
    std::fs::write(&spec, "gpus = 2\nmem = \"1.5G\"\ncommand = [\"true\"]\n").unwrap();
    let args =
        ["submit", "--dry-run", "--spec", spec.to_str().unwrap(), "--time", "90", "--array", "0-9:3%2"];
    let (status, out, _) = ask(&agent, &args);
    assert_eq!(status, 0);
    for line in [
        "gpus      2",
        "mem       1536 MiB",
        "time      1m30s",
        "array     0-9:3%2 (4 tasks, at most 2 at once)",
    ] {
        assert!(out.lines().any(|l| l == line), "{line}: {out}");
    }
    assert!(agent.specs().is_empty());
    let (_, out, _) = ask(&agent, &["submit", "--json", "--gpus", "2", "true"]);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["job"], 1);
    assert_eq!(document["spec"]["ask"]["gpu_milli"], 2_000);
    let (_, out, _) = ask(&agent, &["submit", "true"]);
    assert_eq!(out, "job 2\n");
}

#[test]
fn each_way_to_end_has_a_status_of_its_own_and_says_so() {
    // Field report R044.
    let agent = Agent::start();
    for (at, (code, status, says)) in [
        ("TO", 124, "ended by its time limit of 2s"),
        ("PR", 123, "ended to make room"),
        ("DF", 122, "never started: job 1 failed, not ok"),
        ("DL", 121, "never started: its deadline passed"),
        ("NF", 125, "its host was lost"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("{ENDS}{code}");
        let (run, _, err) = ask(&agent, &["run", "--name", &name, "--time", "2s", "true"]);
        assert_eq!(run, status, "{code}: {err}");
        assert!(err.contains(says), "{code}: {err}");
        let job = (at + 1).to_string();
        let (wait, out, _) = ask(&agent, &["wait", &job]);
        assert_eq!(wait, status, "{out}");
        assert!(out.contains(&format!("(exit {status})")), "{out}");
    }
    let (_, out, _) = ask(&agent, &["queue", "--all", "--state", "TO,PR,DF,DL,NF"]);
    assert!(["TO", "PR", "DF", "DL", "NF"].iter().all(|code| out.contains(code)), "{out}");
}

#[test]
fn what_the_cluster_made_of_a_job_is_told_once() {
    // Field reports R001 and R044.
    let agent = Agent::start();
    let (status, out, err) = ask(&agent, &["submit", "--name", CAPPED, "true"]);
    assert_eq!(
        (status, out.as_str(), err.as_str()),
        (0, "job 1\n", "note: time limit 1h: the rule of queue t\n")
    );
    let (_, out, err) = ask(&agent, &["submit", "--name", CAPPED, "--json", "true"]);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["spec"]["time_limit_ms"], 3_600_000, "as stored, not as sent");
    assert_eq!((&document["queue"], document["notes"].as_array().unwrap().len()), (&"t".into(), 1));
    assert_eq!(err, "");
    let (_, _, err) = ask(&agent, &["submit", "--name", CAPPED, "--time", "5m", "--verbose", "true"]);
    assert_eq!(err.lines().count(), 1);
}
