//! Speeds: what runs taught about GPU models decides where such jobs go next, and nothing else changes by it.

use crate::lab::{Lab, exit};
use rota_core::hash::mix;
use rota_core::placement::{PlanConfig, Planner, View, plan};
use rota_core::state::speeds;
use rota_protocol::JobId;
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::report::AttemptFact;

const HOSTS: [&str; 3] = ["a gpus=2xA100:80GiB", "h gpus=2xH100:80GiB", "p gpus=2xP100:80GiB"];

/// Where a job goes that is submitted now, all its tasks.
fn goes_to(lab: &mut Lab, line: &str) -> Vec<String> {
    let job = lab.submit(line);
    lab.round();
    lab.state.attempts_of(job).map(|a| lab.state.host(a.host).expect("known").name.clone()).collect()
}

/// A job runs to its end on a model that it asks for.
fn learn(lab: &mut Lab, line: &str, model: &str, ran_ms: u64) {
    let job = lab.submit(&format!("{line} model={model}"));
    lab.round();
    ends(lab, job, exit(0), ran_ms);
}

fn ends(lab: &mut Lab, job: JobId, end: AttemptEnd, ran_ms: u64) {
    let token = lab.token(job);
    lab.start(token);
    lab.report(token, AttemptFact::Ended { end, ran_ms });
}

fn taught(hosts: &[&str], line: &str, runs: &[(&str, u64)]) -> Lab {
    let mut lab = Lab::with(hosts);
    for (model, ran_ms) in runs {
        learn(&mut lab, line, model, *ran_ms);
    }
    lab
}

#[track_caller]
fn check(hosts: &[&str], runs: &[(&str, u64)], line: &str, host: &str) {
    let mut lab = taught(hosts, "gpus=1", runs);
    assert_eq!(goes_to(&mut lab, line), [host], "{runs:?} {line}");
    lab.check_copies();
}

fn mean_ms(lab: &Lab, job: JobId, model: &str) -> Option<u64> {
    let job = lab.state.job(job).expect("known");
    lab.state.speeds().mean_ms(speeds::kind(job, &job.spec.ask).expect("a kind"), model)
}

#[test]
fn a_job_goes_where_it_runs_fastest() {
    for (best, host) in [("A100", "a"), ("H100", "h"), ("P100", "p")] {
        let runs = ["A100", "H100", "P100"].map(|model| (model, if model == best { 10_000 } else { 20_000 }));
        check(&HOSTS, &runs, "gpus=1", host);
    }
}

/// No one order of the models does for all jobs.
#[test]
fn each_kind_of_job_has_its_own_best_model() {
    let mut lab = taught(&HOSTS, "gpus=1", &[("H100", 10_000), ("A100", 20_000), ("P100", 40_000)]);
    for (model, ran_ms) in [("H100", 50_000), ("A100", 40_000), ("P100", 10_000)] {
        learn(&mut lab, "gpus=2", model, ran_ms);
    }
    assert_eq!(goes_to(&mut lab, "gpus=2"), ["p"]);
    assert_eq!(goes_to(&mut lab, "gpus=1"), ["h"]);
    assert_eq!(goes_to(&mut lab, "gpus=1 model=A100|P100"), ["a"], "of those that it may use");
}

#[test]
fn a_tenth_is_left_to_the_scorer() {
    for asked in ["gpus=1", "gpus=1 model=A100|H100"] {
        let [usual] = &goes_to(&mut Lab::with(&HOSTS[..2]), asked)[..] else { panic!("one task") };
        let (usual, other) =
            if usual == "a" { (["A100", "a"], ["H100", "h"]) } else { (["H100", "h"], ["A100", "a"]) };
        check(&HOSTS[..2], &[(usual[0], 11_000), (other[0], 10_000)], asked, usual[1]);
        check(&HOSTS[..2], &[(usual[0], 11_001), (other[0], 10_000)], asked, other[1]);
        // One model alone compares with nothing.
        check(&HOSTS[..2], &[(other[0], 10_000)], asked, usual[1]);
    }
}

#[test]
fn a_preference_comes_first() {
    let runs = [("H100", 10_000), ("A100", 90_000)];
    check(&HOSTS, &runs, "gpus=1 prefer=A100", "a");
    check(&HOSTS, &runs, "gpus=1", "h");
}

#[test]
fn what_is_unknown_is_tried_before_what_is_slow() {
    let mut lab = taught(&HOSTS, "gpus=1", &[("A100", 10_000), ("P100", 16_000)]);
    let hosts: Vec<String> = (0..6).flat_map(|_| goes_to(&mut lab, "gpus=1")).collect();
    assert_eq!(hosts, ["a", "a", "h", "h", "p", "p"], "slow is no reason to wait");
}

#[test]
fn labels_speak_for_jobs_without_runs_to_compare() {
    for (fast, slow) in [("a", "h"), ("h", "a")] {
        let line = |name: &str| {
            let model = if name == "a" { "A100" } else { "H100" };
            format!("{name} gpus=2x{model}:80GiB speed={}", if name == fast { 1_200 } else { 1_000 })
        };
        let (first, second) = (line("a"), line("h"));
        let hosts = [first.as_str(), second.as_str()];
        check(&hosts, &[], "gpus=1", fast);
        check(&hosts, &[], &format!("gpus=1 prefer={}", if slow == "a" { "A100" } else { "H100" }), slow);
        let ran_ms = |name: &str| if name == fast { 30_000 } else { 10_000 };
        check(&hosts, &[("A100", ran_ms("a")), ("H100", ran_ms("h"))], "gpus=1", slow);
    }
    // Words that are no speed say nothing.
    let [usual] = &goes_to(&mut Lab::with(&HOSTS[..2]), "gpus=1")[..] else { panic!("one task") };
    for word in ["0", "-5", "fast"] {
        let hosts = HOSTS.map(|line| format!("{line} speed={word}"));
        check(&[&hosts[0], &hosts[1]], &[], "gpus=1", usual);
    }
}

