//! The life of jobs under every order of events (R066), a host that eats launches (R054), and cancels at random.

use crate::lab::{Lab, exit, launch_failed, user};
use rota_protocol::command::{Command, Outcome};
use rota_protocol::job::{AttemptEnd, AttemptState};
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::{HostId, JobId, RequestId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// A cheap deterministic draw.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = rota_core::hash::mix(self.0.wrapping_add(0x9E37_79B9_7F4A_7C15));
        self.0 % n
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happens {
    Grant,
    LaunchOk,
    LaunchFail,
    EndOk,
    EndBad,
    EndCancelled,
    CancelJob,
    HostLost,
    HostBack,
    HostReboot,
    Drain,
    Undrain,
    Later,
}

const ALL: [Happens; 13] = [
    Happens::Grant,
    Happens::LaunchOk,
    Happens::LaunchFail,
    Happens::EndOk,
    Happens::EndBad,
    Happens::EndCancelled,
    Happens::CancelJob,
    Happens::HostLost,
    Happens::HostBack,
    Happens::HostReboot,
    Happens::Drain,
    Happens::Undrain,
    Happens::Later,
];

const HOST: HostId = HostId(2);
const JOB: JobId = JobId(1);
const DEPTH: u32 = 8;

/// R066: every order of events up to a depth, for one job on one host. Each step keeps every law (checked by the
/// lab); from every state reached, a cancel leads to "cancelled" with everything given back.
#[test]
fn every_order_of_events() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB"]);
    lab.submit("gpus=2 retries=1");
    let mut seen = BTreeMap::new();
    explore(&lab, DEPTH, &mut seen);
    // The walk is not empty by mistake.
    assert!(seen.len() > 150, "{} states", seen.len());
    for state in ["Pending", "Running", "Ending", "Succeeded", "Failed", "Cancelled"] {
        assert!(seen.keys().any(|key: &String| key.starts_with(state)), "{state} was never reached");
    }
}

fn explore(lab: &Lab, depth: u32, seen: &mut BTreeMap<String, u32>) {
    let key = key(lab);
    match seen.get(&key) {
        Some(known) if *known >= depth => return,
        Some(_) => {}
        None => finish(fork(lab)),
    }
    seen.insert(key, depth);
    if depth == 0 {
        return;
    }
    for event in ALL {
        let mut next = fork(lab);
        if happen(&mut next, event) {
            explore(&next, depth - 1, seen);
        }
    }
}

/// What matters of a state, without times and counters that only grow.
fn key(lab: &Lab) -> String {
    let job = lab.state.job(JOB).expect("job");
    let host = lab.state.host(HOST).expect("host");
    let attempts: Vec<_> = lab.state.attempts_of(JOB).map(|a| (a.state, a.end_reason)).collect();
    let waits: Vec<_> = job.avoided(lab.now_ms).map(|(host, avoid)| (host, avoid.failures)).collect();
    format!(
        "{:?} {:?} {attempts:?} {:?} {:?} {waits:?} {:?} {:?} {:?}",
        job.state,
        job.counts(),
        job.retries_used,
        job.host_faults,
        host.life,
        host.drain,
        host.launches,
    )
}

fn fork(lab: &Lab) -> Lab {
    let mut fork = Lab::new();
    fork.state = lab.state.clone();
    fork.now_ms = lab.now_ms;
    fork.log.clear();
    fork
}

/// False if the event cannot happen here.
fn happen(lab: &mut Lab, event: Happens) -> bool {
    let live = lab.state.attempts_of(JOB).next().map(|a| (a.token, a.state));
    match event {
        Happens::Grant => return lab.round() > 0,
        Happens::LaunchOk => match live {
            Some((token, AttemptState::Granted | AttemptState::Ending)) => lab.start(token),
            _ => return false,
        },
        Happens::LaunchFail | Happens::EndOk | Happens::EndBad | Happens::EndCancelled => {
            let Some((token, _)) = live else {
                return false;
            };
            let end = match event {
                Happens::LaunchFail => launch_failed(),
                Happens::EndOk => exit(0),
                Happens::EndBad => exit(1),
                _ => AttemptEnd::Cancelled,
            };
            lab.end(token, end.clone());
            // The same report again, and another one, change nothing.
            let before = lab.state.job(JOB).cloned();
            for end in [end, exit(0)] {
                let fact = AttemptFact::Ended { end, ran_ms: 5 };
                let reports = vec![AttemptReport { token, fact }];
                lab.system(Command::Report { host: HOST, reports });
            }
            assert_eq!(before, lab.state.job(JOB).cloned());
        }
        Happens::CancelJob => {
            lab.cancel(JOB);
        }
        Happens::HostLost => {
            lab.expire(HOST);
        }
        Happens::HostBack | Happens::HostReboot => {
            let facts = lab.facts(HOST);
            lab.register(HOST, facts, event == Happens::HostReboot);
        }
        Happens::Drain => {
            lab.system(Command::DrainHost { host: HOST, reason: "fans".into() });
            assert_eq!(lab.plan().moves, Vec::new(), "a draining host takes nothing new");
        }
        Happens::Undrain => {
            lab.system(Command::UndrainHost { host: HOST });
        }
        Happens::Later => lab.now_ms += 31_000,
    }
    true
}

