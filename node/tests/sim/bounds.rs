//! Values that no trace has, as a user meets them: refused with status 2, the file, the line or the name of the field,
//! the value and an example, at once and before anything large is built.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is refused is refused while reading.
const AT_ONCE: Duration = Duration::from_secs(20);

struct Files(tempfile::TempDir);

impl Files {
    fn put(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[track_caller]
fn refused(args: &[&str], wants: &[&str]) {
    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rota"));
    let output = command.arg("sim").args(args).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{args:?}\n{said}");
    assert!(begun.elapsed() < AT_ONCE, "{args:?} took {:?}", begun.elapsed());
    for want in wants {
        assert!(said.contains(want), "{args:?}\n{said}\nwant {want}");
    }
}

fn swf(head: &str, submit: &str, limit: &str, width: u32) -> String {
    format!("{head}\n1 {submit} -1 10 {width} -1 -1 {width} {limit} -1 1 1 1 1 1 -1 -1 -1\n")
}

#[test]
fn a_log_beyond_its_bounds() {
    let files = Files(tempfile::tempdir().unwrap());
    let procs = "; MaxProcs: 8";
    for policy in ["rota", "easy", "conservative", "rota-machine"] {
        let one = |name: &str, text: &str, wants: &[&str]| {
            refused(&["swf", &files.put(name, text), "--policy", policy], wants);
        };
        let limit = "l.swf: line 2, field 9 (time asked): 18446744073709552 is above 316224000";
        one("l.swf", &swf(procs, "0", "18446744073709552", 1), &[limit, "such as 3600"]);
        let submit = "s.swf: line 2, field 2 (time of submission): 9000000000000000000 is above";
        one("s.swf", &swf(procs, "9000000000000000000", "20", 1), &[submit, "such as 86400"]);
        let size = "m.swf: line 1: MaxProcs is \"99999999999\", want 1 to 10000000, such as 128";
        one("m.swf", &swf("; MaxProcs: 99999999999", "0", "20", 1), &[size]);
        one("c.swf", "sn,gpu\n", &["c.swf: line 1 has 1 fields, not 18: the Standard Workload Format"]);
    }
    let wide = files.put("w.swf", &swf("; MaxProcs: 2000", "0", "20", 1_500));
    refused(&["swf", &wide], &["w.swf: job 1 asks 1500 processors, want 1 to 1024 for policy rota"]);
    refused(&["swf", &wide, "--processors", "5000000"], &["w.swf: processors is 5000000, want 1 to 19999"]);
}

#[test]
fn lists_beyond_what_a_host_can_be() {
    let files = Files(tempfile::tempdir().unwrap());
    let nodes = |row: &str| files.put("n.csv", &format!("sn,cpu_milli,memory_mib,gpu,model\n{row}\n"));
    let pods = |row: &str| {
        files.put("p.csv", &format!("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n{row}\n"))
    };
    for more in [&[][..], &["--reference"], &["--policy", "fgd"]] {
        let run = |node: &str, pod: &str, want: &str| {
            let (nodes, pods) = (nodes(node), pods(pod));
            refused(&[&["openb", "--nodes", &nodes, "--pods", &pods], more].concat(), &[want, "such as"]);
        };
        let (node, pod) = ("x,96000,1000000,8,T4", "p,1000,1024,1,1000,");
        run("x,96000,1000000,1000,T4", pod, "n.csv:2: gpu is \"1000\", want 0 to 128");
        run("x,96000,18446744073709551615,8,T4", pod, "n.csv:2: memory_mib is \"18446744073709551615\"");
        run(node, "p,1000,1024,900,1000,", "p.csv:2: num_gpu is \"900\", want 0 to 128");
        run(node, "p,1000,18446744073709551615,1,1000,", "p.csv:2: memory_mib is \"18446744073709551615\"");
    }
}

#[test]
fn a_training_trace_beyond_its_bounds() {
    let files = Files(tempfile::tempdir().unwrap());
    let speeds = files
        .put("s.json", r#"{"v100": {"('LM (batch size 10)', 1)": {"null": 90.0}}, "p100": {}, "k80": {}}"#);
    let line = |steps: &str, arrival: &str| {
        format!("LM (batch size 10)\tcmd\tdir\t--steps\t1\t{steps}\t1\tstatic\t1\t-1\t0\t{arrival}\n")
    };
    let run = |text: &str, wants: &[&str]| {
        let trace = files.put("t.trace", text);
        refused(&["shockwave", "--gpus", "4", "--trace", &trace, "--throughputs", &speeds], wants);
    };
    for arrival in ["nan", "-5", "inf", "1e300", "99999999999999999999", "4611686018427387904"] {
        let field = format!("t.trace:1: arrival (column 12) is {arrival:?}, want 0 to 316224000, such as 55");
        run(&line("100", arrival), &[&field]);
    }
    for steps in ["0", "-1", "4611686018427387904", "x"] {
        let field = format!("t.trace:2: steps (column 6) is {steps:?}, want 1 to 1000000000, such as 134583");
        run(&(line("100", "0") + &line(steps, "0")), &[&field]);
    }
    run("a,b,c\n", &["t.trace:1: 1 columns, want 12 with tabs between"]);
    run(&line("1000000000", "0"), &["t.trace: steps of ('LM (batch size 10)', 1) is 1000000000, which are"]);
    let trace = files.put("t.trace", &line("100", "0"));
    let with = |speeds: &str, gpus: &str, wants: &[&str]| {
        refused(&["shockwave", "--gpus", gpus, "--trace", &trace, "--throughputs", speeds], wants);
    };
    with(&speeds, "100000", &["1..=19999"]);
    with(&trace, "4", &["t.trace: this is no table of speeds, such as"]);
    let slow = files.put("z.json", r#"{"v100": {"('LM (batch size 10)', 1)": {"null": 0}}}"#);
    with(&slow, "4", &["z.json: the table of speeds has none above 0 for ('LM (batch size 10)', 1)"]);
}

#[test]
fn speeds_and_rates_beyond_their_bounds() {
    let files = Files(tempfile::tempdir().unwrap());
    let table = |speed: &str| {
        let row = format!("{{\"('A3C', 1)\": {{\"null\": {speed}}}}}");
        files.put("s.json", &format!("{{\"v100\": {row}, \"p100\": {row}, \"k80\": {row}}}"))
    };
    for policy in ["rota", "las-aware", "engine-blind-sharing"] {
        for speed in ["1e308", "-1.0", "1e-308"] {
            let want = "s.json: v100.\"('A3C', 1)\".null is ";
            let wants = [want, "want 0.01 to 1000000 steps a second, or 0", "such as 12.5"];
            refused(&["gavel", "--throughputs", &table(speed), "--policy", policy], &wants);
        }
    }
    for rate in ["1e-308", "-1", "nan", "1e300"] {
        let rate = format!("--rate={rate}");
        refused(&["gavel", "--throughputs", &table("2"), &rate], &["0.01 to 1000 jobs an hour, such as 5.6"]);
    }
}

/// A cluster takes so many hosts, and no bench finds that out after building them.
#[test]
fn benches_of_more_hosts_than_a_cluster_has() {
    for bench in ["plan", "reclaim", "replicas"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rota"));
        let output =
            command.args(["bench", bench, "--hosts", "20000"]).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("1..=19999"), "{said}");
    }
}
