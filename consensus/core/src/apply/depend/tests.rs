//! Element by element: what it costs, counted in runs of tasks and not by a clock, and that it is what each task alone
//! would say.

use super::*;
use crate::state::runs::seen;
use rota_protocol::command::{Command, Entry, LOG_FORMAT, Outcome, Proposal};
use rota_protocol::job::{Actor, ArraySpec, JobSpec};
use rota_protocol::plan::{Move, Plan};
use rota_protocol::{ClusterId, RequestId};

const RELATIONS: [Relation; 3] = [Relation::Ok, Relation::NotOk, Relation::Any];
/// As many elements as an array may have.
const MANY: u32 = rota_protocol::limits::ARRAY_TASKS_MAX;
/// Runs that may be looked at for one child, however many elements it has.
const RUNS_MAX: u64 = 64;

struct Small(State);

impl Small {
    fn new() -> Self {
        let mut small = Self(State::new());
        let (name, host_name, addr) = ("c".to_owned(), "h".to_owned(), "a:1".to_owned());
        small.ask(Command::CreateCluster { cluster: ClusterId(1), name, host_name, addr });
        small
    }

    fn ask(&mut self, command: Command) -> Outcome {
        let index = self.0.applied_index() + 1;
        let proposal = Proposal { request: RequestId::NONE, actor: Actor::system(), command };
        let entry = Entry { format: LOG_FORMAT, at_ms: 1_000 * index, proposals: vec![proposal] };
        let outcome = self.0.apply(index, &entry).outcomes.remove(0);
        assert!(!matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        outcome
    }

    fn submit(&mut self, tasks: u32, after: Vec<Dependency>) -> JobId {
        self.submit_until(tasks, after, None)
    }

    fn submit_until(&mut self, tasks: u32, after: Vec<Dependency>, deadline_ms: Option<u64>) -> JobId {
        let array = ArraySpec { start: 0, end: tasks - 1, step: 1, parallel_max: 2 };
        let spec = JobSpec {
            argv: vec![b"true".to_vec()],
            workdir: b"/".to_vec(),
            array: Some(array),
            hold: true,
            after,
            deadline_ms,
            ..JobSpec::default()
        };
        match self.ask(Command::Submit { spec }) {
            Outcome::Submitted { job } => job,
            other => panic!("{other:?}"),
        }
    }

    fn job(&self, id: JobId) -> &Job {
        self.0.job(id).expect("known")
    }
}

fn each(job: JobId, relation: Relation) -> Dependency {
    Dependency { job, relation, each: true }
}

/// A long array falls, with a child for each relation and a child of each child; one more comes after it is over. Each
/// way to its end costs by runs: so many rows are visited as there are jobs, and a bounded number of runs for each.
#[test]
fn ten_million_elements_cost_what_one_run_does() {
    type End = fn(&mut Small, JobId);
    let ends: [(&str, End); 4] = [
        ("cancel", |small, job| {
            small.ask(Command::Cancel { job, index: None });
        }),
        ("cancel of some, then of all", |small, job| {
            for index in [0, 7, 8, MANY - 1, MANY / 2] {
                small.ask(Command::Cancel { job, index: Some(index) });
            }
            small.ask(Command::Cancel { job, index: None });
        }),
        ("lapse", |small, job| {
            while small.job(job).spec.deadline_ms.is_some_and(|at| at > small.0.clock_ms() + 1_000) {
                small.ask(Command::CommitPlan { plan: Plan::default() });
            }
            small.ask(Command::CommitPlan {
                plan: Plan { moves: vec![Move::Lapse { job }], ..Plan::default() },
            });
        }),
        ("its own parent fails", |small, job| {
            let parent = small.job(job).spec.after[0].job;
            small.ask(Command::Cancel { job: parent, index: None });
        }),
    ];
    for (name, end) in ends {
        let mut small = Small::new();
        let head = small.submit(MANY, Vec::new());
        let deadline_ms = (name == "lapse").then_some(20_000);
        let job = small.submit_until(MANY, vec![each(head, Relation::Ok)], deadline_ms);
        let children = RELATIONS.map(|relation| small.submit(MANY, vec![each(job, relation)]));
        let theirs = children
            .map(|child| small.submit(MANY, vec![each(child, Relation::Any), each(head, Relation::Any)]));
        seen::take();
        end(&mut small, job);
        let late = small.submit(MANY, vec![each(job, Relation::Ok)]);
        let runs = seen::take();
        assert!(small.job(job).state.is_terminal(), "{name}");
        let states = children.map(|child| small.job(child).state);
        let gone = JobState::DependencyFailed;
        assert_eq!(states, [gone, gone, JobState::Pending], "{name}");
        assert_eq!(small.job(children[2]).pending.len(), MANY, "{name}");
        assert_eq!(small.job(late).state, gone, "{name}");
        assert!(
            theirs
                .iter()
                .all(|child| small.job(*child).blocked.len() + small.job(*child).pending.len() == MANY)
        );
        // Eight jobs, and those of single indices.
        assert!(runs > 0 && runs < 16 * RUNS_MAX, "{name}: {runs} runs");
        // And so do the laws that are checked when a snapshot is read.
        assert_eq!(crate::invariant::check(&small.0), Vec::new(), "{name}");
        assert!(seen::take() < 16 * RUNS_MAX, "{name}");
    }
}

/// One element's end looks at that element alone, in an array whose elements all ended otherwise than their neighbours.
#[test]
fn one_element_costs_the_same_among_many_runs() {
    let mut small = Small::new();
    let tasks = 20_000;
    let parent = small.submit(tasks, Vec::new());
    let child = small.submit(tasks, vec![each(parent, Relation::Any)]);
    for index in (0..tasks).step_by(2) {
        seen::take();
        small.ask(Command::Cancel { job: parent, index: Some(index) });
        assert!(seen::take() <= RUNS_MAX, "{index}");
    }
    assert_eq!(small.job(child).pending.len(), tasks / 2);
}

/// Any mixture of ends, any two relations, whichever parent is over first: the tasks that may start and those that never can
/// are those that each task alone would name.
#[test]
fn runs_say_what_each_task_would() {
    const TASKS: u32 = 40;
    let mut x = 11_u64;
    let mut draw = |below: u64| {
        x = crate::hash::mix(x);
        (x >> 16) % below
    };
    let mut moved = [0, 0];
    for _ in 0..400 {
        let mut small = Small::new();
        let parents = [0, 1].map(|_| small.submit(TASKS, Vec::new()));
        let relations = [0, 1].map(|_| RELATIONS[draw(3) as usize]);
        let after: Vec<Dependency> = (0..2).map(|at| each(parents[at], relations[at])).collect();
        let child = small.submit(TASKS, after.clone());
        for parent in parents {
            // Runs of a few tasks end alike.
            let mut kind = 0;
            for ordinal in 0..TASKS {
                if draw(3) == 0 {
                    kind = draw(6);
                }
                small.0.jobs.update(parent, 0, |job| {
                    job.pending.remove(ordinal);
                    match kind {
                        0 => job.succeeded.insert(ordinal),
                        1 => job.failed.insert(ordinal),
                        2 => job.cancelled.insert(ordinal),
                        3 => job.stopped.insert(ordinal) && job.cancelled.insert(ordinal),
                        4 => job.stopped.insert(ordinal) && job.pending.insert(ordinal),
                        _ => job.pending.insert(ordinal),
                    }
                });
            }
        }
        let stands = |small: &Small, ordinal: u32| {
            let one = |dep: &Dependency| of_task(small.job(dep.job), dep.relation, ordinal);
            after.iter().map(one).fold(Standing::Met, worse)
        };
        let all =
            |wanted: Standing| (0..TASKS).filter(|at| stands(&small, *at) == wanted).collect::<Vec<u32>>();
        let (met, never) = (all(Standing::Met), all(Standing::Never));
        let job = small.job(child);
        let settled = Settled::of(&small.0, job, hull(&job.blocked));
        assert_eq!(settled.open.ordinals().collect::<Vec<u32>>(), met, "{relations:?}");
        assert_eq!(settled.lost.ordinals().collect::<Vec<u32>>(), never, "{relations:?}");
        moved[0] += met.len();
        moved[1] += never.len();
    }
    assert!(moved.iter().all(|count| *count > 1_000), "{moved:?}");
}

/// The table for one task, word by word.
fn of_task(parent: &Job, relation: Relation, ordinal: u32) -> Standing {
    let succeeded = parent.succeeded.contains(ordinal);
    let failed = parent.failed.contains(ordinal);
    if !succeeded && !failed && !parent.cancelled.contains(ordinal) {
        return Standing::Open;
    }
    let after_start = failed || parent.stopped.contains(ordinal);
    match (relation, succeeded, after_start) {
        (Relation::Any, _, _) | (Relation::Ok, true, _) | (Relation::NotOk, false, true) => Standing::Met,
        _ => Standing::Never,
    }
}
