//! Turns: jobs that go on where they stopped change places for the model on which each gains most, and for short work;
//! nobody else is touched, nobody too soon, and an unchanged world changes nothing.

use crate::lab::{Lab, exit, job_spec};
use rota_core::hash::mix;
use rota_core::placement::{PlanConfig, Planner, TURN_MS, View, check_plan};
use rota_protocol::JobId;
use rota_protocol::command::{Command, Outcome};
use rota_protocol::job::{AttemptEnd, AttemptState, EndReason};
use rota_protocol::pace::Turns;
use rota_protocol::plan::{Move, Refusal, Slot};
use rota_protocol::queue::QueueSpec;
use rota_protocol::report::AttemptFact;

const UNLIKE: [&str; 2] = ["a gpus=1xA100:80GiB", "k gpus=1xK80:12GiB"];
/// Gains ten times by the better model.
const KEEN: &str = "gpus=1 resumes=yes speed=A100:1000|K80:100";
/// Hardly gains by it.
const EASY: &str = "gpus=1 resumes=yes speed=A100:1000|K80:900";

/// The host of each live attempt of a job.
fn runs_on(lab: &Lab, job: JobId) -> Vec<String> {
    lab.state.attempts_of(job).map(|a| lab.state.host(a.host).expect("known").name.clone()).collect()
}

/// Rounds until nothing more is to be done; what was asked to end ends at once, with its work kept.
fn settle(lab: &mut Lab) -> usize {
    let mut evictions = 0;
    for _ in 0..64 {
        let moves = lab.round();
        evictions += end_what_ends(lab);
        for token in lab.state.attempts().map(|a| a.token).collect::<Vec<_>>() {
            if lab.state.attempt(token).is_some_and(|a| a.state == AttemptState::Granted) {
                lab.start(token);
            }
        }
        if moves == 0 {
            return evictions;
        }
    }
    panic!("a world in which nothing happens does not settle");
}

fn end_what_ends(lab: &mut Lab) -> usize {
    let ending = lab.state.attempts().filter(|a| a.state == AttemptState::Ending);
    let ending: Vec<_> = ending.map(|a| (a.token, lab.now_ms - a.granted_ms)).collect();
    for (token, ran_ms) in &ending {
        lab.report(*token, AttemptFact::Ended { end: AttemptEnd::Preempted, ran_ms: *ran_ms });
    }
    ending.len()
}

/// The next beginning of a turn at which what runs now has had its own.
fn next_turn(lab: &mut Lab) {
    lab.now_ms = (lab.now_ms / TURN_MS + 2) * TURN_MS;
}

#[test]
fn each_starts_on_the_model_on_which_it_gains_most() {
    for first in [KEEN, EASY] {
        let mut lab = Lab::with(&UNLIKE);
        let second = if first == KEEN { EASY } else { KEEN };
        let (a, b) = (lab.submit(first), lab.submit(second));
        assert_eq!(settle(&mut lab), 0);
        let keen = if first == KEEN { a } else { b };
        let easy = if first == KEEN { b } else { a };
        assert_eq!(
            (runs_on(&lab, keen), runs_on(&lab, easy)),
            (vec!["a".into()], vec!["k".into()]),
            "{first}"
        );
        lab.check_copies();
    }
}

#[test]
fn who_gains_most_takes_the_place_of_who_gains_little() {
    let mut lab = Lab::with(&UNLIKE);
    let easy = lab.submit(EASY);
    settle(&mut lab);
    assert_eq!(runs_on(&lab, easy), ["a"]);
    let keen = lab.submit(KEEN);
    settle(&mut lab);
    assert_eq!(runs_on(&lab, keen), ["k"], "better a slow card than none");
    lab.now_ms += 60_000;
    assert_eq!(settle(&mut lab), 0, "not before its turn is over");
    next_turn(&mut lab);
    assert!(settle(&mut lab) > 0);
    assert_eq!((runs_on(&lab, keen), runs_on(&lab, easy)), (vec!["a".into()], vec!["k".into()]));
    let job = lab.state.job(easy).expect("known");
    assert_eq!(job.ended.back().and_then(|ended| ended.asked), Some(EndReason::Turn));
    assert!(job.served()["A100"] > 0, "its work is kept");
    // And there they stay.
    for _ in 0..20 {
        next_turn(&mut lab);
        assert_eq!(settle(&mut lab), 0);
    }
    lab.check_copies();
}

