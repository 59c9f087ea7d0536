//! `rota sim`, the planner benches and `rota history` as a user meets them: the program itself, on small data of our
//! own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bounds;

use rota_node::lab::{Lab, LabOptions};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model
n1,64000,262144,4,A
n2,64000,262144,4,A
n3,96000,393216,8,B
n4,32000,131072,2,B
n5,64000,262144,0,
";

/// A folder with the files of a test; it goes with it.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Pods whose asks differ, more than fit.
fn pods() -> String {
    let mut text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n".to_owned();
    for pod in 0..40 {
        let (gpus, milli) = [(1, 500), (1, 300), (1, 1_000), (2, 1_000), (4, 1_000)][pod % 5];
        text += &format!(
            "p{pod:02},{},{},{gpus},{milli},{}\n",
            1_000 * (1 + pod % 4),
            2_048,
            ["", "A|B"][pod % 2]
        );
    }
    text
}

/// Twenty jobs on eight processors.
fn swf() -> String {
    let mut text = "; MaxProcs: 8\n".to_owned();
    for job in 1..=20 {
        let (submit, run, width) = (job * 20, 30 + (job * 37) % 200, 1 + (job * 3) % 8);
        let (limit, user) = (run * 3, 1 + job % 3);
        text +=
            &format!("{job} {submit} -1 {run} {width} -1 -1 {width} {limit} -1 1 {user} -1 -1 -1 -1 -1 -1\n");
    }
    text
}

/// A history as a person may write it: one card, two jobs of a minute that come at once.
const HISTORY: &str = r#"{"format": "rota-history", "version": 1, "exported_ms": 0,
"hosts": [{"name": "a", "cpus_milli": 8000, "mem_mib": 65536, "devices": [
  {"uuid": "GPU-1", "kind": "Gpu", "model": "NVIDIA H100 80GB HBM3", "vram_mib": 81920, "health": "Healthy"}]}],
"jobs": [
{"job": 1, "tenant": "t", "user": "u", "state": "Succeeded", "submitted_ms": 0, "ran_ms": [60000], "ask": ASK},
{"job": 2, "tenant": "t", "user": "u", "state": "Succeeded", "submitted_ms": 0, "ran_ms": [60000], "ask": ASK}
]}"#;
const ASK: &str = r#"{"gpu_milli": 1000, "gpu_models": [], "gpu_models_preferred": [], "vram_mib": 0,
"compute_cap_min": 0, "cpus_milli": 1000, "mem_mib": 0, "devices": {}, "labels": {}}"#;

fn rota(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rota"));
    let Output { status, stdout, stderr } = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn ok(args: &[&str]) -> String {
    let (status, out, err) = rota(args);
    assert_eq!((status, err.as_str()), (0, ""), "{args:?}\n{out}");
    out
}

fn document(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// The document without what a clock measured.
fn timeless(args: &[&str]) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(parts) => {
                parts.retain(|name, _| name != "seconds" && !name.starts_with("decision_us"));
                parts.values_mut().for_each(strip);
            }
            Value::Array(list) => list.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut value = document(args);
    strip(&mut value);
    value
}

/// What is refused as an input: status 2, and the sentence.
fn refused(args: &[&str]) -> String {
    let (status, out, err) = rota(args);
    assert_eq!((status, out.as_str()), (2, ""), "{args:?}\n{err}");
    assert!(!err.contains("panicked"), "{err}");
    err
}

/// Elements of a well-formed document, in the order in which they open.
fn elements(svg: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    let body = svg.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").unwrap();
    for piece in body.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').unwrap();
        assert!(!text.contains('>'), "{text}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop().as_deref(), Some(name)),
            None => {
                let name = tag.split_whitespace().next().unwrap().to_owned();
                if !tag.ends_with('/') {
                    open.push(name.clone());
                }
                all.push(name);
            }
        }
    }
    assert_eq!(open, Vec::<String>::new());
    all
}

#[test]
fn openb_tells_the_same_of_a_seed_twice_and_draws_it() {
    let files = Files::new();
    let (nodes, pods) = (files.put("nodes.csv", NODES), files.put("pods.csv", pods()));
    let base = ["sim", "openb", "--nodes", &nodes, "--pods", &pods, "--seeds", "42-44"];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    let once = timeless(&with(&["--json"]));
    assert_eq!(once, timeless(&with(&["--json"])));
    let allocated = once["allocated_at_100"].as_f64().unwrap();
    assert!((50.0..=100.0).contains(&allocated), "{allocated}");
    assert_eq!((once["engine"].as_str(), once["threads"].as_u64()), (Some("production"), Some(1)));
    assert_eq!(once["per_seed"].as_array().unwrap().len(), 3);
    let side_by_side = timeless(&with(&["--json", "--threads", "2"]));
    assert_eq!(side_by_side["per_seed"], once["per_seed"]);
    let others = ["sim", "openb", "--nodes", &nodes, "--pods", &pods, "--seeds", "1-3", "--json"];
    assert_ne!(timeless(&others)["curve"], once["curve"]);

    let all = "rota,fgd,bestfit,packing,clustering,dotprod,random";
    let reports = timeless(&with(&["--json", "--online", "--policy", all]));
    let engines: Vec<&str> =
        reports["reports"].as_array().unwrap().iter().map(|r| r["engine"].as_str().unwrap()).collect();
    assert_eq!(
        engines,
        ["production", "reference", "reference", "reference", "reference", "reference", "reference"]
    );

    let svg = files.path("chart.svg");
    let text = ok(&[&base[..], &["--policy", "rota,fgd", "--svg", svg.to_str().unwrap()]].concat());
    assert!(
        text.contains("ALLOCATED AT 100%") && text.contains("* rota allocated   + fgd allocated"),
        "{text}"
    );
    let drawn = elements(&std::fs::read_to_string(svg).unwrap());
    assert_eq!(drawn.iter().filter(|name| *name == "polyline").count(), 2);
}

