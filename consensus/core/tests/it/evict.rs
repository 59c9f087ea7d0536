//! Evictions (R042, R044, R045, R046, R092): who may be ended for whom, that it helps, that nobody is counted twice,
//! and what the victims' ends are called.

use crate::lab::{Lab, exit, user};
use rota_core::explain::why;
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::job::{Actor, AttemptEnd, EndReason, Role};
use rota_protocol::plan::{Move, Refusal};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::why::StartBasis;
use rota_protocol::{HostId, JobId, Token};

/// Of jobs that say nothing.
const GRACE_MS: u64 = 10_000;
const REFUSED: Result<(), Refusal> = Err(Refusal::NotEvictable);

fn four() -> Lab {
    Lab::with(&["h1 gpus=4xA100:80GiB cpus=64", "h2 gpus=4xA100:80GiB cpus=64"])
}

/// The rules for one victim: by reason, priority, its own will, and for whom.
#[test]
fn who_may_be_ended() {
    use EndReason::{Cancel, Ceiling, Drain, Gang, Move, Preempt, Reclaim};
    let cases: [(&str, &str, EndReason, bool); 14] = [
        ("prio=50", "prio=60", Preempt, true),
        ("prio=50", "prio=59", Preempt, false),
        ("prio=50", "prio=50", Preempt, false),
        ("prio=95", "prio=100", Preempt, false),
        ("prio=0 preemptible=no", "prio=100", Preempt, false),
        ("prio=50", "prio=50", Move, true),
        ("prio=50", "prio=49", Move, false),
        ("prio=0 preemptible=no", "prio=100", Move, false),
        // Neither is a reclaim: there is no guarantee; the host is not drained; the queue is not above anything.
        ("prio=0", "prio=100", Reclaim, false),
        ("prio=0", "prio=100", Drain, false),
        ("prio=0", "prio=100", Ceiling, false),
        ("prio=0", "prio=100", Cancel, false),
        ("prio=0", "prio=100", Gang, false),
        ("prio=50 limit=9", "prio=60 limit=9", Preempt, true),
    ];
    for (low, high, reason, allowed) in cases {
        let mut lab = four();
        let victim = lab.run(&format!("gpus=4 {low}"), "0@h1:0,1,2,3");
        let urgent = lab.submit(&format!("gpus=4 {high}"));
        let token = lab.token(victim);
        let done = lab.evict(Some(urgent), reason, &[token], "h1:0,1,2,3");
        assert_eq!(done.is_ok(), allowed, "{low} for {high}, {reason}: {done:?}");
        assert_eq!(lab.ending(victim), usize::from(allowed));
        // For nobody there is no preemption, no move, no reclaim.
        let mut lab = four();
        let victim = lab.run(&format!("gpus=4 {low}"), "0@h1:0,1,2,3");
        let token = lab.token(victim);
        assert_eq!(lab.evict(None, reason, &[token], ""), REFUSED, "{reason} for nobody");
    }
}

/// A priority changed by hand protects what runs, or gives it away.
#[test]
fn a_changed_priority_counts_for_what_runs() {
    let mut lab = four();
    let operator = Actor { role: Role::Operator, ..user("ops") };
    let victim = lab.run("gpus=4 prio=20", "0@h1:0,1,2,3");
    let urgent = lab.submit("gpus=4 prio=60");
    let token = lab.token(victim);
    lab.adjust(operator.clone(), victim, JobChange::Priority(55));
    assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &[token], "h1:0,1,2,3"), REFUSED);
    lab.adjust(operator, victim, JobChange::Priority(50));
    assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &[token], "h1:0,1,2,3"), Ok(()));
}

