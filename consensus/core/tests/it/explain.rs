//! "Why does it wait?" (R006, R093): numbers that add up to the number of hosts, the failing part named, and
//! impossible jobs that become possible when a fitting host comes.

use crate::lab::{Lab, exit, host_facts, job_spec, launch_failed};
use rota_core::explain::{feasible, why};
use rota_protocol::command::Command;
use rota_protocol::why::WhyView;
use rota_protocol::{HostId, JobId};
use std::collections::BTreeMap;

const N: [&str; 3] = [
    "n1 gpus=4xA100:80GiB cpus=32 mem=256GiB",
    "n2 gpus=4xA100:80GiB cpus=32 mem=256GiB",
    "n3 gpus=4xA100:80GiB cpus=32 mem=256GiB",
];

fn ask(lab: &Lab, job: JobId) -> WhyView {
    let why = why(&lab.state, job, lab.now_ms).expect("job");
    assert_eq!(why.by_reason.iter().map(|r| r.hosts).sum::<u32>(), why.hosts);
    assert_eq!(why.hosts as usize, lab.state.hosts().count());
    why
}

fn kinds(why: &WhyView) -> BTreeMap<&str, u32> {
    why.by_reason.iter().map(|r| (r.kind.as_str(), r.hosts)).collect()
}

/// R006, with its own inputs.
#[test]
fn impossible_asks_say_so_until_a_fitting_host_joins() {
    let mut lab = Lab::with(&N);
    // (ask, field, word of the offer, possible once n4 = 8x H100 of 141 GiB with 2 TiB has joined)
    let table = [
        ("gpus=128", "ask.gpus", "4 GPUs on n1", false),
        ("gpus=5", "ask.gpus", "4 GPUs on n1", true),
        ("gpus=1 vram=141GiB", "ask.vram", "80 GiB on one GPU on n1", true),
        ("gpus=1 mem=1TiB", "ask.mem", "256 GiB memory on n1", true),
        ("gpus=1 model=H100", "ask.model", "A100", true),
        ("gpus=4 model=A100 vram=90GiB", "ask.vram", "80 GiB on one GPU", false),
        ("fpga=1", "ask.devices", "none", false),
        ("gpus=1 cpus=64", "ask.cpus", "32 CPUs on n1", false),
        ("gpus=1 rack=z9", "ask.labels", "none", false),
    ];
    let jobs: Vec<JobId> = table.iter().map(|(line, ..)| lab.submit(line)).collect();
    assert_eq!(lab.round(), 0);
    for (job, (line, field, offer, _)) in jobs.iter().zip(table) {
        let why = ask(&lab, *job);
        assert!(why.impossible, "{line}");
        assert!(why.largest_offer.as_deref().is_some_and(|o| o.contains(offer)), "{line}: {why:?}");
        assert!(why.verdict.starts_with("cannot run on this cluster"), "{line}");
        assert!(why.hint.is_some());
        let error = feasible(&lab.state, "t", &job_spec(line)).expect_err(line);
        assert_eq!(error.field.as_deref(), Some(field), "{line}");
        assert!(error.example.is_some());
    }
    // R005: a known kind that the cluster lacks is no spelling mistake.
    let fpga = feasible(&lab.state, "t", &job_spec("fpga=1")).expect_err("fpga");
    assert!(fpga.message.contains("known kind"), "{fpga}");
    lab.host("n4 gpus=8xH100:141GiB cpus=32 mem=2TiB");
    for (job, (line, .., possible)) in jobs.iter().zip(table) {
        assert_eq!(ask(&lab, *job).impossible, !possible, "{line}");
        assert_eq!(feasible(&lab.state, "t", &job_spec(line)).is_ok(), possible, "{line}");
    }
    assert!(lab.round() > 0, "they start without a new submit");
}

/// R006: when each part exists but on no host together, the combination is named.
#[test]
fn a_combination_is_named() {
    let mut lab = Lab::with(&["a gpus=4xA100:80GiB", "b gpus=1xH100:141GiB"]);
    let job = lab.submit("gpus=4 model=A100 vram=90GiB");
    let why = ask(&lab, job);
    assert!(why.impossible);
    assert!(why.verdict.contains("no host has 4 gpu of 90 GiB together"), "{}", why.verdict);
}

/// R006: hosts that are down or drained still count as existing; a cluster without hosts judges nothing.
#[test]
fn maintenance_makes_nothing_impossible() {
    let mut lab = Lab::new();
    let job = lab.submit("gpus=4");
    assert!(!ask(&lab, job).impossible);
    assert!(feasible(&lab.state, "t", &job_spec("gpus=4")).is_ok());
    let host = lab.host(N[0]);
    lab.system(Command::DrainHost { host, reason: "new fans".into() });
    let drained = ask(&lab, job);
    assert!(!drained.impossible);
    assert_eq!(kinds(&drained), BTreeMap::from([("draining", 1), ("joining", 1)]));
    assert!(drained.verdict.contains("new fans"), "{}", drained.verdict);
    lab.expire(host);
    assert!(!ask(&lab, job).impossible);
    // A dirty card is there, too.
    lab.register(host, host_facts("n1 gpus=4xA100:80GiB dirty=GPU-n1-0").1, true);
    lab.system(Command::UndrainHost { host });
    let dirty = ask(&lab, job);
    assert!(!dirty.impossible);
    assert_eq!(kinds(&dirty), BTreeMap::from([("gpus_unhealthy", 1), ("joining", 1)]));
}

