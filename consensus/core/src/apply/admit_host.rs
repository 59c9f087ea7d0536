//! AdmitHost: uses up a join token and hands out a host id. A refusal leaves the token as it was.

use super::{Answer, Step, check_addr, check_host_name, create_cluster};
use crate::state::State;
use crate::state::host::HostLife;
use rota_protocol::command::{Outcome, SecretHash, TokenUse};
use rota_protocol::limits::HOSTS_MAX;
use rota_protocol::{ErrorCode, PublicError};

pub(super) fn apply(
    state: &mut State,
    step: &mut Step,
    token: &SecretHash,
    host_name: &str,
    addr: &str,
) -> Answer {
    check_host_name(host_name)?;
    check_addr(addr)?;
    let wanted = match state.tokens.live(token, step.now_ms).map(|t| &t.usage) {
        Some(TokenUse::Join { host_name }) => host_name.as_deref(),
        Some(TokenUse::User { .. }) | None => {
            let message = "the join token is unknown, used up or expired";
            return Err(PublicError::new(ErrorCode::Unauthenticated, message));
        }
    };
    if wanted.is_some_and(|wanted| !is_meant(state, wanted, host_name)) {
        let message = format!("the token is for another host than '{host_name}'");
        return Err(PublicError::new(ErrorCode::Forbidden, message));
    }
    // A name may come again only when its old bearer is gone or never came up.
    let taken = state
        .hosts()
        .find(|h| h.name == host_name && h.life == HostLife::Up && h.belonging.removed.is_none());
    if let Some(other) = taken {
        let message = format!(
            "host {0} is up under the name '{host_name}'; if this machine was it, its lease is over in a moment: try \
             again, or `rota cluster remove {0}`",
            other.id
        );
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    // Those that were removed keep their numbers for ever, and count no more.
    if state.hosts().filter(|host| host.belonging.removed.is_none()).count() >= HOSTS_MAX {
        return Err(PublicError::new(ErrorCode::TooLarge, format!("{HOSTS_MAX} hosts are the most")));
    }
    state.tokens.remove(token);
    state.trust.made.remove(token);
    let host = create_cluster::admit(state, step, host_name, addr);
    Ok(Outcome::HostAdmitted { host })
}

/// A token is for one name, or, from version 3 on, for a pool of names: `gpu-*`.
fn is_meant(state: &State, wanted: &str, host_name: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(pool) if state.version() >= 3 => host_name.starts_with(pool),
        _ => wanted == host_name,
    }
}
