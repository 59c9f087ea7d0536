//! What `explain` says is true: the numbers add up in any world, a smaller ask or a shorter limit that it names does
//! start, and a gang is called impossible exactly when an empty cluster cannot hold it.

use crate::lab::{Lab, exit, job_spec, number, user};
use proptest::prelude::*;
use rota_core::explain::{feasible, why, why_with};
use rota_core::placement::{PlanConfig, Planner, View};
use rota_core::state::job::Job;
use rota_core::view;
use rota_protocol::command::{Command, Outcome};
use rota_protocol::job::{AttemptEnd, JobSpec, JobState};
use rota_protocol::plan::Move;
use rota_protocol::queue::QueueSpec;
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::why::{StartBasis, WhyView};
use rota_protocol::{HostId, JobId, RequestId, Token};
use std::sync::Arc;

const HOSTS: [&str; 6] = [
    "gpus=4xA100:80GiB cpus=16 mem=64GiB rack=a",
    "gpus=8xH100:80GiB cpus=32 mem=128GiB rack=a",
    "gpus=4xA100:40GiB cpus=8 mem=32GiB rack=b",
    "cpus=64 mem=64GiB rack=b",
    "gpus=1xL4:24GiB cpus=4 mem=16GiB",
    "gpus=4xA100:80GiB cpus=16 mem=64GiB rack=b",
];

const JOBS: [&str; 16] = [
    "gpus=1 limit=600",
    "gpus=2 model=A100 cpus=4",
    "gpus=4 limit=3600",
    "gpus=8 model=H100 limit=60",
    "gpu_milli=300 limit=600",
    "gpus=1 vram=60GiB cpus=8 mem=32GiB",
    "cpus=20 mem=8GiB limit=7200",
    "gpus=1 gang=3 limit=600",
    "gpus=2 gang=2..4 layout=same-host limit=900",
    "gpus=1 gang=4 layout=same-rack",
    "gpus=2 layout=same-island gang=2 limit=600",
    "gpus=8 model=A100 or=gpus~2;cpus~1 limit=600",
    "gpus=1 array=0-5%2 limit=600",
    "gpus=1 prio=70 limit=600",
    "gpus=3 model=L4",
    "gpus=1 rack=b limit=6000",
];

type Dice = (u8, u8, u8);

/// A world after some days of arbitrary use.
fn world(hosts: &[u8], steps: &[Dice]) -> Lab {
    let mut lab = Lab::new();
    let mut queue = QueueSpec::open("t");
    queue.user_ceiling.gpu_milli = Some(9_000);
    lab.system(Command::SetQueue { queue });
    for (n, dice) in hosts.iter().enumerate() {
        lab.host(&format!("h{n} {}", HOSTS[*dice as usize % HOSTS.len()]));
    }
    for (kind, a, b) in steps {
        step(&mut lab, kind % 12, *a, u64::from(*b));
    }
    lab
}

fn step(lab: &mut Lab, kind: u8, a: u8, b: u64) {
    let host = HostId(2 + u64::from(a) % 6);
    match kind {
        0..=4 => {
            lab.submit(JOBS[a as usize % JOBS.len()]);
        }
        5 | 6 => {
            lab.now_ms += 3_000 + b * 100;
            lab.round();
        }
        7 => {
            let live: Vec<Token> = lab.state.attempts().map(|attempt| attempt.token).collect();
            if let Some(token) = live.get(usize::from(a) % live.len().max(1)) {
                lab.end(*token, exit(0));
            }
        }
        8 if b.is_multiple_of(2) => {
            lab.system(Command::DrainHost { host, reason: "fans".into() });
        }
        8 => {
            lab.system(Command::UndrainHost { host });
        }
        9 if lab.state.host(host).is_some() => {
            let start_ms = lab.now_ms + b * 60_000;
            let reservation = ReservationSpec {
                name: format!("r{a}"),
                hosts: vec![host],
                start_ms,
                end_ms: start_ms + 600_000,
                kept_for: ReservedFor::Nobody,
                reason: String::new(),
            };
            lab.system(Command::Reserve { reservation });
        }
        10 if lab.state.host(host).is_some() && b.is_multiple_of(4) => {
            lab.expire(host);
        }
        _ => lab.now_ms += b * 1_000,
    }
}

