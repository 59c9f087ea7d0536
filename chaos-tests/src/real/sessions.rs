//! Interactive sessions on a real cluster (field report R097): batch, terminal, command inside and array element are
//! compared line by line; a person's keys, window, signals and status pass; a peer that dies in between only costs time.

use super::Bench;
use super::row::Row;
use super::tty::Client;
use rota_node::lab::{Lab, LabError, wait_for};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a task can say of what it was given.
const LOOKS: &str = "env | sort; id; umask; ulimit -a; \
     for d in /dev/null /dev/zero /dev/full /dev/random /dev/mem /dev/kmsg /dev/fuse /dev/kvm /dev/loop0 /dev/nvidia* /dev/dri/* /dev/kfd; do \
     (exec 3<>\"$d\") 2>/dev/null && echo \"opens $d\"; done; echo whole";
/// Where a process is confined.
const CONFINED: &str = "readlink /proc/self/ns/*; cat /proc/self/cgroup; echo whole";
/// Names that are an attempt's own, or a shell's; `TERM` is what a terminal has and others have not.
const OWN: [&str; 10] = [
    "TERM",
    "ROTA_JOB_ID",
    "ROTA_TASK_INDEX",
    "ROTA_TOKEN",
    "ROTA_NOTICE_FILE",
    "ROTA_REQUEUE_FILE",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
];
/// Longest wait for a person's key to be answered by the program, through another peer, in ms.
const KEY_MS: u64 = 1_000;
const LIMIT: Duration = Duration::from_secs(20);

/// Runs a `rota` command at a peer; its status and what it printed.
fn rota(bench: &Bench, lab: &Lab, peer: usize, args: &[&str]) -> Result<(Option<i32>, String), LabError> {
    let io = |error| LabError::Io("cannot run rota".into(), error);
    let mut command = Command::new(&bench.exe);
    command.args(&bench.exe_args).arg("--socket").arg(lab.peers[peer].socket()).args(args);
    let output = command.stdin(Stdio::null()).output().map_err(io)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    Ok((output.status.code(), if output.status.success() { text } else { format!("{text}{said}") }))
}

/// The lines that can be compared. An attempt's number is taken out of the others.
fn comparable(text: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = text.lines().map(|line| line.trim_end_matches('\r')).collect();
    let token =
        lines.iter().find_map(|line| line.strip_prefix("ROTA_TOKEN=")).unwrap_or("no token").to_owned();
    let own =
        |line: &&&str| !OWN.iter().any(|name| line.split_once('=').is_some_and(|(key, _)| key == *name));
    lines.iter().filter(own).map(|line| line.replace(&token, "TOKEN")).collect()
}

/// R097: one job each way on one card of one host, asked for through another peer.
pub(super) async fn same_everywhere(bench: &Bench) -> Result<Row, LabError> {
    let mut lab = bench.lab("R097", 3, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let what = "batch, pty, exec, array element alike; keys, window, Ctrl-C, status pass: from key to answer at another peer";
    let mut row = Row::new("R097", what, Some(KEY_MS));
    compare(bench, &lab, &mut row)?;
    for round in 0..bench.rounds {
        person(bench, &mut lab, &mut row, round).await?;
    }
    Ok(row)
}

/// The last word of a line such as `job 12`, as digits.
fn job_number(text: &str) -> String {
    text.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect()
}

fn compare(bench: &Bench, lab: &Lab, row: &mut Row) -> Result<(), LabError> {
    let asks = ["--gpus", "1", "--cpus", "1"];
    let with = |head: &[&'static str], tail: &[&'static str]| -> Vec<&'static str> {
        head.iter().chain(&asks).chain(&["--", "sh", "-c"]).chain(tail).copied().collect()
    };
    let batch = rota(bench, lab, 0, &with(&["run"], &[LOOKS]))?.1;
    let pty = rota(bench, lab, 0, &with(&["run", "--pty"], &[LOOKS]))?.1;
    let array = job_number(&rota(bench, lab, 0, &with(&["submit", "--array", "3-3"], &[LOOKS]))?.1);
    rota(bench, lab, 0, &["wait", &array])?;
    let element = rota(bench, lab, 0, &["logs", &format!("{array}_3")])?.1;
    let holds = format!("{CONFINED}; sleep 9999");
    let mut submit = with(&["submit"], &[]);
    submit.push(&holds);
    let holder = job_number(&rota(bench, lab, 0, &submit)?.1);
    let began = Instant::now();
    let inside = loop {
        let (status, text) = rota(bench, lab, 1, &["exec", &holder, "--", "sh", "-c", LOOKS])?;
        if status == Some(0) || began.elapsed() > LIMIT {
            break text;
        }
    };
    let own = rota(bench, lab, 0, &["logs", &holder])?.1;
    let confined = rota(bench, lab, 2, &["exec", &holder, "--", "sh", "-c", CONFINED])?.1;
    row.must(own == confined && own.contains("whole"), || {
        format!("the task is in {own:?}, exec in {confined:?}")
    });
    let (status, text) =
        rota(bench, lab, 2, &["exec", &holder, "--", "sh", "-c", "echo out; echo err >&2; exit 7"])?;
    row.must(status == Some(7) && text == "out\nerr\n", || {
        format!("exec ended with {status:?} and said {text:?}")
    });
    rota(bench, lab, 0, &["cancel", &holder])?;
    let expected = comparable(&batch);
    row.must(
        expected.contains("whole") && expected.iter().any(|l| l.starts_with("CUDA_VISIBLE_DEVICES=")),
        || format!("batch said only {batch:?}"),
    );
    for (name, text) in [("pty", pty), ("array element", element), ("exec", inside)] {
        let found = comparable(&text);
        let differs: Vec<_> = expected.symmetric_difference(&found).collect();
        // Cards of one model differ in their names only when a job of its own ran on another host.
        let differs: Vec<_> = differs.into_iter().filter(|line| !is_place(line)).collect();
        row.must(differs.is_empty(), || format!("batch and {name} differ in {differs:?}"));
    }
    row.tried();
    Ok(())
}

