//! Trust: keys, revocations, authorities, tokens. A change said twice is the same as once.

use super::{Answer, Event, Step, cut, no_host};
use crate::state::State;
use crate::state::trust::{Authority, CERTIFICATE_BYTES_MAX, Revoked};
use rota_protocol::command::{Outcome, SecretHash};
use rota_protocol::job::Actor;
use rota_protocol::trust::{AuditRow, CaStage, Print, TrustChange};
use rota_protocol::{ErrorCode, HostId, PublicError};

/// Shortest beginning of a token's id that says which.
const ID_DIGITS_MIN: usize = 6;

pub(super) fn apply(state: &mut State, step: &mut Step, actor: &Actor, change: &TrustChange) -> Answer {
    match change {
        TrustChange::Key { host, key } => record_key(state, step, *host, key),
        TrustChange::Revoke { host, reason } => revoke(state, step, *host, actor, reason),
        TrustChange::OfferCa { certificate_pem, ca, ends_ms } => {
            let certificate_pem = certificate_pem.clone();
            offer_ca(state, step, Authority { ca: *ca, certificate_pem, ends_ms: *ends_ms })
        }
        TrustChange::TookCa { host, stage, ca } => took_ca(state, step, *host, *stage, ca),
        TrustChange::AdvanceCa { from } => advance_ca(state, step, *from),
        TrustChange::RevokeToken { id } => revoke_token(state, id),
        TrustChange::Seen { host, what, count } => {
            let (at_ms, index) = (step.now_ms, step.index);
            let actor = format!("host {host}");
            let what = cut(&format!("{what}, {count} times"));
            state.trust.note(AuditRow { index, at_ms, actor, what, result: "refused".into(), hash: 0 });
            Ok(Outcome::Done)
        }
    }
}

fn conflict(message: impl Into<String>) -> PublicError {
    PublicError::new(ErrorCode::Conflict, message)
}

fn record_key(state: &mut State, step: &mut Step, host: HostId, key: &Print) -> Answer {
    if state.host(host).is_none() {
        return Err(no_host(host));
    }
    match state.trust.keys.get(&host) {
        Some(known) if known == key => return Ok(Outcome::Done),
        Some(_) => {
            let message = format!("host {host} is known by another key: a host with a new key joins anew");
            return Err(conflict(message));
        }
        None => {}
    }
    state.trust.keys.insert(host, *key);
    step.note(Event::TrustChanged);
    Ok(Outcome::Done)
}

/// Trusts a host no more: peers refuse its certificates and end its connections, its lease is not renewed, nothing is
/// placed there. Also for the removal of a host.
pub(super) fn revoke(state: &mut State, step: &mut Step, id: HostId, actor: &Actor, reason: &str) -> Answer {
    if state.host(id).is_none() {
        return Err(no_host(id));
    }
    if state.trust.revoked.contains_key(&id) {
        return Ok(Outcome::Done);
    }
    if !state.hosts().any(|host| host.id != id && state.trust.revoked(host.id).is_none()) {
        return Err(conflict(format!("host {id} is the last one that the cluster trusts")));
    }
    let revoked = Revoked { reason: cut(reason), by: actor.user.clone(), at_ms: step.now_ms };
    state.trust.revoked.insert(id, revoked);
    state.trust.took.remove(&id);
    if let Some(host) = state.hosts.get_mut(id) {
        host.drain = Some(cut(&format!("revoked: {reason}")));
    }
    step.note(Event::HostChanged(id));
    step.note(Event::TrustChanged);
    step.plan_needed = true;
    Ok(Outcome::Done)
}

