//! What queues, reservations and waiting jobs look like to people: one consistent copy, sums that add up, and nothing
//! of other tenants.

use crate::lab::{Lab, exit, user};
use rota_core::view;
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::job::{Actor, Role};
use rota_protocol::queue::{Ceiling, QueueSpec};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::view::QueueRow;
use rota_protocol::{JobId, RequestId};

fn operator() -> Actor {
    Actor { role: Role::Operator, ..user("ops") }
}

fn queue(lab: &mut Lab, spec: QueueSpec) {
    assert_eq!(lab.ask(operator(), RequestId::NONE, Command::SetQueue { queue: spec }), Outcome::Done);
}

fn rows(lab: &Lab, viewer: &Actor) -> Vec<QueueRow> {
    view::queues(&lab.state, viewer, lab.now_ms)
}

fn place(lab: &Lab, job: JobId) -> String {
    view::job_row(&lab.state, job).expect("known").place
}

#[test]
fn a_queue_shows_what_is_held_and_waits_in_it_and_below() {
    let mut lab = Lab::with(&["h1 gpus=4xH100:80GiB cpus=16 mem=64GiB", "h2 cpus=16 mem=64GiB"]);
    queue(&mut lab, QueueSpec::open("t"));
    queue(&mut lab, QueueSpec { weight: 3, ..QueueSpec::open("t/vision") });
    lab.submit("gpus=1 cpus=1 queue=t");
    lab.submit("gpus=2 cpus=1 queue=t/vision");
    lab.submit("gpus=4 cpus=1 queue=t/vision array=0-2");
    lab.round();
    let all = rows(&lab, &operator());
    let [top, leaf] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((top.spec.name.as_str(), leaf.spec.name.as_str(), leaf.spec.weight), ("t", "t/vision", 3));
    assert_eq!((top.held.gpu_milli, top.held.cpus_milli), (3_000, 2_000));
    assert_eq!((leaf.held.gpu_milli, leaf.held.vram_mib), (2_000, 160 << 10));
    assert_eq!((top.jobs_open, top.tasks_waiting, top.tasks_running), (3, 3, 2));
    assert_eq!((leaf.jobs_open, leaf.tasks_waiting, leaf.tasks_running), (2, 3, 1));
    // 3 of 4 cards are more of the cluster than 2 of 32 cores.
    assert_eq!((top.share_permille, leaf.share_permille), (750, 500));
    lab.now_ms += 3_600_000;
    let first = lab.token(JobId(1));
    lab.start(first);
    lab.end(first, exit(0));
    let top = &rows(&lab, &operator())[0];
    assert_eq!((top.used_gpu_ms, top.held.gpu_milli), (3_600_000, 2_000), "one card for an hour");
}

#[test]
fn a_tenant_sees_the_queues_it_may_enter_and_those_above() {
    let mut lab = Lab::with(&["h1 cpus=4 mem=4GiB"]);
    for name in ["a", "b", "b/x", "b/y"] {
        queue(&mut lab, QueueSpec::open(name));
    }
    queue(&mut lab, QueueSpec { tenants: vec!["a".into()], ..QueueSpec::open("b/x") });
    let names =
        |viewer: &Actor| -> Vec<String> { rows(&lab, viewer).into_iter().map(|row| row.spec.name).collect() };
    assert_eq!(names(&user("a")), ["a", "b", "b/x"]);
    assert_eq!(names(&user("b")), ["b", "b/y"]);
    assert_eq!(names(&user("aa")), Vec::<String>::new(), "no prefix of a name is the name");
    assert_eq!(names(&operator()), ["a", "b", "b/x", "b/y"]);
}

#[test]
fn a_job_that_waits_says_what_for() {
    let mut lab = Lab::with(&["h1 gpus=2xH100:80GiB cpus=8 mem=8GiB"]);
    let ceiling = Ceiling { gpu_milli: Some(1_000), ..Ceiling::default() };
    queue(&mut lab, QueueSpec { ceiling, ..QueueSpec::open("t") });
    let parent = lab.submit("cpus=1");
    for (line, says) in [
        ("cpus=1 hold=yes", "(held)"),
        ("cpus=1 after=ok:1", "(dependency)"),
        ("cpus=1 begin=99000000", "(begin)"),
        ("gpus=2 cpus=1", "(ceiling)"),
    ] {
        let job = lab.submit(line);
        assert_eq!(place(&lab, job), says, "{line}");
    }
    let held = JobId(2);
    let release = Command::Adjust { job: held, change: JobChange::Release };
    assert_eq!(lab.ask(user("t"), RequestId::NONE, release), Outcome::Done);
    assert_eq!(place(&lab, held), "(next)");
    lab.cancel(parent);
    let row = view::job_row(&lab.state, JobId(3)).expect("known");
    assert_eq!((row.state.code(), row.place.as_str()), ("DF", "(job 1 cancelled, not ok)"));
    assert_eq!(view::job(&lab.state, JobId(3)).expect("known").exit_status, Some(122));
    let either = lab.submit("gpus=2 cpus=1 or=cpus~1");
    let row = view::job_row(&lab.state, either).expect("known");
    assert_eq!(row.ask, "2 gpu, 1 cpu (or 1 other)");
    assert_ne!(row.place, "(ceiling)", "its other ask is below the ceiling");
    let gang = lab.submit("cpus=1 gang=2..4");
    assert_eq!(view::job_row(&lab.state, gang).expect("known").ask, "2..4 x 1 cpu");
}

#[test]
fn a_reservation_shows_when_where_and_who_is_in_its_way() {
    let mut lab = Lab::with(&["h1 cpus=4 mem=4GiB"]);
    let host = lab.state.hosts().last().expect("one").id;
    lab.submit("cpus=1");
    lab.round();
    let start_ms = lab.now_ms + 1_000;
    let one = |name: &str, kept_for| ReservationSpec {
        name: name.into(),
        hosts: vec![host],
        start_ms,
        end_ms: start_ms + 1_000,
        kept_for,
        reason: String::new(),
    };
    let ours = one("ours", ReservedFor::Queues(vec!["t".into()]));
    for reservation in [one("fans", ReservedFor::Nobody), ours] {
        assert_eq!(lab.ask(operator(), RequestId::NONE, Command::Reserve { reservation }), Outcome::Done);
    }
    let shown = |now_ms| {
        let rows = view::reservations(&lab.state, now_ms).into_iter();
        rows.map(|row| (row.spec.name, row.host_names.join(","), row.active, row.foreign_tasks))
            .collect::<Vec<_>>()
    };
    let wanted = |active| {
        vec![("fans".to_owned(), "h1".to_owned(), active, 1), ("ours".to_owned(), "h1".to_owned(), active, 0)]
    };
    assert_eq!(shown(lab.now_ms), wanted(false));
    assert_eq!(shown(start_ms), wanted(true));
    assert_eq!(shown(start_ms + 1_000), Vec::new());
}
