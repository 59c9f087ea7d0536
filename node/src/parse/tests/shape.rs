//! Tables of what may be written of devices, alternatives, gangs, dependencies, times and evictions: what is stored, and
//! what is refused with which field and an example that is taken.

use super::{NOW_MS, by_all, defaults};
use crate::parse::*;
use rota_protocol::job::JobSpec;
use rota_protocol::work::{Dependency, GangSpec, Layout, Relation, Warning};
use rota_protocol::{ErrorCode, JobId};

const MINUTE_MS: u64 = 60_000;

/// The spec of a job of these keys, laid over `command = ["true"]`.
fn job(text: &str) -> Result<JobSpec, rota_protocol::PublicError> {
    draft_from_toml(format!("command = [\"true\"]\n{text}").as_bytes())?.build(&defaults())
}

/// Every entry stores the same, which is `wanted`; or every entry refuses it with this field and a good example.
fn check<T: PartialEq + std::fmt::Debug>(
    key: Key,
    text: &str,
    read: impl Fn(&JobSpec) -> T,
    wanted: Option<T>,
) {
    let mut all = by_all(key, text);
    for error in all.iter_mut().filter_map(|result| result.as_mut().err()) {
        // A script's head names the line beside.
        error.message = error.message.trim_start_matches("line 2: ").to_owned();
    }
    for (entry, result) in all.iter().enumerate() {
        assert_eq!(result, &all[0], "{text:?}: entry {entry} differs from flags");
    }
    match (&all[0], wanted) {
        (Ok(spec), Some(wanted)) => assert_eq!(read(spec), wanted, "{text:?}"),
        (Err(error), None) => {
            assert_eq!(error.code, ErrorCode::Invalid, "{text:?}");
            assert_eq!(error.field.as_deref(), Some(key.name()), "{text:?}: {error}");
            let example = error.example.as_deref().unwrap_or_default();
            assert!(by_all(key, example)[0].is_ok(), "{text:?}: {example:?} is no example: {error}");
        }
        (result, wanted) => panic!("{text:?}: {result:?}, not {wanted:?}"),
    }
}

/// Two keys that say one thing: refused in either order, with the key that came second.
fn twice(one: &str, other: &str) {
    for (first, second) in [(one, other), (other, one)] {
        let words =
            |key: &str| key.split_once('=').map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned())).unwrap();
        let mut draft = JobDraft::default();
        let mut set = |text: &str| {
            let (key, value) = words(text);
            draft.set(Key::parse(&key).unwrap(), &Value::text(value))
        };
        set(first).unwrap();
        let error = set(second).unwrap_err();
        assert_eq!(error.field.as_deref(), Some(words(second).0.as_str()), "{first}, {second}: {error}");
    }
}

/// Refused with this field.
fn refused(text: &str, field: &str) {
    match job(text) {
        Err(error) => assert_eq!(error.field.as_deref(), Some(field), "{text}: {error}"),
        Ok(spec) => panic!("{text} was taken: {spec:?}"),
    }
}

#[test]
fn a_word_about_the_card_asks_for_one() {
    for text in ["vram = \"20GiB\"", "model = \"H100\"", "prefer = \"H100\"", "compute-cap = 8.0"] {
        assert_eq!(job(text).unwrap().ask.gpu_milli, 1_000, "{text}");
        assert_eq!(job(&format!("{text}\ngpus = 2")).unwrap().ask.gpu_milli, 2_000, "{text}");
        assert_eq!(job(&format!("{text}\ngpu-share = \"25%\"")).unwrap().ask.gpu_milli, 250, "{text}");
        assert!(job(&format!("{text}\ngpus = 0")).is_err(), "{text}");
    }
    twice("gpus = 1", "gpu-share = 0.5");
    let shared = job("gpu-share = 0.5\nvram = \"10G\"").unwrap().ask;
    assert_eq!((shared.share_milli(), shared.vram_held_mib(80 << 10)), (Some(500), 10 << 10));
}

