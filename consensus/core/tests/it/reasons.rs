//! Reasons that a newcomer could act on: what `why` advises is true, and what it foretells agrees with what is promised.

use crate::lab::{Lab, exit, job_spec, user};
use rota_core::explain::why;
use rota_core::view;
use rota_protocol::command::{Command, Outcome};
use rota_protocol::job::{Actor, AttemptEnd, EndReason, JobSpec};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::why::{StartBasis, WhyView};
use rota_protocol::work::Warning;
use rota_protocol::{HostId, JobId, RequestId};

fn submit(lab: &mut Lab, spec: JobSpec) -> JobId {
    match lab.ask(user("t"), RequestId::NONE, Command::Submit { spec }) {
        Outcome::Submitted { job } => job,
        other => panic!("{other:?}"),
    }
}

/// Half of a card.
fn half(more: &str) -> JobSpec {
    let mut spec = job_spec(&format!("gpus=1{more}"));
    spec.ask.gpu_milli = 500;
    spec
}

fn ask(lab: &Lab, job: JobId) -> WhyView {
    why(&lab.state, job, lab.now_ms).expect("known")
}

/// Whoever others are evicted for waits for their warnings, cut where evictions cut them, and for their graces.
#[test]
fn what_makes_room_is_foretold_with_its_warning_and_its_grace() {
    for (before_ms, given_ms) in [(10_000, 10_000), (60_000, 30_000)] {
        let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
        let warning = Some(Warning { signal: 10, before_ms, leader_only: false });
        let low = submit(&mut lab, JobSpec { warning, grace_ms: Some(5_000), ..job_spec("gpus=4 prio=10") });
        assert_eq!(lab.begin(low, "0@h1:0,1,2,3"), Ok(()));
        lab.all_started();
        let high = lab.submit("gpus=4 prio=90");
        let victim = lab.token(low);
        assert_eq!(lab.evict(Some(high), EndReason::Preempt, &[victim], "h1:0,1,2,3"), Ok(()));
        let asked_ms = lab.now_ms;
        lab.now_ms += 1_000;
        let start = ask(&lab, high).expected.expect("foretold");
        assert_eq!((start.basis, start.at_ms - asked_ms), (StartBasis::Victims, given_ms + 5_000));
        assert_eq!(ask(&lab, high).promise.map(|promise| promise.at_ms), Some(start.at_ms));
    }
}

/// What is advised was tried: less of a card does not help where all cards are held whole.
#[test]
fn nothing_is_advised_that_would_not_start() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=8"]);
    let whole = lab.submit("gpus=2 cpus=2");
    assert_eq!(lab.begin(whole, "0@h1:0,1"), Ok(()));
    let share = submit(&mut lab, half(""));
    let why = ask(&lab, share);
    assert_eq!((why.cause.as_str(), why.smaller_ask.as_deref()), ("share_busy", None));
    assert!(!why.hint.as_deref().unwrap_or_default().contains("less"), "{why:?}");
    // Where cards are free and CPUs are not, CPUs are what is told of.
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=8"]);
    let cpus = lab.submit("cpus=8");
    assert_eq!(lab.begin(cpus, "0@h1"), Ok(()));
    let card = lab.submit("gpus=1 cpus=4");
    assert!(ask(&lab, card).hint.is_some_and(|hint| hint.contains("CPUs are what is missing")));
}

#[test]
fn cards_of_several_hosts_are_asked_by_a_gang_and_mps_by_name() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64", "h2 gpus=4xA100:80GiB cpus=64"]);
    let wide = lab.submit("gpus=8");
    assert!(ask(&lab, wide).hint.is_some_and(|hint| hint.contains("--gang 2 --gpus 4")));
    let wider = lab.submit("gpus=12");
    assert!(ask(&lab, wider).hint.is_some_and(|hint| !hint.contains("--gang")), "there are not so many");
    let shared = submit(&mut lab, half(" rota.share=mps"));
    let why = ask(&lab, shared);
    assert!(why.verdict.contains("no host offers mps"), "{why:?}");
    assert!(why.hint.is_some_and(|hint| hint.contains("--share-mode time-slice")));
}