/// Cancel, then let the host say what it must: the job is over, everything is free, and one end was recorded for
/// each attempt.
fn finish(mut lab: Lab) {
    let over = lab.state.job(JOB).expect("job").state.is_terminal();
    let outcome = lab.cancel(JOB);
    assert_eq!(lab.cancel(JOB), outcome, "cancel is idempotent");
    let live: Vec<Token> = lab.state.attempts_of(JOB).map(|a| a.token).collect();
    assert_eq!(outcome, Outcome::Cancelling { live: live.len() as u32 });
    for token in live {
        assert!(!lab.is_idle(), "held until proven gone");
        lab.end(token, exit(0));
    }
    assert!(lab.is_idle());
    let job = lab.state.job(JOB).expect("job");
    assert!(job.state.is_terminal());
    assert!(over || job.state.to_string() == "cancelled");
    let tokens: BTreeSet<Token> = job.ended.iter().map(|a| a.token).collect();
    assert_eq!(tokens.len(), job.ended.len());
    lab.now_ms += 1_000_000;
    assert_eq!(lab.round(), 0);
}

/// R066: a thousand cancels at random moments of a busy cluster; at the end nothing is held and nothing waits.
#[test]
fn a_thousand_random_cancels() {
    let mut lab = Lab::with(&["h1 gpus=4xA100:80GiB", "h2 gpus=4xA100:80GiB", "h3 gpus=4xA100:80GiB"]);
    let mut draw = Draw(66);
    let mut jobs = Vec::new();
    let mut cancels = 0;
    while cancels < 1_000 {
        lab.now_ms += draw.below(3_000);
        match draw.below(8) {
            0 | 1 => jobs
                .push(lab.submit(["gpus=1", "gpus=3", "gpus=1 array=0-3", "cpus=2"][draw.below(4) as usize])),
            2 => {
                lab.round();
            }
            3 | 4 => one_report(&mut lab, &mut draw),
            5 if draw.below(20) == 0 => {
                let host = HostId(2 + draw.below(3));
                lab.expire(host);
                let facts = lab.facts(host);
                lab.register(host, facts, true);
            }
            _ if !jobs.is_empty() => {
                cancels += 1;
                let job = jobs[draw.below(jobs.len() as u64) as usize];
                let index = (draw.below(3) == 0).then(|| draw.below(4) as u32);
                lab.ask(user("t"), RequestId::NONE, Command::Cancel { job, index });
            }
            _ => {}
        }
    }
    for job in &jobs {
        lab.cancel(*job);
    }
    while lab.state.attempts().next().is_some() {
        one_report(&mut lab, &mut draw);
    }
    assert!(lab.is_idle());
    assert!(!lab.state.wants_planning(lab.now_ms));
    assert!(lab.state.jobs().all(|j| j.state.is_terminal()));
    lab.check_copies();
}

fn one_report(lab: &mut Lab, draw: &mut Draw) {
    let live: Vec<(Token, AttemptState)> = lab.state.attempts().map(|a| (a.token, a.state)).collect();
    if live.is_empty() {
        return;
    }
    let (token, state) = live[draw.below(live.len() as u64) as usize];
    match (state, draw.below(4)) {
        (AttemptState::Granted, 0..=2) => lab.start(token),
        (_, 0) => lab.end(token, launch_failed()),
        (_, 1) => lab.end(token, exit(1)),
        (_, 2) => lab.end(token, AttemptEnd::Cancelled),
        _ => lab.end(token, exit(0)),
    }
}

/// R054: 100 jobs, one black-hole host of three: all succeed, at most 10 launches hit it, and once repaired it takes
/// work again within 5 minutes without a command.
#[test]
fn a_black_hole_does_not_eat_the_queue() {
    for run_ms in [100, 2_000, 20_000] {
        black_hole(run_ms);
    }
}

fn black_hole(run_ms: u64) {
    let mut lab = Lab::with(&["n1 gpus=4xA100:80GiB", "n2 gpus=4xA100:80GiB", "n3 gpus=4xA100:80GiB"]);
    let bad = HostId(3);
    let jobs: Vec<JobId> = (0..100).map(|_| lab.submit("gpus=1")).collect();
    let mut ends: BTreeMap<Token, u64> = BTreeMap::new();
    let mut hits = 0;
    while !jobs.iter().all(|job| lab.state_of(*job) == "succeeded") {
        assert!(lab.now_ms < 1_000_000 + 3_600_000, "does not end");
        lab.round();
        let live: Vec<(Token, HostId, AttemptState)> =
            lab.state.attempts().map(|a| (a.token, a.host, a.state)).collect();
        for (token, host, state) in live {
            if host == bad {
                hits += 1;
                lab.end(token, launch_failed());
            } else if state == AttemptState::Granted {
                lab.start(token);
                ends.insert(token, lab.now_ms + run_ms);
            } else if ends[&token] <= lab.now_ms {
                lab.end(token, exit(0));
            }
        }
        lab.now_ms += 100;
    }
    assert!((3..=10).contains(&hits), "{hits} launches hit the bad host at {run_ms} ms");
    // Repaired: it takes work again by itself.
    let since_ms = lab.now_ms;
    loop {
        for _ in 0..3 {
            lab.submit("gpus=4");
        }
        lab.round();
        let token = lab.state.attempts_on(bad).next().map(|a| a.token);
        if let Some(token) = token {
            lab.start(token);
            break;
        }
        assert!(lab.now_ms - since_ms < 300_000);
        let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
        for token in live {
            lab.end(token, exit(0));
        }
        lab.now_ms += 10_000;
    }
    assert!(!lab.state.host(bad).expect("host").on_probation());
}
