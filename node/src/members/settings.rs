//! `[membership]` in the settings: how many hosts are members of the agreement.
//!
//! Not here: who they are. That is the autopilot's, and goes by what the leader's settings say.

use crate::logic::autopilot::MEMBERS_MAX;
use rota_protocol::PublicError;
use serde::{Deserialize, Serialize};

/// Fewest: with less nobody could be lost.
const LEAST: usize = 3;
/// Most: each costs the leader its own copy of every entry.
const MOST: usize = 100;

/// `[membership]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MembershipConfig {
    /// Up to so many hosts are members; the others follow their peers. 7.
    pub members_max: Option<usize>,
}

impl MembershipConfig {
    /// The figure.
    #[must_use]
    pub fn members_max(&self) -> usize {
        self.members_max.unwrap_or(MEMBERS_MAX)
    }

    /// Checks it.
    ///
    /// # Errors
    /// It is not within bounds.
    pub fn check(&self) -> Result<(), PublicError> {
        match self.members_max {
            Some(given) if !(LEAST..=MOST).contains(&given) => {
                let why = format!("{given} is not from {LEAST} to {MOST}");
                Err(PublicError::invalid("membership.members_max", why, "7"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_makes_no_sense_is_refused_by_name() {
        let of = |members_max| MembershipConfig { members_max };
        assert_eq!(of(None).members_max(), 7);
        for good in [None, Some(3), Some(100)] {
            assert_eq!(of(good).check(), Ok(()));
        }
        for bad in [0, 2, 101] {
            let error = of(Some(bad)).check().unwrap_err().to_string();
            assert!(error.contains("members_max") && error.contains(&bad.to_string()), "{error}");
        }
    }
}
