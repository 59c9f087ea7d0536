//! The fixed values of version 3: whom a cluster trusts.

use crate::values::{actor, entry, text};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::command::{Command, Entry};
use rota_protocol::job::Role;
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::trust::*;
use rota_protocol::{HostId, RequestId};

fn print(byte: u8) -> Print {
    [byte; 32]
}

fn changes() -> Vec<(&'static str, TrustChange)> {
    let (host, ca) = (HostId(7), print(9));
    vec![
        ("Key", TrustChange::Key { host, key: print(1) }),
        ("Revoke", TrustChange::Revoke { host, reason: text("stolen") }),
        ("OfferCa", TrustChange::OfferCa { certificate_pem: text("pem"), ca, ends_ms: 1_900_000_000_000 }),
        ("TookCa", TrustChange::TookCa { host, stage: CaStage::Issuing, ca }),
        ("AdvanceCa", TrustChange::AdvanceCa { from: CaStage::Trusting }),
        ("RevokeToken", TrustChange::RevokeToken { id: text("3f9a01") }),
        ("Seen", TrustChange::Seen { host, what: text("a guessed token"), count: 1_000 }),
    ]
}

/// Entries of format 3: each carries a command that version 3 brought.
pub(crate) fn entries() -> Vec<(&'static str, Entry)> {
    let of = |change| Entry { format: 3, ..entry(Command::Trust { change }) };
    changes().into_iter().map(|(label, change)| (label, of(change))).collect()
}

pub(crate) fn requests() -> Vec<(&'static str, ApiRequest)> {
    let ask = |ask| ApiRequest::ChangeTrust(RequestId(5), ask);
    vec![
        ("Trust", ApiRequest::Trust(Freshness::Stale)),
        ("ChangeTrust revoke", ask(TrustAsk::Revoke { host: text("gpu-07"), reason: text("stolen") })),
        ("ChangeTrust rotate", ask(TrustAsk::RotateCa)),
        ("ChangeTrust token", ask(TrustAsk::RevokeToken { id: text("3f9a01") })),
        ("ChangeTrust version", ask(TrustAsk::RaiseVersion { to: Some(3) })),
    ]
}

pub(crate) fn reply() -> ApiReply {
    ApiReply::Trust(Box::new(TrustView {
        version: 3,
        hosts: vec![HostTrust {
            host: HostId(7),
            name: text("gpu-07"),
            reads: Some(3),
            build: text("0.1.0"),
            has_key: true,
            took_ca: false,
            revoked: Some(text("stolen")),
        }],
        stage: CaStage::Trusting,
        authorities: vec![print(8), print(9)],
        ca_ends_ms: Some(1_900_000_000_000),
        tokens: vec![TokenRow {
            id: text("3f9a01"),
            kind: text("user"),
            subject: actor().user,
            role: Some(Role::Submitter),
            expires_at_ms: 5,
            made: Some((text("lab/ann"), 4)),
        }],
        audit: vec![AuditRow {
            index: 3,
            at_ms: 2,
            actor: text("lab/ann"),
            what: text("revoke host 7"),
            result: text("done"),
            hash: 1,
        }],
        audit_is_whole: true,
    }))
}

pub(crate) fn peer_request() -> PeerRequest {
    PeerRequest::Authority { ca: print(9) }
}

pub(crate) fn peer_reply() -> PeerReply {
    PeerReply::Authority { key_pem: text("key").into() }
}
