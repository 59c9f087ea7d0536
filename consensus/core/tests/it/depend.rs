//! Dependencies (R008, R009): what each end of a parent does to those that wait for it, one after the other, element
//! by element, along chains and diamonds, and when the parent is long forgotten.

use crate::lab::{Lab, exit, job_spec, user};
use rota_core::state::job::TERMINAL_KEPT_MAX;
use rota_core::{State, invariant, snapshot, view};
use rota_protocol::command::{Command, Entry, JobChange, LOG_FORMAT, Outcome, Proposal};
use rota_protocol::job::{Actor, AttemptEnd, EndReason, JobState};
use rota_protocol::report::AttemptFact;
use rota_protocol::{ClusterId, HostId, JobId, RequestId};

const RELATIONS: [&str; 3] = ["ok", "not-ok", "any"];

/// Told of the parent as soon as it is accepted.
type Told<'t> = &'t mut dyn FnMut(&mut Lab, JobId);
/// How a parent comes to its end.
type Story = fn(&mut Lab, Told<'_>);

fn submitted(lab: &mut Lab, told: Told<'_>, line: &str) -> JobId {
    let job = lab.submit(line);
    told(lab, job);
    job
}

fn running(lab: &mut Lab, told: Told<'_>, line: &str) -> JobId {
    let job = submitted(lab, told, line);
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    lab.all_started();
    job
}

fn ended(lab: &mut Lab, told: Told<'_>, line: &str, end: AttemptEnd) {
    let job = running(lab, told, line);
    let token = lab.token(job);
    lab.end(token, end);
}

fn evicted(lab: &mut Lab, told: Told<'_>, line: &str) {
    let job = running(lab, told, line);
    let urgent = lab.submit("gpus=4 prio=90");
    let victim = lab.token(job);
    assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &[victim], "h1:0,1,2,3"), Ok(()));
    lab.end(victim, exit(143));
}

/// It was granted a card, but its process never came up.
fn cancelled_before_its_process(lab: &mut Lab, told: Told<'_>) {
    let job = submitted(lab, told, "gpus=1");
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    lab.cancel(job);
    let token = lab.token(job);
    lab.report(token, AttemptFact::Ended { end: AttemptEnd::Cancelled, ran_ms: 0 });
}

fn cancelled_late(lab: &mut Lab, told: Told<'_>) {
    let job = running(lab, told, "gpus=1");
    lab.cancel(job);
    let token = lab.token(job);
    lab.end(token, AttemptEnd::Cancelled);
}

fn hosts_lost_for_good(lab: &mut Lab, told: Told<'_>) {
    let job = submitted(lab, told, "gpus=1");
    while lab.begin(job, "0@h1:0").is_ok() {
        lab.all_started();
        let token = lab.token(job);
        lab.end(token, AttemptEnd::Fenced);
    }
}

fn misses_its_deadline(lab: &mut Lab, told: Told<'_>) {
    let line = format!("gpus=1 deadline={}", lab.now_ms + 1_000);
    let job = submitted(lab, told, &line);
    lab.now_ms += 1_000;
    assert_eq!(lab.lapse(job), Ok(()));
}

fn loses_its_own_parent(lab: &mut Lab, told: Told<'_>) {
    let parent = lab.submit("gpus=1");
    submitted(lab, told, &format!("gpus=1 after=ok:{parent}"));
    lab.cancel(parent);
}