/// The only card goes to the short job after the long one's turn, and comes back.
#[test]
fn short_work_does_not_wait_for_long_work() {
    let mut lab = Lab::with(&["a gpus=1xA100:80GiB"]);
    let long = lab.submit("gpus=1 resumes=yes work=864000");
    settle(&mut lab);
    let short = lab.submit("gpus=1 resumes=yes work=600");
    settle(&mut lab);
    assert_eq!((lab.state_of(long), lab.state_of(short)), ("running".into(), "pending".into()));
    let mut turns = 0;
    while lab.state_of(short) == "pending" {
        next_turn(&mut lab);
        settle(&mut lab);
        turns += 1;
        assert!(turns < 40, "it waits for ever");
    }
    assert_eq!(lab.state_of(long), "pending");
    let token = lab.token(short);
    lab.report(token, AttemptFact::Ended { end: exit(0), ran_ms: 600_000 });
    settle(&mut lab);
    assert_eq!(runs_on(&lab, long), ["a"]);
    lab.check_copies();
}

/// Two hours of work each, three times as many jobs as cards: all come to their end, and none is left to the last.
#[test]
fn a_long_wait_makes_any_job_press() {
    let mut lab = Lab::with(&["a gpus=2xA100:80GiB"]);
    let jobs: Vec<JobId> = (0..6).map(|_| lab.submit("gpus=1 resumes=yes work=7200")).collect();
    let mut started = 0;
    for turn in 0..100 {
        settle(&mut lab);
        next_turn(&mut lab);
        let live: Vec<_> =
            lab.state.attempts().map(|a| (a.token, a.task.job, lab.now_ms - a.granted_ms)).collect();
        for (token, job, ran_ms) in live {
            let before_ms: u64 = lab.state.job(job).expect("known").served().values().sum();
            if before_ms + ran_ms >= 7_200_000 {
                lab.report(token, AttemptFact::Ended { end: exit(0), ran_ms });
            }
        }
        let begun = |job: &&JobId| lab.state.job(**job).is_some_and(|job| job.started_ms.is_some());
        if turn == 20 {
            started = jobs.iter().filter(begun).count();
        }
    }
    assert!(started > 2, "two hold both cards for hours");
    assert!(jobs.iter().all(|job| lab.state_of(*job) == "succeeded"));
}

/// Work that does not say that it resumes is neither ended nor in the way of what does.
#[test]
fn others_run_to_their_end() {
    let mut lab = Lab::with(&UNLIKE);
    let plain = lab.submit("gpus=1 speed=A100:1000|K80:900");
    settle(&mut lab);
    let keen = lab.submit(KEEN);
    for _ in 0..20 {
        next_turn(&mut lab);
        assert_eq!(settle(&mut lab), 0);
    }
    assert_eq!((runs_on(&lab, plain), runs_on(&lab, keen)), (vec!["a".into()], vec!["k".into()]));
    for line in
        ["preemptible=no", "requeue=no", "service=yes", "array=0-1", "prefer=A100", "layout=same-host"]
    {
        assert!(!job_spec(&format!("{KEEN} {line}")).takes_turns(), "{line}");
    }
    assert!(job_spec(KEEN).takes_turns());
}

#[test]
fn a_queue_says_whether_its_jobs_take_turns() {
    for (turns, on_equal, on_unlike) in
        [(Turns::Auto, true, true), (Turns::Unlike, false, true), (Turns::Off, false, false)]
    {
        for (hosts, expected) in [(vec!["a gpus=1xA100:80GiB"], on_equal), (UNLIKE.to_vec(), on_unlike)] {
            let mut lab = Lab::with(&hosts);
            let queue = QueueSpec { turns, ..QueueSpec::open("t") };
            assert_eq!(lab.system(Command::SetQueue { queue }), Outcome::Done);
            let count = hosts.len() + 1;
            let line = |n: usize| if n == 0 { "work=8640000" } else { "work=600" };
            for n in 0..count {
                lab.submit(&format!("{EASY} {}", line(n)));
                settle(&mut lab);
            }
            let mut evictions = 0;
            for _ in 0..40 {
                next_turn(&mut lab);
                evictions += settle(&mut lab);
            }
            assert_eq!(evictions > 0, expected, "{turns:?} on {hosts:?}");
        }
    }
}

#[test]
fn gangs_move_whole() {
    let mut lab = Lab::with(&["a gpus=4xA100:80GiB", "k gpus=4xK80:12GiB"]);
    let gang = "gang=4 gpus=1 resumes=yes";
    let easy = lab.submit(&format!("{gang} speed=A100:1000|K80:900"));
    settle(&mut lab);
    let keen = lab.submit(&format!("{gang} speed=A100:1000|K80:100"));
    settle(&mut lab);
    assert_eq!(runs_on(&lab, easy), ["a"; 4]);
    for _ in 0..3 {
        next_turn(&mut lab);
        settle(&mut lab);
    }
    assert_eq!(
        (runs_on(&lab, keen), runs_on(&lab, easy)),
        (vec!["a".to_owned(); 4], vec!["k".to_owned(); 4])
    );
    lab.check_copies();
}

