//! Jobs that no host can start for a reason that lies in them: tried on a few hosts, then over with the host's words.

use crate::lab::{Lab, exit, launch_failed};
use rota_core::explain::why;
use rota_core::view;
use rota_protocol::command::Command;
use rota_protocol::job::AttemptEnd;
use rota_protocol::report::AttemptFact;
use rota_protocol::{HostId, JobId, Token};
use std::collections::BTreeSet;

const FOUR: [&str; 4] =
    ["n1 gpus=2xL4:24GiB", "n2 gpus=2xL4:24GiB", "n3 gpus=2xL4:24GiB", "n4 gpus=2xL4:24GiB"];

fn no_folder() -> AttemptEnd {
    AttemptEnd::CannotStart { code: 127, reason: "cannot enter the working directory /nonexist".into() }
}

/// Ends all that lives of it so, round after round, until it is over; the hosts in order.
fn fail_all(lab: &mut Lab, job: JobId, end: impl Fn(HostId) -> AttemptEnd) -> Vec<HostId> {
    let mut hosts = Vec::new();
    for _ in 0..200 {
        lab.round();
        let live: Vec<(Token, HostId)> = lab.state.attempts_of(job).map(|a| (a.token, a.host)).collect();
        for (token, host) in live {
            hosts.push(host);
            lab.report(token, AttemptFact::Ended { end: end(host), ran_ms: 0 });
        }
        if !["pending", "running"].contains(&lab.state_of(job).as_str()) {
            return hosts;
        }
        lab.now_ms += 5_000;
    }
    panic!("{job} does not end: {}", lab.state_of(job));
}

#[test]
fn a_few_hosts_are_tried_once_each_and_none_is_blamed() {
    for (hosts, line, tries) in [
        (&FOUR[..], "gpus=1", 3),
        (&FOUR[..], "gpus=1 retries=9", 3),
        (&FOUR[..], "gpus=1 service=yes", 3),
        (&FOUR[..2], "gpus=1", 2),
        (&FOUR[..1], "gpus=1", 1),
    ] {
        let mut lab = Lab::with(hosts);
        let job = lab.submit(line);
        let tried = fail_all(&mut lab, job, |_| no_folder());
        assert_eq!(tried.len(), tries, "{line}: {tried:?}");
        assert_eq!(tried.iter().collect::<BTreeSet<_>>().len(), tries, "{line}: {tried:?}");
        assert_eq!(lab.state_of(job), "failed", "{line}");
        assert_eq!(view::job(&lab.state, job).and_then(|view| view.exit_status), Some(127), "{line}");
        assert!(
            lab.state.hosts().all(|host| host.launches == Default::default()),
            "{line}: a host is blamed"
        );
        let told = why(&lab.state, job, lab.now_ms).expect("known").verdict;
        assert!(told.starts_with("is over: failed (on n") && told.contains("/nonexist"), "{told}");
    }
}

/// The folder is on one host of three only: the job finds it, and none of its retries is gone.
#[test]
fn a_host_that_has_what_the_others_lack_runs_it() {
    let mut lab = Lab::with(&FOUR[..3]);
    let job = lab.submit("gpus=1");
    for _ in 0..2 {
        assert_eq!(lab.round(), 1);
        let answer = why(&lab.state, job, lab.now_ms).expect("known");
        assert_eq!(answer.cause, "none");
        lab.end(lab.token(job), no_folder());
        let answer = why(&lab.state, job, lab.now_ms).expect("known");
        let hint = answer.hint.expect("a hint");
        assert!(hint.contains("may fail as the last one: cannot enter"), "{hint}");
        let told = answer.by_reason.iter().find(|row| row.kind == "avoided").expect("a host is avoided");
        assert!(told.detail.contains("could not start it: cannot enter"), "{}", told.detail);
    }
    assert_eq!(lab.round(), 1);
    lab.start(lab.token(job));
    lab.end(lab.token(job), exit(0));
    assert_eq!(lab.state_of(job), "succeeded");
}

/// A host that is broken is the host's fault as before, also while another says that the folder is not there.
#[test]
fn a_broken_host_ends_no_job() {
    let mut lab = Lab::with(&FOUR[..3]);
    let job = lab.submit("gpus=1");
    for _ in 0..3 {
        lab.round();
        lab.end(lab.token(job), launch_failed());
    }
    assert_eq!(lab.state_of(job), "pending");
    let tried = fail_all(&mut lab, job, |_| no_folder());
    assert_eq!(tried.iter().collect::<BTreeSet<_>>().len(), 3);
}

/// A host that is drained is not waited for, and one that could not run it does not count.
#[test]
fn only_hosts_that_could_run_it_now_are_tried() {
    let mut lab = Lab::with(&["n1 gpus=2xL4:24GiB", "n2 gpus=2xL4:24GiB", "n3 cpus=8"]);
    lab.system(Command::DrainHost { host: HostId(3), reason: "fans".into() });
    let job = lab.submit("gpus=1");
    assert_eq!(fail_all(&mut lab, job, |_| no_folder()), [HostId(2)]);
}

/// No task of an array is tried on more than a few hosts; once something of it has started, each is tried for itself.
#[test]
fn an_array_ends_and_a_gang_does() {
    let mut lab = Lab::with(&FOUR);
    let job = lab.submit("gpus=1 array=0-19");
    let tried = fail_all(&mut lab, job, |_| no_folder());
    assert!(tried.len() <= 20 + 8, "{}", tried.len());
    let job = lab.state.job(job).expect("known");
    assert!(lab.now_ms - job.submitted_ms < 30_000, "what is left of it waits for no host");
    let job = lab.submit("gpus=2 gang=2 layout=spread");
    let tried = fail_all(&mut lab, job, |_| no_folder());
    assert!(tried.len() <= 6, "{tried:?}");
    let told = why(&lab.state, job, lab.now_ms).expect("known").verdict;
    assert!(told.contains("(rank ") && told.contains("/nonexist"), "{told}");
    // On three of four hosts the folder is missing: no task is lost as long as it finds the fourth.
    let mut lab = Lab::with(&FOUR);
    let job = lab.submit("gpus=2 array=0-3");
    lab.round();
    let at = |lab: &Lab, host: u64| {
        lab.state
            .attempts_of(job)
            .find(|a| a.host == HostId(host))
            .map(|a| a.token)
            .expect("one on each host")
    };
    let good = at(&lab, 5);
    lab.start(good);
    for host in 2..=4 {
        let token = at(&lab, host);
        lab.end(token, no_folder());
    }
    assert_eq!(lab.state.job(job).expect("known").failed.len(), 0);
}

/// The rank that failed is named, not the one that was ended with it.
#[test]
fn the_rank_that_broke_its_gang_is_named() {
    let mut lab = Lab::with(&FOUR[..2]);
    let job = lab.submit("gpus=2 gang=2");
    lab.round();
    lab.all_started();
    let (first, second) = {
        let tokens = lab.tokens(job);
        (tokens[0], tokens[1])
    };
    lab.end(second, exit(5));
    lab.end(first, AttemptEnd::GangBroken);
    let told = why(&lab.state, job, lab.now_ms).expect("known").verdict;
    assert_eq!(told, "is over: failed (rank 1 on n2: exit 5)");
}
