//! Queues (R086, R092): ceilings hold along the path and for each user at every index, whatever is asked and by
//! whatever shape of work; lowered ones take nothing away by themselves; the tree and its names keep their rules.

use crate::lab::{Lab, exit, user};
use proptest::prelude::*;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::job::{Actor, AttemptEnd, EndReason, Role};
use rota_protocol::plan::{Move, Plan, Refusal};
use rota_protocol::queue::Amounts;
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::{ErrorCode, HostId, JobId, RequestId, Token};

fn person(tenant: &str, name: &str) -> Actor {
    Actor { user: name.into(), ..user(tenant) }
}

fn held(lab: &Lab, queue: &str) -> u64 {
    lab.state.queues().named(queue).expect("there").held.gpu_milli
}

/// R086: a ceiling of four cards holds for one job, many jobs, arrays, gangs, shares and slices.
#[test]
fn every_shape_of_work_counts() {
    let cases: [(&str, &[&str], &str); 6] = [
        ("gpus=5", &[], "0@h1:0,1,2,3,4"),
        ("gpus=1", &["0@h1:0", "0@h1:1", "0@h1:2", "0@h1:3"], "0@h1:4"),
        ("gpus=1 array=0-9", &["0@h1:0 1@h1:1 2@h1:2", "3@h1:3"], "4@h1:4"),
        ("gpus=2 gang=2", &["0@h1:0,1 1@h1:2,3"], "0@h1:4,5 1@h1:6,7"),
        ("gpu_milli=900", &["0@h1:0", "0@h1:1", "0@h1:2", "0@h1:3"], "0@h1:4"),
        // Seven slices of one seventh come to 0.994 of a card.
        (
            "mig=14",
            &[
                "0@h2:MIG-h2-0,MIG-h2-1,MIG-h2-2,MIG-h2-3,MIG-h2-4,MIG-h2-5,MIG-h2-6,MIG-h2-7,MIG-h2-8,MIG-h2-9,MIG-h2-10,MIG-h2-11,MIG-h2-12,MIG-h2-13",
            ],
            "0@h2:MIG-h2-14,MIG-h2-15,MIG-h2-16,MIG-h2-17,MIG-h2-18,MIG-h2-19,MIG-h2-20,MIG-h2-21,MIG-h2-22,MIG-h2-23,MIG-h2-24,MIG-h2-25,MIG-h2-26,MIG-h2-27",
        ),
    ];
    for (line, fit, over) in cases {
        for rule in ["gpus", "user_gpus"] {
            let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64", "h2 mig=28x1g.10gb:10GiB cpus=64"]);
            let ceiling = if line.starts_with("mig") { "2" } else { "4" };
            lab.queue(&format!("t {rule}={ceiling}"));
            let array = line.contains("array").then(|| lab.submit(line));
            for parts in fit {
                let job = array.unwrap_or_else(|| lab.submit(line));
                assert_eq!(lab.begin(job, parts), Ok(()), "{line}: {parts}");
            }
            let job = array.unwrap_or_else(|| lab.submit(line));
            assert_eq!(lab.begin(job, over), Err(Refusal::OverCeiling), "{line}");
            lab.check_copies();
        }
    }
}

