//! The planner: order, packing, blocked classes, the held host, bounds, and a world in which nothing changes.

use crate::lab::{Lab, exit};
use rota_core::hash::mix;
use rota_core::placement::{PlanConfig, View, check_plan, plan};
use rota_protocol::plan::Move;
use rota_protocol::{HostId, JobId, Token};
use std::collections::BTreeMap;

/// Which host each placed job got, in the order of the plan.
fn placed(lab: &Lab) -> Vec<(u64, String)> {
    let named = |one: &Move| {
        let Move::Place { task, host, .. } = one else { return None };
        Some((task.job.0, lab.state.host(*host).expect("host").name.clone()))
    };
    lab.plan().moves.iter().filter_map(named).collect()
}

fn on(jobs: &[(u64, &str)]) -> Vec<(u64, String)> {
    jobs.iter().map(|(job, host)| (*job, (*host).to_owned())).collect()
}

#[test]
fn an_unchanged_world_gives_an_empty_plan() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=8xH100:80GiB", "h3 cpus=64"]);
    for line in ["gpus=1 array=0-20", "gpus=8", "cpus=60", "gpus=2 model=h100", "gpus=16", "cpus=8"] {
        lab.submit(line);
    }
    assert!(lab.round() > 0);
    assert_eq!(lab.round(), 0);
    // Whoever still waits is told once when it will start, and then nothing changes again.
    lab.now_ms += 3_600_000;
    assert!(lab.plan().moves.iter().all(|one| matches!(one, Move::Promise { .. })));
    lab.round();
    assert_eq!(lab.round(), 0);
    lab.now_ms += 3_600_000;
    assert_eq!(lab.round(), 0);
}

#[test]
fn equal_worlds_give_equal_plans() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB"]);
    lab.submit("gpus=1 array=0-5");
    assert_eq!(lab.plan(), lab.plan());
}

/// Higher priority first, then the order of submission: a thousand random pairs for one card (R090).
#[test]
fn the_order_holds_for_random_pairs() {
    for seed in 0..1_000_u64 {
        let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
        let (a, b) = (mix(seed) % 101, mix(seed + 7_777) % 101);
        lab.submit(&format!("gpus=1 prio={a}"));
        lab.submit(&format!("gpus=1 cpus=1 prio={b}"));
        let first = if b > a { 2 } else { 1 };
        assert_eq!(placed(&lab), on(&[(first, "h1")]), "{a} before {b}");
    }
}

#[test]
fn work_is_packed() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB", "h3 cpus=32"]);
    lab.submit("gpus=3 model=A100");
    lab.round();
    let used = lab.state.attempts().next().expect("live").host;
    let (packed, empty) = if used == HostId(2) { ("h1", "h2") } else { ("h2", "h1") };
    // One card is left over beside the three; work without a GPU goes where there are none.
    lab.submit("gpus=1");
    lab.submit("cpus=1");
    lab.submit("gpus=4");
    assert_eq!(placed(&lab), on(&[(2, packed), (3, "h3"), (4, empty)]));
}

#[test]
fn the_smallest_card_that_does_is_taken() {
    let mut lab = Lab::with(&["h1 gpus=1xH100:80GiB+1xL4:24GiB"]);
    lab.submit("gpus=1 vram=16GiB");
    lab.submit("gpus=1 vram=40GiB");
    assert_eq!(lab.round(), 2);
}

#[test]
fn cards_of_one_numa_node_are_preferred() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB"]);
    lab.submit("gpus=1");
    lab.submit("gpus=4");
    lab.submit("gpus=3");
    assert_eq!(lab.round(), 3);
    // Nodes are cards 0..3 and 4..7: the four fit the untouched node only, the three go beside the first.
    let cards = |job: u64| -> Vec<String> {
        let attempt = lab.state.attempts_of(JobId(job)).next().expect("live");
        attempt.devices.iter().map(|d| d.0.clone()).collect()
    };
    assert_eq!(cards(2), ["GPU-h1-4", "GPU-h1-5", "GPU-h1-6", "GPU-h1-7"]);
    assert_eq!(cards(3), ["GPU-h1-1", "GPU-h1-2", "GPU-h1-3"]);
}

/// R090: a job is held back only by those that compete with it; 2000 impossible jobs in front cost nothing.
#[test]
fn a_blocked_class_blocks_only_itself() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB", "h2 gpus=1xH100:80GiB"]);
    lab.submit("gpus=1 model=A100");
    lab.round();
    lab.submit("gpus=1 model=A100");
    let h100 = lab.submit("gpus=1 model=H100");
    assert_eq!(placed(&lab), on(&[(h100.0, "h2")]));
    for n in 0..2_000 {
        lab.state = {
            // Half of one class, half each of its own.
            let line = if n % 2 == 0 { "gpus=64 prio=90".into() } else { format!("gpus=64 prio=90 x=y{n}") };
            submit_quietly(&lab, &line)
        };
    }
    assert_eq!(placed(&lab), on(&[(h100.0, "h2")]));
}

/// Without the check of every law after each of thousands of submits.
fn submit_quietly(lab: &Lab, line: &str) -> rota_core::State {
    use rota_protocol::command::{Command, Entry, LOG_FORMAT, Proposal};
    let mut state = lab.state.clone();
    let command = Command::Submit { spec: crate::lab::job_spec(line) };
    let (request, actor) = (rota_protocol::RequestId::NONE, crate::lab::user("t"));
    let proposals = vec![Proposal { request, actor, command }];
    let entry = Entry { format: LOG_FORMAT, at_ms: lab.now_ms, proposals };
    state.apply(state.applied_index() + 1, &entry);
    state
}

