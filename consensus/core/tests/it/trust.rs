//! Whom the cluster trusts, and its version (faults O2, O3, R7, S3, S6, S16; report R068).

use crate::lab::{Lab, user};
use rota_core::snapshot::{self, SnapshotError};
use rota_protocol::command::{Command, Outcome, TokenUse};
use rota_protocol::device::HostNotes;
use rota_protocol::job::{Actor, Role};
use rota_protocol::trust::{CaStage, TrustChange};
use rota_protocol::version::{FIRST, NEWEST};
use rota_protocol::{ErrorCode, HostId, PublicError, RequestId};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Hosts that read version 3, and the cluster raised to it.
fn lab(hosts: u64) -> Lab {
    let mut lab = Lab::new();
    for n in 0..hosts {
        let host = lab.host(&format!("h{n} gpus=1xA100:80GiB"));
        says(&mut lab, host, NEWEST);
    }
    assert_eq!(lab.system(Command::RaiseVersion { to: NEWEST }), Outcome::Done);
    lab
}

/// The host's program reads up to this version.
fn says(lab: &mut Lab, host: HostId, reads: u16) -> Outcome {
    let mut facts = lab.facts(host);
    facts.notes = HostNotes { reads, ..facts.notes };
    lab.register(host, facts, false)
}

fn trust(lab: &mut Lab, change: TrustChange) -> Outcome {
    lab.system(Command::Trust { change })
}

fn refused(outcome: Outcome) -> PublicError {
    match outcome {
        Outcome::Refused(error) => error,
        other => panic!("not refused: {other:?}"),
    }
}

fn offer(byte: u8) -> TrustChange {
    TrustChange::OfferCa { certificate_pem: "x".repeat(400), ca: [byte; 32], ends_ms: 2_000_000 }
}

fn took(host: HostId, stage: CaStage, byte: u8) -> TrustChange {
    TrustChange::TookCa { host, stage, ca: [byte; 32] }
}

/// Fault R7, report R068: new words come only after every host that ever came up reads them; there is no way back, and
/// whoever reads less is refused from then on, with what to do.
#[test]
fn a_version_is_raised_only_when_all_hosts_read_it_and_never_lowered() {
    let mut lab = Lab::new();
    let (new, old) = (lab.host("new gpus=1xA100:80GiB"), lab.host("old gpus=1xA100:80GiB"));
    says(&mut lab, new, NEWEST);
    assert_eq!(lab.state.version(), FIRST);
    let early = refused(trust(&mut lab, TrustChange::Key { host: new, key: [1; 32] }));
    assert_eq!(early.code, ErrorCode::Version);
    assert!(early.message.contains("rota cluster version --raise"), "{early}");
    let behind = refused(lab.system(Command::RaiseVersion { to: NEWEST }));
    assert_eq!(behind.code, ErrorCode::Conflict);
    assert!(behind.message.contains("old (host 3") && !behind.message.contains("new (host"), "{behind}");
    // Up and down again, as often as it likes, until the version is raised.
    for reads in [NEWEST, FIRST, NEWEST] {
        assert!(matches!(says(&mut lab, old, reads), Outcome::HostRegistered { .. }));
    }
    assert_eq!(lab.system(Command::RaiseVersion { to: NEWEST }), Outcome::Done);
    assert_eq!(lab.system(Command::RaiseVersion { to: NEWEST }), Outcome::Done, "twice is once");
    assert_eq!(trust(&mut lab, TrustChange::Key { host: new, key: [1; 32] }), Outcome::Done);
    let back = refused(says(&mut lab, old, FIRST));
    assert_eq!(back.code, ErrorCode::Version);
    assert!(back.message.contains("version 3") && back.message.contains("install the version"), "{back}");
    assert_eq!(refused(lab.system(Command::RaiseVersion { to: FIRST })).code, ErrorCode::Conflict);
    let further = refused(lab.system(Command::RaiseVersion { to: NEWEST + 1 }));
    assert!(further.message.contains("new (host 2") && further.message.contains("old (host 3"), "{further}");
}

