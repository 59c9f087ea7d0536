//! What the planner owes users: evictions that work, resumption, gangs without hold-and-wait, promises that are kept,
//! shares, ceilings, drains. The field reports behind them are named.

use crate::lab::{Lab, exit, user};
use rota_core::hash::mix;
use rota_core::placement::{PlanConfig, Planner, View};
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::job::{AttemptEnd, AttemptState};
use rota_protocol::plan::Move;
use rota_protocol::queue::{Amounts, Ceiling, QueueSpec};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::{HostId, JobId, RequestId, Token};
use std::collections::BTreeMap;

/// Rounds until nothing happens.
pub(crate) fn settle(lab: &mut Lab) {
    for _ in 0..32 {
        if lab.round() == 0 {
            return;
        }
    }
    panic!("rounds without end: {:?}", lab.plan());
}

/// Attempts that are asked to end do so.
pub(crate) fn obey(lab: &mut Lab) -> usize {
    let ending = lab.state.attempts().filter(|a| a.state == AttemptState::Ending);
    let ending: Vec<(Token, AttemptEnd)> =
        ending.map(|a| (a.token, a.end_reason.expect("a reason").end())).collect();
    let count = ending.len();
    for (token, end) in ending {
        lab.end(token, end);
    }
    count
}

pub(crate) fn start_all(lab: &mut Lab) {
    let granted: Vec<Token> =
        lab.state.attempts().filter(|a| a.state == AttemptState::Granted).map(|a| a.token).collect();
    for token in granted {
        lab.start(token);
    }
}

pub(crate) fn submit_as(lab: &mut Lab, tenant: &str, line: &str) -> JobId {
    let spec = crate::lab::job_spec(line);
    match lab.ask(user(tenant), RequestId::NONE, Command::Submit { spec }) {
        Outcome::Submitted { job } => job,
        other => panic!("{line}: {other:?}"),
    }
}

pub(crate) fn set_queue(lab: &mut Lab, name: &str, guarantee_gpus: u64, ceiling_gpus: Option<u64>) {
    let guarantee = Amounts { gpu_milli: guarantee_gpus * 1_000, ..Amounts::default() };
    let ceiling = Ceiling { gpu_milli: ceiling_gpus.map(|n| n * 1_000), ..Ceiling::default() };
    let queue = QueueSpec { guarantee, ceiling, ..QueueSpec::open(name) };
    assert_eq!(lab.system(Command::SetQueue { queue }), Outcome::Done);
}

fn live_cards(lab: &Lab, job: JobId) -> u32 {
    lab.state.attempts_of(job).map(|a| a.gpu_milli).sum::<u32>() / 1_000
}

/// R046: of equals the youngest goes, and comes back before one that never started.
#[test]
fn the_youngest_of_equals_goes_and_resumes_first() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB"]);
    let e1 = lab.submit("gpus=1 prio=40");
    lab.round();
    start_all(&mut lab);
    lab.now_ms += 10_000;
    let e2 = lab.submit("gpus=1 prio=40");
    lab.round();
    start_all(&mut lab);
    lab.now_ms += 10_000;
    let e3 = lab.submit("gpus=1 prio=40");
    settle(&mut lab);
    let e4 = lab.submit("gpus=1 prio=60");
    settle(&mut lab);
    assert_eq!(obey(&mut lab), 1);
    settle(&mut lab);
    let states = [e1, e2, e3, e4].map(|job| lab.state_of(job));
    assert_eq!(states, ["running", "pending", "pending", "running"]);
    lab.cancel(e4);
    obey(&mut lab);
    settle(&mut lab);
    let states = [e1, e2, e3].map(|job| lab.state_of(job));
    assert_eq!(states, ["running", "running", "pending"]);
}

/// R042: what cannot fit evicts nobody and does not stop a smaller one behind it.
#[test]
fn nobody_is_evicted_in_vain() {
    let mut lab = Lab::with(&["h1 gpus=3xA100:80GiB"]);
    set_queue(&mut lab, "a", 3, None);
    let b1 = submit_as(&mut lab, "b", "gpus=1");
    settle(&mut lab);
    start_all(&mut lab);
    let a1 = submit_as(&mut lab, "a", "gpus=4");
    let a2 = submit_as(&mut lab, "a", "gpus=3");
    settle(&mut lab);
    assert_eq!(obey(&mut lab), 1, "exactly one eviction");
    settle(&mut lab);
    assert_eq!([a1, a2, b1].map(|job| lab.state_of(job)), ["pending", "running", "pending"]);
    assert_eq!(lab.state.job(b1).expect("b1").evicted, 1);
}

