//! Promises and guarantees as they fare over time: a promise moves near, knows what is reserved, and what a guarantee takes
//! back stays where it went. The field reports behind them are named.

use crate::lab::{Lab, exit};
use crate::policy::{obey, set_queue, settle, start_all, submit_as};
use rota_protocol::command::{Command, Outcome};
use rota_protocol::plan::PromiseBreak;
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::{JobId, Token};

/// Lets time pass, and gives how many attempts were ended meanwhile.
fn seconds(lab: &mut Lab, count: usize) -> usize {
    let second = |lab: &mut Lab| {
        lab.now_ms += 1_000;
        settle(lab);
        let ended = obey(lab);
        settle(lab);
        start_all(lab);
        ended
    };
    (0..count).map(|_| second(lab)).sum()
}

/// R088: what a promise waits for may end long before its limit, and then the promise moves as near: a stream of equal
/// jobs that came later does not pass the wide one until the day that was named for it.
#[test]
fn a_promise_is_drawn_near_when_its_cause_ends_early() {
    for wide in ["gpus=4 gang=2 limit=60", "gpus=4 gang=2", "gpus=4 gang=2 limit=3600"] {
        let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64", "h2 gpus=4xA100:80GiB cpus=64"]);
        let unlimited = lab.submit("gpus=2");
        settle(&mut lab);
        start_all(&mut lab);
        let wide_job = lab.submit(wide);
        lab.now_ms += 6_000;
        settle(&mut lab);
        let promised =
            |lab: &Lab| lab.state.job(wide_job).and_then(|job| job.promise.clone()).map(|p| p.at_ms);
        let far_ms = promised(&lab).expect("promised");
        assert!(far_ms > lab.now_ms + 23 * 3_600_000, "{wide}: behind work without a limit");
        let token = lab.token(unlimited);
        let mut started = None;
        for second in 0..1_500_u64 {
            lab.now_ms += 1_000;
            if second == 6 {
                lab.end(token, exit(0));
            }
            if second.is_multiple_of(2) {
                lab.submit("gpus=2 limit=600");
            }
            let over: Vec<Token> = lab
                .state
                .attempts()
                .filter(|a| a.started_ms.is_some_and(|ms| lab.now_ms >= ms + 300_000))
                .filter(|a| a.task.job != wide_job)
                .map(|a| a.token)
                .collect();
            for token in over {
                lab.end(token, exit(0));
            }
            settle(&mut lab);
            start_all(&mut lab);
            if lab.state_of(wide_job) == "running" {
                started = Some(second);
                break;
            }
        }
        // What had started before the promise was drawn near runs at most its own limit.
        assert!(started.is_some_and(|second| second <= 700), "{wide}: started after {started:?} s");
    }
}

/// R042, R044: what a guarantee takes back is not taken again by those who had to go, whatever their priority.
#[test]
fn what_is_taken_back_stays() {
    for priority in [50, 59, 60, 70, 90, 100] {
        let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64", "h2 gpus=4xA100:80GiB cpus=64"]);
        set_queue(&mut lab, "gq", 4, None);
        let root = submit_as(&mut lab, "root", &format!("gpus=4 array=0-5 prio={priority} limit=60"));
        settle(&mut lab);
        start_all(&mut lab);
        let owed = submit_as(&mut lab, "gq", "gpus=4");
        let ended = seconds(&mut lab, 20);
        assert_eq!((ended, lab.state_of(owed).as_str()), (1, "running"), "priority {priority}");
        assert_eq!(lab.state.attempts_of(root).count(), 1);
    }
}

/// R092: a queue gets what it is guaranteed, however narrow its jobs are and however wide those who have borrowed it.
#[test]
fn a_guarantee_is_kept_for_narrow_jobs() {
    for (wide, narrow, jobs) in [
        ("gpus=4 array=0-1", "gpus=1", 4),
        ("gpus=8 gang=1", "gpus=1", 1),
        ("gpus=1 gang=8", "gpu_milli=500", 2),
    ] {
        let mut lab = Lab::with(&["h1 gpus=8xA100:80GiB cpus=64"]);
        set_queue(&mut lab, "gq", 4, None);
        submit_as(&mut lab, "root", wide);
        settle(&mut lab);
        start_all(&mut lab);
        let owed: Vec<JobId> = (0..jobs).map(|_| submit_as(&mut lab, "gq", narrow)).collect();
        let ended = seconds(&mut lab, 20);
        let states: Vec<_> = owed.iter().map(|job| lab.state_of(*job)).collect();
        assert!(
            states.iter().all(|state| *state == "running"),
            "{wide}, {narrow}: {states:?} after {ended} ends"
        );
    }
}

/// What is reserved for others is known when a start is promised; what is reserved later breaks the promise by its name,
/// and the next one is kept.
#[test]
fn a_promise_knows_of_reservations() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
    let reserve = |lab: &mut Lab, name: &str, from_s: u64, to_s: u64| {
        let reservation = ReservationSpec {
            name: name.into(),
            hosts: vec![lab.host_named("h1")],
            start_ms: lab.now_ms + from_s * 1_000,
            end_ms: lab.now_ms + to_s * 1_000,
            kept_for: ReservedFor::Nobody,
            reason: "fan".into(),
        };
        assert_eq!(lab.system(Command::Reserve { reservation }), Outcome::Done);
    };
    reserve(&mut lab, "first", 30, 60);
    let from_ms = lab.now_ms;
    let runs = lab.submit("gpus=4 limit=15");
    settle(&mut lab);
    start_all(&mut lab);
    let long = lab.submit("gpus=4 limit=600");
    lab.now_ms += 6_000;
    settle(&mut lab);
    let promise = |lab: &Lab| lab.state.job(long).and_then(|job| job.promise.clone()).expect("promised");
    assert_eq!((promise(&lab).at_ms, promise(&lab).broken_by), (from_ms + 60_000, None));
    let token = lab.token(runs);
    lab.end(token, exit(0));
    settle(&mut lab);
    // 6 + 70 s is when it begins: the job would run into it.
    reserve(&mut lab, "second", 70, 100);
    settle(&mut lab);
    assert_eq!(
        (promise(&lab).at_ms, promise(&lab).broken_by),
        (from_ms + 106_000, Some(PromiseBreak::Reserved))
    );
    for _ in 0..200 {
        lab.now_ms += 1_000;
        settle(&mut lab);
        if lab.state_of(long) != "pending" {
            break;
        }
        assert_eq!(promise(&lab).at_ms, from_ms + 106_000);
    }
    assert_eq!((lab.state_of(long).as_str(), lab.now_ms), ("running", from_ms + 106_000));
}