/// Ends that take their time: whoever moves gets its slots although they were free for a while.
#[test]
fn what_moves_is_promised_its_place() {
    let mut lab = Lab::with(&UNLIKE);
    let (easy, keen) = (lab.submit(EASY), lab.submit(KEEN));
    settle(&mut lab);
    assert_eq!(runs_on(&lab, keen), ["a"]);
    lab.end(lab.token(keen), exit(0));
    settle(&mut lab);
    assert_eq!(runs_on(&lab, easy), ["k"], "just begun");
    next_turn(&mut lab);
    assert_eq!(lab.round(), 1);
    let late = lab.submit("gpus=1 prio=55");
    lab.round();
    assert_eq!(lab.state_of(late), "pending", "the free card is spoken for");
    assert_eq!(end_what_ends(&mut lab), 1);
    settle(&mut lab);
    assert_eq!((runs_on(&lab, easy), runs_on(&lab, late)), (vec!["a".into()], vec!["k".into()]));
    lab.check_copies();
}

#[test]
fn apply_refuses_turns_that_break_a_rule() {
    let mut lab = Lab::with(&UNLIKE);
    let running = lab.submit(EASY);
    settle(&mut lab);
    let evict = |lab: &mut Lab, job: JobId, victim: JobId, slot: &str| {
        let host = lab.state.host_by_name_or_id(slot).expect("known");
        let slots = vec![Slot { host: host.id, devices: vec![host.facts.devices[0].uuid.clone()] }];
        let victims = vec![lab.token(victim)];
        let one = Move::Evict { job: Some(job), reason: EndReason::Turn, victims, slots, choice: 0 };
        let plan = rota_protocol::plan::Plan { seen_index: 0, moves: vec![one] };
        match lab.system(Command::CommitPlan { plan }) {
            Outcome::Planned { refused } => refused.first().map(|(_, why)| *why),
            other => panic!("{other:?}"),
        }
    };
    let waiting = lab.submit(KEEN);
    assert_eq!(evict(&mut lab, waiting, running, "a"), Some(Refusal::NotEvictable), "too soon");
    next_turn(&mut lab);
    let plain = lab.submit("gpus=1");
    assert_eq!(evict(&mut lab, plain, running, "a"), Some(Refusal::NotEvictable), "takes no turns");
    let low = lab.submit(&format!("{KEEN} prio=40"));
    assert_eq!(evict(&mut lab, low, running, "a"), Some(Refusal::NotEvictable), "of lower priority");
    assert_eq!(evict(&mut lab, running, running, "a"), Some(Refusal::NotEvictable), "to where it is");
    assert_eq!(evict(&mut lab, waiting, running, "k"), Some(Refusal::NotEvictable), "in vain");
    let queue = |turns| Command::SetQueue { queue: QueueSpec { turns, ..QueueSpec::open("t") } };
    lab.system(queue(Turns::Off));
    assert_eq!(evict(&mut lab, waiting, running, "a"), Some(Refusal::NotEvictable), "the queue says no");
    lab.system(queue(Turns::Auto));
    assert_eq!(evict(&mut lab, running, running, "k"), None, "it may move");
}

#[test]
fn why_tells_where_it_runs_and_how_that_suits_it() {
    let mut lab = Lab::with(&UNLIKE);
    let (easy, keen) = (lab.submit(EASY), lab.submit(KEEN));
    settle(&mut lab);
    let verdict = |job| rota_core::explain::why(&lab.state, job, lab.now_ms).expect("known").verdict;
    assert!(verdict(keen).contains("on A100, the fastest"), "{}", verdict(keen));
    assert!(verdict(easy).contains("on K80, at 90.0%"), "{}", verdict(easy));
    let third = lab.submit(EASY);
    let why = rota_core::explain::why(&lab.state, third, lab.now_ms).expect("known");
    assert!(why.hint.as_deref().is_some_and(|hint| hint.contains("takes turns")), "{why:?}");
}

