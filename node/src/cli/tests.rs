//! What the command line takes, and what it makes of it.

use super::*;
use crate::cli::job_args::{Here, JobArgs};
use clap::CommandFactory;
use rota_protocol::job::JobSpec;
use std::path::PathBuf;

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
    Here { workdir: PathBuf::from("/w"), env: env.map(|(k, v)| (k.into(), v.into())).to_vec() }
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
        "bench failover --kills 2",
        "bench idle",
        "cluster status --stale",
        "cluster token --join --host-name n2 --ttl 10m",
        "cluster token --user u --tenant t --role operator",
        "doctor --json",
        "queue -w --state PD",
        "logs -f 12_3 --stderr",
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        assert!(parse(&args).is_ok(), "{line}");
    }
}

#[test]
fn odd_bytes_in_arguments_arrive_as_they_are() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff\n");
    let args = JobArgs {
        command: vec!["echo".into(), odd.to_owned()],
        env: vec![std::ffi::OsStr::from_bytes(b"B=\xfe").to_owned()],
        ..JobArgs::default()
    };
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