fn stories() -> [(&'static str, Story, JobState, &'static str); 13] {
    use JobState::{Cancelled, DeadlineMissed, DependencyFailed, Failed, HostLost, Pending, Preempted};
    let late = "cancelled while it ran";
    [
        ("success", |lab, told| ended(lab, told, "gpus=1", exit(0)), JobState::Succeeded, "+-+"),
        ("failure", |lab, told| ended(lab, told, "gpus=1", exit(1)), Failed, "-++"),
        ("a retry left", |lab, told| ended(lab, told, "gpus=1 retries=1", exit(1)), Pending, "..."),
        (
            "time limit",
            |lab, told| ended(lab, told, "gpus=1 limit=60", AttemptEnd::TimeLimit),
            JobState::TimedOut,
            "-++",
        ),
        (
            "cancelled before it started",
            |lab, told| {
                let job = submitted(lab, told, "gpus=1");
                lab.cancel(job);
            },
            Cancelled,
            "--+",
        ),
        ("cancelled before its process", cancelled_before_its_process, Cancelled, "--+"),
        (late, cancelled_late, Cancelled, "-++"),
        ("preempted and queued again", |lab, told| evicted(lab, told, "gpus=1"), Pending, "..."),
        ("preempted for good", |lab, told| evicted(lab, told, "gpus=1 requeue=no"), Preempted, "-++"),
        (
            "host lost, retried",
            |lab, told| {
                running(lab, told, "gpus=1");
                lab.expire(HostId(2));
            },
            Pending,
            "...",
        ),
        ("hosts lost for good", hosts_lost_for_good, HostLost, "-++"),
        ("deadline missed", misses_its_deadline, DeadlineMissed, "--+"),
        ("dependency failed", loses_its_own_parent, DependencyFailed, "--+"),
    ]
}

/// R009: the table, relation by end; `.` waits on, `+` may start, `-` is given up. It is the one in `apply/depend.rs`.
#[test]
fn the_table_holds() {
    for (name, story, end, row) in stories() {
        // Once with children that wait from before the end, once with children that come after it.
        for early in [true, false] {
            let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
            let mut family = None;
            let children = |lab: &mut Lab, parent: JobId| {
                RELATIONS.map(|relation| lab.submit(&format!("cpus=1 after={relation}:{parent}")))
            };
            let mut told = |lab: &mut Lab, parent: JobId| {
                family = Some((parent, early.then(|| children(lab, parent))));
            };
            story(&mut lab, &mut told);
            let (parent, waiting) = family.expect("told");
            let waiting = waiting.unwrap_or_else(|| children(&mut lab, parent));
            assert_eq!(lab.state.job(parent).map(|j| j.state), Some(end), "{name}");
            for ((relation, child), mark) in RELATIONS.iter().zip(waiting).zip(row.chars()) {
                let job = lab.state.job(child).expect("known");
                let now = match job.state {
                    JobState::DependencyFailed => '-',
                    JobState::Pending if job.pending.len() == 1 => '+',
                    JobState::Pending if job.blocked.len() == 1 => '.',
                    other => panic!("{name}, {relation}: {other}"),
                };
                assert_eq!(now, mark, "{name}, {relation}, early {early}");
            }
            lab.check_copies();
        }
    }
}

/// R008: a chain ends as a whole when its head fails, without recursion, each link with its own end and reason.
#[test]
fn long_chains_end_or_go_on() {
    for links in [100_u64, 5_000] {
        let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
        let head = lab.submit("gpus=1");
        let proposals: Vec<Proposal> = (0..links)
            .map(|at| Proposal {
                request: RequestId::NONE,
                actor: user("t"),
                command: Command::Submit { spec: job_spec(&format!("gpus=1 after=ok:{}", head.0 + at)) },
            })
            .collect();
        for part in proposals.chunks(1_000) {
            lab.apply(part.to_vec());
        }
        let last = JobId(head.0 + links);
        assert_eq!(lab.state.job(last).map(|j| j.blocked.len()), Some(1));
        assert_eq!(lab.begin(head, "0@h1:0"), Ok(()));
        let token = lab.token(head);
        lab.end(token, exit(3));
        assert_eq!(lab.state_of(head), "failed");
        let given_up = lab.state.jobs().filter(|j| j.state == JobState::DependencyFailed).count();
        assert_eq!(given_up as u64, links);
        assert_eq!(view::job(&lab.state, last).and_then(|v| v.exit_status), Some(122));
        assert!(lab.state.jobs().all(|j| j.ended_ms == Some(lab.now_ms)));
        // The queue counts none of them as open.
        assert_eq!(lab.state.queues().named("t").map(|q| q.jobs_open), Some(0));
        // One at the end of the chain, submitted late, is told at once.
        let late = lab.submit(&format!("after=ok:{last}"));
        assert_eq!(lab.state_of(late), "dependency failed");
        let after_all = lab.submit(&format!("after=any:{last}"));
        assert_eq!(lab.state_of(after_all), "pending");
    }
}

