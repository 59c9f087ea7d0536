//! What the command line takes, and what it makes of it.

use super::*;
use crate::cli::job_args::{Here, JobArgs};
use crate::cli::job_flags::JobFlags;
use clap::CommandFactory;
use rota_protocol::job::JobSpec;
use std::path::PathBuf;

/// 2026-12-01 00:00:00 UTC.
const NOW_MS: u64 = 1_796_083_200_000;

fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("rota").chain(args.iter().copied()))
}

fn job(args: &[&str]) -> Result<JobSpec, Failure> {
    let cli = parse(&[&["submit"], args].concat()).unwrap();
    let Command::Submit(submit) = cli.command else { panic!("{args:?} is no submit") };
    submit.job.job_spec(submit.array.as_deref(), &here())
}

fn here() -> Here {
    let env = [("PATH", "/bin"), ("AWS_SECRET", "x"), ("SEED", "7")];
    let env = env.map(|(k, v)| (k.into(), v.into())).to_vec();
    Here { workdir: PathBuf::from("/w"), env, now_ms: NOW_MS }
}

#[test]
fn the_whole_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_reaches_its_field() {
    let spec = job(&[
        "--gpus",
        "2",
        "--gpu-model",
        "H100,A100",
        "--vram",
        "80G",
        "--cpus",
        "1.5",
        "--mem",
        "16GiB",
        "--time",
        "1h30m",
        "--grace",
        "5s",
        "--priority",
        "70",
        "--retries",
        "3",
        "--name",
        "t",
        "--env",
        "A=1",
        "--env",
        "SEED",
        "--workdir",
        "sub",
        "--label",
        "pool=a",
        "--fpga",
        "1",
        "--array",
        "0-9",
        "--",
        "train",
        "--lr",
        "1",
    ])
    .unwrap();
    assert_eq!(spec.ask.gpu_milli, 2_000);
    assert_eq!(spec.ask.gpu_models, ["A100", "H100"]);
    assert_eq!((spec.ask.vram_mib, spec.ask.mem_mib), (81_920, 16_384));
    assert_eq!(spec.ask.cpus_milli, 1_500);
    assert_eq!(spec.time_limit_ms, Some(5_400_000));
    assert_eq!(spec.grace_ms, Some(5_000));
    assert_eq!((spec.priority, spec.retries), (70, 3));
    assert_eq!(spec.name, "t");
    assert_eq!(spec.workdir, b"/w/sub");
    assert_eq!(spec.ask.labels["pool"], "a");
    assert_eq!(spec.ask.devices["fpga"], 1);
    assert_eq!(spec.array.unwrap().count(), 10);
    assert_eq!(spec.argv, [&b"train"[..], b"--lr", b"1"]);
    // Of this shell only what a program cannot do without, and what was named: never a secret.
    let env: Vec<(&[u8], &[u8])> = spec.env.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
    assert_eq!(env, [(&b"A"[..], &b"1"[..]), (b"PATH", b"/bin"), (b"SEED", b"7")]);
    assert_eq!(spec.uid_gid, None);
}

#[test]
fn a_flag_says_the_same_as_the_key_in_a_spec_file() {
    use crate::parse::{Defaults, draft_from_toml};
    for (flags, text) in [
        (&["--gpus=0.5"][..], "gpus = 0.5"),
        (&["--gpu-share", "50%"], "gpu-share = \"50%\""),
        (&["--vram", "20GiB"], "vram = \"20GiB\""),
        (&["--model", "A,B", "--prefer", "B", "--prefer", "A"], "model = [\"A\", \"B\"]\nprefer = \"B,A\""),
        (&["--compute-cap", "8.0"], "compute_cap = 8.0"),
        (&["--device", "fpga=1", "--device", "mig:1g.10gb=2"], "device = {fpga = 1, \"mig:1g.10gb\" = 2}"),
        (
            &["--gpus", "1", "--or", "gpus=0 cpus=16", "--or", "gpus=2"],
            "gpus = 1\nor = [\"gpus=0 cpus=16\", \"gpus=2\"]",
        ),
        (&["--gang", "2..4", "--layout", "pack"], "gang = \"2..4\"\nlayout = \"pack\""),
        (&["-N", "4"], "nodes = 4"),
        (&["-N2"], "gang = 2\nlayout = \"spread\""),
        (&["--after", "ok:1", "-d", "any:2"], "after = [\"ok:1\", \"any:2\"]"),
        (&["--dependency=afterok:1:2"], "after = \"ok:1,ok:2\""),
        (&["-q", "a/b"], "queue = \"a/b\""),
        (&["-p", "gpu"], "partition = \"gpu\""),
        (&["--begin", "now+1h", "--deadline", "2026-12-02"], "begin = \"1h\"\ndeadline = 2026-12-02"),
        (&["--hold", "--service"], "hold = true\nservice = \"yes\""),
        (&["-H", "--preemptible", "no"], "hold = true\nno-preempt = true"),
        (&["--no-requeue", "--no-preempt"], "requeue = false\npreemptible = \"no\""),
        (&["--requeue=no"], "no_requeue = true"),
        (&["--signal", "B:USR1@60"], "warn = \"B:USR1@1m\""),
        (&["--requeue-status", "75"], "requeue-status = 75"),
        (&["--array", "0-99%5"], "array = \"0-99%5\""),
    ] {
        let by_flags = job(&[flags, &["--", "true"]].concat()).unwrap();
        let mut draft = draft_from_toml(format!("command = [\"true\"]\n{text}").as_bytes()).unwrap();
        draft.inherit_env([(b"PATH".to_vec(), b"/bin".to_vec())]);
        let by_file = draft.build(&Defaults { workdir: "/w".into(), now_ms: NOW_MS }).unwrap();
        assert_eq!(by_flags, by_file, "{flags:?} against {text}");
    }
}