/// R045: two that preempt in the same round do not count one victim twice.
#[test]
fn two_preemptors_have_two_victims() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
    for _ in 0..2 {
        lab.submit("gpus=2 prio=10");
    }
    settle(&mut lab);
    start_all(&mut lab);
    let (p1, p2) = (lab.submit("gpus=2 prio=90"), lab.submit("gpus=2 prio=90"));
    settle(&mut lab);
    assert_eq!(obey(&mut lab), 2);
    settle(&mut lab);
    assert_eq!([p1, p2].map(|job| lab.state_of(job)), ["running", "running"]);
}

/// R044: preempted six times, then left alone: it runs and succeeds, and its retries are its own.
#[test]
fn a_preempted_job_comes_back_by_itself() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
    let low = lab.submit("gpus=4 prio=10 retries=1");
    for _ in 0..6 {
        settle(&mut lab);
        start_all(&mut lab);
        lab.now_ms += 5_000;
        let high = lab.submit("gpus=4 prio=90");
        settle(&mut lab);
        assert_eq!(obey(&mut lab), 1);
        assert_eq!(lab.state_of(low), "pending");
        settle(&mut lab);
        let token = lab.token(high);
        lab.end(token, exit(0));
        lab.now_ms += 1_000;
    }
    settle(&mut lab);
    let token = lab.token(low);
    lab.end(token, exit(0));
    assert_eq!(lab.state_of(low), "succeeded");
    assert_eq!(lab.state.job(low).expect("low").evicted, 6);
}

/// R092: a queue below its guarantee gets it from those who borrow, whatever other queues there are.
#[test]
fn a_guarantee_is_taken_back_from_borrowers_only() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB", "h3 gpus=2xA100:80GiB"]);
    set_queue(&mut lab, "r", 4, None);
    set_queue(&mut lab, "p", 4, None);
    let p = submit_as(&mut lab, "p", "gpus=1 array=0-1 prio=10");
    settle(&mut lab);
    let b = submit_as(&mut lab, "b", "gpus=1 array=0-7");
    settle(&mut lab);
    start_all(&mut lab);
    assert_eq!((live_cards(&lab, p), live_cards(&lab, b)), (2, 8));
    let r = submit_as(&mut lab, "r", "gpus=1 array=0-3");
    settle(&mut lab);
    while obey(&mut lab) > 0 {
        settle(&mut lab);
        start_all(&mut lab);
    }
    assert_eq!([p, b, r].map(|job| live_cards(&lab, job)), [2, 4, 4]);
}

/// R036: two gangs of six on eight cards: one runs, the other holds nothing and follows.
#[test]
fn a_waiting_gang_holds_nothing() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB"]);
    let (x, y) = (lab.submit("gpus=1 gang=6"), lab.submit("gpus=1 gang=6"));
    settle(&mut lab);
    assert_eq!((live_cards(&lab, x), live_cards(&lab, y)), (6, 0));
    start_all(&mut lab);
    let tokens: Vec<Token> = lab.state.attempts_of(x).map(|a| a.token).collect();
    for (n, token) in tokens.into_iter().enumerate() {
        lab.end(token, exit(0));
        lab.round();
        let held = live_cards(&lab, y);
        assert!(held == 0 || held == 6, "{held} after {n}");
    }
    settle(&mut lab);
    assert_eq!((lab.state_of(x).as_str(), live_cards(&lab, y)), ("succeeded", 6));
}

/// R036: random gangs never come to a state in which nothing runs while one would fit alone.
#[test]
fn gangs_never_lock_each_other_out() {
    for seed in 0..20_u64 {
        let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB", "h3 gpus=4xA100:80GiB"]);
        let jobs: Vec<JobId> = (0..10)
            .map(|n| {
                let draw = mix(seed * 100 + n);
                lab.submit(&format!("gpus=1 gang={} limit={}", 1 + draw % 12, 60 + draw % 600))
            })
            .collect();
        for _ in 0..400 {
            lab.now_ms += 10_000;
            settle(&mut lab);
            let open = jobs.iter().any(|job| lab.state_of(*job) == "pending");
            let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
            assert!(!live.is_empty() || !open, "seed {seed}: nothing runs");
            let Some(first) = live.first().copied() else { break };
            lab.end(first, exit(0));
        }
        assert!(jobs.iter().all(|job| lab.state_of(*job) == "succeeded"), "seed {seed}");
    }
}

