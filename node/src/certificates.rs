//! The setting of how long this host's certificate lives.

use crate::parse::time;
use rota_protocol::PublicError;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Shorter ones would be renewed all the time.
const LIFE_MS_MIN: u64 = 3_000;
/// Longer ones prove too little: a stolen one is good for as long.
const LIFE_MS_MAX: u64 = 366 * 24 * 3_600_000;

/// `[certificates]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CertificateSettings {
    /// How long a certificate is good for; it is renewed at two thirds of that.
    pub life: String,
}

impl Default for CertificateSettings {
    fn default() -> Self {
        Self { life: "24h".into() }
    }
}

impl CertificateSettings {
    /// The life.
    ///
    /// # Errors
    /// No time, or one that makes no sense.
    pub fn life(&self) -> Result<Duration, PublicError> {
        let ms = time::duration_ms("certificates.life", &self.life)?;
        if (LIFE_MS_MIN..=LIFE_MS_MAX).contains(&ms) {
            return Ok(Duration::from_millis(ms));
        }
        let message = format!("{} is not between 3 s and 366 days", self.life);
        Err(PublicError::invalid("certificates.life", message, "24h"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_a_time_that_makes_sense() {
        let of = |life: &str| CertificateSettings { life: life.into() }.life();
        assert_eq!(CertificateSettings::default().life().unwrap(), Duration::from_secs(86_400));
        assert_eq!(of("10s").unwrap(), Duration::from_secs(10));
        for bad in ["", "1s", "400d", "-1h", "soon"] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains("certificates.life"), "{bad}: {error}");
        }
    }
}
