//! Histories of a few jobs whose course can be told by hand, and files that are none.

use super::history::{FORMAT, Held, HistoryJob, VERSION};
use super::*;
use rota_protocol::JobId;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::job::JobState;
use rota_protocol::queue::QueueSpec;
use rota_protocol::work::{Dependency, GangSpec, Relation};

mod told;

/// The first submission, ms since the epoch.
const T0: u64 = 1_700_000_000_000;

fn card(host: &str, index: u32) -> DeviceFacts {
    DeviceFacts {
        uuid: DeviceUuid(format!("GPU-{host}-{index}")),
        kind: DeviceKind::Gpu,
        model: "NVIDIA H100 80GB HBM3".into(),
        vram_mib: Some(81_920),
        bus: None,
        index: Some(index),
        numa: None,
        compute_cap: Some(90),
        island: None,
        health: DeviceHealth::Healthy,
        detail: Default::default(),
    }
}

fn host(name: &str, cards: u32) -> HistoryHost {
    HistoryHost {
        name: name.into(),
        cpus_milli: cards * 8_000,
        mem_mib: u64::from(cards) * 65_536,
        labels: BTreeMap::new(),
        devices: (0..cards).map(|index| card(name, index)).collect(),
    }
}

/// A job of one card, that came at `at_s` and ran `run_s`.
fn job(number: u64, at_s: u64, run_s: u64) -> HistoryJob {
    HistoryJob {
        job: JobId(number),
        name: format!("job-{number}"),
        tenant: "lab".into(),
        user: "ann".into(),
        queue: String::new(),
        priority: 50,
        state: JobState::Succeeded,
        submitted_ms: T0 + at_s * 1_000,
        started_ms: Some(T0 + at_s * 1_000),
        ended_ms: Some(T0 + (at_s + run_s) * 1_000),
        ask: Ask { gpu_milli: CARD_MILLI, cpus_milli: 1_000, ..Ask::default() },
        alternatives: Vec::new(),
        array: None,
        gang: None,
        layout: Default::default(),
        time_limit_ms: Some(3_600_000),
        after: Vec::new(),
        begin_ms: None,
        deadline_ms: None,
        hold: false,
        preemptible: true,
        requeue: true,
        ran_ms: vec![run_s * 1_000],
        held: None,
    }
}

fn history(hosts: Vec<HistoryHost>, jobs: Vec<HistoryJob>) -> History {
    History { format: FORMAT.into(), version: VERSION, exported_ms: T0, hosts, queues: Vec::new(), jobs }
}

fn replayed(history: &History, change: Change) -> ReplayReport {
    run(history, &ReplayConfig { change, ..ReplayConfig::default() }).expect("it can be replayed")
}

fn waits_s(run: &Figures) -> (f64, f64, f64) {
    (run.mean_wait_s, run.median_wait_s, run.max_wait_s)
}

#[test]
fn two_jobs_on_one_card_wait_and_on_two_they_do_not() {
    let history = history(vec![host("a", 1)], vec![job(1, 0, 100), job(2, 10, 100)]);
    let add = AddedHosts { hosts: 1, cards: 1, model: "h100".into(), vram_mib: None };
    let report = replayed(&history, Change { add: vec![add], ..Change::default() });
    assert_eq!(waits_s(&report.recorded), (0.0, 0.0, 0.0));
    assert_eq!(waits_s(&report.replayed.figures), (45.0, 0.0, 90.0));
    assert_eq!(report.replayed.figures.makespan_s, 200.0);
    assert_eq!(report.replayed.figures.utilisation_percent, 100.0);
    let what_if = report.what_if.expect("something is changed");
    assert_eq!((what_if.hosts, what_if.gpus), (2, 2));
    assert_eq!(waits_s(&what_if.figures), (0.0, 0.0, 0.0));
    assert_eq!(what_if.figures.makespan_s, 110.0);
    assert_eq!(what_if.figures.utilisation_percent, 200.0 * 100.0 / 220.0);
    assert_eq!((report.jobs, report.run_times_guessed), (2, 0));
}