#[test]
fn models_and_capabilities() {
    let models = |spec: &JobSpec| spec.ask.gpu_models.clone();
    check(Key::GpuModel, "H100, A100,H100", models, Some(vec!["A100".to_owned(), "H100".to_owned()]));
    check(Key::GpuModel, "", models, None);
    check(Key::GpuModel, "H100,,A100", models, None);
    // No pattern: these are letters of a name.
    check(Key::GpuModel, ".*", models, Some(vec![".*".to_owned()]));
    let prefer = |spec: &JobSpec| spec.ask.gpu_models_preferred.clone();
    check(Key::Prefer, "H100,A100,H100", prefer, Some(vec!["H100".to_owned(), "A100".to_owned()]));
    let cap = |spec: &JobSpec| spec.ask.compute_cap_min;
    for (text, tenths) in [("8.0", 80), ("9", 90), (" 12.1 ", 121), ("8.00", 80)] {
        check(Key::ComputeCap, text, cap, Some(tenths));
    }
    for text in ["", "0", "8.05", "-8", "100", "NaN", "eight", "8.0.1", "8,0"] {
        check(Key::ComputeCap, text, cap, None);
    }
}

#[test]
fn devices_have_a_kind_a_model_and_a_count() {
    let devices = |spec: &JobSpec| spec.ask.devices.clone();
    for (text, wanted) in [
        ("fpga", vec![("fpga", 1)]),
        ("FPGA=2", vec![("fpga", 2)]),
        ("mig:1g.10gb=2", vec![("mig:1g.10gb", 2)]),
        ("fpga:u250=1,mig=3", vec![("fpga:u250", 1), ("mig", 3)]),
        ("fpga=0", vec![]),
    ] {
        let wanted = wanted.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect();
        check(Key::Device, text, devices, Some(wanted));
    }
    for text in
        ["", "tpu=1", "fpag=1", "gpu=1", "fpga=-1", "fpga=1.5", "fpga=129", "fpga=x", "mig:=1", "fpga,fpga"]
    {
        let all = by_all(Key::Device, text);
        for result in &all {
            assert_eq!(result.as_ref().unwrap_err().field.as_deref(), Some("device"), "{text:?}");
        }
    }
    assert!(job("device = \"fpag=1\"").unwrap_err().message.contains("did you mean fpga?"));
    assert_eq!(job("[device]\nfpga = 2\n\"mig:1g.10gb\" = 1").unwrap().ask.devices.len(), 2);
    twice("fpga = 1", "device = fpga=1");
    refused("gpu-share = 0.5\ndevice = \"mig=1\"", "device");
    refused("gang = 2\nlayout = \"same-host\"\ngpus = 1\nor = \"gpus=2\"", "or");
}

#[test]
fn an_alternative_takes_over_what_it_does_not_name() {
    let spec = job("gpus = 2\nmodel = \"H100\"\nvram = \"40G\"\nmem = \"8G\"\nlabel = \"pool=a\"\nor = [\"gpus=0 cpus=16\", \"model=A100 gpus=4\"]").unwrap();
    let [cpu, a100] = spec.alternatives.as_slice() else { panic!("{spec:?}") };
    assert_eq!((cpu.gpu_milli, cpu.cpus_milli, cpu.mem_mib), (0, 16_000, 8_192));
    assert!(
        cpu.gpu_models.is_empty() && cpu.vram_mib == 0,
        "nothing is asked of cards where none is: {cpu:?}"
    );
    assert_eq!(cpu.labels["pool"], "a");
    assert_eq!((a100.gpu_milli, a100.vram_mib, a100.cpus_milli), (4_000, 40 << 10, 1_000));
    assert_eq!(a100.gpu_models, ["A100"]);
    assert_eq!(job("gpus = 1\n[or]\ngpus = 0\ncpus = 16").unwrap().alternatives.len(), 1);
    // The flags' needs are the ones that an alternative of the script is read against.
    let script =
        read_script(b"#!/bin/sh\n#ROTA --gpus 1 --or \"gpus=0 cpus=8\" --or 'gpus=2'\ntrue\n", b"s", &[])
            .unwrap();
    let mut flags = JobDraft::default();
    flags.set(Key::Mem, &Value::text("1G")).unwrap();
    let spec = flags.over(script.draft).build(&defaults()).unwrap();
    assert!(spec.alternatives.len() == 2 && spec.alternatives.iter().all(|ask| ask.mem_mib == 1_024));
    for text in [
        "",
        " ",
        "gpus",
        "gpus=x",
        "gpuz=1",
        "gpus=1 gpus=2",
        "name=a",
        "time=1h",
        "gpus=0 vram=1G",
        "gpus=0 'cpus=1",
        "cpus=1 gpus=0",
        "array=0-9",
        "or=1",
    ] {
        check(Key::Or, text, |spec| spec.alternatives.len(), None);
    }
    let many: Vec<String> = (2..12).map(|n| format!("\"gpus={n}\"")).collect();
    refused(&format!("gpus = 1\nor = [{}]", many.join(",")), "or");
}

