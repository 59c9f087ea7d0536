//! Why a job waits although there is room: held, too early, its service pauses, it asked to be queued again; and how it
//! is given up: its deadline. Caps of arrays, ranks of waiting jobs, and changes by hand.

use crate::lab::{Lab, exit, job_spec, user};
use rota_protocol::command::{Command, JobChange, Outcome, Proposal};
use rota_protocol::job::{Actor, AttemptEnd, EndReason, Role};
use rota_protocol::plan::Refusal;
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::{ErrorCode, HostId, JobId, RequestId, Token};

fn operator() -> Actor {
    Actor { role: Role::Operator, ..user("ops") }
}

fn one() -> Lab {
    Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"])
}

fn refused(outcome: Outcome) -> (ErrorCode, Option<String>) {
    match outcome {
        Outcome::Refused(error) => (error.code, error.field),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn held_until_released() {
    let mut lab = one();
    let job = lab.submit("gpus=1 hold=yes");
    assert_eq!(lab.begin(job, "0@h1:0"), Err(Refusal::NotYet));
    assert_eq!(lab.state.job(job).map(|j| j.is_ready()), Some(false), "planners need not look at it");
    assert_eq!(lab.adjust(user("t"), job, JobChange::Release), Outcome::Done);
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    // Held while it runs, it runs on, and is not started again.
    assert_eq!(lab.adjust(user("t"), job, JobChange::Hold), Outcome::Done);
    let token = lab.token(job);
    lab.end(token, AttemptEnd::Fenced);
    assert_eq!(lab.begin(job, "0@h1:0"), Err(Refusal::NotYet));
    // Twice is once; a foreign tenant sees nothing; what is over cannot be changed.
    for _ in 0..2 {
        assert_eq!(lab.adjust(user("t"), job, JobChange::Release), Outcome::Done);
    }
    assert_eq!(refused(lab.adjust(user("other"), job, JobChange::Hold)).0, ErrorCode::NotFound);
    assert_eq!(refused(lab.adjust(user("t"), JobId(77), JobChange::Hold)).0, ErrorCode::NotFound);
    lab.cancel(job);
    assert_eq!(refused(lab.adjust(user("t"), job, JobChange::Hold)).0, ErrorCode::Conflict);
    lab.check_copies();
}

#[test]
fn priorities_by_hand() {
    let mut lab = one();
    let (low, high) = (lab.submit("gpus=1 prio=20"), lab.submit("gpus=1 prio=70"));
    let place = |lab: &Lab, job: JobId| lab.state.job(job).expect("known").place();
    assert!(place(&lab, high) < place(&lab, low));
    for (actor, job, priority, done) in [
        (user("t"), low, 50, Ok(())),
        (user("t"), low, 51, Err(ErrorCode::Forbidden)),
        (user("t"), high, 70, Ok(())),
        (user("t"), high, 71, Err(ErrorCode::Forbidden)),
        (user("t"), high, 0, Ok(())),
        (operator(), low, 100, Ok(())),
        (operator(), low, 101, Err(ErrorCode::Invalid)),
    ] {
        let outcome = lab.adjust(actor, job, JobChange::Priority(priority));
        let is = if outcome == Outcome::Done { Ok(()) } else { Err(refused(outcome).0) };
        assert_eq!(is, done, "{job} to {priority}");
    }
    assert!(place(&lab, low) < place(&lab, high));
    lab.check_copies();
}

/// Deadlines: up to then it may start; from then on it may be given up, unless it has started; late starts are refused.
#[test]
fn deadlines() {
    let mut lab = one();
    let at = lab.now_ms + 10_000;
    let line = format!("gpus=1 deadline={at}");
    let [waits, starts, blocked, held] =
        ["", "", "after=any:1", "hold=yes"].map(|more| lab.submit(&format!("{line} {more}")));
    let child = lab.submit(&format!("gpus=1 after=ok:{waits}"));
    lab.now_ms = at - 1;
    assert_eq!(lab.lapse(waits), Err(Refusal::NotYet));
    lab.now_ms = at;
    assert_eq!(lab.begin(starts, "0@h1:0"), Ok(()), "not after it");
    assert_eq!(lab.lapse(starts), Err(Refusal::NotYet));
    lab.all_started();
    lab.now_ms = at + 1;
    assert_eq!(lab.begin(waits, "0@h1:1"), Err(Refusal::NotYet));
    for job in [blocked, waits, held] {
        assert_eq!(lab.lapse(job), Ok(()));
        assert_eq!(lab.state_of(job), "deadline missed");
        assert_eq!(lab.lapse(job), Err(Refusal::NotPending), "once");
    }
    assert_eq!(lab.state_of(child), "dependency failed");
    // One that started may start again whenever it must.
    let token = lab.token(starts);
    lab.end(token, AttemptEnd::Fenced);
    assert_eq!(lab.lapse(starts), Err(Refusal::NotYet));
    assert_eq!(lab.begin(starts, "0@h1:1"), Ok(()));
    for job in [JobId(99), child] {
        assert_eq!(lab.lapse(job), Err(Refusal::NotPending));
    }
    let plain = lab.submit("gpus=1");
    assert_eq!(lab.lapse(plain), Err(Refusal::NotYet));
    assert_eq!(lab.state.queues().named("t").map(|q| q.jobs_open), Some(2));
    lab.check_copies();
}

#[test]
fn not_before_its_begin() {
    let mut lab = one();
    let begin = lab.now_ms + 5_000;
    let job = lab.submit(&format!("gpus=1 begin={begin}"));
    lab.now_ms = begin - 1;
    assert_eq!(lab.begin(job, "0@h1:0"), Err(Refusal::NotYet));
    lab.now_ms = begin;
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
}

/// A service starts again whatever its process said, ever more slowly while it ends at once, and at once after it ran
/// well for a while. It ends by a cancel alone.
#[test]
fn services_start_again() {
    let mut lab = one();
    let job = lab.submit("gpus=1 service=yes");
    let run = |lab: &mut Lab, ran_ms: u64, end: AttemptEnd| -> u64 {
        assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
        lab.all_started();
        lab.now_ms += ran_ms;
        let (token, host) = (lab.token(job), HostId(2));
        let reports = vec![AttemptReport { token, fact: AttemptFact::Ended { end, ran_ms } }];
        lab.system(Command::Report { host, reports });
        let pause_ms = lab.state.job(job).expect("known").earliest_ms().saturating_sub(lab.now_ms);
        if pause_ms > 0 {
            lab.now_ms += pause_ms - 1;
            assert_eq!(lab.begin(job, "0@h1:0"), Err(Refusal::NotYet));
            lab.now_ms += 1;
        }
        pause_ms
    };
    let pauses: Vec<u64> = (0..12).map(|at| run(&mut lab, 10, exit(at % 2)) / 1_000).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    assert_eq!(run(&mut lab, 60_000, exit(1)), 0);
    assert_eq!(run(&mut lab, 10, AttemptEnd::TimeLimit), 1_000);
    // Hosts' faults are counted from when it last ran well: over the years there are many.
    for _ in 0..30 {
        assert_eq!(run(&mut lab, 60_000, AttemptEnd::Fenced), 0);
    }
    assert_eq!(lab.state_of(job), "pending");
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    lab.cancel(job);
    let token = lab.token(job);
    lab.end(token, exit(0));
    assert_eq!(lab.state_of(job), "cancelled");
    // An evicted one waits again; a service that meets only failing hosts is given up as other work is.
    let job = lab.submit("gpus=1 service=yes");
    let mut tries = 0;
    while lab.begin(job, "0@h1:0").is_ok() {
        tries += 1;
        let token = lab.token(job);
        lab.end(token, AttemptEnd::Fenced);
    }
    assert_eq!((tries, lab.state_of(job).as_str()), (20, "host lost"));
    lab.check_copies();
}

/// R047: a task that asks to be queued again is, at no one's cost, but not for ever.
#[test]
fn requeued_by_its_own_wish() {
    let mut lab = one();
    let job = lab.submit("gpus=1 requeue_status=75 retries=0");
    for round in 0..3 {
        assert_eq!(lab.begin(job, "0@h1:0"), Ok(()), "{round}");
        let token = lab.token(job);
        lab.end(token, AttemptEnd::Requeued { code: 75 });
    }
    assert_eq!(lab.state_of(job), "pending");
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    let token = lab.token(job);
    lab.end(token, exit(0));
    assert_eq!(lab.state_of(job), "succeeded");
    assert_eq!(lab.state.job(job).map(|j| j.requeues), Some(3));
    // Of an array each task may: here the bound is for all of them together.
    for (line, most) in [("gpus=1", 10_000_u32), ("gpus=1 array=0-1", 20_000)] {
        let mut state = lab.state.clone();
        let mut index = state.applied_index();
        let mut apply = |state: &mut rota_core::State, command: Command| {
            index += 1;
            let proposals = vec![Proposal { request: RequestId::NONE, actor: Actor::system(), command }];
            let format = rota_protocol::command::LOG_FORMAT;
            state.apply(index, &rota_protocol::command::Entry { format, at_ms: lab.now_ms, proposals })
        };
        let submitted = apply(&mut state, Command::Submit { spec: job_spec(line) }).outcomes.remove(0);
        let Outcome::Submitted { job } = submitted else { panic!("{submitted:?}") };
        let mut asked = 0;
        while state.job(job).is_some_and(|j| j.pending.contains(0)) {
            let parts = lab.parts("0@h1:0");
            let start = rota_protocol::plan::Move::Start { job, choice: 0, parts };
            let plan = rota_protocol::plan::Plan { seen_index: 0, moves: vec![start] };
            apply(&mut state, Command::CommitPlan { plan });
            let token = state.attempts_of(job).next().expect("started").token;
            let fact = AttemptFact::Ended { end: AttemptEnd::Requeued { code: 75 }, ran_ms: 1 };
            apply(
                &mut state,
                Command::Report { host: HostId(2), reports: vec![AttemptReport { token, fact }] },
            );
            asked += 1;
        }
        assert_eq!(asked, most + 1, "{line}");
        assert_eq!(state.job(job).map(|j| j.failed.len()), Some(1));
        assert_eq!(rota_core::invariant::check(&state), Vec::new());
    }
}

/// What is queued again by hand waits again whatever its own rules for evictions are, and costs no retry.
#[test]
fn requeued_by_hand() {
    let mut lab = one();
    let job = lab.run("gpus=1 array=0-2 requeue=no", "0@h1:0 1@h1:1");
    assert_eq!(lab.adjust(user("t"), job, JobChange::Requeue), Outcome::Done);
    assert_eq!(lab.ending(job), 2);
    let tokens: Vec<Token> = lab.tokens(job);
    lab.end(tokens[0], exit(1));
    lab.end(tokens[1], exit(0));
    let counts = lab.state.job(job).map(|j| (j.pending.len(), j.succeeded.len(), j.failed.len()));
    assert_eq!(counts, Some((2, 1, 0)), "one was faster and did well");
    assert_eq!(lab.adjust(user("t"), job, JobChange::Requeue), Outcome::Done, "nothing runs: nothing to do");
    // A cancel that was asked before stays a cancel.
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    lab.ask(user("t"), RequestId::NONE, Command::Cancel { job, index: Some(0) });
    assert_eq!(lab.adjust(user("t"), job, JobChange::Requeue), Outcome::Done);
    let token = lab.token(job);
    lab.end(token, exit(143));
    assert_eq!(lab.state.job(job).map(|j| (j.pending.len(), j.cancelled.len())), Some((1, 1)));
    lab.check_copies();
}

/// R010: a cap on parallel tasks holds whatever the plan, through retries and single cancels; the spec's bounds speak.
#[test]
fn caps_of_arrays() {
    let mut lab = Lab::with(&["h1 cpus=64"]);
    let job = lab.submit("cpus=1 array=0-9999%3 retries=1");
    assert_eq!(lab.begin(job, "0@h1 1@h1 2@h1 3@h1"), Err(Refusal::ParallelCap));
    assert_eq!(lab.begin(job, "0@h1 1@h1"), Ok(()));
    assert_eq!(lab.begin(job, "2@h1 3@h1"), Err(Refusal::ParallelCap));
    assert_eq!(lab.begin(job, "9999@h1"), Ok(()));
    assert_eq!(lab.begin(job, "5@h1"), Err(Refusal::ParallelCap));
    let tokens = lab.tokens(job);
    lab.end(tokens[0], exit(1));
    assert_eq!(lab.begin(job, "0@h1"), Ok(()), "its place is its own again, or another's");
    lab.ask(user("t"), RequestId::NONE, Command::Cancel { job, index: Some(1) });
    assert_eq!(lab.begin(job, "7@h1"), Err(Refusal::ParallelCap), "what ends still counts");
    assert_eq!(lab.cancel(job), Outcome::Cancelling { live: 3 });
    for token in lab.tokens(job) {
        lab.end(token, AttemptEnd::Cancelled);
    }
    assert_eq!(lab.state_of(job), "cancelled");
    assert_eq!(lab.state.job(job).map(|j| j.cancelled.len()), Some(10_000));
    lab.check_copies();
}

/// A job starts with the ask that the plan says: the first that fits of those it named.
#[test]
fn alternatives() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB+2xL4:24GiB cpus=64"]);
    let job = lab.submit("gpus=2 model=H100 or=gpus~1;model~A100 or=gpus~2;model~L4");
    for (choice, parts, done) in [
        (0, "0@h1:0,1", Err(Refusal::DoesNotFit)),
        (1, "0@h1:0,1", Err(Refusal::DoesNotFit)),
        (2, "0@h1:0", Err(Refusal::DoesNotFit)),
        (3, "0@h1:0", Err(Refusal::DoesNotFit)),
        (1, "0@h1:4", Err(Refusal::DoesNotFit)),
        (2, "0@h1:4,5", Ok(())),
    ] {
        assert_eq!(lab.begin_with(job, choice, parts), done, "{choice} on {parts}");
    }
    let attempt = lab.state.attempt(lab.token(job)).expect("live");
    assert_eq!((attempt.choice, attempt.gpu_milli, attempt.vram_mib), (2, 2_000, 48 << 10));
    // It may end others for its second choice as well.
    let full = lab.run("gpus=4 prio=10", "0@h1:0,1,2,3");
    let urgent = lab.submit("gpus=2 model=H100 or=gpus~2;model~A100 prio=90");
    let (victims, slots) = (vec![lab.token(full)], lab.slots("h1:0,1"));
    let evict = |choice| rota_protocol::plan::Move::Evict {
        job: Some(urgent),
        reason: EndReason::Preempt,
        victims: victims.clone(),
        slots: slots.clone(),
        choice,
    };
    assert_eq!(lab.one_move(evict(0)), Err(Refusal::DoesNotFit));
    assert_eq!(lab.one_move(evict(2)), Err(Refusal::DoesNotFit));
    assert_eq!(lab.one_move(evict(1)), Ok(()));
}