fn answer(lab: &Lab, job: JobId) -> WhyView {
    let why = why(&lab.state, job, lab.now_ms).expect("job");
    assert_eq!(why.by_reason.iter().map(|row| row.hosts).sum::<u32>(), why.hosts, "{why:?}");
    why
}

fn submit(lab: &mut Lab, spec: JobSpec) -> JobId {
    match lab.ask(user("t"), RequestId::NONE, Command::Submit { spec }) {
        Outcome::Submitted { job } => job,
        other => panic!("{other:?}"),
    }
}

/// Submitted so instead, the job is started by the very next round. Submitting changes more than the job: the cluster
/// counts it among what it is asked for, which scores rest on, and foresees its length by its width. What is said of
/// this round is said with both as they were.
fn starts(lab: &mut Lab, before: &View, job: &Job, spec: JobSpec) -> bool {
    let id = submit(lab, spec);
    let demand = Arc::clone(&before.demand);
    let mut view = View { demand, demand_version: before.demand_version, ..View::of(&lab.state, lab.now_ms) };
    for other in view.classes.iter_mut().flatten().filter(|other| other.id == id) {
        Arc::make_mut(other).predicted_ms = job.predicted_ms;
    }
    let plan = Planner::default().plan(&view, &PlanConfig::default(), lab.now_ms);
    plan.moves.iter().any(|one| match one {
        Move::Place { task, .. } => task.job == id,
        Move::Start { job, .. } => *job == id,
        _ => false,
    })
}

/// Worlds of each property, each time other ones; `ROTA_PROPTEST_CASES` sets more.
const CASES: u32 = 128;

