//! What a history tells beside the times of its jobs: who sent them, what attempts held, and values that none has.

use super::*;

/// An operator may use a queue that names no tenants, or others; and who wrote the history saw but part of the tree.
#[test]
fn what_an_operator_submitted_is_replayed() {
    let mut jobs = vec![job(1, 0, 10), job(2, 0, 10), job(3, 0, 10)];
    for (job, queue) in jobs.iter_mut().zip(["prod", "team/vision", "lab"]) {
        job.queue = queue.into();
    }
    let mut history = history(vec![host("a", 3)], jobs);
    let half = rota_protocol::queue::Amounts { gpu_milli: 500, ..Default::default() };
    let vision =
        QueueSpec { tenants: vec!["other".into()], guarantee: half, ..QueueSpec::open("team/vision") };
    history.queues = vec![QueueSpec::open("prod"), vision];
    let report = replayed(&history, Change::default());
    assert_eq!(report.replayed.figures.started, 3);
    let names: Vec<&str> = report.replayed.figures.queues.iter().map(|row| row.queue.as_str()).collect();
    assert_eq!(names, ["lab", "prod", "team/vision"]);
}

#[test]
fn what_came_too_late_for_its_deadline_is_given_up_and_not_refused() {
    let late = HistoryJob { deadline_ms: Some(T0 + 1_000), begin_ms: Some(T0), ..job(2, 0, 10) };
    let never = HistoryJob { begin_ms: Some(u64::MAX - 1), deadline_ms: Some(u64::MAX), ..job(3, 0, 10) };
    let history = history(vec![host("a", 1)], vec![job(1, 0, 100), late, never]);
    let config = ReplayConfig { jitter_ms: 3_600_000, seed: 3, ..ReplayConfig::default() };
    let report = run(&history, &config).expect("it can be replayed");
    let (started, never) = (report.replayed.figures.started, report.replayed.figures.never_started);
    // The second if it comes before the first.
    assert!(started >= 1 && never >= 1 && started + never == 3, "{started} {never}");
}

#[test]
fn waits_are_told_queue_by_queue() {
    let mut jobs = vec![job(1, 0, 100), job(2, 10, 100), job(3, 20, 100)];
    jobs[2].queue = "prod".into();
    let report = replayed(&history(vec![host("a", 1)], jobs), Change::default());
    let row = |queue: &str, jobs, mean_wait_s, median_wait_s, max_wait_s| QueueWaits {
        queue: queue.into(),
        jobs,
        started: jobs,
        mean_wait_s,
        median_wait_s,
        max_wait_s,
    };
    assert_eq!(
        report.replayed.figures.queues,
        [row("lab", 2, 45.0, 0.0, 90.0), row("prod", 1, 180.0, 180.0, 180.0)]
    );
    assert_eq!(report.recorded.queues, [row("lab", 2, 0.0, 0.0, 0.0), row("prod", 1, 0.0, 0.0, 0.0)]);
}

/// Where a history says what its attempts held, nothing is reckoned from one task to others: 71 of these hundred
/// never ran.
#[test]
fn what_attempts_held_is_not_reckoned_from_one_to_others() {
    let array = rota_protocol::job::ArraySpec { start: 0, end: 99, step: 1, parallel_max: 0 };
    let mut one = HistoryJob {
        array: Some(array),
        state: JobState::Cancelled,
        ran_ms: vec![2_000; 29],
        held: Some(Held { ms: 60_000, gpu_ms: 60_000, evictions: 3 }),
        ..job(1, 0, 60)
    };
    assert_eq!(one.gpu_hours(), 60.0 / 3_600.0);
    let figures = replayed(&history(vec![host("a", 1)], vec![one.clone()]), Change::default()).recorded;
    assert_eq!((figures.utilisation_percent, figures.evictions), (100.0, Some(3)));
    // A file of an older version: the others as those on record.
    one.held = None;
    assert_eq!(one.gpu_hours(), 200.0 / 3_600.0);
    assert_eq!(replayed(&history(vec![host("a", 1)], vec![one]), Change::default()).recorded.evictions, None);
}

#[test]
fn values_that_no_cluster_sees_are_refused_by_name() {
    let said = |change: &dyn Fn(&mut History)| {
        let mut history = history(vec![host("a", 1)], vec![job(1, 0, 100), job(2, 10, 100)]);
        change(&mut history);
        run(&history, &ReplayConfig::default()).expect_err("it is wrong").to_string()
    };
    let most = u64::MAX;
    for (error, want) in [
        (
            said(&|h| h.jobs[1].submitted_ms = most),
            "job 2: submitted_ms is 18446744073709551615, want 1700000000000 to",
        ),
        (said(&|h| h.jobs[1].started_ms = Some(most)), "job 2: started_ms is 18446744073709551615, want"),
        (said(&|h| h.jobs[0].ended_ms = Some(most)), "job 1: ended_ms is 18446744073709551615, want"),
        (said(&|h| h.jobs[1].ran_ms = vec![5, most]), "job 2: ran_ms is 18446744073709551615, want 0 to"),
        (said(&|h| h.hosts[0].mem_mib = most), "host a: mem: 18446744073709551615 MiB is above 1073741824"),
        (
            said(&|h| h.jobs.iter_mut().for_each(|job| job.submitted_ms = most)),
            "job 1: submitted_ms is 18446744073709551615, want 0 to 10000000000000 ms, such as 1796099691417",
        ),
    ] {
        assert!(error.starts_with(want), "{error}");
    }
    let good = history(vec![host("a", 1)], vec![job(1, 0, 100)]);
    let add = |hosts, cards| AddedHosts { hosts, cards, model: "h100".into(), vram_mib: None };
    for (add, want) in [
        (vec![add(19_999, 1)], "hosts would be 20000, want at most 19999"),
        (vec![add(u32::MAX, 1), add(u32::MAX, 1)], "hosts would be 8589934591, want"),
        (vec![add(10_000, 128)], "cards would be 1280001, want at most 200000"),
    ] {
        let change = Change { add, ..Change::default() };
        let error = run(&good, &ReplayConfig { change, ..ReplayConfig::default() }).expect_err("too many");
        assert!(error.to_string().starts_with(want), "{error}");
    }
}
