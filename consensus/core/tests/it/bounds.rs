//! Bounds that a queue sets to its users: which priority they may ask, at the submit and later, and how much one of them
//! holds when that is lowered.

use crate::lab::{Lab, job_spec, user};
use rota_core::apply::check_priority_at_edge;
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::job::{Actor, AttemptEnd, EndReason, Role};
use rota_protocol::version::NEWEST;
use rota_protocol::{ErrorCode, JobId, PublicError, Token};

fn newest() -> Lab {
    let mut lab = Lab::new();
    assert_eq!(lab.system(Command::RaiseVersion { to: NEWEST }), Outcome::Done);
    lab
}

fn raise(lab: &mut Lab, actor: Actor, job: JobId, priority: u16) -> Result<(), PublicError> {
    match lab.adjust(actor, job, JobChange::Priority(priority)) {
        Outcome::Done => Ok(()),
        Outcome::Refused(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

/// One rule for the submit and for the change: up to the default, up to what the nearest queue says, or as an operator.
#[test]
fn who_may_ask_for_which_priority() {
    let mut lab = newest();
    lab.queue("t priority_max=80");
    lab.queue("t/a");
    lab.queue("t/a/deep");
    lab.queue("t/b priority_max=50");
    lab.queue("t/c priority_max=100");
    lab.queue("free tenants=t,x");
    for (tenant, queue, most) in [
        ("t", "", 80),
        ("t", "t", 80),
        ("t", "t/a", 80),
        ("t", "t/a/deep", 80),
        ("t", "t/b", 50),
        ("t", "t/c", 100),
        ("t", "free", 50),
        // Its queue is made by its first job, which has no more rights than the later ones.
        ("new", "", 50),
        ("new", "", 50),
    ] {
        let line = |priority: u16| {
            let named = if queue.is_empty() { String::new() } else { format!(" queue={queue}") };
            format!("prio={priority}{named}")
        };
        let case = format!("{tenant} {queue}");
        let before = lab.state.queues().len();
        for over in [most + 1, 101].into_iter().filter(|over| *over <= 100) {
            let error = lab.try_submit(user(tenant), &line(over)).expect_err(&case);
            assert_eq!(
                (error.code, error.field.as_deref()),
                (ErrorCode::Forbidden, Some("priority")),
                "{case}"
            );
            let path = if queue.is_empty() { tenant } else { queue };
            for part in [
                over.to_string(),
                most.to_string(),
                "operator".into(),
                format!("queues set {path} --priority-max"),
            ] {
                assert!(error.message.contains(&part), "{case}: {error}");
            }
            assert_eq!(error.example, Some(most.to_string()), "{case}");
            assert_eq!(lab.state.queues().len(), before, "{case}: what is refused makes no queue");
        }
        let job = lab.try_submit(user(tenant), &line(most)).expect(&case);
        assert_eq!(raise(&mut lab, user(tenant), job, 0), Ok(()), "{case}");
        assert_eq!(raise(&mut lab, user(tenant), job, most), Ok(()), "{case}");
        if most < 100 {
            let error = raise(&mut lab, user(tenant), job, most + 1).expect_err(&case);
            assert_eq!(
                (error.code, error.field.as_deref()),
                (ErrorCode::Forbidden, Some("priority")),
                "{case}"
            );
            assert!(error.message.contains(&most.to_string()), "{case}: {error}");
        }
        for role in [Role::Operator, Role::Admin] {
            let ops = Actor { role, ..user(tenant) };
            let urgent = lab.try_submit(ops.clone(), &line(100)).expect(&case);
            assert_eq!(raise(&mut lab, ops, job, 100), Ok(()), "{case}");
            // What an operator submitted so high may be lowered, and goes back to where it was.
            assert_eq!(raise(&mut lab, user(tenant), urgent, 10), Ok(()), "{case}");
            assert_eq!(raise(&mut lab, user(tenant), urgent, 100), Ok(()), "{case}");
        }
    }
    // A queue that is not one's own tells nothing of its rules.
    let error = lab.try_submit(user("x"), "prio=90 queue=t").expect_err("not theirs");
    assert_eq!(error.field.as_deref(), Some("queue"));
    lab.check_copies();
}

#[test]
fn the_bound_is_between_default_and_highest() {
    let mut lab = newest();
    for most in [0, 49, 101] {
        let error = lab.try_queue(&format!("t priority_max={most}")).expect_err("out of range");
        assert_eq!(error.field.as_deref(), Some("queue.priority_max"));
        assert!(error.message.contains(&most.to_string()), "{error}");
    }
}

/// The log of a cluster whose version is older says what it always said, and the host that is asked refuses instead.
#[test]
fn an_older_log_is_applied_as_it_was() {
    let mut lab = Lab::new();
    assert!(lab.try_submit(user("t"), "prio=100").is_ok());
    let at_edge =
        |lab: &Lab, actor: &Actor, line: &str| check_priority_at_edge(&lab.state, actor, &job_spec(line));
    let error = at_edge(&lab, &user("t"), "prio=51").expect_err("above the default");
    assert_eq!((error.code, error.field.as_deref()), (ErrorCode::Forbidden, Some("priority")));
    assert_eq!(at_edge(&lab, &user("t"), "prio=50"), Ok(()));
    assert_eq!(at_edge(&lab, &Actor { role: Role::Operator, ..user("t") }, "prio=100"), Ok(()));
    lab.queue("t priority_max=60");
    assert_eq!(at_edge(&lab, &user("t"), "prio=60"), Ok(()));
    assert!(at_edge(&lab, &user("t"), "prio=61").is_err());
}

/// Nobody is named twice: not among tenants, not among the hosts and queues of a reservation.
#[test]
fn tenants_are_named_once() {
    let error = Lab::new().try_queue("q tenants=x,y,x").expect_err("twice");
    assert_eq!(error.field.as_deref(), Some("queue.tenants"));
    assert!(error.message.contains("'x' is given twice"), "{error}");
}

fn settle(lab: &mut Lab) {
    for _ in 0..20 {
        lab.round();
        let ending = lab.state.attempts().filter(|a| a.end_reason == Some(EndReason::Ceiling));
        for token in ending.map(|a| a.token).collect::<Vec<Token>>() {
            lab.end(token, AttemptEnd::Preempted);
        }
        lab.all_started();
    }
}

/// A lowered bound of one user acts as a lowered ceiling does, by the planner's own moves: the youngest go, no more than
/// are too many, and they come back when the bound allows.
#[test]
fn a_lowered_bound_of_one_user_is_reached() {
    let hosts = ["h1 gpus=8xA100:80GiB cpus=64"];
    let held = |lab: &Lab, queue: &str, name: &str| {
        let queue = lab.state.queues().named(queue).expect("there");
        queue.users.get(name).map_or(0, |share| share.held.gpu_milli / 1_000)
    };
    let ann = || Actor { user: "ann".into(), ..user("t") };
    for (rule, most, left) in [
        ("user_gpus=1 gpus=8 excess=requeue", 1, [1, 1]),
        ("user_gpus=3 gpus=8 excess=requeue", 3, [3, 2]),
        ("user_gpus=0 gpus=8 excess=requeue", 0, [0, 0]),
        // Both bounds at once: first the queue's, then what is still too much of one user.
        ("user_gpus=3 gpus=5 excess=requeue", 3, [3, 2]),
        ("user_gpus=1 gpus=8", 8, [4, 2]),
    ] {
        for below in [false, true] {
            let mut lab = Lab::with(&hosts);
            lab.queue("t user_gpus=4 gpus=8 excess=requeue");
            lab.queue("t/a");
            let queue = if below { "t/a" } else { "t" };
            let hers = lab.try_submit(ann(), &format!("gpus=1 array=0-1 queue={queue}")).expect("accepted");
            settle(&mut lab);
            lab.now_ms += 10;
            let job = lab.submit(&format!("gpus=1 array=0-5 queue={queue}"));
            settle(&mut lab);
            assert_eq!([held(&lab, "t", "u"), held(&lab, "t", "ann")], [4, 2], "{rule}");
            lab.queue(&format!("t {rule}"));
            assert!(lab.state.wants_planning(lab.now_ms), "{rule}");
            settle(&mut lab);
            assert_eq!([held(&lab, "t", "u"), held(&lab, "t", "ann")], left, "{rule}, below {below}");
            assert!(held(&lab, "t", "u") <= most, "{rule}");
            let youngest_went: Vec<u32> = lab.state.attempts_of(job).map(|a| a.task.index).collect();
            assert_eq!(youngest_went, (0..left[0] as u32).collect::<Vec<u32>>(), "{rule}");
            assert_eq!(lab.live(hers), left[1] as u32, "{rule}");
            lab.queue("t user_gpus=4 gpus=8 excess=requeue");
            settle(&mut lab);
            assert_eq!([held(&lab, "t", "u"), held(&lab, "t", "ann")], [4, 2], "{rule}");
            lab.check_copies();
        }
    }
}