/// Each part of a ceiling is a bound, along the whole path, for all users together and for each.
#[test]
fn bounds_hold_along_the_path() {
    for (top, leaf, line) in [
        ("gpus=1", "", "gpus=1"),
        ("", "gpus=1", "gpus=1"),
        ("cpus=4", "", "cpus=4"),
        ("mem=8", "", "mem=8GiB"),
        ("vram=80", "", "gpus=1"),
        ("user_gpus=1", "", "gpus=1"),
        ("", "user_cpus=4", "cpus=4"),
        ("guarantee=1 borrows=no gpus=8", "", "gpus=1"),
    ] {
        let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64"]);
        lab.queue(&format!("t {top}"));
        lab.queue(&format!("t/a {leaf}"));
        lab.queue(&format!("t/b {leaf}"));
        let first = lab.submit(&format!("{line} queue=t/a"));
        let card = |at: u32| if line.contains("gpus") { format!("0@h1:{at}") } else { "0@h1".to_owned() };
        assert_eq!(lab.begin(first, &card(0)), Ok(()), "{top} {leaf}");
        let second = lab.submit(&format!("{line} queue=t/a"));
        assert_eq!(lab.begin(second, &card(1)), Err(Refusal::OverCeiling), "{top} {leaf}");
        // A sibling is bound by what is above both.
        let beside = lab.submit(&format!("{line} queue=t/b"));
        let bound = if top.is_empty() { Ok(()) } else { Err(Refusal::OverCeiling) };
        assert_eq!(lab.begin(beside, &card(2)), bound, "{top} {leaf}");
        // Another user is bound by what is for all, not by what is for each.
        let line_of_other = format!("{line} queue=t/a");
        let colleague = lab.try_submit(person("t", "ann"), &line_of_other).expect("accepted");
        let each = top.contains("user") || leaf.contains("user");
        let bound = if each { Ok(()) } else { Err(Refusal::OverCeiling) };
        assert_eq!(lab.begin(colleague, &card(3)), bound, "{top} {leaf}");
        // An end makes room for exactly one.
        let token = lab.token(first);
        lab.end(token, exit(0));
        assert_eq!(lab.begin(second, &card(4)), Ok(()), "{top} {leaf}");
        lab.check_copies();
    }
}

/// Two plans made of one state race for the last card of a quota: one gets it.
#[test]
fn two_plans_race_for_the_last_quota() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64"]);
    lab.queue("t gpus=1");
    let jobs = [lab.submit("gpus=1"), lab.submit("gpus=1")];
    let start = |lab: &Lab, job: JobId, parts: &str| Move::Start { job, choice: 0, parts: lab.parts(parts) };
    let plans = [start(&lab, jobs[0], "0@h1:0"), start(&lab, jobs[1], "0@h1:1")];
    let proposals = plans.map(|one| Proposal {
        request: RequestId::NONE,
        actor: Actor::system(),
        command: Command::CommitPlan { plan: Plan { seen_index: 5, moves: vec![one] } },
    });
    // In one entry, too.
    let applied = lab.apply(proposals.to_vec());
    let refused = vec![(0, Refusal::OverCeiling)];
    assert_eq!(applied.outcomes, [Outcome::Planned { refused: vec![] }, Outcome::Planned { refused }]);
    assert_eq!(held(&lab, "t"), 1_000);
}

/// R092: a lowered ceiling lets what runs run, starts nothing new, and shrinks with every end down to its new bound.
#[test]
fn a_lowered_ceiling() {
    for (rule, line) in [("gpus", "t"), ("user_gpus", "t")] {
        let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64"]);
        let jobs: Vec<JobId> = (0..6).map(|at| lab.run("gpus=1", &format!("0@h1:{at}"))).collect();
        lab.queue(&format!("{line} {rule}=3"));
        assert_eq!(held(&lab, "t"), 6_000);
        let next = lab.submit("gpus=1");
        for (at, job) in jobs.iter().enumerate().take(4) {
            assert_eq!(lab.begin(next, "0@h1:7"), Err(Refusal::OverCeiling), "{rule}, {at} ended");
            let token = lab.token(*job);
            lab.end(token, exit(0));
        }
        assert_eq!(lab.begin(next, "0@h1:7"), Ok(()), "two are left of three");
        let last = lab.submit("gpus=1");
        assert_eq!(lab.begin(last, "0@h1:6"), Err(Refusal::OverCeiling));
        // What does not touch the bound may start all the while.
        let cpus = lab.submit("cpus=1");
        assert_eq!(lab.begin(cpus, "0@h1"), Ok(()));
        lab.queue(&format!("{line} {rule}=8"));
        assert_eq!(lab.begin(last, "0@h1:6"), Ok(()));
        lab.check_copies();
    }
}

/// A requeued or restarted task has no right to its old room above a lowered ceiling.
#[test]
fn a_lowered_ceiling_and_a_retry() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64"]);
    let job = lab.run("gpus=4 retries=1", "0@h1:0,1,2,3");
    lab.queue("t gpus=3");
    let token = lab.token(job);
    lab.end(token, exit(1));
    assert_eq!(lab.begin(job, "0@h1:0,1,2,3"), Err(Refusal::OverCeiling));
}