/// R088: with limits given, the wide job starts no later than it was promised, small ones that end before it go on,
/// and the cards stay busy.
#[test]
fn a_promise_is_kept_under_a_stream() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB"]);
    let mut ends: BTreeMap<Token, u64> = BTreeMap::new();
    let mut planner = Planner::default();
    let (mut big, mut promised_ms, mut started_ms) = (None, None, None);
    let (mut busy, mut steps) = (0, 0);
    for second in 0..1_200_u64 {
        lab.now_ms += 1_000;
        if second == 60 {
            big = Some(lab.submit("gpus=8 limit=600"));
        }
        let waiting = lab.state.jobs().filter(|j| j.state.to_string() == "pending").count();
        for n in waiting..3 {
            let limit = 60 + mix(second * 7 + n as u64) % 240;
            lab.submit(&format!("gpus=1 limit={limit}"));
        }
        let due: Vec<Token> = ends.iter().filter(|(_, at)| **at <= lab.now_ms).map(|(t, _)| *t).collect();
        for token in due {
            ends.remove(&token);
            lab.end(token, exit(0));
        }
        loop {
            let view = View::of(&lab.state, lab.now_ms);
            let plan = planner.plan(&view, &PlanConfig { grace_ms: 0, ..PlanConfig::default() }, lab.now_ms);
            drop(view);
            if plan.moves.is_empty() {
                break;
            }
            for one in &plan.moves {
                if let Move::Promise { job, at_ms, broken_by, .. } = one
                    && Some(*job) == big
                {
                    assert_eq!(*broken_by, None);
                    promised_ms.get_or_insert(*at_ms);
                }
            }
            lab.system(Command::CommitPlan { plan });
        }
        start_all(&mut lab);
        for attempt in lab.state.attempts() {
            let limit_ms = attempt.limit_ms.expect("a limit");
            // A fifth to the whole of the limit.
            let run_ms = limit_ms / 5 + mix(attempt.token.0) % (limit_ms * 4 / 5);
            ends.entry(attempt.token).or_insert(attempt.granted_ms + run_ms);
        }
        if let Some(job) = big.filter(|_| started_ms.is_none())
            && lab.state_of(job) == "running"
        {
            started_ms = Some(lab.now_ms);
        }
        if started_ms.is_none() {
            busy += lab.state.hosts().map(|h| h.used.devices.len()).sum::<usize>();
            steps += 8;
        }
    }
    let (promised_ms, started_ms) = (promised_ms.expect("promised"), started_ms.expect("started"));
    assert!(started_ms <= promised_ms, "started {} ms late", started_ms - promised_ms);
    assert!(busy * 100 / steps >= 70, "{} % busy while it waited", busy * 100 / steps);
}

/// R086: after one used eight cards for an hour, the other's equal job goes first; and ceilings hold for all shapes.
#[test]
fn use_counts_and_ceilings_hold() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB"]);
    let long = submit_as(&mut lab, "u1", "gpus=8");
    settle(&mut lab);
    start_all(&mut lab);
    lab.now_ms += 3_600_000;
    let again = submit_as(&mut lab, "u1", "gpus=8");
    let other = submit_as(&mut lab, "u2", "gpus=8");
    let token = lab.token(long);
    lab.end(token, exit(0));
    settle(&mut lab);
    assert_eq!([again, other].map(|job| lab.state_of(job)), ["pending", "running"]);

    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB"]);
    set_queue(&mut lab, "u1", 0, Some(4));
    for line in ["gpus=1 array=0-9", "gpus=1 gang=3", "gpus=2", "gpu_milli=500 array=0-3"] {
        submit_as(&mut lab, "u1", line);
        settle(&mut lab);
        let held: u32 = lab.state.attempts().map(|a| a.gpu_milli).sum();
        assert!(held <= 4_000, "{line}: {held}");
    }
    assert_eq!(lab.state.attempts().map(|a| a.gpu_milli).sum::<u32>(), 4_000);
}

/// Equal tenants with equal work and equal weights differ by one job at the most; double weight gets double.
#[test]
fn fair_shares_are_within_one_job() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB", "h2 gpus=4xA100:80GiB"]);
    let queue = QueueSpec { weight: 2, ..QueueSpec::open("c") };
    lab.system(Command::SetQueue { queue });
    let jobs = ["a", "b", "c"].map(|tenant| submit_as(&mut lab, tenant, "gpus=1 array=0-19"));
    settle(&mut lab);
    assert_eq!(jobs.map(|job| live_cards(&lab, job)), [3, 3, 6]);
}

