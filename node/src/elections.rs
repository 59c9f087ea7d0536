//! How long peers wait for a silent leader: `[elections]` in the settings, or a step of the ladder that this host's own disk
//! bears. Peers may differ in it: the heartbeat is the same on all steps, and a vote counts the same.
//!
//! Not here: the lease. Its figures must be equal on all hosts, so they come with the profile alone.

use crate::config::Profile;
use crate::logic::lease::LeaseParams;
use crate::parse::duration_ms;
use rota_consensus::Timings;
use rota_protocol::PublicError;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `[elections]`. What is not written comes from the profile; what is written is not measured.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ElectionsConfig {
    /// Between two heartbeats of the leader; 50ms.
    pub heartbeat: Option<String>,
    /// Shortest wait for a silent leader, after its own time is over; 150ms.
    pub min: Option<String>,
    /// Longest such wait, and the leader's own time; 300ms.
    pub max: Option<String>,
}

/// The times that an agent goes by, and where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// Written in the settings.
    Written(Timings),
    /// The lowest step of the ladder for a disk of this pace.
    Measured(Timings, Duration),
    /// The highest step, though the disk is slower than it bears.
    TooSlow(Timings, Duration),
}

impl Chosen {
    /// The times.
    #[must_use]
    pub fn timings(&self) -> Timings {
        match self {
            Self::Written(timings) | Self::Measured(timings, _) | Self::TooSlow(timings, _) => *timings,
        }
    }
}

/// The lease rule (FAULTS 2.0) with the leader gap that these times allow.
fn lease_bears(lease: LeaseParams, timings: Timings) -> bool {
    let leader_gap_ms = lease.leader_gap_ms.max(timings.leader_gap_ms_max());
    LeaseParams { leader_gap_ms, ..lease }.check().is_ok()
}

impl ElectionsConfig {
    /// The times of a host whose disk makes a write durable in so long.
    ///
    /// # Errors
    /// See [`Self::check`].
    pub fn chosen(&self, profile: Profile, fsync_p99: Duration) -> Result<Chosen, PublicError> {
        if let Some(timings) = self.written(profile)? {
            return Ok(Chosen::Written(timings));
        }
        let mut chosen = Chosen::TooSlow(profile.timings(), fsync_p99);
        for step in profile.timings().ladder() {
            if !lease_bears(profile.lease(), step) {
                break;
            }
            if step.bear(fsync_p99) {
                return Ok(Chosen::Measured(step, fsync_p99));
            }
            chosen = Chosen::TooSlow(step, fsync_p99);
        }
        Ok(chosen)
    }

    /// Whether the times are given, so that nothing need be measured.
    #[must_use]
    pub fn is_written(&self) -> bool {
        *self != Self::default()
    }

    /// Checks what is written: that an election can be held, and that none outlasts a healthy task.
    ///
    /// # Errors
    /// Names the key, its value and one that would do.
    pub fn check(&self, profile: Profile) -> Result<(), PublicError> {
        self.written(profile).map(drop)
    }

    fn written(&self, profile: Profile) -> Result<Option<Timings>, PublicError> {
        if !self.is_written() {
            return Ok(None);
        }
        let base = profile.timings();
        let read = |key: &str, text: &Option<String>, base_ms: u64| match text {
            Some(text) => duration_ms(&format!("elections.{key}"), text),
            None => Ok(base_ms),
        };
        let timings = Timings {
            heartbeat_ms: read("heartbeat", &self.heartbeat, base.heartbeat_ms)?,
            election_min_ms: read("min", &self.min, base.election_min_ms)?,
            election_max_ms: read("max", &self.max, base.election_max_ms)?,
        };
        let Timings { heartbeat_ms, election_min_ms, election_max_ms } = timings;
        if election_min_ms < heartbeat_ms.saturating_mul(2) {
            let why = format!("{election_min_ms} ms is less than twice the heartbeat of {heartbeat_ms} ms");
            let example = format!("{}ms", heartbeat_ms.saturating_mul(3));
            return Err(PublicError::invalid("elections.min", why, &example));
        }
        if election_max_ms <= election_min_ms {
            let why = format!("{election_max_ms} ms is not more than elections.min, {election_min_ms} ms");
            let example = format!("{}ms", election_min_ms.saturating_mul(2));
            return Err(PublicError::invalid("elections.max", why, &example));
        }
        if !lease_bears(profile.lease(), timings) {
            let lease = profile.lease();
            let left_ms = lease.holder_ms() - lease.kill_budget_ms;
            let gap_ms = timings.leader_gap_ms_max();
            let why = format!(
                "{election_max_ms} ms may leave the cluster without a leader for {gap_ms} ms, and a lease bears {left_ms} ms \
                 less two renewals of {} ms: healthy tasks would be ended",
                lease.renew_ms
            );
            let most_ms = left_ms.saturating_sub(2 * lease.renew_ms + 1) / 3;
            return Err(PublicError::invalid("elections.max", why, &format!("{most_ms}ms")));
        }
        Ok(Some(timings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(heartbeat: &str, min: &str, max: &str) -> ElectionsConfig {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        ElectionsConfig { heartbeat: some(heartbeat), min: some(min), max: some(max) }
    }

    /// Fault O4: refused with the key, its value, and a value that is then taken.
    #[test]
    fn times_that_cannot_elect_or_outlast_a_lease_are_refused_with_one_that_would_do() {
        for (bad, field, value) in [
            (config("100ms", "", ""), "elections.min", "150 ms"),
            (config("", "", "150ms"), "elections.max", "150 ms"),
            (config("", "", "1300ms"), "elections.max", "1300 ms"),
            (config("", "fast", ""), "elections.min", "fast"),
            (config("0", "", ""), "elections.heartbeat", "0"),
        ] {
            let error = bad.check(Profile::Production).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{error:?}");
            assert!(error.message.contains(value), "{error:?}");
            let example = error.example.clone().expect("an example");
            let mut mended = bad.clone();
            match field {
                "elections.min" => (mended.min, mended.max) = (Some(example), Some("600ms".into())),
                "elections.max" => mended.max = Some(example),
                _ => continue,
            }
            if value != "fast" {
                assert_eq!(mended.check(Profile::Production), Ok(()), "{mended:?}");
            }
        }
        assert_eq!(ElectionsConfig::default().check(Profile::Chaos), Ok(()));
        let written = config("", "200ms", "400ms").chosen(Profile::Production, Duration::from_secs(1));
        assert!(matches!(written, Ok(Chosen::Written(_))), "{written:?}");
    }

    /// 10 x p99 <= the shortest wait, or the next step; never one that a lease does not bear.
    #[test]
    fn the_step_follows_from_the_pace_of_the_disk() {
        let chosen = |profile, ms| {
            let chosen = ElectionsConfig::default().chosen(profile, Duration::from_millis(ms)).unwrap();
            let max_ms = chosen.timings().election_max_ms;
            (max_ms, matches!(chosen, Chosen::TooSlow(..)))
        };
        let production = [1, 15, 16, 31, 60, 61].map(|ms| chosen(Profile::Production, ms));
        assert_eq!(
            production,
            [(300, false), (300, false), (600, false), (1_200, false), (1_200, false), (1_200, true)]
        );
        assert_eq!([30, 31].map(|ms| chosen(Profile::Chaos, ms)), [(600, false), (600, true)]);
        for profile in [Profile::Production, Profile::Chaos] {
            assert!(lease_bears(profile.lease(), profile.timings()));
        }
    }
}