/// R042: no victim is ended unless the job can start by it: not for slots that do not fit, that are reserved, of another
/// host, not for too few or too many, and not for a job that may not start yet.
#[test]
fn nobody_is_ended_in_vain() {
    let mut lab = four();
    let low = [
        lab.run("gpus=2 prio=10", "0@h1:0,1"),
        lab.run("gpus=1 prio=10", "0@h1:2"),
        lab.run("gpus=1 prio=10", "0@h2:0"),
    ];
    let [a, b, c] = low.map(|job| lab.token(job));
    let wide = lab.submit("gpus=4 prio=90");
    let all = "h1:0,1,2,3";
    for (victims, slots, why) in [
        (&[a][..], all, Refusal::DoesNotFit),
        (&[a, b], "h1:0,1,2", Refusal::DoesNotFit),
        (&[a, b], "h2:0,1,2,3", Refusal::DoesNotFit),
        (&[a, b], "h1:0,1,2,3 h2:0,1,2,3", Refusal::ParallelCap),
        (&[a, b], "", Refusal::ParallelCap),
        (&[a, b, c], all, Refusal::NotEvictable),
        (&[a, a, b], all, Refusal::NotEvictable),
        (&[a, b, Token(99)], all, Refusal::NotEvictable),
        (&[], all, Refusal::NotEvictable),
    ] {
        assert_eq!(lab.evict(Some(wide), EndReason::Preempt, victims, slots), Err(why), "{slots}");
    }
    // What fits without an end is no reason for one.
    let small = lab.submit("gpus=1 prio=90");
    assert_eq!(lab.evict(Some(small), EndReason::Preempt, &[a], "h1:3"), REFUSED);
    // Not yet, held, too late, over, unknown.
    let now = lab.now_ms;
    let later = lab.submit(&format!("gpus=4 prio=90 begin={}", now + 60_000));
    assert_eq!(lab.evict(Some(later), EndReason::Preempt, &[a, b], all), Err(Refusal::NotYet));
    for line in ["hold=yes", &format!("after=any:{wide}")] {
        let job = lab.submit(&format!("gpus=4 prio=90 {line}"));
        assert_eq!(
            lab.evict(Some(job), EndReason::Preempt, &[a, b], all),
            Err(Refusal::NotPending),
            "{line}"
        );
    }
    assert_eq!(lab.evict(Some(JobId(99)), EndReason::Preempt, &[a, b], all), REFUSED);
    assert_eq!(lab.evict(Some(low[0]), EndReason::Move, &[a], "h1:0,1"), Err(Refusal::NotEvictable));
    let apart = lab.submit("gpus=1 gang=2 prio=90 layout=same-host");
    assert_eq!(lab.evict(Some(apart), EndReason::Preempt, &[a], "h1:0 h2:1"), Err(Refusal::DoesNotFit));
    // The host is kept for somebody else before the job would be over.
    let kept = ReservationSpec {
        name: "fans".into(),
        hosts: vec![HostId(2)],
        start_ms: now + 10_000,
        end_ms: now + 20_000,
        kept_for: ReservedFor::Nobody,
        reason: String::new(),
    };
    lab.system(Command::Reserve { reservation: kept });
    assert_eq!(lab.evict(Some(wide), EndReason::Preempt, &[a, b], all), Err(Refusal::Reserved));
    let short = lab.submit("gpus=4 prio=90 limit=10");
    // Slots on a drained host are no room.
    lab.system(Command::DrainHost { host: HostId(2), reason: "fan".into() });
    assert_eq!(lab.evict(Some(short), EndReason::Preempt, &[a, b], all), Err(Refusal::DoesNotFit));
    lab.system(Command::UndrainHost { host: HostId(2) });
    assert!(lab.state.attempts().all(|attempt| attempt.end_reason.is_none()), "not one was asked to end");
    assert_eq!(lab.evict(Some(short), EndReason::Preempt, &[a, b], all), Ok(()));
    lab.check_copies();
}

