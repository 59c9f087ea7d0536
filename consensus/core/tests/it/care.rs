//! What hosts tell of their cards beside start and end, and the ends that they ask for themselves: figures in the end,
//! retries that are not eaten (G10, R035), idle time by user (R091), steps of a release on the attempt (S13).

use crate::lab::{Lab, exit};
use rota_protocol::care::{HostCause, NOTES_MAX, Release, ReleaseStep};
use rota_protocol::command::{Command, Outcome};
use rota_protocol::job::{AttemptEnd, AttemptState, EndReason, JobState};
use rota_protocol::report::AttemptFact;
use rota_protocol::{HostId, JobId, Token};

const HOST: HostId = HostId(2);

fn lab() -> Lab {
    Lab::with(&["h1 gpus=2xA100:80GiB cpus=64"])
}

fn ask(lab: &mut Lab, token: Token, cause: HostCause) {
    assert_eq!(lab.system(Command::EndOwn { host: HOST, ends: vec![(token, cause)] }), Outcome::Done);
}

/// The newest attempt's end as people read it.
fn last_end(lab: &Lab, job: JobId) -> String {
    lab.state.job(job).expect("known").ended.back().expect("one ended").end.to_string()
}

#[test]
fn the_offender_ends_with_both_figures_and_on_its_own_account() {
    let mut lab = lab();
    let (fat, neighbour) = (
        lab.run("gpu_milli=500 vram=20GiB retries=1", "0@h1:0"),
        lab.run("gpu_milli=500 vram=20GiB", "0@h1:0"),
    );
    let token = lab.token(fat);
    lab.start(token);
    ask(&mut lab, token, HostCause::Vram { asked_mib: 20 << 10, used_mib: 31 << 10 });
    let attempt = lab.state.attempt(token).expect("live");
    assert_eq!((attempt.state, attempt.end_reason), (AttemptState::Ending, Some(EndReason::Vram)));
    // The shim knows the reason and no figures.
    lab.end(token, EndReason::Vram.end());
    assert_eq!(last_end(&lab, fat), "vram limit: asked 20 GiB, used 31 GiB");
    assert_eq!(lab.state_of(fat), "pending", "its one retry");
    assert_eq!(lab.state.attempts_of(neighbour).count(), 1, "the neighbour runs on");
    assert_eq!(lab.begin(fat, "0@h1:0"), Ok(()));
    let token = lab.token(fat);
    lab.start(token);
    ask(&mut lab, token, HostCause::Vram { asked_mib: 1, used_mib: 2 });
    lab.end(token, EndReason::Vram.end());
    assert_eq!(lab.state_of(fat), "failed");
    lab.check_copies();
}

#[test]
fn a_fault_of_the_sharing_service_eats_no_retries() {
    let mut lab = lab();
    let job = lab.run("gpu_milli=500", "0@h1:0");
    for _ in 0..5 {
        let token = lab.token(job);
        lab.start(token);
        ask(&mut lab, token, HostCause::SharedFault);
        lab.end(token, EndReason::SharedFault.end());
        assert_eq!(
            (lab.state_of(job).as_str(), last_end(&lab, job).as_str()),
            ("pending", "shared GPU fault")
        );
        assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    }
    lab.check_copies();
}

#[test]
fn what_was_idle_is_not_queued_again_and_what_had_done_its_work_has() {
    let mut lab = lab();
    let (idle, done) = (lab.run("gpus=1 retries=3", "0@h1:0"), lab.run("gpus=1", "0@h1:1"));
    for job in [idle, done] {
        let token = lab.token(job);
        lab.start(token);
        ask(&mut lab, token, HostCause::Idle { idle_ms: 7_200_000 });
    }
    let (first, second) = (lab.token(idle), lab.token(done));
    lab.end(first, EndReason::Idle.end());
    lab.end(second, exit(0));
    let state = |lab: &Lab, job| lab.state.job(job).expect("known").state;
    assert_eq!((state(&lab, idle), state(&lab, done)), (JobState::Failed, JobState::Succeeded));
    assert_eq!(last_end(&lab, idle), "held its cards idle for 120 min");
}

#[test]
fn only_the_host_itself_asks_and_the_first_reason_stands() {
    let mut lab = lab();
    let job = lab.run("gpus=1", "0@h1:0");
    let token = lab.token(job);
    let cause = HostCause::SharedFault;
    lab.system(Command::EndOwn { host: HostId(1), ends: vec![(token, cause), (Token(u64::MAX), cause)] });
    assert_eq!(lab.state.attempt(token).expect("live").end_reason, None);
    lab.cancel(job);
    ask(&mut lab, token, cause);
    assert_eq!(lab.state.attempt(token).expect("live").end_reason, Some(EndReason::Cancel));
    lab.end(token, AttemptEnd::Cancelled);
    assert_eq!(lab.state_of(job), "cancelled");
}

#[test]
fn notes_steps_and_idle_time_stay_with_the_attempt_and_its_user() {
    let mut lab = lab();
    let job = lab.run("gpus=1", "0@h1:0");
    let token = lab.token(job);
    lab.start(token);
    for n in 0..2 * NOTES_MAX {
        for _ in 0..2 {
            lab.report(token, AttemptFact::Noted { text: format!("note {n}") });
        }
    }
    // Told again, and late: only what is more counts.
    for gpu_ms in [5_000, 5_000, 9_000, 4_000] {
        lab.report(token, AttemptFact::HeldIdle { gpu_ms });
    }
    assert_eq!(lab.state.idle().iter().collect::<Vec<_>>(), [("t", "u", 9_000)]);
    let steps = vec![ReleaseStep::Processes, ReleaseStep::Nodes, ReleaseStep::Memory];
    let release = Release { steps, took_ms: 31, dirty: None };
    lab.report(token, AttemptFact::Released { release: release.clone() });
    lab.end(token, exit(0));
    let ended = lab.state.job(job).expect("known").ended.back().expect("one").clone();
    let care = ended.care.expect("something was told");
    assert_eq!(care.release, Some(release));
    assert_eq!(care.notes, ["note 4", "note 5", "note 6", "note 7"]);
    lab.check_copies();
}
