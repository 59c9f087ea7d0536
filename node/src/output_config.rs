//! What an operator may set of the output of tasks: `[output]` in the settings. Amounts and times are written as
//! everywhere else; a key that is not written has the value named beside it.

use crate::logic::output::HostLimits;
use crate::parse::amount::bytes;
use crate::parse::duration_ms;
use crate::shim::KeepRules;
use rota_protocol::PublicError;
use rota_protocol::limits::{OUTPUT_BYTES_MAX, OUTPUT_BYTES_MIN};
use rota_protocol::output::{KEPT_BYTES_DEFAULT, RATE_BYTES_DEFAULT};
use serde::{Deserialize, Serialize};

/// Free bytes below which a host takes nothing new, where nobody says otherwise.
const DISK_FLOOR_DEFAULT: u64 = 256 << 20;

/// `[output]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputConfig {
    /// Kept of each stream of a task whose job does not say; 1GiB.
    pub max: Option<String>,
    /// The most that a job may ask for; 64GiB.
    pub max_asked: Option<String>,
    /// Kept of each stream in a second; 4GiB.
    pub rate: Option<String>,
    /// How long output of attempts that succeeded stays; 7d.
    pub keep: Option<String>,
    /// How long that of all others stays; 30d.
    pub keep_failed: Option<String>,
    /// How much of it stays, all together; 10GiB.
    pub keep_bytes: Option<String>,
    /// Of how many attempts; 10000.
    pub keep_attempts: Option<usize>,
    /// With less free space than this under the data directory the host takes nothing new; 256MiB.
    pub disk_floor: Option<String>,
}

impl OutputConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// The first key whose value is no amount or time, or that contradicts another.
    pub fn check(&self) -> Result<(), PublicError> {
        let limits = self.try_limits()?;
        let within = |field: &str, value: u64| {
            if (OUTPUT_BYTES_MIN..=OUTPUT_BYTES_MAX).contains(&value) {
                return Ok(());
            }
            let message = format!("{value} bytes are not between {OUTPUT_BYTES_MIN} and {OUTPUT_BYTES_MAX}");
            Err(PublicError::invalid(field, message, "1GiB"))
        };
        within("output.max", limits.bytes_default)?;
        within("output.max_asked", limits.bytes_max)?;
        let rules = self.try_rules()?;
        if rules.failed_ms < rules.succeeded_ms {
            let message = "output of failures must not go before that of successes";
            return Err(PublicError::invalid("output.keep_failed", message, "30d"));
        }
        if rules.attempts_max == 0 {
            return Err(PublicError::invalid("output.keep_attempts", "at least one stays", "10000"));
        }
        self.try_disk_floor().map(drop)
    }

    /// What a task may leave on this host.
    #[must_use]
    pub fn limits(&self) -> HostLimits {
        // Checked at the start.
        self.try_limits().unwrap_or(HostLimits {
            bytes_default: KEPT_BYTES_DEFAULT,
            bytes_max: OUTPUT_BYTES_MAX,
            rate_bytes: RATE_BYTES_DEFAULT,
        })
    }

    /// What of it stays.
    #[must_use]
    pub fn rules(&self) -> KeepRules {
        self.try_rules().unwrap_or_default()
    }

    /// Free bytes below which this host takes nothing new.
    #[must_use]
    pub fn disk_floor(&self) -> u64 {
        self.try_disk_floor().unwrap_or(DISK_FLOOR_DEFAULT)
    }

    fn try_limits(&self) -> Result<HostLimits, PublicError> {
        let bytes_max = amount("output.max_asked", &self.max_asked, OUTPUT_BYTES_MAX)?;
        Ok(HostLimits {
            bytes_default: amount("output.max", &self.max, KEPT_BYTES_DEFAULT)?.min(bytes_max),
            bytes_max,
            rate_bytes: amount("output.rate", &self.rate, RATE_BYTES_DEFAULT)?,
        })
    }

    fn try_rules(&self) -> Result<KeepRules, PublicError> {
        let usual = KeepRules::default();
        let time = |field: &str, text: &Option<String>, default| match text {
            Some(text) => duration_ms(field, text),
            None => Ok(default),
        };
        let succeeded_ms = time("output.keep", &self.keep, usual.succeeded_ms)?;
        Ok(KeepRules {
            succeeded_ms,
            failed_ms: time("output.keep_failed", &self.keep_failed, usual.failed_ms.max(succeeded_ms))?,
            bytes_max: amount("output.keep_bytes", &self.keep_bytes, usual.bytes_max)?,
            attempts_max: self.keep_attempts.unwrap_or(usual.attempts_max),
        })
    }

    fn try_disk_floor(&self) -> Result<u64, PublicError> {
        amount("output.disk_floor", &self.disk_floor, DISK_FLOOR_DEFAULT)
    }
}

fn amount(field: &str, text: &Option<String>, default: u64) -> Result<u64, PublicError> {
    match text {
        Some(text) => bytes(field, text),
        None => Ok(default),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> OutputConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_is_written_holds_and_the_rest_is_as_documented() {
        let usual = OutputConfig::default();
        usual.check().unwrap();
        assert_eq!((usual.limits().bytes_default, usual.disk_floor()), (1 << 30, 256 << 20));
        assert_eq!(usual.rules(), KeepRules::default());
        let set = of(
            "max = '10MiB'\nkeep = '1m'\nkeep_failed = '1h'\nkeep_bytes = '1G'\nkeep_attempts = 5\ndisk_floor = '2GiB'",
        );
        set.check().unwrap();
        assert_eq!((set.limits().bytes_default, set.disk_floor()), (10 << 20, 2 << 30));
        let rules =
            KeepRules { succeeded_ms: 60_000, failed_ms: 3_600_000, bytes_max: 1 << 30, attempts_max: 5 };
        assert_eq!(set.rules(), rules);
    }

    #[test]
    fn what_cannot_hold_is_refused_by_its_key() {
        for (text, key) in [
            ("max = 'much'", "output.max"),
            ("max = '1KiB'", "output.max"),
            ("max_asked = '1TiB'", "output.max_asked"),
            ("keep = '0'", "output.keep"),
            ("keep = '2h'\nkeep_failed = '1h'", "output.keep_failed"),
            ("keep_attempts = 0", "output.keep_attempts"),
            ("disk_floor = '-1'", "output.disk_floor"),
        ] {
            let error = of(text).check().unwrap_err();
            assert_eq!(error.field.as_deref(), Some(key), "{text}: {error}");
        }
        assert!(toml::from_str::<OutputConfig>("keeep = '1d'").unwrap_err().to_string().contains("keeep"));
    }
}