#[test]
fn what_is_echoed_names_all_that_was_said() {
    let spec = job(&[
        "--gpus",
        "0.5",
        "--prefer",
        "H100",
        "--compute-cap",
        "8.0",
        "--or",
        "gpus=0 cpus=16",
        "--device",
        "fpga=1",
        "--gang",
        "2..4",
        "--layout",
        "same-rack",
        "--after",
        "ok:12",
        "--queue",
        "lab",
        "--begin",
        "now+1h",
        "--deadline",
        "2026-12-02",
        "--hold",
        "--warn",
        "USR1@1m",
        "--requeue-status",
        "75",
        "--no-preempt",
        "--no-requeue",
        "--",
        "true",
    ])
    .unwrap();
    let echoed = crate::cli::echo::echo(&spec);
    for line in [
        "gpus      0.5",
        "prefer    H100",
        "compute-cap 8.0",
        "or        1 fpga, 16 cpu",
        "device    fpga=1",
        "gang      2..4",
        "layout    same-rack",
        "after     ok:12",
        "queue     lab",
        "begin     2026-12-01 01:00:00Z",
        "deadline  2026-12-02 00:00:00Z",
        "hold      yes",
        "warn      USR1@1m",
        "requeue-status 75",
        "preemptible no",
        "requeue   no",
        "time      unlimited",
    ] {
        assert!(echoed.lines().any(|l| l == line), "{line}: {echoed}");
    }
}

/// Field report: accepted, and then ended with 127, since no host has a program of that name.
#[test]
fn a_script_of_this_folder_is_told_from_a_program() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sb.sh"), "echo hello\n").unwrap();
    let here = Here { workdir: folder.path().to_owned(), ..here() };
    let submitted = |args: &[&str]| {
        let cli = parse(&[&["submit"], args].concat()).unwrap();
        let Command::Submit(submit) = cli.command else { panic!("no submit") };
        submit.job.job_spec(None, &here)
    };
    match submitted(&["sb.sh"]) {
        Err(Failure::Refused(error)) => assert!(error.message.contains("--script sb.sh"), "{error}"),
        other => panic!("{other:?}"),
    }
    for fine in [&["./sb.sh"][..], &["sh", "sb.sh"], &["true"]] {
        assert!(submitted(fine).is_ok(), "{fine:?}");
    }
}

#[test]
fn what_is_understood_shows_a_script_by_lines_and_the_memory_that_nobody_asked_for() {
    let spec = job(&["--", "sh", "-c", "echo a\n\techo b\n"]).unwrap();
    let echoed = crate::cli::echo::echo(&spec);
    for line in ["command   sh -c (the lines below)", "          | echo a", "          |     echo b"] {
        assert!(echoed.lines().any(|l| l == line), "{line}: {echoed}");
    }
    assert!(echoed.contains("mem       your part of the host"), "{echoed}");
    assert!(!crate::cli::echo::echo(&job(&["--mem", "1G", "true"]).unwrap()).contains("your part"));
}

#[test]
fn the_command_begins_at_its_first_word() {
    assert_eq!(job(&["--gpus", "1", "echo", "--gpus", "x"]).unwrap().argv.len(), 3);
    assert_eq!(job(&["--", "--odd"]).unwrap().argv, [b"--odd"]);
    for args in [
        &["submit", "--gpuz", "1", "true"][..],
        &["submit", "--gpus", "1", "--gpus", "1", "true"],
        &["submit", "--spec", "a", "--script", "b"],
        &["run", "--array", "0-9", "true"],
        &["queue", "--me", "--user", "u"],
        &["cancel"],
        &["wait"],
        &["cluster", "token"],
        &["cluster", "token", "--join", "--user", "u"],
        &["cluster", "token", "--join", "--role", "admin"],
        &["join"],
        &["reserve", "m", "--hosts", "a", "--maintenance"],
        &["reserve", "m", "--hosts", "a", "--for", "1h", "--maintenance", "--queues", "q"],
        &["drain", "n2", "--now", "--deadline", "5m"],
        &["queues", "set", "lab", "--borrow", "--no-borrow"],
        &["queues", "remove"],
        &["priority", "12"],
        &["hold"],
        &[],
    ] {
        assert_eq!(parse(args).unwrap_err().exit_code(), 2, "{args:?}");
    }
}