fn config() -> ProptestConfig {
    let asked = std::env::var_os("ROTA_PROPTEST_CASES").and_then(|text| text.to_str()?.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(CASES), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// R093: whatever the world, every host is counted once for every job, and what is said to fit is started.
    #[test]
    fn numbers_add_up(
        hosts in prop::collection::vec(any::<u8>(), 1..6),
        steps in prop::collection::vec(any::<Dice>(), 1..40),
    ) {
        let mut lab = world(&hosts, &steps);
        let waiting: Vec<JobId> = lab.state.jobs().map(|job| job.id).collect();
        let mut turns = Vec::new();
        for job in waiting {
            let why = answer(&lab, job);
            let waits = why.cause != "none";
            prop_assert_eq!(waits, why.by_reason.iter().all(|row| row.kind != "not_waiting"), "{:?}", why);
            prop_assert!(!why.impossible || why.hint.is_some());
            let row = view::job_row(&lab.state, job).expect("job");
            if row.state == JobState::Pending {
                let word = row.place.as_str();
                prop_assert!(!why.impossible || ["(impossible)", "(ceiling)"].contains(&word), "{:?}", row);
                prop_assert!(word != "(impossible)" || why.impossible, "{:?} {:?}", row, why);
            }
            prop_assert!(why.expected.as_ref().is_none_or(|start| start.at_ms >= lab.now_ms), "{:?}", why);
            if why.cause == "turn" {
                turns.push((job, lab.state.job(job).expect("job").live));
            }
        }
        lab.round();
        for (job, live) in turns {
            let after = lab.state.job(job).expect("job");
            prop_assert!(after.live > live, "{:?} {:?}", job, after.spec);
        }
    }

    /// What `explain` names as what would start now does start now.
    #[test]
    fn what_would_start_does(
        hosts in prop::collection::vec(any::<u8>(), 1..6),
        steps in prop::collection::vec(any::<Dice>(), 1..40),
        last in any::<u8>(),
    ) {
        let mut lab = world(&hosts, &steps);
        let spec = job_spec(JOBS[last as usize % JOBS.len()]);
        let job = submit(&mut lab, spec.clone());
        let view = View::of(&lab.state, lab.now_ms);
        let found = view.classes.iter().flatten().find(|other| other.id == job).cloned().expect("ready");
        let look = Planner::default().look(&view, &PlanConfig::default(), lab.now_ms, &found);
        lab.cancel(job);
        if let Some(smaller) = look.smaller {
            let mut spec = JobSpec { ask: smaller.ask, alternatives: Vec::new(), ..spec.clone() };
            if let Some((parts, gang)) = smaller.parts.zip(spec.gang.as_mut()) {
                (gang.min, gang.max) = (parts, parts);
            }
            let mut other = lab_copy(&lab);
            prop_assert!(starts(&mut other, &view, &found, spec.clone()), "{:?}", spec);
        }
        if let Some(limit_ms) = look.shorter_limit_ms {
            let spec = JobSpec { time_limit_ms: Some(limit_ms), ..spec };
            prop_assert!(starts(&mut lab, &view, &found, spec.clone()), "{:?} {:?}", spec, look.hosts);
        }
    }

    /// A gang is impossible exactly if it does not start on the empty cluster.
    #[test]
    fn impossible_is_what_an_empty_cluster_cannot_hold(
        hosts in prop::collection::vec(any::<u8>(), 1..6),
        job in any::<u8>(),
        parts in 1..12_u32,
    ) {
        let mut lab = world(&hosts, &[]);
        lab.system(Command::SetQueue { queue: QueueSpec::open("t") });
        let mut spec = job_spec(JOBS[job as usize % JOBS.len()]);
        spec.array = None;
        let gang = rota_protocol::work::GangSpec { min: parts, max: parts };
        spec.gang = Some(gang);
        let possible = feasible(&lab.state, "t", &spec);
        let job = submit(&mut lab, spec.clone());
        prop_assert_eq!(answer(&lab, job).impossible, possible.is_err());
        lab.round();
        let started = lab.state.job(job).expect("job").live > 0;
        prop_assert_eq!(started, possible.is_ok(), "{:?}: {:?}", spec, possible);
    }
}

/// The same state, apart from now on.
fn lab_copy(lab: &Lab) -> Lab {
    let mut copy = Lab::new();
    copy.state = lab.state.clone();
    copy.now_ms = lab.now_ms;
    copy
}

/// R006, R036: what is larger than the cluster or its account is told at submit, and no longer once it fits.
#[test]
fn gangs_above_a_bound_are_told_so() {
    let mut lab = Lab::with(&["a gpus=4xA100:80GiB", "b gpus=4xA100:80GiB"]);
    let spec = job_spec("gpus=1 gang=10");
    let error = feasible(&lab.state, "t", &spec).expect_err("10 parts on 8 cards");
    assert_eq!(error.field.as_deref(), Some("gang"));
    assert!(error.message.contains("all hosts together have room for 8"), "{error}");
    let job = submit(&mut lab, spec.clone());
    assert!(answer(&lab, job).impossible);
    // Maintenance makes nothing impossible that was not so before; a host that joins makes it possible.
    let host = lab.host("c gpus=2xA100:80GiB");
    lab.system(Command::DrainHost { host, reason: "fans".into() });
    assert!(!answer(&lab, job).impossible);
    lab.expire(host);
    assert!(!answer(&lab, job).impossible);
    assert!(feasible(&lab.state, "t", &spec).is_ok());
    // A ceiling: of the queue, then of each user.
    let mut queue = QueueSpec::open("t");
    queue.ceiling.gpu_milli = Some(4_000);
    lab.system(Command::SetQueue { queue: queue.clone() });
    let five = job_spec("gpus=1 gang=5");
    let error = feasible(&lab.state, "t", &five).expect_err("5 above 4");
    assert!(error.message.contains("queue t may hold 4 GPUs at most"), "{error}");
    let five = submit(&mut lab, five);
    let why = answer(&lab, five);
    assert!(
        why.impossible && why.account.iter().any(|row| row.full && row.ceiling == Some(4_000)),
        "{why:?}"
    );
    lab.round();
    assert_eq!(lab.state.job(five).expect("job").live, 0, "not started in part");
    queue.ceiling.gpu_milli = None;
    lab.system(Command::SetQueue { queue });
    assert_eq!(answer(&lab, five).cause, "turn");
}

/// An ask is possible if one of its alternatives is.
#[test]
fn an_alternative_makes_it_possible() {
    let lab = Lab::with(&["a gpus=4xA100:80GiB"]);
    let both = job_spec("gpus=8 or=gpus~2;model~A100");
    assert!(feasible(&lab.state, "t", &both).is_ok());
    let none = job_spec("gpus=8 or=gpus~2;model~H100");
    let error = feasible(&lab.state, "t", &none).expect_err("neither");
    assert!(error.message.contains("its alternative is not met either"), "{error}");
}

/// A host that the leader has not heard of is not counted under `fits`.
#[test]
fn silent_hosts_are_named() {
    let mut lab = Lab::with(&["a gpus=1xA100:80GiB"]);
    let job = lab.submit("gpus=1");
    let config = PlanConfig { avoid_hosts: [HostId(2)].into(), ..PlanConfig::default() };
    let why = why_with(&lab.state, job, lab.now_ms, &config).expect("job");
    assert_eq!(why.cause, "silent");
    assert!(why.hint.is_some_and(|hint| hint.contains("agent on a")));
}

/// A compute capability that no card has.
#[test]
fn compute_capability_is_named() {
    let mut lab = Lab::with(&["a gpus=1xA100:80GiB"]);
    let mut facts = lab.facts(HostId(2));
    facts.devices[0].compute_cap = Some(80);
    lab.register(HostId(2), facts, true);
    let mut spec = job_spec("gpus=1");
    spec.ask.compute_cap_min = 90;
    let error = feasible(&lab.state, "t", &spec).expect_err("9.0 above 8.0");
    assert_eq!(error.field.as_deref(), Some("ask.compute_cap"));
    let job = submit(&mut lab, spec);
    let why = answer(&lab, job);
    assert!(why.impossible);
    assert!(why.largest_offer.is_some_and(|offer| offer.contains("8.0")));
    assert!(why.by_reason.iter().any(|row| row.kind == "compute_cap"));
}

/// R093: the ports at which gangs meet are used up.
#[test]
fn ports_used_up_are_named() {
    let mut lab = Lab::with(&["a cpus=4000"]);
    for _ in 0..256 {
        lab.submit("cpus=1 gang=1");
    }
    lab.round();
    assert_eq!(lab.state.attempts().count(), 256);
    let job = lab.submit("cpus=1 gang=1");
    let why = answer(&lab, job);
    assert_eq!(why.cause, "ports", "{why:?}");
    assert!(why.hint.is_some_and(|hint| hint.contains("gang on a")));
}

/// R093: how long each cause kept it waiting, live and when it is over; time before its begin time is told apart.
#[test]
fn waits_are_summed_by_cause() {
    let mut lab = Lab::with(&["a gpus=1xA100:80GiB"]);
    let first = lab.submit("gpus=1");
    lab.round();
    let begin = lab.now_ms + 30_000;
    let job = lab.submit(&format!("gpus=1 after=any:{first} begin={begin} hold=yes"));
    let change = rota_protocol::command::JobChange::Release;
    lab.now_ms += 5_000;
    lab.ask(user("t"), RequestId::NONE, Command::Adjust { job, change });
    lab.now_ms += 10_000;
    let token = lab.token(first);
    lab.end(token, exit(0));
    lab.now_ms += 25_000;
    let waits = |lab: &Lab| -> Vec<(String, u64)> {
        answer(lab, job).waits.into_iter().map(|wait| (wait.cause, wait.ms / 1_000)).collect()
    };
    let so_far = [("begin", 15), ("dependency", 10), ("room", 10), ("hold", 5)];
    let text = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        rows.iter().map(|(cause, s)| ((*cause).to_owned(), *s)).collect()
    };
    let sorted = |mut rows: Vec<(String, u64)>| {
        rows.sort();
        rows
    };
    assert_eq!(sorted(waits(&lab)), sorted(text(&so_far)));
    lab.round();
    let token = lab.token(job);
    lab.start(token);
    lab.now_ms += 60_000;
    lab.end(token, exit(0));
    lab.now_ms += 1_000_000;
    let over = [("runs", 60), ("begin", 15), ("dependency", 10), ("room", 10), ("hold", 5)];
    assert_eq!(sorted(waits(&lab)), sorted(text(&over)));
    assert_eq!(answer(&lab, job).waited_ms, 40_000);
}

