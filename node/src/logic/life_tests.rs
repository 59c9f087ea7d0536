//! Tests of one attempt's life under virtual time: limits, leases, requests, warnings, and what names the end.

use super::*;

const PARAMS: LifeParams = LifeParams {
    time_limit_ms: Some(10_000),
    grace_ms: 1_000,
    kill_budget_ms: 600,
    warning: None,
    requeue_status: None,
};
/// A deadline that no test comes near.
const FAR_MS: u64 = 1_000_000;

fn life() -> Life {
    Life::new(PARAMS, 0, 5_000)
}

fn warned(before_ms: u32) -> Life {
    let warning = Some(Warning { signal: 10, before_ms, leader_only: false });
    Life::new(LifeParams { warning, requeue_status: Some(75), ..PARAMS }, 0, FAR_MS)
}

/// All that is to be done until `upto_ms`, each with its time, by a shim that wakes when it should.
fn played(life: &mut Life, upto_ms: u64) -> Vec<(u64, Do)> {
    let mut done = Vec::new();
    while let Some(at_ms) = life.next_ms().filter(|at| *at <= upto_ms) {
        match life.on_time(at_ms, || FAR_MS) {
            Do::Nothing => panic!("woken at {at_ms} for nothing"),
            what => done.push((at_ms, what)),
        }
    }
    done
}

#[test]
fn an_extended_lease_is_slept_on() {
    let mut life = life();
    assert_eq!(life.next_ms(), Some(4_400));
    assert_eq!(life.on_time(4_400, || 8_000), Do::Nothing);
    assert_eq!(life.next_ms(), Some(7_400));
}

#[test]
fn a_lease_that_runs_out_terms_then_kills_half_a_budget_before_the_deadline() {
    let mut life = life();
    assert_eq!(life.on_time(4_400, || 5_000), Do::Term);
    assert_eq!(life.notice(), Some(Notice { cause: Cause::Lease, term_ms: 4_400, kill_ms: 4_700 }));
    assert_eq!(life.next_ms(), Some(4_700));
    assert_eq!(life.on_time(4_700, || 9_000), Do::Kill, "an extension that comes now is too late");
    assert_eq!(life.ended(), AttemptEnd::Fenced);
}

#[test]
fn a_shim_that_wakes_past_the_deadline_kills_at_once() {
    let mut life = life();
    assert_eq!(life.on_time(60_000, || 5_000), Do::Kill);
    assert_eq!(life.ended(), AttemptEnd::Fenced);
}

#[test]
fn a_lease_shortens_the_grace_of_an_end_and_keeps_its_name() {
    let mut life = Life::new(LifeParams { grace_ms: 60_000, ..PARAMS }, 0, 5_000);
    assert_eq!(life.end(EndReason::Preempt, 4_000), Do::Term);
    assert_eq!(life.end(EndReason::Cancel, 4_001), Do::Nothing, "the first cause stays");
    assert_eq!(life.on_time(4_400, || 5_000), Do::Nothing);
    assert_eq!(life.next_ms(), Some(4_700));
    assert_eq!(life.on_time(4_700, || 5_000), Do::Kill);
    assert_eq!(life.ended(), AttemptEnd::Preempted);
}

#[test]
fn leftovers_of_a_first_process_are_killed_and_its_code_stays() {
    let mut life = life();
    assert_eq!(life.main_ended(AttemptEnd::Exited { code: 0 }, true, false), Do::Kill);
    assert_eq!(life.end(EndReason::Cancel, 1), Do::Nothing);
    assert_eq!(life.ended(), AttemptEnd::Exited { code: 0 });
}

#[test]
fn the_time_limit_terms_and_kills_after_the_grace() {
    let mut life = Life::new(PARAMS, 0, FAR_MS);
    assert_eq!(played(&mut life, 20_000), [(10_000, Do::Term), (11_000, Do::Kill)]);
    life.main_ended(AttemptEnd::Signalled { signal: 9 }, false, false);
    assert_eq!(life.ended(), AttemptEnd::TimeLimit);
}

#[test]
fn no_start_inside_the_kill_budget() {
    assert!(Life::may_start(600, 4_399, 5_000));
    assert!(!Life::may_start(600, 4_400, 5_000));
    assert!(!Life::may_start(600, u64::MAX, 5_000));
}

#[test]
fn a_warning_comes_before_the_limit_once() {
    let mut life = warned(3_000);
    assert_eq!(life.on_time(6_999, || FAR_MS), Do::Nothing);
    let expected = [(7_000, Do::Warn), (10_000, Do::Term), (11_000, Do::Kill)];
    assert_eq!(played(&mut life, 20_000), expected);
    let cause = Cause::TimeLimit;
    assert_eq!(life.notice(), Some(Notice { cause, term_ms: 10_000, kill_ms: 11_000 }));
}

#[test]
fn a_limit_shorter_than_the_warning_warns_at_the_start() {
    let mut life = warned(60_000);
    assert_eq!(played(&mut life, 10_000), [(0, Do::Warn), (10_000, Do::Term)]);
}

#[test]
fn a_shim_that_slept_through_the_warning_ends_without_it() {
    let mut life = warned(3_000);
    assert_eq!(life.on_time(10_500, || FAR_MS), Do::Term);
    assert_eq!(life.next_ms(), Some(11_500));
}