#[test]
fn swf_logs_are_replayed_by_every_policy_named() {
    let files = Files::new();
    let log = files.put("log.swf", swf());
    let report = timeless(&["sim", "swf", &log, "--policy", "rota", "--json"]);
    assert_eq!(report, timeless(&["sim", "swf", &log, "--policy", "rota", "--json"]));
    assert!(report["avg_bounded_slowdown"].as_f64().unwrap() >= 1.0);
    assert_eq!((report["jobs"].as_u64(), report["processors"].as_u64()), (Some(20), Some(8)));
    let svg = files.path("waits.svg");
    let text = ok(&[
        "sim",
        "swf",
        &log,
        "--policy",
        "rota,easy,easy-sjbf",
        "--exact",
        "--svg",
        svg.to_str().unwrap(),
    ]);
    assert!(
        text.contains("20 jobs on 8 processors") && text.contains("* rota   + easy   o easy-sjbf"),
        "{text}"
    );
    let drawn = elements(&std::fs::read_to_string(svg).unwrap());
    assert_eq!(drawn.iter().filter(|name| *name == "polyline").count(), 3);
    // A larger machine leaves nobody waiting.
    let large = timeless(&["sim", "swf", &log, "--policy", "easy", "--processors", "1000", "--json"]);
    assert_eq!(large["avg_bounded_slowdown"], 1.0);
}

#[test]
fn a_history_is_replayed_with_more_hosts() {
    let files = Files::new();
    let history = files.put("history.json", HISTORY.replace("ASK", ASK));
    let args = ["sim", "replay", &history, "--add-hosts", "1x1xH100", "--json"];
    let report = timeless(&args);
    assert_eq!(report, timeless(&args));
    assert_eq!(report["replayed"]["mean_wait_s"], 30.0);
    assert_eq!(report["replayed"]["makespan_s"], 120.0);
    assert_eq!((&report["what_if"]["mean_wait_s"], &report["what_if"]["hosts"]), (&0.0.into(), &2.into()));
    let svg = files.path("waits.svg");
    let text = ok(&["sim", "replay", &history, "--policy", "fgd", "--svg", svg.to_str().unwrap()]);
    assert!(text.contains("what if") && text.contains("fgd"), "{text}");
    elements(&std::fs::read_to_string(svg).unwrap());
    let said = refused(&["sim", "replay", &history, "--without-hosts", "a"]);
    assert!(said.contains("no host is left"), "{said}");
    assert!(refused(&["sim", "replay", &history, "--add-hosts", "8xH100"]).contains("4x8xH100:80GiB"));
}