/// What was put out and waits again has waited for both.
#[test]
fn who_waits_again_has_waited_longer() {
    let mut lab = Lab::with(&["a gpus=1xA100:80GiB"]);
    let job = lab.submit("gpus=1");
    lab.now_ms += 2_000;
    lab.round();
    let token = lab.token(job);
    lab.start(token);
    lab.now_ms += 60_000;
    lab.end(token, AttemptEnd::Vanished { reason: "the host shut down".into() });
    lab.now_ms += 7_000;
    assert_eq!(answer(&lab, job).waited_ms, 9_000);
}

/// The start that is said for an account at its ceiling is when its own work is over by its limits.
#[test]
fn an_account_at_its_ceiling_is_told_when() {
    let mut lab = Lab::with(&["a gpus=8xA100:80GiB"]);
    let mut queue = QueueSpec::open("t");
    queue.ceiling.gpu_milli = Some(2_000);
    lab.system(Command::SetQueue { queue });
    for limit in ["600", "1200"] {
        lab.submit(&format!("gpus=1 limit={limit}"));
    }
    lab.round();
    let job = lab.submit("gpus=2");
    let why = answer(&lab, job);
    assert_eq!(why.cause, "ceiling");
    let expected = why.expected.expect("by the limits");
    assert_eq!(expected.basis, StartBasis::Account);
    assert_eq!(expected.at_ms, lab.now_ms + number("1210") * 1_000);
    assert_eq!(why.smaller_ask, None, "nothing is left of the ceiling");
}

/// A user's bound counts what the user holds in queues below as well, for the planner as for the log.
#[test]
fn a_users_bound_above_is_seen_from_below() {
    let mut lab = Lab::with(&["a gpus=8xA100:80GiB"]);
    let mut above = QueueSpec::open("t");
    above.user_ceiling.gpu_milli = Some(3_000);
    lab.system(Command::SetQueue { queue: above });
    lab.system(Command::SetQueue { queue: QueueSpec::open("t/a") });
    lab.system(Command::SetQueue { queue: QueueSpec::open("t/b") });
    let many = lab.submit("gpus=1 array=0-4 queue=t/a");
    lab.submit("gpus=2 queue=t/b");
    // Nothing that the planner proposes is refused.
    lab.round();
    assert_eq!(lab.state.attempts().map(|attempt| attempt.devices.len()).sum::<usize>(), 3);
    let why = answer(&lab, many);
    assert_eq!(why.cause, "ceiling");
    let full: Vec<&str> = why.account.iter().filter(|row| row.full).map(|row| row.queue.as_str()).collect();
    assert_eq!((full, why.account.iter().any(|row| row.of_user)), (vec!["t"], true));
}