/// R045: of two jobs that evict at the same time each ends its own victims; neither counts on the other's.
#[test]
fn no_victim_is_counted_twice() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64", "h2 gpus=1xA100:80GiB cpus=64"]);
    let v1 = lab.run("gpus=2 prio=10", "0@h1:0,1");
    let v2 = lab.run("gpus=2 prio=10", "0@h1:2,3");
    let v3 = lab.run("gpus=1 prio=10", "0@h2:0");
    let [t1, t2, t3] = [v1, v2, v3].map(|job| lab.token(job));
    let (p1, p2) = (lab.submit("gpus=2 prio=90"), lab.submit("gpus=2 prio=90"));
    let evict = |lab: &Lab, job, victim, slots| Move::Evict {
        job: Some(job),
        reason: EndReason::Preempt,
        victims: vec![victim],
        slots: lab.slots(slots),
        choice: 0,
    };
    // Both plans see both victims alive and take the same one.
    let first = evict(&lab, p1, t1, "h1:0,1");
    let same = evict(&lab, p2, t1, "h1:0,1");
    // The second one counts on what the first has freed, and ends somebody else for the look of it.
    let free_rider = evict(&lab, p2, t3, "h1:0,1");
    let half_and_half = evict(&lab, p2, t2, "h1:1,2");
    let refused = lab.moves(vec![first, same, free_rider, half_and_half]);
    assert_eq!(refused, [(1, Refusal::NotEvictable), (2, Refusal::DoesNotFit), (3, Refusal::DoesNotFit)]);
    assert_eq!((lab.ending(v1), lab.ending(v2), lab.ending(v3)), (1, 0, 0));
    let own = evict(&lab, p2, t2, "h1:2,3");
    assert_eq!(lab.one_move(own), Ok(()));
    // A third one of the same rank finds nothing, a higher one may still pass them.
    let p3 = lab.submit("gpus=2 prio=90");
    assert_eq!(lab.evict(Some(p3), EndReason::Preempt, &[t3], "h1:2,3"), Err(Refusal::DoesNotFit));
    for (token, job, parts) in [(t1, p1, "0@h1:0,1"), (t2, p2, "0@h1:2,3")] {
        lab.end(token, exit(143));
        assert_eq!(lab.begin(job, parts), Ok(()));
    }
    assert_eq!(
        [v1, v2, v3, p1, p2].map(|job| lab.state_of(job)),
        ["pending", "pending", "running", "running", "running"]
    );
    lab.check_copies();
}

/// One that ends already is nobody's victim again, whatever the reason of its end; and the room it leaves is room.
#[test]
fn what_ends_already_is_no_victim() {
    let mut lab = four();
    let gone = lab.run("gpus=2 prio=10", "0@h1:0,1");
    let stays = lab.run("gpus=2 prio=10", "0@h1:2,3");
    let [t1, t2] = [gone, stays].map(|job| lab.token(job));
    lab.cancel(gone);
    let urgent = lab.submit("gpus=4 prio=90");
    let all = "h1:0,1,2,3";
    assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &[t1, t2], all), REFUSED);
    assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &[t2], all), Ok(()));
    lab.end(t2, exit(143));
    assert_eq!(lab.begin(urgent, "0@h1:0,1,2,3"), Err(Refusal::DoesNotFit), "one process is not gone");
    lab.end(t1, AttemptEnd::Cancelled);
    assert_eq!(lab.begin(urgent, "0@h1:0,1,2,3"), Ok(()));
    assert_eq!(lab.state.job(urgent).and_then(|j| j.promise.clone()), None);
}

/// R044: what became of a victim is told apart, costs no retry, and puts it before those of its rank that never ran.
#[test]
fn the_ends_of_victims() {
    for (requeue, end, state, code) in [
        ("yes", exit(143), "pending", None),
        ("yes", AttemptEnd::Preempted, "pending", None),
        ("yes", AttemptEnd::TimeLimit, "pending", None),
        ("yes", AttemptEnd::Fenced, "pending", None),
        ("yes", exit(0), "succeeded", Some(0)),
        ("no", exit(1), "preempted", Some(123)),
        ("no", exit(0), "succeeded", Some(0)),
    ] {
        let mut lab = four();
        let ahead = lab.submit("gpus=1 prio=20");
        let victim = lab.run(&format!("gpus=4 prio=20 retries=1 requeue={requeue}"), "0@h1:0,1,2,3");
        let urgent = lab.submit("gpus=4 prio=90");
        let token = lab.token(victim);
        assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &[token], "h1:0,1,2,3"), Ok(()));
        lab.end(token, end.clone());
        assert_eq!(lab.state_of(victim), state, "{requeue} {end}");
        let view = rota_core::view::job(&lab.state, victim).expect("known");
        assert_eq!(view.exit_status, code);
        let job = lab.state.job(victim).expect("known");
        assert!(job.retries_used.is_empty() && job.host_faults.is_empty());
        if state == "pending" {
            assert!(job.place() < lab.state.job(ahead).expect("known").place());
            assert!(job.place() > lab.state.job(urgent).expect("known").place());
        }
    }
}

