//! Retries come ever more slowly: a task that fails at once again and again takes no more of the log, the planner and the
//! hosts than a service does that ends at once.

use crate::lab::{Lab, exit, launch_failed};
use rota_core::explain::why;
use rota_core::view;
use rota_protocol::JobId;
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::plan::Refusal;
use rota_protocol::report::AttemptFact;

fn one() -> Lab {
    Lab::with(&["h1 gpus=4xA100:80GiB cpus=16"])
}

/// Fails all that lives of a job after so long.
fn fail(lab: &mut Lab, job: JobId, ran_ms: u64) {
    lab.all_started();
    lab.now_ms += ran_ms;
    for token in lab.tokens(job) {
        if lab.state.attempt(token).is_some() {
            lab.report(token, AttemptFact::Ended { end: exit(1), ran_ms });
        }
    }
}

/// The first retry comes at once, then pauses double to five minutes; what ran for a minute begins anew. Of a plain job, of a
/// gang, and of an array of one task.
#[test]
fn pauses_between_retries_double() {
    for (line, parts) in [
        ("gpus=1 retries=99", "0@h1:0"),
        ("gpus=1 gang=2 retries=99", "0@h1:0 1@h1:1"),
        ("gpus=1 array=3-3 retries=99", "3@h1:0"),
    ] {
        let mut lab = one();
        let job = lab.submit(line);
        let mut pauses = Vec::new();
        for ran_ms in [10; 12].into_iter().chain([60_000, 10]) {
            assert_eq!(lab.begin(job, parts), Ok(()), "{line}");
            fail(&mut lab, job, ran_ms);
            let until_ms = lab.state.job(job).expect("known").earliest_ms();
            let pause_ms = until_ms.saturating_sub(lab.now_ms);
            pauses.push(pause_ms / 1_000);
            let answer = why(&lab.state, job, lab.now_ms).expect("known");
            let shown = view::job(&lab.state, job).and_then(|view| view.paused);
            if pause_ms == 0 {
                assert_eq!((answer.paused_until_ms, shown), (None, None), "{line}");
                continue;
            }
            assert_eq!((answer.cause.as_str(), answer.paused_until_ms), ("pause", Some(until_ms)), "{line}");
            assert!(answer.verdict.contains("retr"), "{line}: {}", answer.verdict);
            assert!(answer.expected.is_some(), "{line}");
            assert_eq!(shown.map(|paused| paused.until_ms), Some(until_ms), "{line}");
            // Nobody looks at it until then, and then at once.
            assert_eq!(lab.round(), 0, "{line}");
            lab.now_ms = until_ms - 1;
            assert_eq!(lab.begin(job, parts), Err(Refusal::NotYet), "{line}");
            assert_eq!(lab.round(), 0, "{line}");
            lab.now_ms = until_ms;
            assert_eq!(lab.plan().moves.len(), 1, "{line}");
            lab.check_copies();
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 0, 1], "{line}");
    }
}

/// How many attempts that makes: in ten seconds a handful, in an hour some twenty, where there were hundreds.
#[test]
fn a_task_that_fails_at_once_is_seldom_tried() {
    let mut lab = one();
    let job = lab.submit("gpus=1 retries=1000");
    let begun_ms = lab.now_ms;
    let mut tries = Vec::new();
    while lab.now_ms < begun_ms + 3_600_000 {
        if lab.round() > 0 {
            tries.push(lab.now_ms - begun_ms);
            fail(&mut lab, job, 10);
        } else {
            lab.now_ms += 500;
        }
    }
    let within = |ms: u64| tries.iter().filter(|at| **at < ms).count();
    assert_eq!(within(10_000), 5);
    assert!((15..25).contains(&tries.len()), "{}", tries.len());
}

/// Of an array only what failed rests; its other tasks start, and they are told apart in what is shown.
#[test]
fn the_rest_of_an_array_goes_on() {
    let mut lab = one();
    let job = lab.submit("gpus=1 array=0-9 retries=9");
    assert_eq!(lab.begin(job, "0@h1:0 1@h1:1"), Ok(()));
    fail(&mut lab, job, 10);
    // The first retry is at once, so that the same two are first again.
    assert_eq!(lab.begin(job, "0@h1:0 1@h1:1"), Ok(()));
    fail(&mut lab, job, 10);
    assert_eq!(lab.begin(job, "1@h1:0 4@h1:1"), Err(Refusal::NotYet));
    assert!(lab.round() > 0);
    let live = |lab: &Lab| lab.state.attempts_of(job).map(|attempt| attempt.task.index).collect::<Vec<u32>>();
    while lab.round() > 0 {}
    assert_eq!(live(&lab), [2, 3, 4, 5]);
    let paused = view::job(&lab.state, job).and_then(|view| view.paused).expect("two rest");
    assert_eq!((paused.tasks, paused.until_ms), (2, lab.now_ms + 1_000));
    assert_ne!(why(&lab.state, job, lab.now_ms).expect("known").cause, "pause");
    lab.check_copies();
    // All others are over: what is left rests, and is told so; one of the two is cancelled meanwhile.
    for _ in 0..2 {
        for token in lab.tokens(job) {
            lab.end(token, exit(0));
        }
        while lab.round() > 0 {}
    }
    let left = lab.state.job(job).expect("known").pending.len();
    assert_eq!((left, lab.live(job)), (2, 0));
    let answer = why(&lab.state, job, lab.now_ms).expect("known");
    assert_eq!((answer.cause.as_str(), answer.paused_until_ms), ("pause", Some(paused.until_ms)));
    lab.now_ms = paused.until_ms;
    assert_eq!(lab.begin(job, "1@h1:0"), Ok(()));
    lab.cancel(job);
    let token = lab.token(job);
    lab.end(token, AttemptEnd::Cancelled);
    assert_eq!(lab.state_of(job), "cancelled");
    lab.check_copies();
}

/// What is no failure of the program costs no pause: hosts' faults, launches that failed, evictions.
#[test]
fn only_the_programs_own_failures_pause() {
    let mut lab = one();
    let job = lab.submit("gpus=1 retries=9 prio=10");
    for end in [AttemptEnd::Fenced, AttemptEnd::Fenced, AttemptEnd::Fenced] {
        assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
        lab.all_started();
        let token = lab.token(job);
        lab.end(token, end);
        assert_eq!(lab.state.job(job).map(|job| job.earliest_ms()), Some(0));
    }
    for _ in 0..3 {
        assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
        lab.all_started();
        let urgent = lab.submit("gpus=4 prio=90");
        let victim = lab.token(job);
        assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &[victim], "h1:0,1,2,3"), Ok(()));
        lab.end(victim, exit(143));
        assert_eq!(lab.state.job(job).map(|job| job.earliest_ms()), Some(0));
        lab.cancel(urgent);
    }
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    let token = lab.token(job);
    lab.end(token, launch_failed());
    assert_eq!(lab.state.job(job).map(|job| job.earliest_ms()), Some(0));
}