/// What asks other cards, or none while cards are what is missing, is not in front; nor is more of an array than its
/// cap lets start, nor what was submitted after a promise. Who holds the cards is named, with the end of its limit.
#[test]
fn only_rivals_are_in_front_and_holders_are_named() {
    let mut lab = Lab::with(&["n1 gpus=4xH100:80GiB cpus=64", "n2 gpus=2xL4:24GiB cpus=8"]);
    let held = lab.submit("gpus=4 model=H100 limit=600");
    lab.submit("gpus=2 model=L4 cpus=1");
    assert_eq!(lab.round(), 2);
    lab.all_started();
    lab.submit("gpus=1 model=L4");
    lab.submit("cpus=60 prio=40");
    lab.submit("gpus=1 model=L4 array=0-9%2");
    let first = lab.submit("gpus=4 model=H100 limit=60");
    let why = ask(&lab, first);
    assert_eq!((why.ahead_tasks, why.ahead_gpus), (0, 0), "{}", why.verdict);
    let holder = &why.more.holders[0];
    let limit_ms = lab.state.attempts_of(held).next().and_then(|one| one.ends_by_ms()).expect("a limit");
    assert_eq!((holder.job, holder.host.as_str(), why.more.holders.len()), (held, "n1", 1));
    assert_eq!((holder.gpu_milli, holder.ending), (4_000, false));
    assert!(holder.until_ms.is_some_and(|at_ms| at_ms >= limit_ms));
    let second = lab.submit("gpus=4 model=H100 limit=60");
    assert_eq!((ask(&lab, second).ahead_tasks, ask(&lab, second).ahead_gpus), (1, 4));
    // Of an array no more than its cap lets start.
    let last = lab.submit("gpus=1 model=L4");
    assert_eq!(ask(&lab, last).ahead_tasks, 3);
}

/// R093: one waiting job for each cause; every host is counted once.
#[test]
fn each_cause_has_its_own_reason() {
    let mut lab = Lab::with(&["n1 gpus=4xA100:80GiB cpus=8 mem=16GiB rack=a", "n2 gpus=2xH100:40GiB rack=b"]);
    let first = lab.submit("gpus=3 model=A100 cpus=6 mem=12GiB");
    lab.round();
    for (line, on_n1, on_n2) in [
        ("gpus=2 model=A100", "gpus_busy", "gpu_model"),
        ("gpus=4", "gpus_busy", "gpu_count"),
        ("gpus=1 vram=60GiB cpus=4", "cpus_busy", "vram"),
        ("gpus=1 vram=60GiB mem=8GiB", "mem_busy", "vram"),
        ("gpus=2 rack=a", "gpus_busy", "label"),
    ] {
        let job = lab.submit(line);
        let why = ask(&lab, job);
        let expected = BTreeMap::from([(on_n1, 1), (on_n2, 1), ("joining", 1)]);
        assert_eq!(kinds(&why), expected, "{line}");
        assert!(why.verdict.starts_with("waits"), "{line}: {}", why.verdict);
        assert!(!why.impossible);
    }
    let last = lab.submit("gpus=2 model=A100");
    let why = ask(&lab, last);
    assert_eq!((why.ahead_tasks, why.ahead_gpus), (4, 6));
    // What no host will ever run stands in nobody's way.
    lab.submit("gpus=64 prio=20");
    assert_eq!(ask(&lab, last).ahead_tasks, 4);
    assert!(why.hint.is_some());
    lab.now_ms += 5_000;
    let token = lab.token(first);
    lab.end(token, exit(0));
    // Finished jobs say how long they waited.
    let over = ask(&lab, first);
    assert_eq!(kinds(&over), BTreeMap::from([("not_waiting", 3)]));
    assert_eq!(ask(&lab, last).waited_ms, 5_000);
}

#[test]
fn backoff_cap_and_hold_are_named() {
    let mut lab = Lab::with(&["n1 gpus=2xA100:80GiB cpus=8"]);
    let failing = lab.submit("gpus=1");
    lab.round();
    let token = lab.token(failing);
    lab.end(token, launch_failed());
    let why = ask(&lab, failing);
    assert_eq!(kinds(&why), BTreeMap::from([("avoided", 1), ("joining", 1)]));
    assert!(why.verdict.contains("tried again in 30 s"), "{}", why.verdict);
    lab.cancel(failing);

    let capped = lab.submit("gpus=1 array=0-4%1");
    lab.round();
    let why = ask(&lab, capped);
    assert_eq!(kinds(&why), BTreeMap::from([("joining", 1), ("parallel_cap", 1)]));

    let wide = lab.submit("gpus=2");
    lab.now_ms += 31_000;
    let small = lab.submit("gpus=1");
    // The wide job is promised a start; the small one would not be over by then.
    assert_eq!(lab.round(), 1);
    assert!(lab.state.job(wide).expect("wide").promise.is_some());
    let why = ask(&lab, small);
    assert_eq!(kinds(&why), BTreeMap::from([("held", 1), ("joining", 1)]));
    assert!(why.verdict.contains(&format!("job {wide}")), "{}", why.verdict);
    assert_eq!(kinds(&ask(&lab, wide)), BTreeMap::from([("gpus_busy", 1), ("joining", 1)]));
}

/// The job's own filters are the planner's: what fits by `why` is placed by the next round, and the reverse.
#[test]
fn why_and_the_planner_agree() {
    let mut lab = Lab::with(&["n1 gpus=2xA100:80GiB cpus=8", "n2 gpus=1xH100:80GiB cpus=2"]);
    lab.system(Command::DrainHost { host: HostId(3), reason: String::new() });
    for line in ["gpus=1", "gpus=2", "gpus=1 model=H100", "cpus=4", "cpus=9", "gpus=1 vram=90GiB"] {
        let job = lab.submit(line);
        let fits = kinds(&ask(&lab, job)).contains_key("fits");
        assert_eq!(lab.round() == 1, fits, "{line}");
    }
}