/// A queue's least runtime holds against whoever would have the room, however urgent, and not against a drain; `why` says
/// when it is over, and then it is so.
#[test]
fn nobody_is_ended_for_others_before_its_queues_least_runtime() {
    for (reason, want) in [(EndReason::Preempt, "prio=90"), (EndReason::Reclaim, "prio=10")] {
        let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
        lab.queue("t min_runtime=600");
        lab.queue("t/low");
        lab.queue("u guarantee=4");
        let low = lab.try_submit(user("t"), "gpus=4 prio=10 queue=t/low").expect("accepted");
        assert_eq!(lab.begin(low, "0@h1:0,1,2,3"), Ok(()));
        lab.all_started();
        let granted_ms = lab.now_ms;
        let tenant = if reason == EndReason::Reclaim { "u" } else { "t" };
        let urgent = lab.try_submit(user(tenant), &format!("gpus=4 {want}")).expect("accepted");
        let token = lab.token(low);
        lab.now_ms += 599_000;
        assert_eq!(lab.evict(Some(urgent), reason, &[token], "h1:0,1,2,3"), Err(Refusal::RanTooShort));
        assert!(lab.plan().moves.iter().all(|one| !matches!(one, Move::Evict { .. })), "{reason:?}");
        let start = why(&lab.state, urgent, lab.now_ms).and_then(|why| why.expected).expect("foretold");
        assert_eq!(
            (start.basis, start.at_ms),
            (StartBasis::Eviction, granted_ms + 600_000 + GRACE_MS),
            "{reason:?}"
        );
        lab.now_ms = granted_ms + 600_000;
        assert!(lab.plan().moves.iter().any(|one| matches!(one, Move::Evict { .. })), "{reason:?}");
    }
    let mut lab = four();
    lab.queue("t min_runtime=600");
    let low = lab.submit("gpus=4");
    assert_eq!(lab.begin(low, "0@h1:0,1,2,3"), Ok(()));
    let (token, host) = (lab.token(low), HostId(2));
    lab.system(Command::DrainWith { host, reason: "fan".into(), evict_at_ms: Some(0) });
    assert_eq!(lab.evict(None, EndReason::Drain, &[token], ""), Ok(()));
}

/// R044: six evictions by short urgent jobs, then left alone: it runs to its end with its one retry untouched. After the
/// eighth within an hour it is left alone by rule.
#[test]
fn evictions_are_bounded_and_cost_no_retry() {
    let mut lab = four();
    let low = lab.submit("gpus=4 prio=10 retries=1");
    let evict_once = |lab: &mut Lab| {
        assert_eq!(lab.begin(low, "0@h1:0,1,2,3"), Ok(()));
        lab.all_started();
        let urgent = lab.submit("gpus=4 prio=90");
        let token = lab.token(low);
        let done = lab.evict(Some(urgent), EndReason::Preempt, &[token], "h1:0,1,2,3");
        if done.is_ok() {
            lab.end(token, exit(143));
            assert_eq!(lab.begin(urgent, "0@h1:0,1,2,3"), Ok(()));
            let token = lab.token(urgent);
            lab.end(token, exit(0));
        }
        lab.now_ms += 60_000;
        done
    };
    for _ in 0..8 {
        assert_eq!(evict_once(&mut lab), Ok(()));
    }
    assert_eq!(evict_once(&mut lab), Err(Refusal::EvictedTooOften));
    // A drain or a lowered ceiling comes through all the same: they are no one's whim.
    let host = HostId(2);
    lab.system(Command::DrainWith { host, reason: "fan".into(), evict_at_ms: Some(0) });
    let token = lab.token(low);
    assert_eq!(lab.evict(None, EndReason::Drain, &[token], ""), Ok(()));
    lab.end(token, exit(143));
    lab.system(Command::UndrainHost { host });
    lab.now_ms += 3_600_000;
    assert_eq!(evict_once(&mut lab), Ok(()), "an hour later it may be again");
    // Its own failures still have their retry.
    assert_eq!(lab.begin(low, "0@h1:0,1,2,3"), Ok(()));
    let token = lab.token(low);
    lab.end(token, exit(1));
    assert_eq!(lab.state_of(low), "pending");
    assert_eq!(lab.begin(low, "0@h1:0,1,2,3"), Ok(()));
    let token = lab.token(low);
    lab.end(token, exit(0));
    assert_eq!(lab.state_of(low), "succeeded");
    assert_eq!(lab.state.job(low).map(|j| j.evicted), Some(10));
    lab.check_copies();
}

