//! How fast entries are applied: 100,000 submissions and as many grants, in entries of 1,000. No law, a measure:
//! `cargo run --release -p rota-core --example apply_speed`.

// The core has no clock; whoever measures it needs one.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use rota_core::State;
use rota_protocol::ask::Ask;
use rota_protocol::command::{Command, Entry, LOG_FORMAT, Outcome, Proposal};
use rota_protocol::device::{HostFacts, HostRegistration};
use rota_protocol::job::{Actor, JobSpec, Role};
use rota_protocol::plan::{Move, Part, Plan};
use rota_protocol::{BootId, ClusterId, HostId, JobId, LeaseEpoch, RequestId};
use std::time::Instant;

const JOBS: u32 = 100_000;
const BATCH: u32 = 1_000;

fn spec() -> JobSpec {
    let args = ["python", "train.py", "--config", "configs/base.yaml"];
    JobSpec {
        name: "train-resnet50".into(),
        argv: args.map(|a| a.as_bytes().to_vec()).to_vec(),
        env: vec![(b"SEED".to_vec(), b"17".to_vec())],
        workdir: b"/home/alice/project".to_vec(),
        ask: Ask { cpus_milli: 1_000, mem_mib: 1_024, ..Ask::default() },
        time_limit_ms: Some(3_600_000),
        ..JobSpec::default()
    }
}

fn entry(actor: &Actor, commands: impl Iterator<Item = (u128, Command)>) -> Entry {
    let one = |(request, command)| Proposal { request: RequestId(request), actor: actor.clone(), command };
    Entry { format: LOG_FORMAT, at_ms: 1_000, proposals: commands.map(one).collect() }
}

/// A cluster of one host that holds all the jobs at once.
fn cluster() -> State {
    let mut state = State::new();
    let (name, host_name, addr) = ("c".to_owned(), "h".to_owned(), "a:1".to_owned());
    let create = Command::CreateCluster { cluster: ClusterId(1), name, host_name, addr: addr.clone() };
    let facts = HostFacts {
        cpus_milli: JOBS * 1_000,
        mem_mib: u64::from(JOBS) * 1_024,
        devices: Vec::new(),
        labels: Default::default(),
        version: "1".into(),
        notes: Default::default(),
    };
    let registration = HostRegistration { boot: BootId(1), addr, facts };
    let register = Command::RegisterHost { host: HostId(1), registration };
    let entry = entry(&Actor::system(), [(0, create), (0, register)].into_iter());
    state.apply(1, &entry);
    state
}

/// Applies all entries; gives microseconds for each job.
fn apply(state: &mut State, entries: &[Entry], good: impl Fn(&Outcome) -> bool) -> f64 {
    let start = Instant::now();
    for entry in entries {
        let applied = state.apply(state.applied_index() + 1, entry);
        assert!(applied.outcomes.iter().all(&good), "{:?}", applied.outcomes);
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(JOBS)
}

fn main() {
    let user = Actor { tenant: "vision".into(), user: "alice".into(), role: Role::Submitter };
    let submit = |n: u32| (u128::from(n) + 1, Command::Submit { spec: spec() });
    let submits: Vec<Entry> =
        (0..JOBS / BATCH).map(|b| entry(&user, (b * BATCH..(b + 1) * BATCH).map(submit))).collect();
    let start = |n: u32| {
        let part = Part { index: 0, host: HostId(1), epoch: LeaseEpoch(1), devices: Vec::new() };
        Move::Start { job: JobId(u64::from(n) + 1), choice: 0, parts: vec![part] }
    };
    let commit = |b: u32| {
        let moves = (b * BATCH..(b + 1) * BATCH).map(start).collect();
        entry(
            &Actor::system(),
            std::iter::once((0, Command::CommitPlan { plan: Plan { seen_index: 1, moves } })),
        )
    };
    let grants: Vec<Entry> = (0..JOBS / BATCH).map(commit).collect();
    for _ in 0..5 {
        let mut state = cluster();
        let submit_us = apply(&mut state, &submits, |o| matches!(o, Outcome::Submitted { .. }));
        let planned = |o: &Outcome| matches!(o, Outcome::Planned { refused } if refused.is_empty());
        let grant_us = apply(&mut state, &grants, planned);
        assert_eq!(state.attempts().count(), JOBS as usize);
        println!("submit {submit_us:.2} us, grant {grant_us:.2} us for each job");
    }
}