#[test]
fn a_gang_takes_the_faster_host_that_holds_it() {
    for (h_ms, a_ms, host) in [(10_000, 30_000, "h"), (30_000, 10_000, "a")] {
        let mut lab = Lab::with(&HOSTS[..2]);
        for (model, ran_ms) in [("H100", h_ms), ("A100", a_ms)] {
            let job = lab.submit(&format!("gang=2 gpus=1 model={model}"));
            lab.round();
            ends(&mut lab, job, exit(0), ran_ms);
            ends(&mut lab, job, exit(0), 1);
            assert_eq!(mean_ms(&lab, job, model), Some(ran_ms), "the first part speaks");
        }
        assert_eq!(goes_to(&mut lab, "gang=2 gpus=1"), [host, host]);
    }
}

#[test]
fn an_attempt_is_expected_to_run_as_long_as_on_its_model() {
    let mut lab = taught(&HOSTS, "gpus=1", &[("H100", 10_000), ("A100", 30_000), ("A100", 40_000)]);
    let foreseen = |lab: &mut Lab, line: &str| {
        let job = lab.submit(line);
        lab.round();
        lab.state.attempt_of(crate::lab::task(job, 0)).and_then(|attempt| attempt.predicted_ms)
    };
    assert_eq!(foreseen(&mut lab, "gpus=1 model=A100"), Some(35_000));
    assert_eq!(foreseen(&mut lab, "gpus=1 model=H100"), Some(10_000));
    assert_eq!(foreseen(&mut lab, "gpus=1 model=H100 limit=4"), Some(4_000));
    // Elsewhere, what is foreseen of any model: the last two runs.
    assert_eq!(foreseen(&mut lab, "gpus=1 model=P100"), Some(35_000));
    lab.check_copies();
}

#[test]
fn only_whole_runs_that_ended_well_teach() {
    let mut lab = Lab::with(&["x gpus=1xA100:80GiB+1xH100:80GiB", "a gpus=2xA100:80GiB"]);
    for end in [exit(1), AttemptEnd::Signalled { signal: 9 }, AttemptEnd::TimeLimit] {
        let job = lab.submit("gpus=1");
        lab.round();
        ends(&mut lab, job, end, 5_000);
    }
    // Asked to end, and ended well nevertheless.
    let job = lab.submit("gpus=1");
    lab.round();
    lab.cancel(job);
    ends(&mut lab, job, exit(0), 5_000);
    // On cards of two models, in one place and in two.
    let mixed = lab.submit("gpus=2 model=H100|A100");
    lab.submit("gpus=2 model=A100");
    lab.round();
    for job in lab.state.attempts().map(|a| a.task.job).collect::<Vec<_>>() {
        let on_x = lab.token(job);
        let on_x = lab.state.host(lab.state.attempt(on_x).expect("live").host).expect("known").name == "x";
        ends(&mut lab, job, exit(0), 5_000);
        assert_eq!(mean_ms(&lab, mixed, "A100").is_some(), !on_x);
    }
    assert_eq!(lab.state.speeds().len(), 1);
    // A second start may have begun in the middle.
    let job = lab.submit("gpus=1 retries=1 model=A100");
    lab.round();
    ends(&mut lab, job, exit(1), 5_000);
    lab.now_ms += 600_000;
    lab.round();
    ends(&mut lab, job, exit(0), 5_000);
    assert_eq!((lab.state_of(job).as_str(), lab.state.speeds().len()), ("succeeded", 1));
    lab.check_copies();
}

/// A planner that was kept while speeds were learned gives the same plans as a fresh one.
#[test]
fn a_kept_planner_knows_new_speeds() {
    let lines = [
        "gpus=1",
        "gpus=2",
        "gpu_milli=500",
        "gang=2 gpus=1",
        "gpus=1 model=A100|P100",
        "gpus=1 model=P100",
        "gpus=1 model=H100",
        "gpus=2 model=H100",
    ];
    for seed in 0..6_u64 {
        let mut lab = Lab::with(&HOSTS);
        lab.host("b gpus=4xA100:80GiB speed=1300");
        let mut kept = Planner::default();
        let mut dice = mix(seed);
        let mut roll = |sides: u64| {
            dice = mix(dice.wrapping_add(1));
            dice % sides
        };
        let mut asked_apart = 0;
        for _ in 0..40 {
            lab.now_ms += 1_000;
            lab.submit(lines[roll(lines.len() as u64) as usize]);
            let (view, config) = (View::of(&lab.state, lab.now_ms), PlanConfig::default());
            let fresh = plan(&view, &config, lab.now_ms);
            assert_eq!(kept.plan(&view, &config, lab.now_ms), fresh, "seed {seed}");
            let unaware = View { speeds: std::sync::Arc::default(), ..view };
            asked_apart += u32::from(plan(&unaware, &config, lab.now_ms) != fresh);
            lab.round();
            let live: Vec<_> = lab.state.attempts().map(|a| (a.token, a.host)).collect();
            for (token, host) in live {
                if roll(2) == 0
                    && lab.state.attempt(token).is_some_and(|a| a.end_reason != Some(EndReason::Gang))
                {
                    let ran_ms = 1_000 * (1 + host.0 * roll(4));
                    lab.report(token, AttemptFact::Ended { end: exit(0), ran_ms });
                }
            }
        }
        assert!(asked_apart > 0, "seed {seed}: speeds changed nothing");
        assert!(!lab.state.speeds().is_empty());
        lab.check_copies();
    }
}
