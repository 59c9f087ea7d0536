//! MintToken: stores the hash of a secret that the edge drew and showed once.

use super::{Answer, Step, check_host_name};
use crate::spec::check_name;
use crate::state::State;
use crate::state::token::{StoredToken, TOKENS_MAX};
use rota_protocol::command::{Outcome, SecretHash, TokenUse};
use rota_protocol::job::Actor;
use rota_protocol::{ErrorCode, PublicError};

pub(super) fn apply(
    state: &mut State,
    step: &mut Step,
    maker: &Actor,
    token: &SecretHash,
    usage: &TokenUse,
    expires_at_ms: u64,
) -> Answer {
    match usage {
        TokenUse::Join { host_name } => {
            if let Some(name) = host_name {
                check_host_name(name)?;
            }
        }
        TokenUse::User { actor } => {
            for (field, text) in [("tenant", &actor.tenant), ("user", &actor.user)] {
                check_name(field, text)?;
                if text.is_empty() {
                    return Err(PublicError::invalid(field, "is empty", "alice"));
                }
            }
        }
    }
    if expires_at_ms <= step.now_ms {
        return Err(PublicError::invalid("ttl", "the token would be expired from the start", "1h"));
    }
    state.tokens.sweep(step.now_ms);
    if state.tokens.contains(token) {
        return Err(PublicError::new(ErrorCode::Conflict, "this token exists already"));
    }
    if state.tokens.len() >= TOKENS_MAX {
        let message = format!("{TOKENS_MAX} tokens are the most");
        return Err(PublicError::new(ErrorCode::TooLarge, message));
    }
    let stored = StoredToken { usage: usage.clone(), expires_at_ms };
    state.tokens.insert(*token, stored);
    if state.version() >= 3 {
        let kept = &state.tokens;
        state.trust.made.retain(|hash, _| kept.contains(hash));
        state.trust.made.insert(*token, (format!("{}/{}", maker.tenant, maker.user), step.now_ms));
    }
    Ok(Outcome::Done)
}