/// Work above a ceiling is ended only if the queue says so, only while it is above, and not beyond what is needed.
#[test]
fn excess_is_ended_by_its_rule() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64"]);
    let jobs: Vec<JobId> =
        (0..3).map(|at| lab.run("gpus=2 requeue=yes", &format!("0@h1:{},{}", at * 2, at * 2 + 1))).collect();
    let tokens: Vec<Token> = jobs.iter().map(|job| lab.token(*job)).collect();
    let end = |lab: &mut Lab, victims: &[Token]| lab.evict(None, EndReason::Ceiling, victims, "");
    lab.queue("t gpus=8 excess=requeue");
    assert_eq!(end(&mut lab, &tokens[2..]), Err(Refusal::NotEvictable), "not above");
    lab.queue("t gpus=3");
    assert_eq!(end(&mut lab, &tokens[2..]), Err(Refusal::NotEvictable), "may run to its end");
    lab.queue("t gpus=3 excess=requeue");
    assert_eq!(end(&mut lab, &tokens), Err(Refusal::NotEvictable), "two are enough");
    assert_eq!(end(&mut lab, &tokens[2..]), Ok(()));
    assert_eq!(end(&mut lab, &tokens[..2]), Err(Refusal::NotEvictable), "one more is enough");
    assert_eq!(end(&mut lab, &tokens[1..2]), Ok(()));
    assert_eq!(end(&mut lab, &tokens[..1]), Err(Refusal::NotEvictable), "what ends already counts as gone");
    for token in &tokens[1..] {
        lab.end(*token, AttemptEnd::Preempted);
    }
    assert_eq!((held(&lab, "t"), lab.state_of(jobs[1]).as_str()), (2_000, "pending"));
    // The bound of each user is such a bound as well, and a queue above is.
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64"]);
    lab.queue("t");
    lab.queue("t/a");
    let mine = lab.run("gpus=2 queue=t/a", "0@h1:0,1");
    let line = "gpus=2 queue=t/a";
    let hers = lab.run_as(person("t", "ann"), line, "0@h1:2,3");
    lab.queue("t user_gpus=1 excess=requeue");
    let tokens = [lab.token(mine), lab.token(hers)];
    assert_eq!(end(&mut lab, &tokens), Ok(()), "both are above the bound of one user");
    for token in tokens {
        lab.end(token, AttemptEnd::Preempted);
    }
    lab.queue("t gpus=8");
    let gang = lab.run("gpus=1 gang=2 queue=t", "0@h1:4 1@h1:5");
    lab.queue("t gpus=1 excess=requeue");
    let parts = lab.tokens(gang);
    assert_eq!(end(&mut lab, &parts[..1]), Err(Refusal::NotEvictable), "half a gang");
    assert_eq!(end(&mut lab, &parts), Ok(()));
    lab.check_copies();
}

/// Children are guaranteed no more than their parent is or may hold; parents are not cut below their children.
#[test]
fn guarantees_of_children() {
    let mut lab = Lab::new();
    lab.queue("t guarantee=8 gpus=10");
    lab.queue("t/a guarantee=5");
    for (line, field) in [
        ("t/b guarantee=4", "queue.guarantee"),
        ("t/b guarantee=3 guarantee_cpus=1", "queue.guarantee"),
        ("t guarantee=4", "queue.guarantee"),
        ("t guarantee=8 gpus=7", "queue.guarantee"),
        ("t guarantee=9 gpus=8", "queue.guarantee"),
        ("t/a guarantee=6 gpus=5", "queue.guarantee"),
        ("t gpus=4", "queue.ceiling"),
    ] {
        let error = lab.try_queue(line).expect_err(line);
        assert_eq!(error.field.as_deref(), Some(field), "{line}");
        assert!(error.example.is_some());
    }
    lab.queue("t/b guarantee=3");
    lab.queue("t/a guarantee=4");
    lab.queue("t/b guarantee=4");
    // A parent without a guarantee leaves its children theirs, as far as its ceiling goes.
    lab.queue("open gpus=6");
    lab.queue("open/a guarantee=4");
    let error = lab.try_queue("open/b guarantee=3").expect_err("above the ceiling");
    assert!(error.message.contains("ceiling"), "{error}");
    lab.queue("open/b guarantee=2");
    lab.check_copies();
}