/// The first authority is taken as it is; a further one begins a change.
fn offer_ca(state: &mut State, step: &mut Step, next: Authority) -> Answer {
    if next.certificate_pem.len() > CERTIFICATE_BYTES_MAX || next.certificate_pem.is_empty() {
        let message = format!("{} bytes are not 1 to {CERTIFICATE_BYTES_MAX}", next.certificate_pem.len());
        return Err(PublicError::invalid("certificate", message, "500 bytes"));
    }
    if state.trust.authorities.iter().any(|known| known.ca == next.ca) {
        return Ok(Outcome::Done);
    }
    if state.trust.stage == CaStage::Issuing {
        return Err(conflict(format!("a change is under way: {}", awaited(state))));
    }
    // One that nobody has taken, such as after the loss of the host that made it, gives way to another.
    let trusted = |host: &HostId| state.trust.revoked(*host).is_none();
    if state.trust.stage == CaStage::Trusting && state.trust.took.iter().any(trusted) {
        return Err(conflict(format!("a change is under way: {}", awaited(state))));
    }
    state.trust.authorities.truncate(1);
    state.trust.authorities.push(next);
    if state.trust.authorities.len() > 1 {
        state.trust.stage = CaStage::Trusting;
        state.trust.took.clear();
    }
    step.note(Event::TrustChanged);
    Ok(Outcome::Done)
}

fn took_ca(state: &mut State, step: &mut Step, host: HostId, stage: CaStage, ca: &Print) -> Answer {
    if state.host(host).is_none() {
        return Err(no_host(host));
    }
    let table = &mut state.trust;
    if table.stage != stage || table.next_authority().is_none_or(|next| next.ca != *ca) {
        return Err(conflict(format!("the change of authorities is {}, not {stage}", table.stage)));
    }
    if table.revoked(host).is_none() && table.took.insert(host) {
        step.note(Event::TrustChanged);
    }
    Ok(Outcome::Done)
}

fn advance_ca(state: &mut State, step: &mut Step, from: CaStage) -> Answer {
    if state.trust.stage != from || from == CaStage::Settled {
        return Err(conflict(format!("the change of authorities is {}, not {from}", state.trust.stage)));
    }
    if !state.behind_in_ca().is_empty() {
        return Err(conflict(awaited(state)));
    }
    let table = &mut state.trust;
    table.took.clear();
    match from {
        CaStage::Trusting => {
            table.authorities.reverse();
            table.stage = CaStage::Issuing;
        }
        _ => {
            table.authorities.truncate(1);
            table.stage = CaStage::Settled;
        }
    }
    step.note(Event::TrustChanged);
    Ok(Outcome::Done)
}

/// Whom a change of authorities waits for.
fn awaited(state: &State) -> String {
    let stage = state.trust.stage;
    let behind = state.behind_in_ca();
    if behind.is_empty() {
        return format!("stage {stage} is about to end");
    }
    let names: Vec<String> = behind
        .iter()
        .filter_map(|id| state.host(*id))
        .map(|host| format!("{} (host {})", host.name, host.id))
        .collect();
    format!(
        "stage {stage} waits for {}, which did not take the new authority yet; start them, or revoke them",
        names.join(", ")
    )
}

fn revoke_token(state: &mut State, id: &str) -> Answer {
    if id.len() < ID_DIGITS_MIN || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        let message = format!("`{id}` is not 6 to 64 hex digits of a token's id");
        return Err(PublicError::invalid("id", message, "3f9a01"));
    }
    let id = id.to_ascii_lowercase();
    let named: Vec<SecretHash> =
        state.tokens.iter().map(|(hash, _)| *hash).filter(|hash| token_id(hash).starts_with(&id)).collect();
    match &named[..] {
        [hash] => {
            state.tokens.remove(hash);
            state.trust.made.remove(hash);
            Ok(Outcome::Done)
        }
        [] => Err(PublicError::new(ErrorCode::NotFound, format!("no token {id}"))),
        several => Err(conflict(format!("{} tokens begin with {id}", several.len()))),
    }
}

/// A token's hash in hex.
pub(crate) fn token_id(hash: &SecretHash) -> String {
    use std::fmt::Write as _;
    hash.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
