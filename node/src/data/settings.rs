//! What an operator may set of inputs: `[inputs]` in the settings.

use crate::parse::amount::bytes;
use crate::parse::duration_ms;
use rota_protocol::PublicError;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bytes of blobs that a host keeps, where nobody says otherwise.
const CACHE_BYTES_DEFAULT: u64 = 10 << 30;
/// How long an attempt waits for a source, or for room, where nobody says otherwise.
const PATIENCE_MS_DEFAULT: u64 = 30_000;

/// `[inputs]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InputsConfig {
    /// How much of blobs this host keeps; 10GiB.
    pub cache: Option<String>,
    /// How long an attempt waits for a host that has its inputs, or for room, before it ends for that; 30s.
    pub patience: Option<String>,
}

impl InputsConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// The first key whose value is no amount or time.
    pub fn check(&self) -> Result<(), PublicError> {
        self.try_cache_bytes()?;
        self.try_patience().map(drop)
    }

    /// Most bytes of blobs.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        // Checked at the start.
        self.try_cache_bytes().unwrap_or(CACHE_BYTES_DEFAULT)
    }

    /// How long an attempt waits while nothing moves.
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.try_patience().unwrap_or(PATIENCE_MS_DEFAULT))
    }

    fn try_cache_bytes(&self) -> Result<u64, PublicError> {
        self.cache.as_deref().map_or(Ok(CACHE_BYTES_DEFAULT), |text| bytes("inputs.cache", text))
    }

    fn try_patience(&self) -> Result<u64, PublicError> {
        self.patience.as_deref().map_or(Ok(PATIENCE_MS_DEFAULT), |text| duration_ms("inputs.patience", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_holds_and_what_cannot_is_refused_by_its_key() {
        let of = |text: &str| toml::from_str::<InputsConfig>(text).unwrap();
        let usual = InputsConfig::default();
        assert_eq!((usual.cache_bytes(), usual.patience()), (10 << 30, Duration::from_secs(30)));
        let set = of("cache = '8MiB'\npatience = '2s'");
        assert_eq!(
            (set.check(), set.cache_bytes(), set.patience()),
            (Ok(()), 8 << 20, Duration::from_secs(2))
        );
        for (text, key) in [("cache = 'much'", "inputs.cache"), ("patience = '0'", "inputs.patience")] {
            assert_eq!(of(text).check().unwrap_err().field.as_deref(), Some(key));
        }
    }
}