#[test]
fn files_that_are_no_inputs_are_named_with_line_and_field() {
    let files = Files::new();
    let (nodes, pods) = (files.put("nodes.csv", NODES), files.put("pods.csv", pods()));
    let openb = |nodes: &str, pods: &str| refused(&["sim", "openb", "--nodes", nodes, "--pods", pods]);
    let nul = files.put("nul.csv", NODES.replace("n3", "n\0"));
    let huge = files.put("huge.csv", "");
    std::fs::File::options().write(true).open(&huge).unwrap().set_len(1 << 40).unwrap();
    let gone = files.path("gone.csv");
    for (said, want) in [
        (openb(gone.to_str().unwrap(), &pods), "gone.csv: No such file"),
        (openb(files.0.path().to_str().unwrap(), &pods), "Is a directory"),
        (openb(&files.put("e.csv", ""), &pods), "e.csv: the file is empty"),
        (openb(&nodes, &nodes), "nodes.csv: no column \"name\" in the header"),
        (
            openb(&nodes, &files.put("w.csv", self::pods().replace("2048,1,500", "much,1,500"))),
            "w.csv:2: memory_mib is \"much\"",
        ),
        (openb(&nul, &pods), "nul.csv:4: a NUL byte"),
        (openb(&huge, &pods), "huge.csv: more than 536870912 bytes"),
        (openb("/dev/null", &pods), "the file is empty"),
        (refused(&["sim", "swf", &nodes]), "nodes.csv: line 1 has 1 fields, not 18"),
        (refused(&["sim", "swf", &nul, "--processors", "8"]), "nul.csv: line 1 has 1 fields"),
        (
            refused(&["sim", "swf", &files.put("s.swf", swf().replace("; MaxProcs", "; Procs"))]),
            "give the number of processors",
        ),
        (
            refused(&["sim", "replay", &nodes]),
            "nodes.csv: this is no history of a cluster, as `rota history --json` writes it: expected value at line 1",
        ),
        (
            refused(&["sim", "replay", &files.put("h.json", HISTORY.replace("ASK", "{}"))]),
            "missing field `gpu_milli` at line 5",
        ),
        (
            refused(&["sim", "gavel", "--throughputs", &nodes]),
            "nodes.csv: this is no table of speeds, such as",
        ),
        (refused(&["sim", "gavel", "--throughputs", &files.put("t.json", "{\"v100\": {}}")]), "lacks p100"),
        (
            refused(&["sim", "shockwave", "--trace", &pods, "--throughputs", &nodes]),
            "pods.csv:1: 1 columns, want 12",
        ),
        (
            refused(&["sim", "openb", "--nodes", &nodes, "--pods", &pods, "--policy", "fdg"]),
            "there are rota, fgd",
        ),
        (refused(&["sim", "openb", "--nodes", &nodes, "--pods", &pods, "--seeds", "9-8"]), "9 is behind 8"),
    ] {
        assert!(said.contains(want), "{said}\nwant {want}");
    }
    let (status, _, err) = rota(&["sim", "swf", &nodes, "--json"]);
    let said: Value = serde_json::from_str(&err).unwrap();
    assert_eq!((status, said["error"]["code"].as_str()), (2, Some("invalid")));
    let (status, _, err) =
        rota(&["sim", "openb", "--nodes", &nodes, "--pods", &pods, "--svg", "/nowhere/x.svg"]);
    assert!(status == 1 && err.contains("cannot write /nowhere/x.svg"), "{err}");
}

#[test]
fn planner_benches_give_flat_figures() {
    let plan = document(&[
        "bench",
        "plan",
        "--hosts",
        "20",
        "--gpus",
        "4",
        "--jobs",
        "50",
        "--occupancy",
        "80",
        "--kinds",
        "5",
        "--json",
    ]);
    assert_eq!(
        (&plan["hosts"], &plan["kinds"], &plan["one_event_count"]),
        (&20.into(), &5.into(), &500.into())
    );
    assert!(plan["one_event_p99_ms"].as_f64().unwrap() >= plan["one_event_p50_ms"].as_f64().unwrap());
    let reclaim = document(&["bench", "reclaim", "--hosts", "20", "--json"]);
    assert!(reclaim["plan_ms"].as_f64().unwrap() > 0.0);
    assert_eq!((&reclaim["victims"], &reclaim["committed"]), (&16.into(), &true.into()));
    let admit = document(&["bench", "admit", "--jobs", "100", "--queues", "6", "--json"]);
    assert_eq!(admit["started"], 100);
    assert!(ok(&["bench", "reclaim", "--hosts", "10"]).contains("plan_ms"));
    assert!(refused(&["bench", "plan", "--occupancy", "101"]).contains("101"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_exports_what_can_be_replayed() {
    let files = Files::new();
    let mut options = LabOptions::new(1, &files.path("lab")).unwrap();
    options.exe = Path::new(env!("CARGO_BIN_EXE_rota")).to_owned();
    options.profile = "chaos".into();
    options.sim_gpus = Some("2xH100:80GiB".into());
    let lab = Lab::start(options).await.unwrap();
    let socket = lab.peers[0].socket().to_str().unwrap().to_owned();
    let asked = |args: &[&str]| ok(&[&["--socket", &socket], args].concat());
    for args in [
        &["run", "--name", "one", "--gpus", "1", "--env", "SECRET=hush", "--", "sleep", "0.2"][..],
        &["submit", "--name", "three", "--array", "1-3", "--gpus", "1", "--", "true"][..],
        &["wait", "last"][..],
    ] {
        asked(args);
    }
    // It is accepted with a note.
    assert_eq!(rota(&["--socket", &socket, "submit", "--name", "never", "--gpus", "9", "--", "true"]).0, 0);
    let text = asked(&["history", "--json"]);
    assert!(!text.contains("hush") && !text.contains("sleep"), "{text}");
    let history: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(history["hosts"][0]["devices"].as_array().unwrap().len(), 2);
    let ran: Vec<usize> = history["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["ran_ms"].as_array().unwrap().len())
        .collect();
    assert_eq!(ran, [1, 3, 0]);
    assert!(asked(&["history"]).contains("GPU HOURS"));
    let file = files.put("history.json", text);
    let report = document(&["sim", "replay", &file, "--add-hosts", "1x8xH100", "--json"]);
    assert_eq!((&report["replayed"]["started"], &report["what_if"]["gpus"]), (&2.into(), &10.into()));
    assert_eq!(report["run_times_guessed"], 1);
}