/// R046: at most two cards are taken for one gained.
#[test]
fn cards_lost_for_cards_gained() {
    for (gained, lost, allowed) in [(1, 2, true), (1, 3, false), (2, 4, true)] {
        let mut lab = four();
        let cards = |n: u32| (0..n).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
        let victim = lab.run(&format!("gpus={lost} prio=10"), &format!("0@h1:{}", cards(lost)));
        lab.run("gpus=4 prio=90", "0@h2:0,1,2,3");
        let urgent = lab.submit(&format!("gpus={gained} prio=90"));
        let token = lab.token(victim);
        let done = lab.evict(Some(urgent), EndReason::Preempt, &[token], &format!("h1:{}", cards(gained)));
        assert_eq!(done.is_ok(), allowed, "{lost} for {gained}: {done:?}");
    }
}

/// R092: a queue below its guarantee takes back what is borrowed, and no more; nobody falls below theirs.
#[test]
fn reclaiming() {
    let eight = ["h1 gpus=8xA100:80GiB cpus=64"];
    let tenants = |lab: &mut Lab| {
        for line in ["r guarantee=4", "b", "p guarantee=4"] {
            lab.queue(line);
        }
    };
    let mut lab = Lab::with(&eight);
    tenants(&mut lab);
    let borrowed: Vec<JobId> = (0..3)
        .map(|at| lab.run_as(user("b"), "gpus=2", &format!("0@h1:{},{}", 2 * at, 2 * at + 1)))
        .collect();
    let protected = lab.run_as(user("p"), "gpus=2 prio=10", "0@h1:6,7");
    let asks = lab.try_submit(user("r"), "gpus=4").expect("accepted");
    let tokens: Vec<Token> = borrowed.iter().map(|job| lab.token(*job)).collect();
    let guarded = lab.token(protected);
    let reclaim = |lab: &mut Lab, job, victims: &[Token], slots: &str| {
        lab.evict(Some(job), EndReason::Reclaim, victims, slots)
    };
    assert_eq!(reclaim(&mut lab, asks, &[tokens[0], guarded], "h1:0,1,6,7"), REFUSED, "p is below its own");
    // Priority is no way around a guarantee either, unless the one who asks is within theirs.
    let pushy = lab.try_submit(user("b"), "gpus=2 prio=100").expect("accepted");
    assert_eq!(lab.evict(Some(pushy), EndReason::Preempt, &[guarded], "h1:6,7"), REFUSED);
    assert_eq!(reclaim(&mut lab, pushy, &[guarded], "h1:6,7"), REFUSED, "nothing is guaranteed to b");
    assert_eq!(reclaim(&mut lab, asks, &tokens[..2], "h1:0,1,2,3"), Ok(()));
    for token in &tokens[..2] {
        lab.end(*token, exit(143));
    }
    assert_eq!(lab.begin(asks, "0@h1:0,1,2,3"), Ok(()));
    // r has all it was promised: the rest is not for it to take.
    let more = lab.try_submit(user("r"), "gpus=1").expect("accepted");
    assert_eq!(reclaim(&mut lab, more, &tokens[2..], "h1:4"), REFUSED);
    assert_eq!(lab.state_of(protected), "running");
    // p, still below its guarantee, takes from b, which ends below nothing.
    let second = lab.try_submit(user("p"), "gpus=2").expect("accepted");
    assert_eq!(reclaim(&mut lab, second, &tokens[2..], "h1:4,5"), Ok(()));
    lab.check_copies();
}

/// What is guaranteed in one kind gives no right to another, and is not lost by the loss of another.
#[test]
fn guarantees_are_kept_part_by_part() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
    for line in ["r guarantee=4", "b", "p guarantee_cpus=16"] {
        lab.queue(line);
    }
    let hog = lab.run_as(user("b"), "cpus=48", "0@h1");
    let guarded = lab.run_as(user("p"), "cpus=16", "0@h1");
    let (hog, guarded) = (lab.token(hog), lab.token(guarded));
    // Cards are guaranteed to r, cores are not.
    let cores = lab.try_submit(user("r"), "cpus=8").expect("accepted");
    assert_eq!(lab.evict(Some(cores), EndReason::Reclaim, &[hog], "h1"), REFUSED);
    // With cards, cores come along, but not from one to whom cores are guaranteed.
    let both = lab.try_submit(user("r"), "gpus=1 cpus=8").expect("accepted");
    assert_eq!(lab.evict(Some(both), EndReason::Reclaim, &[guarded], "h1:0"), REFUSED);
    assert_eq!(lab.evict(Some(both), EndReason::Reclaim, &[hog], "h1:0"), Ok(()));
}