/// R070: a drained host's work is moved when its time has come, and comes back when nothing else is there.
#[test]
fn a_drained_job_returns_to_its_host() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let job = lab.submit("gpus=1 requeue=no");
    settle(&mut lab);
    start_all(&mut lab);
    let evict_at_ms = Some(lab.now_ms + 5_000);
    lab.system(Command::DrainWith { host: HostId(2), reason: "fans".into(), evict_at_ms });
    settle(&mut lab);
    assert_eq!(obey(&mut lab), 0, "its time has not come");
    lab.now_ms += 5_000;
    settle(&mut lab);
    assert_eq!(obey(&mut lab), 1);
    settle(&mut lab);
    assert_eq!(lab.state_of(job), "pending");
    lab.now_ms += 60_000;
    lab.system(Command::UndrainHost { host: HostId(2) });
    settle(&mut lab);
    assert_eq!(lab.state_of(job), "running");
}

/// Maintenance: work that might run into it is not started; what ends before it is.
#[test]
fn a_reservation_keeps_others_out_in_time() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB"]);
    let reservation = ReservationSpec {
        name: "fans".into(),
        hosts: vec![HostId(2)],
        start_ms: lab.now_ms + 600_000,
        end_ms: lab.now_ms + 900_000,
        kept_for: ReservedFor::Nobody,
        reason: "new fans".into(),
    };
    assert_eq!(lab.system(Command::Reserve { reservation }), Outcome::Done);
    let long = lab.submit("gpus=1 limit=3600");
    let short = lab.submit("gpus=1 limit=300");
    settle(&mut lab);
    assert_eq!([long, short].map(|job| lab.state_of(job)), ["pending", "running"]);
    lab.now_ms += 900_001;
    settle(&mut lab);
    assert_eq!(lab.state_of(long), "running");
}

/// A held job waits until it is released; one with a begin until then; one past its deadline is given up.
#[test]
fn times_and_holds() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let held = lab.submit("gpus=1 hold=yes");
    let begin_ms = lab.now_ms + 10_000;
    let later = lab.submit(&format!("gpus=1 begin={begin_ms}"));
    let late = lab.submit(&format!("gpus=9 deadline={}", lab.now_ms + 5_000));
    settle(&mut lab);
    assert_eq!([held, later].map(|job| lab.state_of(job)), ["pending", "pending"]);
    lab.now_ms = begin_ms;
    settle(&mut lab);
    assert_eq!([later, late].map(|job| lab.state_of(job)), ["running", "deadline missed"]);
    let token = lab.token(later);
    lab.end(token, exit(0));
    settle(&mut lab);
    assert_eq!(lab.state_of(held), "pending");
    let change = JobChange::Release;
    assert_eq!(lab.ask(user("t"), RequestId::NONE, Command::Adjust { job: held, change }), Outcome::Done);
    settle(&mut lab);
    assert_eq!(lab.state_of(held), "running");
}

/// The first ask that fits is taken; preferred models come first; shares lie on one card of one tenant.
#[test]
fn alternatives_preferences_and_shares() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB cpus=32", "h2 gpus=1xH100:80GiB cpus=32"]);
    let liked = lab.submit("gpus=1 prefer=H100");
    settle(&mut lab);
    assert_eq!(lab.state.attempts_of(liked).next().map(|a| a.host), Some(HostId(3)));
    let (a, b) = (lab.submit("gpu_milli=600"), lab.submit("gpu_milli=400"));
    settle(&mut lab);
    let other = submit_as(&mut lab, "other", "gpu_milli=100");
    let either = lab.submit("gpus=1 or=gpus~0;cpus~16");
    settle(&mut lab);
    let card = |job| lab.state.attempts_of(job).next().map(|a| a.devices.clone());
    assert_eq!(card(a), card(b), "one card for both");
    assert_eq!(lab.state_of(other), "pending", "never beside another tenant");
    let taken = lab.state.attempts_of(either).next().expect("started");
    assert_eq!((taken.choice, taken.gpu_milli, taken.cpus_milli), (1, 0, 16_000));
}