/// What was never raised is written as builds of that version read it.
#[test]
fn a_state_is_written_in_the_format_of_its_version() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let format = |lab: &Lab| snapshot::header(&snapshot::encode(&lab.state)).map(|h| h.format).unwrap();
    assert_eq!(format(&lab), FIRST);
    says(&mut lab, HostId(2), NEWEST);
    lab.system(Command::RaiseVersion { to: NEWEST });
    assert_eq!(format(&lab), NEWEST);
    trust(&mut lab, TrustChange::Key { host: HostId(2), key: [1; 32] });
    let whole = snapshot::encode(&lab.state);
    let again = snapshot::decode(&whole).unwrap();
    assert_eq!((again.full_hash(), again.trust()), (lab.state.full_hash(), lab.state.trust()));
    let mut older = whole;
    older[8..10].copy_from_slice(&FIRST.to_le_bytes());
    assert!(
        matches!(snapshot::decode(&older), Err(SnapshotError::Body(_))),
        "it is not read as the older one"
    );
}

/// The bytes of a state of version 3 load for ever; `UPDATE_EXPECT=1` writes them if the file is not there.
#[test]
fn the_recorded_state_of_version_3_loads() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/snapshot_3.hex");
    let mut lab = lab(2);
    trust(&mut lab, TrustChange::Key { host: HostId(2), key: [1; 32] });
    trust(&mut lab, offer(1));
    trust(&mut lab, offer(2));
    trust(&mut lab, took(HostId(2), CaStage::Trusting, 2));
    trust(&mut lab, TrustChange::Revoke { host: HostId(3), reason: "stolen".into() });
    let admin = Actor { role: Role::Admin, ..user("t") };
    let usage = TokenUse::User { actor: user("t") };
    lab.ask(admin, RequestId(9), Command::MintToken { token: [7; 32], usage, expires_at_ms: u64::MAX });
    if std::env::var_os("UPDATE_EXPECT").is_some() && !path.exists() {
        let hex = snapshot::encode(&lab.state).iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        });
        std::fs::write(&path, hex + "\n").unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let digits = text.trim();
    let bytes: Vec<u8> =
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect();
    let state = snapshot::decode(&bytes).unwrap();
    assert_eq!(snapshot::encode(&state), bytes);
    let table = state.trust();
    assert_eq!((table.version(), table.stage(), table.authorities().len()), (3, CaStage::Trusting, 2));
    assert_eq!(table.key(HostId(2)), Some(&[1; 32]));
    assert!(table.took(HostId(2)) && table.revoked(HostId(3)).is_some());
    assert!(table.audit().count() > 0 && table.audit_is_whole());
}

/// A host is known by one key for ever; a certificate of its name with another key is nobody's.
#[test]
fn a_key_is_recorded_once() {
    let mut lab = lab(2);
    let key = |key| TrustChange::Key { host: HostId(2), key: [key; 32] };
    assert_eq!(trust(&mut lab, key(1)), Outcome::Done);
    assert_eq!(trust(&mut lab, key(1)), Outcome::Done);
    assert_eq!(refused(trust(&mut lab, key(2))).code, ErrorCode::Conflict);
    let nobody = TrustChange::Key { host: HostId(99), key: [1; 32] };
    assert_eq!(refused(trust(&mut lab, nobody)).code, ErrorCode::NotFound);
}