/// Many random jobs over hours: laws hold after each entry, plans are sound and settle, a kept planner is as a fresh
/// one, nobody has too short a turn, and everything ends.
#[test]
fn random_worlds_keep_the_laws() {
    for seed in 0..6_u64 {
        let mut dice = mix(seed);
        let mut draw = |bound: u64| {
            dice = mix(dice);
            dice % bound
        };
        let mut lab = Lab::with(&[
            "a gpus=4xA100:80GiB",
            "h gpus=2xH100:80GiB",
            "k gpus=4xK80:12GiB",
            "b gpus=2xA100:80GiB",
        ]);
        let mut kept = Planner::default();
        let mut jobs = Vec::new();
        for _ in 0..60 {
            for _ in 0..draw(4) {
                let speed = format!(
                    "speed=A100:{}|H100:{}|K80:{}",
                    200 + draw(800),
                    200 + draw(2_000),
                    20 + draw(300)
                );
                let shape =
                    ["gpus=1", "gpus=1", "gpus=2", "gang=2 gpus=1", "gang=4 gpus=1"][draw(5) as usize];
                let resumes = if draw(4) == 0 { "" } else { "resumes=yes" };
                let prio = 50 + draw(2) * 20;
                jobs.push(
                    lab.submit(&format!("{shape} {speed} {resumes} prio={prio} work={}", 60 + draw(20_000))),
                );
            }
            step(&mut lab, &mut kept, seed);
            lab.now_ms += draw(400_000);
            for token in lab.state.attempts().map(|a| a.token).collect::<Vec<_>>() {
                let ends = draw(12) == 0
                    && lab.state.attempt(token).is_some_and(|a| a.state == AttemptState::Running);
                if ends {
                    lab.report(token, AttemptFact::Ended { end: exit(0), ran_ms: 1_000 });
                }
            }
        }
        for _ in 0..600 {
            step(&mut lab, &mut kept, seed);
            lab.now_ms += TURN_MS / 2;
            for token in lab.state.attempts().map(|a| a.token).collect::<Vec<_>>() {
                if draw(3) == 0 && lab.state.attempt(token).is_some_and(|a| a.state == AttemptState::Running)
                {
                    lab.report(token, AttemptFact::Ended { end: exit(0), ran_ms: 1_000 });
                }
            }
        }
        for job in jobs {
            assert_eq!(lab.state_of(job), "succeeded", "seed {seed}, job {job}");
        }
        lab.check_copies();
    }
}

/// Rounds by a planner that is kept, each compared with a fresh one, until nothing is left to do.
fn step(lab: &mut Lab, kept: &mut Planner, seed: u64) {
    let config = PlanConfig::default();
    for round in 0..64 {
        let view = View::of(&lab.state, lab.now_ms);
        let plan = kept.plan(&view, &config, lab.now_ms);
        assert_eq!(plan, lab.plan(), "seed {seed}");
        assert_eq!(check_plan(&view, &config, lab.now_ms, &plan), Vec::<String>::new());
        for one in &plan.moves {
            let Move::Evict { reason: EndReason::Turn, victims, .. } = one else { continue };
            for victim in victims {
                let ran_ms = lab.now_ms - lab.state.attempt(*victim).expect("live").granted_ms;
                assert!(ran_ms >= TURN_MS / 2, "seed {seed}: a turn of {ran_ms} ms");
            }
        }
        if plan.moves.is_empty() {
            return;
        }
        assert!(round < 63, "seed {seed}: it does not settle");
        let moves = plan.moves.clone();
        let promised: Vec<_> =
            view.promised.iter().map(|job| (job.id, job.promise.clone(), job.is_ready())).collect();
        let outcome = lab.system(Command::CommitPlan { plan });
        assert_eq!(outcome, Outcome::Planned { refused: Vec::new() }, "seed {seed}: {moves:?} {promised:?}");
        end_what_ends(lab);
        for token in lab.state.attempts().map(|a| a.token).collect::<Vec<_>>() {
            if lab.state.attempt(token).is_some_and(|a| a.state == AttemptState::Granted) {
                lab.start(token);
            }
        }
    }
}

/// As it happens on a live cluster: who waits for long is promised a start by the limits of what runs, which lies a day
/// ahead, and its turn comes nevertheless. The planner itself says when it wants to be asked again.
#[test]
fn who_is_promised_a_start_has_its_turn_before() {
    let mut lab = Lab::with(&["a gpus=4xA100:80GiB", "b gpus=4xH100:80GiB", "c gpus=4xH100:80GiB"]);
    lab.now_ms = lab.now_ms / TURN_MS * TURN_MS + 100_000;
    let long: Vec<JobId> = (0..4).map(|_| lab.submit("gpus=1 model=A100 resumes=yes work=36000")).collect();
    settle(&mut lab);
    let short = lab.submit("gpus=1 model=A100 resumes=yes work=30");
    let (config, mut planner) = (PlanConfig::default(), Planner::default());
    let begun_ms = lab.now_ms;
    while runs_on(&lab, short).is_empty() {
        assert!(lab.now_ms < begun_ms + 2 * TURN_MS, "no turn: {:?}", lab.state.job(short));
        lab.now_ms += 1_000;
        if planner.is_quiet(lab.state.applied_index(), lab.now_ms) {
            continue;
        }
        let plan = planner.plan(&View::of(&lab.state, lab.now_ms), &config, lab.now_ms);
        if !plan.moves.is_empty() {
            lab.system(Command::CommitPlan { plan });
            end_what_ends(&mut lab);
        }
    }
    assert!(lab.state.job(short).is_some_and(|job| job.promise.is_none()));
    let paused = long.iter().filter(|job| runs_on(&lab, **job).is_empty()).count();
    assert_eq!(paused, 1);
}