#[test]
fn whoever_is_put_out_is_warned_at_once_then_termed_and_has_its_grace_after_that() {
    use EndReason::{Ceiling, Drain, Move, Preempt, Reclaim};
    for reason in [Preempt, Drain, Move, Reclaim, Ceiling] {
        let mut life = warned(300);
        assert_eq!(life.end(reason, 2_000), Do::Warn);
        let cause = Cause::Asked(reason);
        assert_eq!(life.notice(), Some(Notice { cause, term_ms: 2_300, kill_ms: 3_300 }));
        assert_eq!(life.end(reason, 2_001), Do::Nothing);
        assert_eq!(played(&mut life, 20_000), [(2_300, Do::Term), (3_300, Do::Kill)], "{reason}");
        assert_eq!(life.ended(), AttemptEnd::Preempted);
    }
    // A warning that is longer than the grace has its time too, and TERM comes before KILL.
    let mut life = warned(5_000);
    assert_eq!(life.end(Preempt, 2_000), Do::Warn);
    assert_eq!(played(&mut life, 20_000), [(7_000, Do::Term), (8_000, Do::Kill)]);
    // One that is very long is cut: somebody waits for the devices.
    let mut life = warned(60_000);
    life.on_time(0, || FAR_MS);
    assert_eq!(life.end(Preempt, 2_000), Do::Warn, "warned again: the deadline is another one");
    assert_eq!(played(&mut life, 40_000), [(32_000, Do::Term), (33_000, Do::Kill)]);
}

#[test]
fn a_cancel_and_a_broken_gang_wait_for_no_warning() {
    for reason in [EndReason::Cancel, EndReason::Gang] {
        let mut life = warned(300);
        assert_eq!(life.end(reason, 2_000), Do::Term);
        assert_eq!(played(&mut life, 20_000), [(3_000, Do::Kill)], "{reason}");
        assert_eq!(life.ended(), reason.end());
    }
    let mut life = warned(300);
    assert_eq!(life.end(EndReason::Drain, 2_000), Do::Warn);
    assert_eq!(life.end(EndReason::Cancel, 2_100), Do::Term, "what was only warned hears what is urgent");
    assert_eq!(life.next_ms(), Some(3_100), "and is killed no later than before");
}

#[test]
fn a_lease_that_runs_out_cuts_a_warning_short() {
    let params = LifeParams {
        warning: Some(Warning { signal: 10, before_ms: 900, leader_only: false }),
        grace_ms: 60_000,
        ..PARAMS
    };
    let mut life = Life::new(params, 0, 5_000);
    assert_eq!(life.end(EndReason::Preempt, 4_000), Do::Warn);
    assert_eq!(life.on_time(4_400, || 5_000), Do::Term);
    assert_eq!(life.on_time(4_700, || 5_000), Do::Kill);
    assert_eq!(life.ended(), AttemptEnd::Preempted);
}

#[test]
fn without_grace_there_is_no_term_and_the_warning_has_its_time() {
    let params = LifeParams {
        grace_ms: 0,
        warning: Some(Warning { signal: 10, before_ms: 900, leader_only: false }),
        ..PARAMS
    };
    let mut life = Life::new(params, 0, FAR_MS);
    assert_eq!(life.end(EndReason::Preempt, 4_000), Do::Warn);
    assert_eq!(played(&mut life, 5_000), [(4_900, Do::Kill)]);
    let mut life = Life::new(LifeParams { warning: None, ..params }, 0, FAR_MS);
    assert_eq!(life.end(EndReason::Preempt, 4_000), Do::Kill);
}

fn ends(life: &Life, how: AttemptEnd, again: bool) -> AttemptEnd {
    let mut life = life.clone();
    life.main_ended(how, false, again);
    life.ended()
}

#[test]
fn a_task_asks_to_be_queued_again_by_its_status_or_by_the_file() {
    let fresh = warned(300);
    let code = |code| AttemptEnd::Exited { code };
    assert_eq!(ends(&fresh, code(75), false), AttemptEnd::Requeued { code: 75 });
    assert_eq!(ends(&fresh, code(74), false), code(74));
    assert_eq!(ends(&fresh, code(0), true), AttemptEnd::Requeued { code: 0 });
    let killed = AttemptEnd::Signalled { signal: 10 };
    assert_eq!(ends(&fresh, killed, true), AttemptEnd::Requeued { code: 138 });

    let mut late = warned(300);
    played(&mut late, 10_000);
    assert_eq!(ends(&late, code(75), false), AttemptEnd::Requeued { code: 75 }, "even in its grace");
    assert_eq!(ends(&late, code(1), false), AttemptEnd::TimeLimit);
    // What others wanted stays what it is: it has its own way back, or none.
    for (reason, end) in
        [(EndReason::Cancel, AttemptEnd::Cancelled), (EndReason::Preempt, AttemptEnd::Preempted)]
    {
        let mut life = warned(300);
        life.end(reason, 100);
        assert_eq!(ends(&life, code(75), true), end);
    }
    assert_eq!(ends(&life(), code(75), false), code(75), "nobody said that 75 means it");
}

#[test]
fn a_notice_is_lines_for_programs_with_times_of_the_wall_clock() {
    let notice = Notice { cause: Cause::Asked(EndReason::Preempt), term_ms: 2_300, kill_ms: 3_000 };
    let text = notice.text(2_000, 1_790_000_000_000);
    assert_eq!(text, "reason=preempt\ndeadline_ms=1790000001000\nterm_ms=1790000000300\n");
    assert_eq!(Cause::TimeLimit.to_string(), "time_limit");
}