/// Fault O3: a revoked host takes no work and does not come back under its number.
#[test]
fn a_revoked_host_takes_no_work_and_stays_out() {
    let mut lab = Lab::new();
    let hosts: Vec<HostId> = (0..2).map(|n| lab.host(&format!("h{n} gpus=1xA100:80GiB"))).collect();
    for host in &hosts {
        says(&mut lab, *host, NEWEST);
    }
    lab.system(Command::RaiseVersion { to: NEWEST });
    let revoke = |host| TrustChange::Revoke { host, reason: "stolen".into() };
    assert_eq!(trust(&mut lab, revoke(hosts[0])), Outcome::Done);
    assert_eq!(trust(&mut lab, revoke(hosts[0])), Outcome::Done, "twice is once");
    let job = lab.submit("gpus=1 array=0-1");
    lab.round();
    let placed: Vec<HostId> = lab.state.attempts_of(job).map(|attempt| attempt.host).collect();
    assert_eq!(placed, [hosts[1]]);
    let undrain = refused(lab.system(Command::UndrainHost { host: hosts[0] }));
    assert!(undrain.message.contains("cannot be taken back"), "{undrain}");
    let again = refused(says(&mut lab, hosts[0], NEWEST));
    assert_eq!(again.code, ErrorCode::Forbidden);
    assert!(again.message.contains("revoked") && again.message.contains("stolen"), "{again}");
    // The founder of this lab never came up, so the last that is trusted is not the last of the table.
    assert_eq!(trust(&mut lab, revoke(HostId(1))), Outcome::Done);
    let last = refused(trust(&mut lab, revoke(hosts[1])));
    assert!(last.message.contains("last one"), "{last}");
    assert!(!lab.state.trust().audit().any(|row| row.what.contains("revoke")), "rota's own are not people's");
}

/// Fault O3: an authority is changed in stages, each over only when every host has done its part.
#[test]
fn the_authority_changes_in_stages_that_wait_for_every_host() {
    let mut lab = lab(2);
    let (a, b) = (HostId(2), HostId(3));
    assert_eq!(trust(&mut lab, offer(1)), Outcome::Done);
    assert_eq!(lab.state.trust().stage(), CaStage::Settled, "the first one is taken as it is");
    assert_eq!(trust(&mut lab, offer(2)), Outcome::Done);
    // One that nobody took is replaced, such as after the loss of the host that made it.
    assert_eq!(trust(&mut lab, offer(3)), Outcome::Done);
    let signs = |lab: &Lab| lab.state.trust().authorities().iter().map(|ca| ca.ca[0]).collect::<Vec<_>>();
    assert_eq!((lab.state.trust().stage(), signs(&lab)), (CaStage::Trusting, vec![1, 3]));
    assert_eq!(refused(trust(&mut lab, took(a, CaStage::Trusting, 2))).code, ErrorCode::Conflict);
    assert_eq!(trust(&mut lab, took(a, CaStage::Trusting, 3)), Outcome::Done);
    assert_eq!(refused(trust(&mut lab, offer(4))).code, ErrorCode::Conflict, "one change at a time");
    let advance = |from| TrustChange::AdvanceCa { from };
    let early = refused(trust(&mut lab, advance(CaStage::Trusting)));
    assert!(early.message.contains("h1 (host 3)") && !early.message.contains("h0"), "{early}");
    assert_eq!(trust(&mut lab, took(b, CaStage::Trusting, 3)), Outcome::Done);
    assert_eq!(trust(&mut lab, advance(CaStage::Trusting)), Outcome::Done);
    assert_eq!((lab.state.trust().stage(), signs(&lab)), (CaStage::Issuing, vec![3, 1]));
    assert_eq!(refused(trust(&mut lab, advance(CaStage::Trusting))).code, ErrorCode::Conflict);
    assert_eq!(trust(&mut lab, took(a, CaStage::Issuing, 3)), Outcome::Done);
    assert!(refused(trust(&mut lab, advance(CaStage::Issuing))).message.contains("host 3"));
    // A host that is gone for good does not hold it up once it is revoked.
    assert_eq!(trust(&mut lab, TrustChange::Revoke { host: b, reason: "gone".into() }), Outcome::Done);
    assert_eq!(trust(&mut lab, advance(CaStage::Issuing)), Outcome::Done);
    assert_eq!((lab.state.trust().stage(), signs(&lab)), (CaStage::Settled, vec![3]));
}