#[test]
fn names_and_values_that_are_refused() {
    let mut lab = Lab::new();
    let long = "x".repeat(129);
    let deep = ["d"; 9].join("/");
    for name in
        ["", "/", "/t", "t/", "t//a", "a b", "a\nb", "a\0b", "é!", "*", "a,b", "a:b", "a=b", &long, &deep]
    {
        let queue = rota_protocol::queue::QueueSpec::open(name);
        let outcome = lab.system(Command::SetQueue { queue });
        let Outcome::Refused(error) = outcome else { panic!("{name:?} was accepted") };
        assert_eq!(error.field.as_deref(), Some("queue.name"), "{name:?}");
        assert!(!error.message.contains(['\n', '\0']), "{name:?}");
        assert!(error.message.len() < 300);
    }
    for (line, field) in [
        ("t/a", "queue.name"),
        ("t weight=0", "queue.weight"),
        ("t weight=1000001", "queue.weight"),
        ("t limit=0", "queue.time_limit"),
        ("t limit=400000000", "queue.time_limit"),
    ] {
        let error = lab.try_queue(line).expect_err(line);
        assert_eq!((error.code, error.field.as_deref()), (ErrorCode::Invalid, Some(field)), "{line}");
        assert!(error.example.is_some());
    }
    // Letters of any alphabet are names; a twin in another case is another queue.
    for name in ["größe", "Lab", "lab", "a.b", "ann@example.org", "a-b_c"] {
        lab.queue(name);
    }
    assert_eq!(lab.state.queues().len(), 6);
}

/// S8: who may enter: its own queue, one below it, one that lists the tenant; exact names, operators anywhere.
#[test]
fn who_may_enter() {
    let mut lab = Lab::new();
    for line in ["t", "t/a", "tt", "shared tenants=t,x", "shared/low", "closed tenants=x", "u/x"] {
        if line == "u/x" {
            lab.queue("u");
        }
        lab.queue(line);
    }
    let mut enters =
        |actor: Actor, queue: &str| lab.try_submit(actor, &format!("cpus=1 queue={queue}")).is_ok();
    for (tenant, queue, may) in [
        ("t", "t", true),
        ("t", "t/a", true),
        ("t", "tt", false),
        ("t", "T", false),
        ("t", "shared", true),
        ("t", "shared/low", false),
        ("t", "closed", false),
        ("x", "closed", true),
        ("x", "shared", true),
        ("x", "t/a", false),
        ("x", "x", true),
        ("t", "none", false),
        ("u", "u/x", true),
        ("u/x", "u/x", false),
        ("u/x", "", false),
        ("a b", "", false),
        ("", "", false),
    ] {
        assert_eq!(enters(user(tenant), queue), may, "{tenant:?} into {queue:?}");
    }
    assert!(enters(Actor { role: Role::Operator, ..user("ops") }, "t/a"));
    // A tenant's own queue may be closed to it.
    lab.queue("z tenants=x");
    let error = lab.try_submit(user("z"), "cpus=1").expect_err("closed");
    assert_eq!(error.field.as_deref(), Some("queue"));
    assert!(lab.state.queues().iter().all(|q| !q.spec.name.is_empty()));
}

#[test]
fn removal() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    lab.queue("t");
    lab.queue("t/a");
    let remove = |lab: &mut Lab, name: &str| match lab.system(Command::RemoveQueue { name: name.into() }) {
        Outcome::Done => None,
        Outcome::Refused(error) => Some(error.code),
        other => panic!("{other:?}"),
    };
    assert_eq!(remove(&mut lab, "x"), Some(ErrorCode::NotFound));
    assert_eq!(remove(&mut lab, "t"), Some(ErrorCode::Conflict), "a child");
    let job = lab.run("gpus=1 queue=t/a", "0@h1:0");
    assert_eq!(remove(&mut lab, "t/a"), Some(ErrorCode::Conflict), "a job runs");
    let waits = lab.submit("gpus=1 queue=t/a hold=yes");
    let token = lab.token(job);
    lab.end(token, exit(0));
    assert_eq!(remove(&mut lab, "t/a"), Some(ErrorCode::Conflict), "a job waits");
    lab.cancel(waits);
    let reservation = ReservationSpec {
        name: "r".into(),
        hosts: vec![HostId(2)],
        start_ms: lab.now_ms,
        end_ms: lab.now_ms + 1_000,
        kept_for: ReservedFor::Queues(vec!["t/a".into()]),
        reason: String::new(),
    };
    assert_eq!(lab.system(Command::Reserve { reservation }), Outcome::Done);
    assert_eq!(remove(&mut lab, "t/a"), Some(ErrorCode::Conflict), "a reservation is for it");
    lab.now_ms += 1_000;
    assert_eq!(remove(&mut lab, "t/a"), None);
    let old = lab.state.job(job).expect("kept").queue;
    lab.queue("t/a");
    assert_ne!(lab.state.queues().named("t/a").map(|q| q.id), Some(old), "numbers are not reused");
    assert_eq!(remove(&mut lab, "t/a"), None);
    assert_eq!(remove(&mut lab, "t"), None);
    lab.check_copies();
}

