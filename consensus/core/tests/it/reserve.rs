//! Reservations and promises: hosts that are kept for a time keep out what might still run then, and a promised start
//! moves later only for a stated reason.

use crate::lab::{Lab, exit, user};
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::plan::{PromiseBreak, Refusal};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::{ErrorCode, HostId, JobId, PublicError};

fn kept(lab: &Lab, name: &str, from_s: u64, to_s: u64, queues: &[&str]) -> ReservationSpec {
    let kept_for = match queues {
        [] => ReservedFor::Nobody,
        names => ReservedFor::Queues(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    let at = |s: u64| lab.now_ms + s * 1_000;
    let hosts = vec![lab.host_named("h1")];
    ReservationSpec {
        name: name.into(),
        hosts,
        start_ms: at(from_s),
        end_ms: at(to_s),
        kept_for,
        reason: "fan".into(),
    }
}

fn reserve(lab: &mut Lab, reservation: ReservationSpec) -> Result<(), PublicError> {
    match lab.system(Command::Reserve { reservation }) {
        Outcome::Done => Ok(()),
        Outcome::Refused(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

/// R070: work that would not end before a maintenance is not started there; what ends in time, or starts after, is.
#[test]
fn limits_decide() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64", "h2 gpus=4xA100:80GiB cpus=64"]);
    let maintenance = kept(&lab, "fans", 60, 120, &[]);
    assert_eq!(reserve(&mut lab, maintenance), Ok(()));
    for (line, done) in [
        ("gpus=1", Err(Refusal::Reserved)),
        ("gpus=1 limit=61", Err(Refusal::Reserved)),
        ("gpus=1 service=yes", Err(Refusal::Reserved)),
        ("gpus=1 limit=60", Ok(())),
    ] {
        let job = lab.submit(line);
        assert_eq!(lab.begin(job, "0@h1:0"), done, "{line}");
    }
    let gang = lab.submit("gpus=1 gang=2");
    assert_eq!(lab.begin(gang, "0@h2:0 1@h1:1"), Err(Refusal::Reserved));
    assert_eq!(lab.begin(gang, "0@h2:0 1@h2:1"), Ok(()), "other hosts are as they were");
    let waits = lab.submit("gpus=1");
    for (after_s, done) in [(59, false), (60, false), (119, false), (120, true)] {
        lab.now_ms = 1_000_000 + after_s * 1_000;
        assert_eq!(lab.begin(waits, "0@h1:3").is_ok(), done, "after {after_s} s");
    }
    assert_eq!(lab.state.reservations().count(), 0, "it is over and forgotten");
    lab.check_copies();
}

/// Hosts that are kept for queues take work of these and of those below them, and of nobody else.
#[test]
fn kept_for_queues() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
    for line in ["t", "t/a", "t/a/x", "t/ab", "other"] {
        lab.queue(line);
    }
    let row = kept(&lab, "course", 0, 100, &["t/a"]);
    assert_eq!(reserve(&mut lab, row.clone()), Ok(()));
    for (at, (queue, done)) in
        [("t/a", true), ("t/a/x", true), ("t", false), ("t/ab", false)].into_iter().enumerate()
    {
        let job = lab.submit(&format!("gpus=1 queue={queue}"));
        assert_eq!(lab.begin(job, &format!("0@h1:{at}")).is_ok(), done, "{queue}");
    }
    let stranger = lab.try_submit(user("other"), "gpus=1").expect("accepted");
    assert_eq!(lab.begin(stranger, "0@h1:3"), Err(Refusal::Reserved));
    // A second one for others at the same time would leave the host to nobody; for the same, or later, it is fine.
    let clash = ReservationSpec {
        name: "other".into(),
        kept_for: ReservedFor::Queues(vec!["other".into()]),
        ..row.clone()
    };
    assert_eq!(reserve(&mut lab, clash.clone()).map_err(|e| e.code), Err(ErrorCode::Conflict));
    let later = ReservationSpec { start_ms: row.end_ms, end_ms: row.end_ms + 1, ..clash };
    assert_eq!(reserve(&mut lab, later), Ok(()));
    assert_eq!(reserve(&mut lab, ReservationSpec { name: "same".into(), ..row.clone() }), Ok(()));
    // Maintenance comes in between whoever it is kept for.
    let fans = kept(&lab, "fans", 0, 10, &[]);
    assert_eq!(reserve(&mut lab, fans), Ok(()));
    let ours = lab.submit("gpus=1 queue=t/a limit=50");
    assert_eq!(lab.begin(ours, "0@h1:3"), Err(Refusal::Reserved));
    assert_eq!(lab.system(Command::Unreserve { name: "fans".into() }), Outcome::Done);
    assert_eq!(lab.begin(ours, "0@h1:3"), Ok(()));
    // The same name again is the same reservation, changed.
    assert_eq!(reserve(&mut lab, ReservationSpec { end_ms: row.end_ms + 5, ..row }), Err(conflict(&lab)));
    lab.check_copies();
}

fn conflict(lab: &Lab) -> PublicError {
    assert!(lab.state.reservations().any(|row| row.name == "other"));
    let message = "reservation 'other' keeps a host of it for other queues at that time";
    PublicError::new(ErrorCode::Conflict, message)
}

#[test]
fn reservations_that_are_refused() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
    let good = kept(&lab, "fans", 10, 20, &[]);
    let at = |name: &str| ReservationSpec { name: name.into(), ..good.clone() };
    let cases: [(ReservationSpec, ErrorCode, Option<&str>); 9] = [
        (at(""), ErrorCode::Invalid, Some("reservation.name")),
        (at("a\nb"), ErrorCode::Invalid, Some("reservation.name")),
        (
            ReservationSpec { reason: "x".repeat(200), ..good.clone() },
            ErrorCode::Invalid,
            Some("reservation.reason"),
        ),
        (
            ReservationSpec { end_ms: good.start_ms, ..good.clone() },
            ErrorCode::Invalid,
            Some("reservation.end"),
        ),
        (
            ReservationSpec { start_ms: 0, end_ms: 1, ..good.clone() },
            ErrorCode::Invalid,
            Some("reservation.end"),
        ),
        (ReservationSpec { hosts: vec![], ..good.clone() }, ErrorCode::Invalid, Some("reservation.hosts")),
        (ReservationSpec { hosts: vec![HostId(99)], ..good.clone() }, ErrorCode::NotFound, None),
        (
            ReservationSpec { kept_for: ReservedFor::Queues(vec![]), ..good.clone() },
            ErrorCode::Invalid,
            Some("reservation.for"),
        ),
        (
            ReservationSpec { kept_for: ReservedFor::Queues(vec!["x".into()]), ..good.clone() },
            ErrorCode::Invalid,
            Some("reservation.for"),
        ),
    ];
    for (row, code, field) in cases {
        let error = reserve(&mut lab, row.clone()).expect_err("refused");
        assert_eq!((error.code, error.field.as_deref()), (code, field), "{row:?}");
        assert_eq!(error.example.is_some(), field.is_some());
    }
    let unknown = lab.system(Command::Unreserve { name: "fans".into() });
    assert!(matches!(unknown, Outcome::Refused(e) if e.code == ErrorCode::NotFound));
    assert_eq!(lab.state.reservations().count(), 0);
}

/// R088: a promise moves to an earlier start as it likes, and later only with its cause, which is kept.
#[test]
fn a_promise_moves_later_only_for_a_cause() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB"]);
    lab.run("gpus=4 limit=600", "0@h1:0,1,2,3");
    let wide = lab.submit("gpus=4");
    let (now, all) = (lab.now_ms, "h1:0,1,2,3");
    let promised = |lab: &Lab| lab.state.job(wide).and_then(|job| job.promise.clone()).expect("promised");
    assert_eq!(lab.promise(wide, now + 600_000, all, None), Ok(()));
    lab.now_ms += 1_000;
    assert_eq!(lab.promise(wide, now + 600_001, all, None), Err(Refusal::NotYet));
    assert_eq!(promised(&lab).at_ms, now + 600_000);
    assert_eq!(lab.promise(wide, now + 500_000, "h2:0,1,2,3", None), Ok(()));
    assert_eq!((promised(&lab).at_ms, promised(&lab).made_ms), (now + 500_000, now), "it stands since then");
    assert_eq!(lab.promise(wide, now + 600_000, all, None), Err(Refusal::NotYet), "the old one is gone");
    assert_eq!(lab.promise(wide, now + 700_000, all, Some(PromiseBreak::HostGone)), Ok(()));
    let broken = promised(&lab);
    assert_eq!((broken.made_ms, broken.broken_by), (now + 1_000, Some(PromiseBreak::HostGone)));
    // The cause is not forgotten when it becomes earlier again.
    assert_eq!(lab.promise(wide, now + 650_000, all, None), Ok(()));
    assert_eq!(promised(&lab).broken_by, Some(PromiseBreak::HostGone));
    lab.check_copies();
}

/// A promise is of slots that exist and would do, to a job that may start; it goes with the start, a hold, a cancel.
#[test]
fn what_can_be_promised() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB"]);
    let at = lab.now_ms + 1_000;
    let job = lab.submit("gpus=2");
    for (slots, why) in [
        ("", Refusal::ParallelCap),
        ("h1:0,1 h2:0,1", Refusal::ParallelCap),
        ("h1:0", Refusal::DoesNotFit),
        ("h1:0,0", Refusal::DoesNotFit),
        ("h1:0,7", Refusal::DoesNotFit),
        ("founder:0,1", Refusal::HostGone),
    ] {
        assert_eq!(lab.promise(job, at, slots, None), Err(why), "{slots}");
    }
    let gang = lab.submit("gpus=1 gang=2..3");
    assert_eq!(lab.promise(gang, at, "h1:0", None), Err(Refusal::GangSize));
    assert_eq!(lab.promise(gang, at, "h1:0 h1:0", None), Ok(()), "slots may follow each other in time");
    let blocked = lab.submit(&format!("gpus=2 after=any:{job}"));
    for id in [JobId(99), blocked] {
        assert_eq!(lab.promise(id, at, "h1:0,1", None), Err(Refusal::NotPending));
    }
    type End = fn(&mut Lab, JobId);
    let ends: [(&str, End); 4] = [
        ("start", |lab, job| assert_eq!(lab.begin(job, "0@h2:0,1"), Ok(()))),
        ("hold", |lab, job| assert_eq!(lab.adjust(user("t"), job, JobChange::Hold), Outcome::Done)),
        ("cancel", |lab, job| assert_eq!(lab.cancel(job), Outcome::Cancelling { live: 0 })),
        ("lapse", |lab, job| {
            lab.now_ms += 5_000;
            assert_eq!(lab.lapse(job), Ok(()));
        }),
    ];
    for (name, end) in ends {
        let job = lab.submit(&format!("gpus=2 deadline={}", lab.now_ms + 5_000));
        assert_eq!(lab.promise(job, lab.now_ms + 1_000, "h1:0,1", None), Ok(()), "{name}");
        end(&mut lab, job);
        assert_eq!(lab.state.job(job).and_then(|j| j.promise.clone()), None, "{name}");
    }
    lab.check_copies();
}