/// A chain of `any` is a queue of its own: each link starts when the one before it is over, however that was.
#[test]
fn a_chain_of_any_runs_link_by_link() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
    let mut jobs = vec![lab.submit("gpus=1")];
    for _ in 0..9 {
        let last = jobs[jobs.len() - 1];
        jobs.push(lab.submit(&format!("gpus=1 after=any:{last}")));
    }
    for (at, job) in jobs.iter().enumerate() {
        let ready: Vec<JobId> = lab.state.jobs().filter(|j| j.is_ready()).map(|j| j.id).collect();
        assert_eq!(ready, vec![*job]);
        match at % 3 {
            0 => {
                lab.cancel(*job);
            }
            other => {
                assert_eq!(lab.begin(*job, "0@h1:0"), Ok(()));
                let token = lab.token(*job);
                lab.end(token, exit(other as u8 - 1));
            }
        }
    }
    assert!(lab.state.jobs().all(|j| j.state.is_terminal()));
}

/// A diamond: its tip waits for both sides, is released once, and falls with either.
#[test]
fn diamonds() {
    for (left, right, tip) in [(0, 0, "pending"), (0, 1, "dependency failed"), (1, 0, "dependency failed")] {
        for left_first in [true, false] {
            let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
            let top = lab.submit("gpus=1");
            let sides = [0, 1].map(|_| lab.submit(&format!("gpus=1 after=ok:{top}")));
            let below = lab.submit(&format!("gpus=1 after=ok:{},ok:{}", sides[0], sides[1]));
            let finish = |lab: &mut Lab, job: JobId, code: u8| {
                assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
                let token = lab.token(job);
                lab.end(token, exit(code));
            };
            finish(&mut lab, top, 0);
            let mut order = [(sides[0], left), (sides[1], right)];
            if !left_first {
                order.reverse();
            }
            finish(&mut lab, order[0].0, order[0].1);
            let early = if order[0].1 == 0 { "pending" } else { "dependency failed" };
            assert_eq!(lab.state_of(below), early);
            assert!(!lab.state.job(below).expect("known").is_ready());
            finish(&mut lab, order[1].0, order[1].1);
            assert_eq!(lab.state_of(below), tip);
            assert_eq!(lab.state.job(below).map(|j| j.is_ready()), Some(tip == "pending"));
            lab.check_copies();
        }
    }
}