/// Who was put out is told for whom, and reads it again while it waits.
#[test]
fn a_preempted_job_names_whom_it_made_room_for() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
    let low = lab.submit("gpus=4 prio=10");
    assert_eq!(lab.begin(low, "0@h1:0,1,2,3"), Ok(()));
    lab.all_started();
    let high = lab.submit("gpus=4 prio=90");
    let victim = lab.token(low);
    assert_eq!(lab.evict(Some(high), EndReason::Preempt, &[victim], "h1:0,1,2,3"), Ok(()));
    lab.end(victim, AttemptEnd::Preempted);
    let told = format!("asked to end: to make room for job {high} (priority 90, queue t)");
    assert_eq!(ask(&lab, low).more.evicted, Some(told.clone()));
    let view = view::job(&lab.state, low).expect("known");
    let row = &view.attempts[0];
    assert_eq!(row.asked, Some(EndReason::Preempt));
    assert!(row.care.as_ref().is_some_and(|care| care.notes.contains(&told)), "{row:?}");
}

/// Of two users of one queue the one that has less comes first, however many tasks of the other's wait.
#[test]
fn what_is_in_front_is_counted_after_fairness() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
    let many = lab.submit("gpus=1 array=0-19");
    assert_eq!(lab.round(), 4);
    lab.all_started();
    let spec = job_spec("gpus=1");
    let other = Actor { user: "other".into(), ..user("t") };
    let one = match lab.ask(other, RequestId::NONE, Command::Submit { spec }) {
        Outcome::Submitted { job } => job,
        other => panic!("{other:?}"),
    };
    let why = ask(&lab, one);
    assert_eq!((why.ahead_tasks, ask(&lab, many).ahead_tasks), (0, 1));
    let share = &why.more.shares;
    assert!(share.is_empty() || share[0].held == 4_000, "{share:?}");
    // An array of which some run waits since it was submitted.
    lab.now_ms += 22_000;
    let array = ask(&lab, many);
    assert!(array.more.partly && array.waited_ms >= 22_000, "{array:?}");
}

/// What is held is metered by tenant, user and queue, what still runs included; it never fades.
#[test]
fn use_is_metered_for_whoever_bills_it() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
    let job = lab.submit("gpus=2 cpus=4");
    assert_eq!(lab.begin(job, "0@h1:0,1"), Ok(()));
    lab.all_started();
    lab.now_ms += 3_600_000;
    let rows = view::usage(&lab.state, lab.now_ms);
    assert_eq!((rows.len(), rows[0].gpu_ms, rows[0].cpu_ms), (1, 7_200_000, 14_400_000));
    assert_eq!(
        (rows[0].tenant.as_str(), rows[0].user.as_str(), rows[0].live.as_slice()),
        ("t", "u", &[job][..])
    );
    let token = lab.token(job);
    lab.end(token, exit(0));
    lab.now_ms += 30 * 24 * 3_600_000;
    let later = view::usage(&lab.state, lab.now_ms);
    assert_eq!((later[0].gpu_ms, later[0].attempts, later[0].live.len()), (7_200_000, 1, 0));
    lab.check_copies();
}

/// A reservation in the way is named with the start that its end opens, and the limit that would do before it begins.
#[test]
fn a_reservation_in_the_way_is_named() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=64"]);
    let now = lab.now_ms;
    let reservation = ReservationSpec {
        name: "demo1".into(),
        hosts: vec![HostId(2)],
        start_ms: now + 40_000,
        end_ms: now + 100_000,
        kept_for: ReservedFor::Nobody,
        reason: String::new(),
    };
    assert_eq!(lab.system(Command::Reserve { reservation }), Outcome::Done);
    let job = lab.submit("gpus=1 limit=3600");
    let why = ask(&lab, job);
    assert_eq!((why.cause.as_str(), why.more.reservation.as_deref()), ("reserved", Some("demo1")), "{why:?}");
    assert_eq!(why.expected.map(|start| start.at_ms), Some(now + 100_000));
    assert_eq!(why.hint.as_deref(), Some("with a time limit of at most 30 s it would start now"));
    lab.now_ms += 50_000;
    let why = ask(&lab, job);
    assert_eq!(why.hint.as_deref(), Some("wait for the end of the reservation"), "{:?}", why.more);
}