#[test]
fn hosts_that_take_no_work_get_none() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    lab.submit("gpus=1");
    let avoid_hosts = [HostId(2)].into();
    let config = PlanConfig { avoid_hosts, ..PlanConfig::default() };
    let view = View::of(&lab.state, lab.now_ms);
    assert_eq!(plan(&view, &config, lab.now_ms).moves.len(), 0);
    assert_eq!(plan(&view, &PlanConfig::default(), lab.now_ms).moves.len(), 1);
    // A plan made without that knowledge does not pass the check made with it.
    let blind = plan(&view, &PlanConfig::default(), lab.now_ms);
    assert_eq!(check_plan(&view, &config, lab.now_ms, &blind).len(), 1);
    lab.expire(HostId(2));
    assert_eq!(placed(&lab), on(&[]));
    // The founder never registered: it gets nothing, not even work that asks nothing.
    lab.submit("");
    assert_eq!(placed(&lab), on(&[]));
}

#[test]
fn a_round_is_bounded() {
    let mut lab = Lab::with(&["h1 cpus=4000 mem=64TiB"]);
    lab.submit("array=0-999999");
    assert_eq!(lab.plan().moves.len(), 1_024);
    let config = PlanConfig { moves_max: 3, ..PlanConfig::default() };
    assert_eq!(plan(&View::of(&lab.state, lab.now_ms), &config, lab.now_ms).moves.len(), 3);
}

#[test]
fn the_parallel_cap_holds() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB"]);
    let job = lab.submit("gpus=1 array=0-9%3");
    lab.submit("gpus=1 array=0-9%3");
    assert_eq!(lab.round(), 6);
    assert_eq!(lab.round(), 0);
    let token = lab.token(job);
    lab.end(token, exit(0));
    assert_eq!(placed(&lab), on(&[(1, "h1")]));
}

/// A wide job under a stream of small ones (the point of R088): once it is first in line a host empties for it.
/// Everybody else goes on meanwhile.
#[test]
fn a_wide_job_does_not_starve() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB"]);
    let mut ends: BTreeMap<Token, u64> = BTreeMap::new();
    let mut wide = None;
    let (mut first_ms, mut waited_ms, mut busy, mut steps) = (None, None, 0, 0);
    for second in 0..400_u64 {
        lab.now_ms += 1_000;
        if second == 60 {
            wide = Some(lab.submit("gpus=4"));
        }
        // Always more small work than cards.
        while lab.state.jobs().filter(|j| j.state.to_string() == "pending").count() < 12 {
            lab.submit("gpus=1");
        }
        let due: Vec<Token> = ends.iter().filter(|(_, at)| **at <= lab.now_ms).map(|(t, _)| *t).collect();
        for token in due {
            ends.remove(&token);
            lab.end(token, exit(0));
        }
        lab.round();
        let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
        for token in live {
            let run_ms = 20_000 + mix(token.0) % 40_000;
            ends.entry(token).or_insert(lab.now_ms + run_ms);
        }
        if let Some(job) = wide.filter(|_| waited_ms.is_none()) {
            let before = |j: &rota_core::Job| j.id < job && j.state.to_string() == "pending";
            if first_ms.is_none() && !lab.state.jobs().any(before) {
                first_ms = Some(lab.now_ms);
            }
            if lab.state_of(job) == "running" {
                waited_ms = first_ms.map(|since_ms| lab.now_ms - since_ms);
            }
        }
        busy += lab.state.hosts().map(|h| h.used.devices.len()).sum::<usize>();
        steps += 8;
    }
    // The longest run of what is on the host, and a step of the test.
    let waited_ms = waited_ms.expect("the wide job ran");
    assert!(waited_ms <= 60_000 + 2_000, "{waited_ms} ms");
    assert!(busy * 100 / steps >= 90, "{} % busy", busy * 100 / steps);
}

/// Work that takes nothing the waiting job needs still uses the held host.
#[test]
fn a_held_host_takes_what_does_not_compete() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=8 mem=16GiB"]);
    lab.submit("gpus=1 cpus=2");
    lab.round();
    let wide = lab.submit("gpus=2 cpus=4");
    lab.now_ms += 31_000;
    let small = lab.submit("cpus=2");
    lab.submit("gpus=1");
    lab.submit("cpus=3");
    assert_eq!(placed(&lab), on(&[(small.0, "h1")]));
    lab.round();
    let token = lab.token(JobId(1));
    lab.end(token, exit(0));
    assert_eq!(placed(&lab)[0].0, wide.0);
}

/// A job of which a part has begun is not kept its promised room beside what that part got.
#[test]
fn a_promise_is_kept_once_though_more_of_the_job_waits() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let first = lab.submit("gpus=1 limit=60");
    lab.round();
    let array = lab.submit("gpus=1 array=0-1 limit=60");
    lab.now_ms += 10_000;
    lab.round();
    assert!(lab.state.job(array).expect("known").promise.is_some());
    lab.now_ms += 1_000;
    let token = lab.token(first);
    lab.end(token, exit(0));
    // The first task takes the promised card, the second finds none; the round's own checks look on.
    assert_eq!(placed(&lab), on(&[(array.0, "h1")]));
}