#[test]
fn gangs_and_nodes_and_how_they_lie() {
    let gang = |spec: &JobSpec| spec.gang.map(|gang| (gang.min, gang.max));
    for (text, min, max) in [("4", 4, 4), ("1", 1, 1), ("2..4", 2, 4), ("2-4", 2, 4), ("1024", 1_024, 1_024)]
    {
        check(Key::Gang, text, gang, Some(Some((min, max))));
    }
    for key in [Key::Gang, Key::Nodes] {
        for text in
            ["0", "-1", "", "4..2", "1..", "..4", "1000000", "1025", "1.5", "NaN", "0..4", "4294967296"]
        {
            check(key, text, gang, None);
        }
    }
    let nodes = |spec: &JobSpec| (spec.gang, spec.layout);
    check(Key::Nodes, "4", nodes, Some((Some(GangSpec { min: 4, max: 4 }), Layout::Spread)));
    check(Key::Nodes, "2-4", nodes, Some((Some(GangSpec { min: 2, max: 4 }), Layout::Spread)));
    check(Key::Nodes, "1", nodes, Some((None, Layout::Any)));
    assert_eq!(job("nodes = 4\nlayout = \"same-rack\"").unwrap().layout, Layout::SameRack);
    let layout = |spec: &JobSpec| spec.layout;
    check(Key::Layout, "Same_Island", layout, Some(Layout::SameIsland));
    for text in ["", "spreed", "same", "host"] {
        check(Key::Layout, text, layout, None);
    }
    twice("nodes = 2", "gang = 2");
    refused("gang = 2\narray = \"0-9\"", "gang");
    refused("service = true\narray = \"0-9\"", "service");
    let script = read_script(b"#!/bin/sh\n#ROTA -N 4 -q lab -H\ntrue\n", b"s", &[]).unwrap();
    let mut one = JobDraft::default();
    one.set(Key::Nodes, &Value::text("1")).unwrap();
    let spec = one.over(script.draft).build(&defaults()).unwrap();
    assert_eq!((spec.gang, spec.layout, spec.queue.as_str(), spec.hold), (None, Layout::Any, "lab", true));
}

#[test]
fn dependencies_in_our_words_and_in_slurms() {
    let after = |spec: &JobSpec| spec.after.clone();
    let dep = |job, relation, each| Dependency { job: JobId(job), relation, each };
    for text in ["ok:12,not-ok:13,any:14", "afterok:12,afternotok:13,afterany:14", "OK:12, not_ok:13 ,any:14"]
    {
        let wanted = vec![
            dep(12, Relation::Ok, false),
            dep(13, Relation::NotOk, false),
            dep(14, Relation::Any, false),
        ];
        check(Key::After, text, after, Some(wanted));
    }
    check(
        Key::After,
        "afterok:1:2",
        after,
        Some(vec![dep(1, Relation::Ok, false), dep(2, Relation::Ok, false)]),
    );
    for text in [
        "",
        "12",
        "ok",
        "ok:",
        "ok:x",
        "ok:-1",
        "ok:0",
        "ok:1.5",
        "ok:1,",
        "after:12",
        "singleton",
        "ok:1?ok:2",
        "ok:99999999999999999999",
        "okay:1",
        "ok:12_3",
        "ok:1,ok:1",
        "ok:1,not-ok:1",
        "ok:last",
        "ok:1+5",
    ] {
        check(Key::After, text, after, None);
    }
    let spec = job("array = \"0-9\"\ndependency = \"aftercorr:15\"").unwrap();
    assert_eq!(spec.after, [dep(15, Relation::Ok, true)]);
    refused("after = \"each-ok:15\"", "after");
    let many: Vec<String> = (1..=257).map(|job| format!("ok:{job}")).collect();
    refused(&format!("after = \"{}\"", many.join(",")), "after");
    let text = "ok:1,each-not-ok:2,any:3";
    assert_eq!(shape::after_text(&shape::after("after", text).unwrap()), text);
}