#[test]
fn times_may_be_counted_from_zero() {
    let mut history = history(vec![host("a", 1)], vec![job(1, 0, 100), job(2, 10, 100)]);
    for job in &mut history.jobs {
        job.submitted_ms -= T0;
        (job.started_ms, job.ended_ms) = (None, None);
    }
    let report = replayed(&history, Change::default());
    assert_eq!(waits_s(&report.replayed.figures), (45.0, 0.0, 90.0));
    assert_eq!((report.recorded.started, report.recorded.never_started), (0, 2));
    assert_eq!(report.what_if, None);
}

#[test]
fn gangs_wait_for_all_parts_and_children_for_their_parents() {
    let gang = HistoryJob {
        gang: Some(GangSpec { min: 2, max: 2 }),
        ran_ms: vec![50_000, 50_000],
        ..job(2, 10, 50)
    };
    let after = vec![Dependency { job: JobId(2), relation: Relation::Ok, each: false }];
    let child = HistoryJob { after, ..job(3, 11, 5) };
    let history = history(vec![host("a", 2)], vec![job(1, 0, 100), gang, child]);
    let report = replayed(&history, Change::default());
    // The gang waits for the card of the first job, its child for its end at 150 s.
    assert_eq!(waits_s(&report.replayed.figures), ((0.0 + 90.0 + 139.0) / 3.0, 90.0, 139.0));
    assert_eq!(report.replayed.figures.makespan_s, 155.0);
}

#[test]
fn a_child_of_a_failed_job_never_starts() {
    let failed = HistoryJob { state: JobState::Failed, ..job(1, 0, 10) };
    let after = vec![Dependency { job: JobId(1), relation: Relation::Ok, each: false }];
    let child = HistoryJob { after, started_ms: None, ran_ms: Vec::new(), ..job(2, 1, 5) };
    let report = replayed(&history(vec![host("a", 2)], vec![failed, child]), Change::default());
    assert_eq!((report.replayed.figures.started, report.replayed.figures.never_started), (1, 1));
    assert_eq!(report.run_times_guessed, 1);
}

#[test]
fn urgent_work_ends_other_work_which_starts_again() {
    let urgent = HistoryJob { priority: 90, ..job(2, 20, 30) };
    let report = replayed(&history(vec![host("a", 1)], vec![job(1, 0, 100), urgent]), Change::default());
    let figures = &report.replayed.figures;
    assert_eq!(figures.evictions, Some(1));
    // Asked at 20, gone at 21, the urgent one until 51, then the first from nothing.
    assert_eq!((figures.max_wait_s, figures.makespan_s), (1.0, 151.0));
    assert_eq!(figures.utilisation_percent, 100.0);
}

#[test]
fn what_was_cancelled_while_it_waited_is_cancelled_again() {
    let cancelled = HistoryJob {
        state: JobState::Cancelled,
        started_ms: None,
        ended_ms: Some(T0 + 50_000),
        ran_ms: Vec::new(),
        ..job(2, 10, 0)
    };
    let history = history(vec![host("a", 1)], vec![job(1, 0, 100), cancelled, job(3, 20, 10)]);
    let report = replayed(&history, Change::default());
    let figures = &report.replayed.figures;
    assert_eq!((figures.started, figures.never_started, figures.max_wait_s), (2, 1, 80.0));
}

/// Of ten million tasks a few thousand ran: no more than the time until the cancel is replayed.
#[test]
fn an_array_that_was_cancelled_is_replayed_no_further_than_it_came() {
    let array = Some(rota_protocol::job::ArraySpec { start: 0, end: 9_999_999, step: 1, parallel_max: 0 });
    let cut = HistoryJob {
        state: JobState::Cancelled,
        array,
        ended_ms: Some(T0 + 50_000),
        ran_ms: vec![10_000],
        ..job(1, 0, 0)
    };
    let report = replayed(&history(vec![host("a", 1)], vec![cut, job(2, 20, 10)]), Change::default());
    let figures = &report.replayed.figures;
    assert_eq!((figures.started, figures.makespan_s), (2, 50.0));
}

#[test]
fn queues_that_jobs_name_are_there() {
    let mut named = job(1, 0, 10);
    named.queue = "research/vision".into();
    let report = replayed(&history(vec![host("a", 1)], vec![named]), Change::default());
    assert_eq!(report.replayed.figures.started, 1);
}

