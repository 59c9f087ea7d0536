//! Hashes of secrets: join tokens and user tokens. The secrets themselves never come here.

use rota_protocol::command::{SecretHash, TokenUse};
use rota_protocol::job::Actor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most tokens kept: far above any team, far below what could hurt memory.
pub(crate) const TOKENS_MAX: usize = 10_000;

/// One token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredToken {
    pub(crate) usage: TokenUse,
    /// Refused from this log time on.
    pub(crate) expires_at_ms: u64,
}

/// All tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct TokenTable {
    map: BTreeMap<SecretHash, StoredToken>,
}

impl TokenTable {
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SecretHash, &StoredToken)> {
        self.map.iter()
    }

    pub(crate) fn contains(&self, hash: &SecretHash) -> bool {
        self.map.contains_key(hash)
    }

    pub(crate) fn insert(&mut self, hash: SecretHash, token: StoredToken) {
        self.map.insert(hash, token);
    }

    pub(crate) fn remove(&mut self, hash: &SecretHash) {
        self.map.remove(hash);
    }

    /// A token that has not expired.
    pub(crate) fn live(&self, hash: &SecretHash, now_ms: u64) -> Option<&StoredToken> {
        self.map.get(hash).filter(|t| now_ms < t.expires_at_ms)
    }

    /// The user that a live user token stands for.
    pub(crate) fn user(&self, hash: &SecretHash, now_ms: u64) -> Option<&Actor> {
        match &self.live(hash, now_ms)?.usage {
            TokenUse::User { actor } => Some(actor),
            TokenUse::Join { .. } => None,
        }
    }

    /// Drops all join tokens: nobody who was invited before is to come in now.
    pub(crate) fn drop_joins(&mut self) {
        self.map.retain(|_, token| !matches!(token.usage, TokenUse::Join { .. }));
    }

    /// Drops all that have expired.
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        self.map.retain(|_, t| now_ms < t.expires_at_ms);
    }
}