/// A ceiling in the way is no reason to end somebody else; ending one's own is, and a sibling's under a common bound.
#[test]
fn ceilings_and_evictions() {
    let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64"]);
    for line in ["t gpus=4", "t/a user_gpus=2", "t/b", "x"] {
        lab.queue(line);
    }
    let mine = lab.run("gpus=2 prio=10 queue=t/a", "0@h1:0,1");
    let sibling = lab.run("gpus=2 prio=10 queue=t/b", "0@h1:2,3");
    let foreign = lab.run_as(user("x"), "gpus=4 prio=10", "0@h1:4,5,6,7");
    let [mine, sibling, foreign] = [mine, sibling, foreign].map(|job| lab.token(job));
    let urgent = lab.submit("gpus=2 prio=90 queue=t/b");
    let preempt = |lab: &mut Lab, job, victims: &[Token], slots: &str| {
        lab.evict(Some(job), EndReason::Preempt, victims, slots)
    };
    assert_eq!(preempt(&mut lab, urgent, &[foreign], "h1:4,5"), Err(Refusal::OverCeiling));
    // The user's own bound in t/a is full; another user's work there does not free it.
    let personal = lab.submit("gpus=2 prio=90 queue=t/a");
    assert_eq!(preempt(&mut lab, personal, &[sibling], "h1:2,3"), Err(Refusal::OverCeiling));
    assert_eq!(preempt(&mut lab, urgent, &[sibling], "h1:2,3"), Ok(()));
    // What that one will hold is not there for a second one, which has its own to end.
    let ann = Actor { user: "ann".into(), ..user("t") };
    let second = lab.try_submit(ann, "gpus=2 prio=90 queue=t/b").expect("accepted");
    assert_eq!(preempt(&mut lab, second, &[foreign], "h1:4,5"), Err(Refusal::OverCeiling));
    assert_eq!(preempt(&mut lab, second, &[mine], "h1:0,1"), Ok(()));
    for (token, job, parts) in [(sibling, urgent, "0@h1:2,3"), (mine, second, "0@h1:0,1")] {
        lab.end(token, exit(143));
        assert_eq!(lab.begin(job, parts), Ok(()));
    }
    lab.check_copies();
}

/// R070: a drain ends work only if it was asked to, only when its time has come, and what was ended starts again where
/// there is room, the same host included.
#[test]
fn drains() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB", "h2 gpus=1xA100:80GiB"]);
    let job = lab.run("gpus=1 requeue=no preemptible=no", "0@h1:0");
    let host = lab.host_named("h1");
    let token = lab.token(job);
    let drain = |lab: &mut Lab| lab.evict(None, EndReason::Drain, &[token], "");
    assert_eq!(drain(&mut lab), REFUSED, "not drained");
    lab.system(Command::DrainHost { host, reason: "fan".into() });
    assert_eq!(drain(&mut lab), REFUSED, "may finish");
    let evict_at_ms = Some(lab.now_ms + 5_000);
    lab.system(Command::DrainWith { host, reason: "fan".into(), evict_at_ms });
    lab.now_ms += 4_999;
    assert_eq!(drain(&mut lab), REFUSED, "a millisecond early");
    lab.now_ms += 1;
    lab.system(Command::UndrainHost { host });
    assert_eq!(drain(&mut lab), REFUSED, "not drained any more");
    lab.system(Command::DrainWith { host, reason: "fan".into(), evict_at_ms });
    let slots = lab.slots("h2:0");
    let for_nobody =
        Move::Evict { job: None, reason: EndReason::Drain, victims: vec![token], slots, choice: 0 };
    assert_eq!(lab.one_move(for_nobody), Err(Refusal::DoesNotFit), "slots for nobody");
    assert_eq!(drain(&mut lab), Ok(()));
    lab.end(token, exit(143));
    assert_eq!(lab.state_of(job), "pending");
    assert_eq!(lab.begin(job, "0@h1:0"), Err(Refusal::HostDraining));
    assert_eq!(lab.system(Command::UndrainHost { host }), Outcome::Done);
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
}