/// A default limit is its queue's, for jobs that name none and are no services.
#[test]
fn default_limits() {
    let mut lab = Lab::new();
    lab.queue("t limit=60");
    let limits = ["cpus=1", "cpus=1 limit=5", "cpus=1 service=yes"].map(|line| {
        let job = lab.submit(line);
        lab.state.job(job).expect("known").spec.time_limit_ms
    });
    assert_eq!(limits, [Some(60_000), Some(5_000), None]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// I15: random work of every shape in a tree with bounds that move: no queue and no user is above its bound at any
    /// index, but for what ran when a bound was lowered; the lab checks the law, the sums are counted here again.
    #[test]
    fn ceilings_under_random_work(dice in prop::collection::vec(any::<(u8, u8, u8)>(), 1..80)) {
        let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64", "h2 mig=14x1g.10gb:10GiB cpus=64"]);
        for line in ["t gpus=6 user_gpus=4", "t/a gpus=3", "t/b user_gpus=2.5"] {
            lab.queue(line);
        }
        let asks = ["gpus=1", "gpus=2", "gpu_milli=300", "gpus=1 array=0-5", "gpus=1 gang=3", "gpus=1 gang=1..4",
            "mig=3", "cpus=2"];
        for (kind, a, b) in dice {
            let live: Vec<Token> = lab.state.attempts().map(|attempt| attempt.token).collect();
            match kind % 6 {
                0 if !live.is_empty() => lab.end(live[a as usize % live.len()], exit(b % 3)),
                1 => {
                    let rule = ["t gpus=", "t/a gpus=", "t/b user_gpus=", "t user_gpus="][a as usize % 4];
                    lab.queue(&format!("{rule}{}", b % 8));
                }
                _ => {
                    let queue = ["t", "t/a", "t/b"][b as usize % 3];
                    let actor = person("t", ["u", "v"][a as usize % 2]);
                    let line = format!("{} queue={queue}", asks[a as usize % asks.len()]);
                    let job = lab.try_submit(actor, &line).expect("accepted");
                    let parts = parts_for(&lab, job, u32::from(kind) / 16);
                    let _ = lab.begin(job, &parts);
                }
            }
            let sum = |queue: &str| {
                let below = |a: &&rota_core::Attempt| lab.state.queues().lies_in(a.queue, queue);
                lab.state.attempts().filter(below).fold(Amounts::default(), |sum, a| sum.plus(&a.amounts()))
            };
            for queue in ["t", "t/a", "t/b"] {
                prop_assert_eq!(lab.state.queues().named(queue).map(|q| q.held), Some(sum(queue)));
            }
        }
        lab.check_copies();
    }
}

fn parts_for(lab: &Lab, job: JobId, from: u32) -> String {
    let job = lab.state.job(job).expect("known");
    let (slices, cards) = (!job.spec.ask.devices.is_empty(), job.spec.ask.gpus());
    let mut at = from;
    let mut parts = Vec::new();
    for index in (0..job.tasks()).take(3) {
        let devices: Vec<String> = match (slices, cards) {
            (true, _) => (0..3).map(|k| format!("MIG-h2-{}", (at + k) % 14)).collect(),
            (false, n) => (0..n).map(|k| ((at + k) % 8).to_string()).collect(),
        };
        at += if slices { 3 } else { cards };
        parts.push(format!("{index}@{}:{}", if slices { "h2" } else { "h1" }, devices.join(",")));
    }
    parts.join(" ")
}