/// Element by element: each task of the child follows the parent's task of its index, and only that.
#[test]
fn elements_follow_their_own() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=32"]);
    let parent = lab.submit("gpus=1 array=3-21:3");
    let line = |relation| format!("cpus=1 array=3-21:3 after=each-{relation}:{parent}");
    let [ok, not_ok, any] = RELATIONS.map(|relation| lab.submit(&line(relation)));
    let grandchild = lab.submit(&format!("cpus=1 array=3-21:3 after=each-ok:{ok}"));
    let open = |lab: &Lab, job: JobId| -> Vec<u32> {
        let job = lab.state.job(job).expect("known");
        job.pending.ranges().flat_map(|(a, b)| a..b).map(|o| job.task(o).index).collect()
    };
    // 3 succeeds, 6 fails, 9 is cancelled while it runs, 12 before it starts; 15 runs, 18 and 21 wait.
    assert_eq!(lab.begin(parent, "3@h1:0 6@h1:1 9@h1:2 15@h1:3"), Ok(()));
    lab.all_started();
    let tokens = lab.tokens(parent);
    let cancel = |lab: &mut Lab, index| {
        lab.ask(user("t"), RequestId::NONE, Command::Cancel { job: parent, index: Some(index) })
    };
    lab.end(tokens[0], exit(0));
    assert_eq!((open(&lab, ok), open(&lab, not_ok), open(&lab, any)), (vec![3], vec![], vec![3]));
    lab.end(tokens[1], exit(1));
    assert_eq!((open(&lab, ok), open(&lab, not_ok), open(&lab, any)), (vec![3], vec![6], vec![3, 6]));
    cancel(&mut lab, 9);
    assert_eq!(open(&lab, any), vec![3, 6], "its process is not yet gone");
    lab.end(tokens[2], AttemptEnd::Cancelled);
    cancel(&mut lab, 12);
    assert_eq!(open(&lab, not_ok), vec![6, 9]);
    assert_eq!(open(&lab, any), vec![3, 6, 9, 12]);
    // What the first child lost, its own child lost as well, element by element.
    let lost = |lab: &Lab, job| lab.state.job(job).map(|j| j.cancelled.len());
    assert_eq!((lost(&lab, ok), lost(&lab, grandchild)), (Some(3), Some(3)));
    // A task that runs again is not over.
    lab.end(tokens[3], AttemptEnd::Fenced);
    assert_eq!(lab.state.job(parent).map(|j| j.pending.len()), Some(3));
    assert_eq!(open(&lab, any).len(), 4);
    lab.cancel(parent);
    assert_eq!(lab.state_of(parent), "cancelled");
    assert_eq!(open(&lab, any).len(), 7);
    // 15 had run before it was queued again and cancelled; 18 and 21 never did.
    assert_eq!(open(&lab, not_ok), vec![6, 9, 15]);
    assert_eq!(lost(&lab, not_ok), Some(4));
    assert_eq!(open(&lab, ok), vec![3]);
    lab.check_copies();
    // Elements that could never start are no success of the whole.
    assert_eq!(lab.begin(ok, "3@h1"), Ok(()));
    lab.all_started();
    let token = lab.token(ok);
    lab.end(token, exit(0));
    assert_eq!(lab.state_of(ok), "dependency failed");
    assert_eq!(lab.state.job(grandchild).map(|j| (j.pending.len(), j.blocked.len())), Some((1, 0)));
    let after = ["ok", "not-ok", "any"].map(|relation| lab.submit(&format!("after={relation}:{ok}")));
    let states = after.map(|job| lab.state_of(job));
    assert_eq!(states, ["dependency failed", "pending", "pending"]);
}

/// Whole and element by element together: nothing starts before the whole parents are over.
#[test]
fn whole_and_by_element() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB cpus=32"]);
    let gate = lab.submit("gpus=1");
    let parent = lab.submit("gpus=1 array=0-1");
    let child = lab.submit(&format!("cpus=1 array=0-1 after=any:{gate},each-ok:{parent}"));
    assert_eq!(lab.begin(parent, "0@h1:0 1@h1:1"), Ok(()));
    for (token, code) in lab.tokens(parent).into_iter().zip([0, 1]) {
        lab.end(token, exit(code));
    }
    assert_eq!(lab.state.job(child).map(|j| j.blocked.len()), Some(2));
    lab.cancel(gate);
    let counts = |job: &rota_core::Job| (job.pending.len(), job.cancelled.len(), job.blocked.len());
    assert_eq!(lab.state.job(child).map(counts), Some((1, 1, 0)));
    lab.check_copies();
}

/// Indices that are not the parent's, parents of others, the job itself, and jobs that are not there are refused.
#[test]
fn parents_that_cannot_be() {
    let mut lab = Lab::new();
    let mine = lab.submit("array=0-3");
    let theirs = lab.try_submit(user("other"), "cpus=1").expect("accepted");
    let next = theirs.0 + 1;
    for (line, word) in [
        (format!("after=ok:{theirs}"), format!("no job {theirs}")),
        (format!("after=ok:{next}"), format!("no job {next}")),
        ("after=ok:99".to_owned(), "no job 99".to_owned()),
        (format!("array=0-4 after=each-ok:{mine}"), "same array".to_owned()),
        (format!("array=0-3:3 after=each-ok:{mine}"), "same array".to_owned()),
        (format!("after=each-ok:{mine}"), "no array".to_owned()),
        (format!("after=ok:{mine},ok:{mine}"), "twice".to_owned()),
        ("after=ok:0".to_owned(), "job 0".to_owned()),
    ] {
        let error = lab.try_submit(user("t"), &line).expect_err(&line);
        assert_eq!(error.field.as_deref(), Some("after"), "{line}");
        assert!(error.message.contains(&word), "{line}: {error}");
        assert!(error.example.is_some(), "{line}");
    }
    assert_eq!(lab.state.jobs().count(), 2);
    // An operator may chain across tenants.
    let operator = Actor { role: rota_protocol::job::Role::Operator, ..user("ops") };
    assert!(lab.try_submit(operator, &format!("after=any:{theirs}")).is_ok());
}

