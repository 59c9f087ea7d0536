//! Membership in the log: a host that is removed is fenced by its lease, a start that is not the next one is refused,
//! and a cluster that begins anew runs nothing twice.

use crate::lab::{Lab, user};
use rota_core::snapshot;
use rota_core::state::host::HostLife;
use rota_core::state::members::Rebirth;
use rota_protocol::command::{Command, Outcome};
use rota_protocol::members::{DataLife, MemberChange, NOTES_MAX};
use rota_protocol::trust::TrustChange;
use rota_protocol::version::NEWEST;
use rota_protocol::view::HostState;
use rota_protocol::{ClusterId, ErrorCode, HostId, PublicError, RequestId};

fn ask(lab: &mut Lab, change: MemberChange) -> Result<(), PublicError> {
    match lab.system(Command::Members(change)) {
        Outcome::Done => Ok(()),
        Outcome::Refused(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

fn remove(lab: &mut Lab, host: HostId) -> Result<(), PublicError> {
    ask(lab, MemberChange::Remove { host, reason: "burnt".into() })
}

fn two_hosts() -> Lab {
    Lab::with(&["h1 gpus=1xA100:80GiB cpus=8", "h2 gpus=1xA100:80GiB cpus=8"])
}

#[test]
fn what_runs_on_a_removed_host_runs_elsewhere_only_after_its_lease() {
    let mut lab = two_hosts();
    let job = lab.submit("gpus=1 cpus=1 retries=3");
    lab.round();
    let token = lab.token(job);
    lab.start(token);
    let host = lab.state.attempt(token).expect("it lives").host;
    remove(&mut lab, host).expect("another is left");
    lab.check();
    assert_eq!(lab.state.host(host).map(|row| row.state(lab.now_ms)), Some(HostState::Removed));
    // It is asked to end at once, and counts as there until it has or its lease is over.
    lab.round();
    assert!(lab.state.attempt(token).is_some());
    assert_eq!(lab.expire(host), Outcome::Done);
    lab.round();
    let now = lab.state.attempts_of(job).next().expect("it was placed again");
    assert_ne!(now.host, host);
    lab.check();
    // The row stays for old attempts, the list shows it no more, and it never comes back.
    assert!(rota_core::view::hosts(&lab.state).iter().all(|row| row.host != host));
    let facts = lab.facts(host);
    match lab.register(host, facts, true) {
        Outcome::Refused(error) => assert!(error.message.contains("was removed by"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(remove(&mut lab, host), Ok(()), "twice is as once");
}

#[test]
fn the_last_host_stays_and_only_admins_remove() {
    let mut lab = two_hosts();
    let change = MemberChange::Remove { host: HostId(1), reason: String::new() };
    match lab.ask(user("t"), RequestId::NONE, Command::Members(change)) {
        Outcome::Refused(error) => assert_eq!(error.code, ErrorCode::Forbidden),
        other => panic!("{other:?}"),
    }
    let hosts: Vec<HostId> = lab.state.hosts().map(|host| host.id).collect();
    let (last, others) = hosts.split_last().expect("hosts");
    for host in others {
        remove(&mut lab, *host).expect("others are left");
    }
    assert_eq!(remove(&mut lab, *last).unwrap_err().code, ErrorCode::Conflict);
    assert!(remove(&mut lab, HostId(99)).is_err());
}

/// Faults D12, R6, R082.
#[test]
fn a_start_that_is_not_the_next_one_is_refused() {
    let mut lab = two_hosts();
    let life = |data, starts, session| DataLife { data, starts, session };
    let host = HostId(1);
    let mut started = |life| ask(&mut lab, MemberChange::Started { host, life });
    assert_eq!(started(life(7, 3, 1)), Ok(()));
    assert_eq!(started(life(7, 3, 1)), Ok(()));
    assert_eq!(started(life(7, 4, 2)), Ok(()));
    for (wrong, says) in [(life(7, 3, 1), "older"), (life(7, 4, 9), "copy"), (life(8, 5, 1), "other data")] {
        assert!(started(wrong).unwrap_err().message.contains(says), "{wrong:?}");
    }
}

#[test]
fn notes_are_bounded() {
    let mut lab = two_hosts();
    for at in 0..NOTES_MAX + 8 {
        ask(&mut lab, MemberChange::Note { text: format!("note {at}") }).expect("written");
    }
    let notes: Vec<_> = lab.state.members().notes().map(|note| note.text.clone()).collect();
    assert_eq!((notes.len(), notes[0].as_str()), (NOTES_MAX, "note 8"));
}

/// Faults R3, O6: the new epoch keeps jobs and leases, and nobody of the old one.
#[test]
fn a_new_epoch_keeps_all_jobs_and_one_host() {
    let mut lab = two_hosts();
    let job = lab.submit("gpus=1 cpus=1 retries=3");
    lab.round();
    lab.system(Command::RaiseVersion { to: NEWEST });
    let offer = TrustChange::OfferCa { certificate_pem: "pem".into(), ca: [7; 32], ends_ms: u64::MAX };
    lab.system(Command::Trust { change: offer });
    lab.system(Command::Trust { change: TrustChange::Key { host: HostId(2), key: [8; 32] } });
    let token = lab.token(job);
    lab.start(token);
    let held_by = lab.state.attempt(token).expect("it lives").host;
    let rebirth = Rebirth {
        cluster: ClusterId(99),
        survivor: None,
        founder: Some(("new".into(), "127.0.0.1:1".into())),
        at_ms: lab.now_ms,
        reason: "from a backup".into(),
    };
    let (state, founder) = lab.state.reborn(&rebirth);
    let state = snapshot::decode(&snapshot::encode(&state)).expect("sound");
    assert_eq!(state.cluster().map(|meta| meta.id), Some(ClusterId(99)));
    assert_eq!(state.members().epoch, lab.state.members().epoch + 1);
    assert!(state.hosts().all(|host| host.belonging.removed.is_none() == (host.id == founder)));
    // The old host's lease still counts: its task may be running.
    assert!(state.host(held_by).is_some_and(|host| host.life == HostLife::Up));
    assert!(state.attempt(token).is_some());
    // Its authority is another one, and so are its keys.
    assert!(state.trust().authorities().is_empty() && state.trust().keys().next().is_none());
    let own = Rebirth { survivor: Some(held_by), founder: None, ..rebirth };
    let (state, host) = lab.state.reborn(&own);
    assert_eq!(host, held_by);
    assert!(state.host(held_by).is_some_and(|host| host.belonging.removed.is_none()));
}
