//! A job's pace: how fast it runs on which GPU model, and how much of its work is done. What its user says comes first,
//! then what runs of its kind taught (`speeds.rs`). The planner and `apply` ask the same functions. It ranks nothing.

use crate::fit;
use crate::state::attempt::Attempt;
use crate::state::job::Job;
use crate::state::speeds::{self, Speeds, model_digest};
use rota_protocol::ask::Ask;
use std::collections::BTreeMap;

/// The speed of a job on its best model, and on all where nothing is known.
pub const BEST_PERMILLE: u32 = 1_000;
/// Models for which a job keeps its time: more than a cluster has. Further ones count as the last.
const MODELS_MAX: usize = 64;

/// What is known of a job's speeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownSpeeds<'j> {
    /// Its user says them: name and permille of an ordinary card, and the highest of them.
    Stated(&'j [(String, u32)], u32),
    /// Mean run times of its kind by the model's digest, on two models or more, and the shortest of them.
    Learned(Vec<(u64, u64)>, u64),
    /// Nothing that could be compared.
    Nothing,
}

impl<'j> KnownSpeeds<'j> {
    /// For one of a job's asks.
    #[must_use]
    pub fn of(job: &'j Job, ask: &Ask, table: &Speeds) -> Self {
        let stated = job.spec.pace.as_deref().map(|pace| pace.speeds.as_slice()).unwrap_or_default();
        if let Some(best) = stated.iter().map(|(_, speed)| *speed).max() {
            return Self::Stated(stated, best.max(1));
        }
        let runs: Vec<(u64, u64)> =
            speeds::kind(job, ask).into_iter().flat_map(|kind| table.of_kind(kind)).collect();
        match runs.iter().map(|(_, ms)| *ms).min() {
            Some(best_ms) if runs.len() > 1 => Self::Learned(runs, best_ms.max(1)),
            _ => Self::Nothing,
        }
    }

    /// The speed on a model in permille of the best; none if it is not known there.
    #[must_use]
    pub fn on(&self, model: &str) -> Option<u32> {
        let permille = match self {
            Self::Stated(stated, best) => {
                let named =
                    |(name, _): &&(String, u32)| fit::model_accepted(model, std::slice::from_ref(name));
                let (_, speed) = stated.iter().find(named)?;
                u64::from(*speed) * u64::from(BEST_PERMILLE) / u64::from(*best)
            }
            Self::Learned(runs, best_ms) => {
                let digest = model_digest(model);
                let (_, ms) = runs.iter().find(|(known, _)| *known == digest)?;
                best_ms.saturating_mul(u64::from(BEST_PERMILLE)) / (*ms).max(1)
            }
            Self::Nothing => return None,
        };
        Some(permille.clamp(1, u64::from(BEST_PERMILLE)) as u32)
    }

    /// The speed to reckon with on a model: of one that is not known, the mean of those that are.
    #[must_use]
    pub fn reckoned(&self, model: &str) -> u32 {
        let mean = || match self {
            Self::Stated(stated, best) => {
                let sum: u64 = stated.iter().map(|(_, speed)| u64::from(*speed)).sum();
                sum * u64::from(BEST_PERMILLE) / u64::from(*best) / (stated.len() as u64).max(1)
            }
            Self::Learned(runs, best_ms) => {
                let speed = |(_, ms): &(u64, u64)| best_ms * u64::from(BEST_PERMILLE) / (*ms).max(1);
                runs.iter().map(speed).sum::<u64>() / (runs.len() as u64).max(1)
            }
            Self::Nothing => u64::from(BEST_PERMILLE),
        };
        self.on(model).unwrap_or_else(|| mean().clamp(1, u64::from(BEST_PERMILLE)) as u32)
    }
}

impl Job {
    /// Notes that one of its attempts ran on a model; of a gang only the first part counts.
    pub(crate) fn note_served(&mut self, attempt: &Attempt, model: &str, ran_ms: u64) {
        if self.ordinal(attempt.task.index) != Some(0) {
            return;
        }
        let full = self.served.len() >= MODELS_MAX && !self.served.contains_key(model);
        let last = self.served.last_key_value().filter(|_| full).map(|(last, _)| last.clone());
        let served = self.served.entry(last.unwrap_or_else(|| model.to_owned())).or_default();
        *served = served.saturating_add(ran_ms);
    }

    /// How long its ended attempts ran on each model, in ms; only of jobs that take turns.
    #[must_use]
    pub fn served(&self) -> &BTreeMap<String, u64> {
        &self.served
    }

    /// The work that its ended attempts did, as time alone on its best model, in ms.
    #[must_use]
    pub fn done_ms(&self, speeds: &KnownSpeeds<'_>) -> u64 {
        self.served
            .iter()
            .map(|(model, ms)| work_ms(*ms, speeds.reckoned(model)))
            .fold(0, u64::saturating_add)
    }
}

/// What a run of `ran_ms` at a speed comes to, as time on the best model, in ms.
#[must_use]
pub fn work_ms(ran_ms: u64, speed_permille: u32) -> u64 {
    (u128::from(ran_ms) * u128::from(speed_permille) / u128::from(BEST_PERMILLE)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stated_speeds_are_ratios_and_names_may_be_short() {
        let stated = [("A100".to_owned(), 500), ("k80".to_owned(), 50)];
        let speeds = KnownSpeeds::Stated(&stated, 500);
        assert_eq!((speeds.on("NVIDIA A100-SXM4"), speeds.on("Tesla K80")), (Some(1_000), Some(100)));
        assert_eq!((speeds.on("H100"), speeds.reckoned("H100")), (None, 550));
        assert_eq!(KnownSpeeds::Nothing.reckoned("H100"), 1_000);
        assert_eq!(work_ms(90_000, 100), 9_000);
    }

    #[test]
    fn learned_times_are_speeds_the_other_way_round() {
        let runs = vec![(model_digest("A100"), 10_000), (model_digest("K80"), 80_000)];
        let speeds = KnownSpeeds::Learned(runs, 10_000);
        assert_eq!((speeds.on("A100"), speeds.on("K80"), speeds.on("H100")), (Some(1_000), Some(125), None));
        assert_eq!(speeds.reckoned("H100"), 562);
    }
}