/// A planner that was kept plans as a fresh one does, over a long random story.
#[test]
fn a_kept_planner_is_a_fresh_planner() {
    for seed in 0..6_u64 {
        let mut lab = Lab::with(&[
            "h1 gpus=4xA100:80GiB cpus=32 rack=a",
            "h2 gpus=4xA100:80GiB cpus=32 rack=a",
            "h3 gpus=8xH100:80GiB cpus=64 rack=b",
            "h4 cpus=64 rack=b",
        ]);
        let mut planner = Planner::default();
        let mut draw = mix(seed);
        for step in 0..120 {
            draw = mix(draw.wrapping_add(step));
            lab.now_ms += draw % 7_000;
            let lines = [
                "gpus=1",
                "gpus=4 limit=900",
                "gpus=1 gang=2..5 limit=300",
                "cpus=8",
                "gpu_milli=300",
                "gpus=8",
                "gpus=2 prio=80",
                "gpus=1 array=0-5%2 limit=60",
                "gpus=1 model=H100 prio=20",
                "cpus=40 prio=70",
            ];
            let tenant = ["t", "x"][(draw >> 8) as usize % 2];
            submit_as(&mut lab, tenant, lines[(draw >> 16) as usize % lines.len()]);
            let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
            if draw.is_multiple_of(3) && !live.is_empty() {
                lab.end(live[(draw >> 24) as usize % live.len()], exit(0));
            }
            obey(&mut lab);
            for _ in 0..3 {
                let view = View::of(&lab.state, lab.now_ms);
                let config = PlanConfig::default();
                let kept = planner.plan(&view, &config, lab.now_ms);
                let fresh = Planner::default().plan(&view, &config, lab.now_ms);
                assert_eq!(kept, fresh, "seed {seed} step {step}");
                drop(view);
                let outcome = lab.system(Command::CommitPlan { plan: kept });
                assert_eq!(outcome, Outcome::Planned { refused: Vec::new() }, "seed {seed} step {step}");
            }
            start_all(&mut lab);
        }
    }
}

/// A round that gave nothing says until when it will; at that time, and not before, something is different.
#[test]
fn a_quiet_planner_knows_when_to_look_again() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    lab.submit("gpus=1");
    settle(&mut lab);
    let begin_ms = lab.now_ms + 3_000;
    let later = lab.submit(&format!("cpus=1 begin={begin_ms}"));
    let mut planner = Planner::default();
    let mut looks = 0;
    while lab.state_of(later) == "pending" {
        lab.now_ms += 250;
        assert!(lab.now_ms <= begin_ms, "overslept");
        if planner.is_quiet(lab.state.applied_index(), lab.now_ms) {
            continue;
        }
        looks += 1;
        let plan = planner.plan(&View::of(&lab.state, lab.now_ms), &PlanConfig::default(), lab.now_ms);
        if !plan.moves.is_empty() {
            lab.system(Command::CommitPlan { plan });
        }
    }
    assert_eq!(lab.now_ms, begin_ms);
    assert!(looks <= 3, "{looks} looks");
}

/// Cards are free for a wide job, but not together: small work moves if that pays, and only then.
#[test]
fn small_work_moves_for_a_wide_job_if_it_pays() {
    for (age_ms, moves) in [(60_000, true), (3_000_000, false)] {
        let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB"]);
        let fill: Vec<JobId> = (0..6).map(|_| lab.submit("gpus=1 limit=3600")).collect();
        settle(&mut lab);
        start_all(&mut lab);
        // One on h1 and one on h2 stay: three cards are free on each.
        let mut kept = BTreeMap::new();
        for job in &fill {
            let attempt = lab.state.attempts_of(*job).next().expect("live");
            kept.entry(attempt.host).or_insert(attempt.token);
        }
        assert_eq!(kept.len(), 2);
        let rest: Vec<Token> =
            lab.state.attempts().map(|a| a.token).filter(|t| !kept.values().any(|k| k == t)).collect();
        for token in rest {
            lab.end(token, exit(0));
        }
        lab.now_ms += age_ms;
        let wide = lab.submit("gpus=4 limit=600");
        settle(&mut lab);
        lab.now_ms += 6_000;
        settle(&mut lab);
        assert_eq!(obey(&mut lab), usize::from(moves), "after {age_ms} ms");
        settle(&mut lab);
        assert_eq!(lab.state_of(wide) == "running", moves);
        assert_eq!(lab.state.attempts().count(), 2 + usize::from(moves));
    }
}

/// A host that mixes models serves an ask that takes any: whether it fits is for `fits` alone to say.
#[test]
fn cards_of_several_models_serve_one_ask() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB+2xL4:24GiB"]);
    let job = lab.submit("gpus=4");
    settle(&mut lab);
    assert_eq!(live_cards(&lab, job), 4);
}