#[test]
fn the_cluster_may_be_named_before_or_after_the_command() {
    for args in [["--socket", "/s", "queue"], ["queue", "--socket", "/s"]] {
        assert_eq!(parse(&args).unwrap().target.socket, Some(PathBuf::from("/s")));
    }
    let cli = parse(&["run", "--socket", "/s", "--gpus", "1", "--", "true"]).unwrap();
    assert_eq!(cli.target.socket, Some(PathBuf::from("/s")));
}

#[test]
fn commands_of_the_cluster_itself_are_read() {
    for line in [
        "init --name n1 --cluster-name c --listen 127.0.0.1:1 --data-dir /d",
        "join n1:7420 --token - --name n2 --advertise n2:7420",
        "agent --data-dir /d --listen 127.0.0.1:1 --http-listen off --profile chaos",
        "agent --sim-gpus 8xH100:80GiB --cpus 4 --mem 8G --label a=b --config /c",
        "dev --sim-gpus 2xA100:40GiB",
        "demo --json --keep",
        "bench submit --peers 3 --clients 8 --batch 100 --seconds 2 --json",
        "bench launch --runs 10",
        "bench burst --tasks 10",
        "bench attempts --tasks 10 --slots 8 --isolation none",
        "bench failover --kills 2",
        "bench idle",
        "cluster status --stale",
        "cluster token --join --host-name n2 --ttl 10m",
        "cluster token --user u --tenant t --role operator",
        "doctor --json",
        "queue -w --state PD",
        "queue --state TO,PR,DF,DL,NF",
        "queues",
        "queues --json --stale",
        "queues set lab/a --weight 2 --guarantee gpus=4,cpus=64 --ceiling gpus=8 --user-ceiling gpus=2 --no-borrow",
        "queues set lab --borrow --tenants a,b --time-limit 1h --excess requeue-youngest --json",
        "queues remove lab/a",
        "hold 12 13",
        "release last",
        "requeue 12 --json",
        "priority 12 13 70",
        "reserve m --hosts a,b --from now+1h --for 2h --maintenance",
        "reserve r --hosts a --until 2026-12-02 --queues lab,b --reason x",
        "unreserve m",
        "reservations --json",
        "drain n2 new fans --deadline 5m",
        "drain n2 --now --reason fans",
        "logs -f 12_3 --stderr",
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        assert!(parse(&args).is_ok(), "{line}");
    }
}

/// A file is not read further than it may be, and its refusal names the size that it has.
#[test]
fn a_file_above_the_limit_is_told_with_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.toml");
    std::fs::write(&path, vec![b'#'; 10_000_000]).unwrap();
    for script in [false, true] {
        let (script, spec) = (script.then(|| path.clone()), (!script).then(|| path.clone()));
        let args = JobArgs { script, spec, ..JobArgs::default() };
        let error = args.job_spec(None, &here()).unwrap_err().report(false).unwrap();
        for part in ["large.toml", "10000000 bytes", "2621440"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn odd_bytes_in_arguments_arrive_as_they_are() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff\n");
    let env = vec![std::ffi::OsStr::from_bytes(b"B=\xfe").to_owned()];
    let flags = JobFlags { env, ..JobFlags::default() };
    let command = vec!["echo".into(), odd.to_owned()];
    let args = JobArgs { command, flags, ..JobArgs::default() };
    let spec = args.job_spec(None, &here()).unwrap();
    assert_eq!(spec.argv[1], b"\xff\n");
    assert!(spec.env.contains(&(b"B".to_vec(), b"\xfe".to_vec())));
}

#[test]
fn failures_say_their_kind_by_their_status() {
    let invalid = Failure::Refused(rota_protocol::PublicError::invalid("mem", "\u{1b}[31m", "16G"));
    assert_eq!(invalid.status(), 2);
    let line = invalid.report(false).unwrap();
    assert_eq!(line, "error: mem: \\u{1b}[31m (for example: 16G)");
    assert!(invalid.report(true).unwrap().starts_with("{\"error\":"));
    assert_eq!(Failure::other("no").status(), 1);
    let closed = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    assert_eq!(Failure::from(closed).status(), 141);
}