#[test]
fn begin_and_deadline_are_ahead_and_in_order() {
    let begin = |spec: &JobSpec| spec.begin_ms;
    check(Key::Begin, "now+1h", begin, Some(Some(NOW_MS + 60 * MINUTE_MS)));
    check(Key::Begin, "10m", begin, Some(Some(NOW_MS + 10 * MINUTE_MS)));
    check(Key::Begin, "2026-12-01T08:00", begin, Some(Some(NOW_MS + 480 * MINUTE_MS)));
    // A begin that has passed keeps nothing waiting.
    check(Key::Begin, "2026-11-30", begin, Some(Some(NOW_MS - 1_440 * MINUTE_MS)));
    let deadline = |spec: &JobSpec| spec.deadline_ms;
    check(Key::Deadline, "2026-12-01 09:30+01:00", deadline, Some(Some(NOW_MS + 510 * MINUTE_MS)));
    for text in
        ["now", "2026-11-30", "2026-12-01T00:00", "1970-01-01", "2040-01-01", "9999-12-31", "08:00", "soon"]
    {
        check(Key::Deadline, text, deadline, None);
    }
    assert_eq!(job("begin = 2026-12-01T08:00:00Z").unwrap().begin_ms, Some(NOW_MS + 480 * MINUTE_MS));
    refused("begin = \"2h\"\ndeadline = \"1h\"", "deadline");
    refused("begin = \"1h\"\ndeadline = \"1h\"", "deadline");
}

#[test]
fn queues_holds_and_evictions() {
    check(Key::Queue, "research/vision", |spec| spec.queue.clone(), Some("research/vision".to_owned()));
    for text in ["", "/", "a//b", "a/", "/a", "a b", "a/b/c/d/e/f/g/h/i", "a;b", "a*"] {
        check(Key::Queue, text, |spec| spec.queue.clone(), None);
    }
    assert_eq!(job("partition = \"gpu\"").unwrap().queue, "gpu");
    for (key, text, wanted) in [
        (Key::Preemptible, "no", (false, true)),
        (Key::Preemptible, "YES", (true, true)),
        (Key::NoPreempt, "yes", (false, true)),
        (Key::NoPreempt, "no", (true, true)),
        (Key::Requeue, "off", (true, false)),
        (Key::NoRequeue, "true", (true, false)),
    ] {
        check(key, text, |spec| (spec.preemptible, spec.requeue), Some(wanted));
        check(key, "perhaps", |spec| spec.requeue, None);
    }
    assert!(job("hold = true").unwrap().hold && job("service = true").unwrap().service);
    twice("requeue = yes", "no-requeue = yes");
    twice("preemptible = no", "no-preempt = yes");
    let status = |spec: &JobSpec| spec.requeue_status;
    check(Key::RequeueStatus, "75", status, Some(Some(75)));
    for text in ["0", "256", "-1", "x", ""] {
        check(Key::RequeueStatus, text, status, None);
    }
}

#[test]
fn warnings_in_our_words_and_in_slurms() {
    let warning = |spec: &JobSpec| spec.warning;
    let warn = |signal, before_ms, leader_only| Some(Some(Warning { signal, before_ms, leader_only }));
    check(Key::Warn, "USR1@60s", warning, warn(10, 60_000, false));
    check(Key::Warn, "B:sigusr2@90", warning, warn(12, 90_000, true));
    check(Key::Warn, "TERM", warning, warn(15, 60_000, false));
    check(Key::Warn, "10@1ms", warning, warn(10, 1, false));
    for text in [
        "",
        "@60",
        "USR1@",
        "USR1@0",
        "USR1@-5",
        "USR9@60s",
        "KILL@60s",
        "STOP",
        "USR1@25h",
        "R:USR1@60",
        "0@60",
        "65@60",
        "USR1@NaN",
    ] {
        check(Key::Warn, text, warning, None);
    }
    assert_eq!(job("signal = \"USR1@60\"").unwrap().warning.unwrap().before_ms, 60_000);
    refused("time = \"1m\"\nwarn = \"USR1@60s\"", "warn");
    let text = "B:USR1@1m30s";
    assert_eq!(shape::warning_text(&shape::warning("warn", text).unwrap()), text);
}