/// An eviction is a promise too: no later than the one before it, and still an eviction when its time is named again.
#[test]
fn an_eviction_keeps_the_promise() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
    let victim = lab.run("gpus=4 prio=10", "0@h1:0,1,2,3");
    let urgent = lab.submit("gpus=4 prio=90");
    let (now, all) = (lab.now_ms, "h1:0,1,2,3");
    assert_eq!(lab.promise(urgent, now + 1_000, all, None), Ok(()));
    assert_eq!(lab.promise(urgent, now + 2_000, all, Some(PromiseBreak::Outranked)), Ok(()));
    // Time goes by past the promised start: what comes now is late, and says since when.
    lab.now_ms += 9_000;
    let token = lab.token(victim);
    assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &[token], all), Ok(()));
    let promise = |lab: &Lab| lab.state.job(urgent).and_then(|job| job.promise.clone()).expect("promised");
    let evicting = promise(&lab);
    assert_eq!((evicting.at_ms, evicting.made_ms, evicting.evicting), (now + 2_000, now, true));
    assert_eq!(evicting.broken_by, Some(PromiseBreak::Outranked));
    assert_eq!(lab.promise(urgent, now + 15_000, all, Some(PromiseBreak::Overrun)), Ok(()));
    assert!(promise(&lab).evicting, "the same slots are still being cleared for it");
    lab.end(token, AttemptEnd::Preempted);
    assert_eq!(lab.begin(urgent, "0@h1:0,1,2,3"), Ok(()));
    let token = lab.token(urgent);
    lab.end(token, exit(0));
    assert_eq!(lab.state_of(urgent), "succeeded");
    lab.check_copies();
}