#[test]
fn a_seed_moves_submissions_one_way() {
    let jobs: Vec<HistoryJob> = (1..40).map(|number| job(number, number * 7, 60)).collect();
    let history = history(vec![host("a", 2)], jobs);
    let of = |seed: u64, jitter_ms: u64| {
        let mut report = run(&history, &ReplayConfig { seed, jitter_ms, ..ReplayConfig::default() }).unwrap();
        report.seconds = 0.0;
        serde_json::to_string(&report).unwrap()
    };
    assert_eq!(of(1, 60_000), of(1, 60_000));
    assert_ne!(of(1, 60_000), of(2, 60_000));
    assert_eq!(of(1, 0).replace("\"seed\":1", "\"seed\":2"), of(2, 0));
}

#[test]
fn every_policy_can_replay() {
    let jobs: Vec<HistoryJob> = (1..20).map(|number| job(number, number, 60)).collect();
    let history = history(vec![host("a", 2), host("b", 2)], jobs);
    for policy in Policy::ALL {
        let report = replayed(&history, Change { policy: Some(policy), ..Change::default() });
        let what_if = report.what_if.expect("something is changed");
        assert_eq!((what_if.policy.as_str(), what_if.figures.started), (policy.name(), 19));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let good = || history(vec![host("a", 1)], vec![job(1, 0, 100), job(2, 10, 100)]);
    let said = |change: &dyn Fn(&mut History)| {
        let mut history = good();
        change(&mut history);
        run(&history, &ReplayConfig::default()).expect_err("it is wrong").to_string()
    };
    assert_eq!(said(&|h| h.version = 9), "format is \"rota-history\" 9, want \"rota-history\" up to 1");
    assert_eq!(said(&|h| h.hosts.clear()), "the history has no hosts");
    assert_eq!(said(&|h| h.jobs.clear()), "the history has no jobs");
    assert_eq!(said(&|h| h.jobs[1].job = JobId(1)), "job 1 is listed twice");
    assert_eq!(
        said(&|h| h.jobs[1].started_ms = Some(5)),
        format!("job 2: started_ms is 5, before submitted_ms at {}", T0 + 10_000)
    );
    assert!(said(&|h| h.jobs[1].priority = 7_000).starts_with("job 2: priority: "));
    assert!(said(&|h| h.jobs[0].tenant.push(char::from(7))).starts_with("job 1: tenant: "));
    let gone = ReplayConfig {
        change: Change { without: vec!["b".into()], ..Change::default() },
        ..ReplayConfig::default()
    };
    assert_eq!(run(&good(), &gone).expect_err("no such host").to_string(), "the history has no host \"b\"");
    let twice = ReplayConfig {
        change: Change { without: vec!["a".into(), "a".into()], ..Change::default() },
        ..ReplayConfig::default()
    };
    assert_eq!(run(&good(), &twice).expect_err("twice").to_string(), "host \"a\" is to be left out twice");
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let path = std::env::temp_dir().join(format!("rota-sim-history-{}.json", std::process::id()));
    let mut written = history(vec![host("a", 1), host("b", 2)], vec![job(1, 0, 100), job(2, 5, 3)]);
    written.queues.push(QueueSpec::open("lab"));
    std::fs::write(&path, written.text().unwrap()).unwrap();
    assert_eq!(History::read(&path).unwrap(), written);
    std::fs::write(&path, "{\n\"format\": \"rota-history\",\n\"version\": \"one\"}").unwrap();
    let said = History::read(&path).unwrap_err().to_string();
    assert!(said.ends_with("expected u32 at line 3 column 16"), "{said}");
    std::fs::remove_file(&path).unwrap();
}

/// What was added to hosts' and queues' rows since, a file of then does not have.
#[test]
fn a_history_of_an_older_version_is_read() {
    let mut newest = history(vec![host("a", 1)], vec![job(1, 0, 100)]);
    newest.queues.push(QueueSpec::open("lab"));
    let mut text: serde_json::Value =
        serde_json::from_str(&newest.text().expect("it is written")).expect("and is JSON");
    let mut take = |row: &str, name: &str| {
        let row = text.pointer_mut(row).and_then(serde_json::Value::as_object_mut).expect("it has the row");
        row.remove(name).expect("the newest version has the field");
    };
    take("/hosts/0/devices/0", "detail");
    take("/queues/0", "idle");
    assert_eq!(serde_json::from_value::<History>(text).expect("it is read"), newest);
}