/// T6: the job for which others were ended is cancelled, or loses its slots, before they are gone: they are free for
/// anybody then, and the victims wait again.
#[test]
fn the_beneficiary_goes_first() {
    let mut lab = four();
    let victim = lab.run("gpus=4 prio=10", "0@h1:0,1,2,3");
    let token = lab.token(victim);
    let first = lab.submit("gpus=4 prio=90");
    assert_eq!(lab.evict(Some(first), EndReason::Preempt, &[token], "h1:0,1,2,3"), Ok(()));
    lab.cancel(first);
    // The slots are spoken for by nobody: what ends anyway is enough for the next one, without a further victim.
    let bystander = lab.run("gpus=1 prio=10", "0@h2:0");
    let other = lab.token(bystander);
    let second = lab.submit("gpus=4 prio=90");
    assert_eq!(lab.evict(Some(second), EndReason::Preempt, &[other], "h1:0,1,2,3"), REFUSED);
    assert_eq!(lab.promise(second, lab.now_ms, "h1:0,1,2,3", None), Ok(()));
    lab.end(token, exit(143));
    assert_eq!(lab.begin(second, "0@h1:0,1,2,3"), Ok(()));
    assert_eq!(lab.state_of(victim), "pending");
    assert_eq!(lab.begin(victim, "0@h2:0,1,2,3"), Err(Refusal::DoesNotFit));
    let token = lab.token(second);
    lab.end(token, exit(0));
    assert_eq!(lab.begin(victim, "0@h1:0,1,2,3"), Ok(()));
    lab.check_copies();
}

/// What ends already, for nobody in particular, makes room too: nobody is ended beside it, and the state machine would
/// refuse that. Once it is gone the job starts.
#[test]
fn what_ends_anyway_is_counted_on() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=8"]);
    let [gone, stays] = [0, 1].map(|_| lab.submit("gpus=0 cpus=4 prio=10"));
    lab.round();
    let token = lab.token(gone);
    lab.cancel(gone);
    assert_eq!(lab.ending(gone), 1);
    let urgent = lab.submit("gpus=2 cpus=4 prio=90");
    for _ in 0..3 {
        lab.round();
        lab.now_ms += 1_000;
    }
    assert_eq!((lab.ending(stays), lab.live(stays), lab.live(urgent)), (0, 1, 0));
    lab.end(token, exit(0));
    lab.round();
    assert_eq!((lab.live(stays), lab.live(urgent)), (1, 1));
    // More than that frees is another matter.
    let wide = lab.submit("gpus=0 cpus=8 prio=90");
    lab.cancel(urgent);
    lab.round();
    assert_eq!((lab.ending(stays), lab.ending(urgent)), (1, 1), "{:?}", lab.state.job(wide));
}

/// Whoever may end others may do so although a start is promised to somebody below: it is over before that, or outranks it.
#[test]
fn a_promise_to_others_is_in_no_evictions_way() {
    for (high, what) in [
        ("gpus=1 prio=60 limit=10", "over long before"),
        ("gpus=1 prio=100 limit=10", "over long before"),
        ("gpus=1 prio=60", "of higher standing"),
    ] {
        for low in ["gpus=1 array=0-11", "gpus=1 array=0-11 limit=60"] {
            let mut lab = Lab::with(&[
                "h1 gpus=4xA100:80GiB cpus=64",
                "h2 gpus=4xA100:80GiB cpus=64",
                "h3 gpus=4xA100:80GiB cpus=64",
            ]);
            let low = lab.submit(low);
            lab.round();
            lab.all_started();
            assert_eq!(lab.live(low), 12);
            lab.now_ms += 1_000;
            let gang = lab.submit("gpus=4 gang=3 limit=10");
            for _ in 0..4 {
                lab.now_ms += 1_000;
                lab.round();
            }
            assert!(lab.state.job(gang).is_some_and(|job| job.promise.is_some()), "it was promised a start");
            let high = lab.submit(high);
            lab.round();
            assert_eq!(
                lab.ending(low),
                1,
                "{what}: {:?}",
                why(&lab.state, high, lab.now_ms).map(|why| why.verdict)
            );
        }
    }
}