/// A parent ends while its child is held, or is cancelled by an operator's requeue in between: neither starts it.
#[test]
fn holds_and_requeues_are_no_ends() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB"]);
    let parent = lab.run("gpus=1", "0@h1:0");
    let child = lab.submit(&format!("gpus=1 after=any:{parent} hold=yes"));
    assert_eq!(lab.adjust(user("t"), parent, JobChange::Requeue), Outcome::Done);
    let token = lab.token(parent);
    lab.end(token, exit(143));
    assert_eq!(lab.state_of(parent), "pending");
    assert_eq!(lab.state.job(child).map(|j| j.blocked.len()), Some(1));
    lab.cancel(parent);
    assert_eq!(lab.state.job(child).map(|j| (j.pending.len(), j.is_ready())), Some((1, false)));
    assert_eq!(lab.adjust(user("t"), child, JobChange::Release), Outcome::Done);
    assert_eq!(lab.begin(child, "0@h1:0"), Ok(()));
}

/// A parent that ended well long ago is not forgotten while a child waits for somebody else too.
#[test]
fn a_forgotten_parent_fails_nobody() {
    let mut state = State::new();
    let mut index = 0;
    let mut apply = |state: &mut State, commands: Vec<Command>| {
        index += 1;
        let proposals = commands.into_iter().map(|command| Proposal {
            request: RequestId::NONE,
            actor: Actor::system(),
            command,
        });
        let entry = Entry { format: LOG_FORMAT, at_ms: 1_000_000 + index, proposals: proposals.collect() };
        for outcome in state.apply(index, &entry).outcomes {
            assert!(!matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        }
    };
    let submit = |line: &str| Command::Submit { spec: job_spec(line) };
    let cancel = |job: u64| Command::Cancel { job: JobId(job), index: None };
    let create = Command::CreateCluster {
        cluster: ClusterId(7),
        name: "lab".into(),
        host_name: "founder".into(),
        addr: "10.0.0.1:1".into(),
    };
    apply(&mut state, vec![create]);
    apply(&mut state, vec![submit("cpus=1"), submit("cpus=1"), submit("after=any:1,any:2"), cancel(1)]);
    let per_entry = 1_000;
    let mut next = 4;
    for _ in 0..=TERMINAL_KEPT_MAX / per_entry {
        let commands = (0..per_entry as u64).flat_map(|at| [submit("cpus=1"), cancel(next + at)]);
        let commands: Vec<Command> = commands.collect();
        apply(&mut state, commands);
        next += per_entry as u64;
    }
    assert_eq!(state.job(JobId(4)).map(|j| j.id), None, "the oldest are forgotten");
    assert_eq!(state.job(JobId(1)).map(|j| j.state), Some(JobState::Cancelled), "but not this one");
    assert_eq!(state.jobs().filter(|j| j.state.is_terminal()).count(), TERMINAL_KEPT_MAX + 1);
    assert_eq!(invariant::check(&state), Vec::new());
    let copy = snapshot::decode(&snapshot::encode(&state)).expect("sound snapshot");
    for mut state in [state, copy] {
        apply(&mut state, vec![cancel(2)]);
        assert_eq!(state.job(JobId(3)).map(|j| j.is_ready()), Some(true));
        assert_eq!(state.job(JobId(1)), None, "now nobody waits for it");
        assert_eq!(invariant::check(&state), Vec::new());
    }
}