/// Faults S3, S6, S16: tokens are listed without their secrets, revoked by the beginning of their id, and each step of an
/// administrator is in the audit log with its name.
#[test]
fn tokens_are_listed_and_revoked_and_all_of_it_is_audited() {
    let mut lab = lab(1);
    let admin = Actor { role: Role::Admin, ..user("ops") };
    let mint = |lab: &mut Lab, byte: u8, usage: TokenUse| {
        let expires_at_ms = lab.now_ms + 1_000;
        let command = Command::MintToken { token: [byte; 32], usage, expires_at_ms };
        assert_eq!(lab.ask(admin.clone(), RequestId(u128::from(byte)), command), Outcome::Done);
    };
    mint(&mut lab, 0xab, TokenUse::User { actor: user("t") });
    mint(&mut lab, 0xac, TokenUse::Join { host_name: Some("gpu-*".into()) });
    let now = lab.state.clock_ms();
    let view = rota_core::view::trust(&lab.state, now);
    let ids: Vec<_> = view.tokens.iter().map(|row| (row.id.as_str(), row.kind.as_str())).collect();
    assert_eq!(ids, [("abababababab", "user"), ("acacacacacac", "join")]);
    assert_eq!(view.tokens[0].made.as_ref().map(|(by, _)| by.as_str()), Some("ops/u"));
    assert!(rota_core::view::trust(&lab.state, now + 1_001).tokens.is_empty(), "expired ones are no tokens");
    assert!(lab.state.user_token(&[0xab; 32], now).is_some());
    let revoke = |id: &str| Command::Trust { change: TrustChange::RevokeToken { id: id.into() } };
    for (bad, code) in
        [("ab", ErrorCode::Invalid), ("zzzzzz", ErrorCode::Invalid), ("cdcdcd", ErrorCode::NotFound)]
    {
        assert_eq!(refused(lab.ask(admin.clone(), RequestId::NONE, revoke(bad))).code, code, "{bad}");
    }
    let denied = refused(lab.ask(user("t"), RequestId::NONE, revoke("ababab")));
    assert_eq!(denied.code, ErrorCode::Forbidden);
    assert_eq!(lab.ask(admin.clone(), RequestId::NONE, revoke("ABABAB")), Outcome::Done);
    assert!(lab.state.user_token(&[0xab; 32], now).is_none());
    // A pool is a beginning of names; the token is used up by the first host.
    let admit = |name: &str| Command::AdmitHost {
        token: [0xac; 32],
        host_name: name.into(),
        addr: "10.0.0.9:1".into(),
    };
    assert_eq!(refused(lab.system(admit("cpu-1"))).code, ErrorCode::Forbidden);
    assert!(matches!(lab.system(admit("gpu-1")), Outcome::HostAdmitted { .. }));
    assert_eq!(refused(lab.system(admit("gpu-2"))).code, ErrorCode::Unauthenticated);
    trust(&mut lab, TrustChange::Seen { host: HostId(2), what: "guessed join tokens".into(), count: 1_000 });
    let lines: Vec<_> =
        lab.state.trust().audit().map(|row| format!("{}: {}: {}", row.actor, row.what, row.result)).collect();
    for wanted in [
        "ops/u: make a user token for t/u as Submitter: done",
        "ops/u: make a join token for gpu-*: done",
        "ops/u: revoke token ab: ",
        "t/u: revoke token ababab: needs the role",
        "ops/u: revoke token ABABAB: done",
        "rota: admit host gpu-1 at 10.0.0.9:1: done",
        "rota: admit host gpu-2 at 10.0.0.9:1: the join token is unknown",
        "host 2: guessed join tokens, 1000 times: refused",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(wanted)), "{wanted} is not in {lines:#?}");
    }
    assert!(lab.state.trust().audit_is_whole());
}
