//! Whom the cluster trusts, for people.

use crate::apply::token_id;
use crate::state::State;
use crate::state::host::HostLife;
use rota_protocol::command::TokenUse;
use rota_protocol::trust::{HostTrust, TokenRow, TrustView};
use rota_protocol::version::FIRST;

/// Hex digits of a token's id that are shown.
const ID_DIGITS: usize = 12;

/// The view; tokens that have expired at `now_ms` are left out.
#[must_use]
pub fn trust(state: &State, now_ms: u64) -> TrustView {
    let table = state.trust();
    let hosts = state.hosts().map(|host| HostTrust {
        host: host.id,
        name: host.name.clone(),
        reads: (host.life != HostLife::Joining).then(|| host.facts.notes.reads.max(FIRST)),
        build: host.facts.version.clone(),
        has_key: table.key(host.id).is_some(),
        took_ca: table.took(host.id),
        revoked: table.revoked(host.id).map(|why| why.reason.clone()),
    });
    let tokens =
        state.tokens.iter().filter(|(_, token)| now_ms < token.expires_at_ms).map(|(hash, token)| {
            let (kind, subject, role) = match &token.usage {
                TokenUse::Join { host_name } => {
                    ("join", host_name.clone().unwrap_or_else(|| "any host".into()), None)
                }
                TokenUse::User { actor } => {
                    ("user", format!("{}/{}", actor.tenant, actor.user), Some(actor.role))
                }
            };
            let mut id = token_id(hash);
            id.truncate(ID_DIGITS);
            let made = table.made.get(hash).cloned();
            TokenRow { id, kind: kind.into(), subject, role, expires_at_ms: token.expires_at_ms, made }
        });
    TrustView {
        version: table.version(),
        hosts: hosts.collect(),
        stage: table.stage(),
        authorities: table.authorities().iter().map(|known| known.ca).collect(),
        ca_ends_ms: table.authorities().first().map(|known| known.ends_ms),
        tokens: tokens.collect(),
        audit: table.audit().cloned().collect(),
        audit_is_whole: table.audit_is_whole(),
    }
}