/// What only says on which host, and on which card of it, a job happened to run.
fn is_place(line: &str) -> bool {
    ["ROTA_HOST=", "CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES="]
        .iter()
        .any(|name| line.starts_with(name))
}

/// A person at a shell on another host: keys, window, interrupt, a peer that dies, a client that is killed, the end.
async fn person(bench: &Bench, lab: &mut Lab, row: &mut Row, round: usize) -> Result<(), LabError> {
    let leader = lab.leader().await?;
    let (mine, script) = (
        (leader + 1) % 3,
        "trap 'echo winch $(stty size)' WINCH; trap 'echo int' INT; echo up $(stty size); \
         while :; do line=; read line; [ \"$line\" = bye ] && exit 6; [ -n \"$line\" ] && echo \"got $line\"; done",
    );
    let socket = lab.peers[mine].socket().display().to_string();
    let label = format!("person-{round}");
    let mut args: Vec<String> = bench.exe_args.clone();
    args.extend(
        ["--socket", &socket, "run", "--pty", "--name", &label, "--gpus", "1", "--", "sh", "-c", script]
            .map(Into::into),
    );
    let mut client = Client::start(&bench.exe, &args, 31, 97)?;
    let cooked = client.modes()?;
    client.until(row, "up 31 97", LIMIT);
    let raw = client.modes()?;
    row.must(raw != cooked, || format!("round {round}: the terminal is not passed through"));
    let pressed = Instant::now();
    client.press(b"hello\r")?;
    if client.until(row, "got hello", LIMIT) {
        row.ran(pressed.elapsed().as_millis() as u64);
    }
    client.resize(12, 34)?;
    client.until(row, "winch 12 34", LIMIT);
    client.press(b"\x03")?;
    client.until(row, "int", LIMIT);
    // The peer in between dies and comes back.
    lab.signal(mine, Signal::KILL)?;
    client.press(b"meanwhile\r")?;
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    lab.spawn(mine)?;
    lab.until_answers(mine).await?;
    client.until(row, "got meanwhile", LIMIT);
    row.must(client.shown().matches("got meanwhile").count() == 1, || format!("round {round}: typed twice"));
    // The client is killed: the job goes on, and somebody else sits down at it.
    client.kill();
    let job = job_of(bench, lab, &label)?;
    let socket = lab.peers[leader].socket().display().to_string();
    let mut args: Vec<String> = bench.exe_args.clone();
    args.extend(["--socket", &socket, "attach", &job].map(Into::into));
    let mut again = Client::start(&bench.exe, &args, 20, 60)?;
    let cooked = again.modes()?;
    again.until(row, "winch 20 60", LIMIT);
    again.press(b"again\r")?;
    again.until(row, "got again", LIMIT);
    again.press(b"bye\r")?;
    let status = again.status(LIMIT);
    row.must(status == Some(6), || format!("round {round}: attach ended with {status:?}: {}", again.shown()));
    let after = again.modes()?;
    row.must(after == cooked, || format!("round {round}: the terminal was not given back as it was"));
    wait_for("the card", LIMIT, async || {
        lab.hosts().await.ok()?.iter().all(|host| host.gpus_used == 0).then_some(())
    })
    .await
}

fn job_of(bench: &Bench, lab: &Lab, name: &str) -> Result<String, LabError> {
    let (_, text) = rota(bench, lab, 0, &["queue"])?;
    let line = text.lines().find(|line| line.contains(name)).unwrap_or_default();
    Ok(job_number(line))
}
