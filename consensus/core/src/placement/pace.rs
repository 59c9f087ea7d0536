//! How much slower a job is expected to run on each GPU model than on the best: from its own runs (`state/speeds.rs`)
//! or, without any to compare, from what operators say of their hosts. It only ranks hosts that fit; it turns none
//! away, so a class whose jobs differ in speed alone still finds room together or not at all.

use super::models::Models;
use crate::state::job::Job;
use crate::state::pace::KnownSpeeds;
use crate::state::speeds::{self, Speeds};
use rota_protocol::ask::Ask;
use rota_protocol::device::HostFacts;

/// Label of a host that says how fast its cards are, in permille of an ordinary one.
const SPEED_LABEL: &str = "speed";
/// The speed of a host that says nothing.
const SPEED_PERMILLE: u32 = 1_000;
/// Fastest that a label may say: a thousand times the ordinary.
const SPEED_PERMILLE_MAX: u32 = 1_000_000;
/// Upper edges of the buckets of slowdown, permille of the best run time; beyond the last is one more. The first is
/// wide enough that a fast model which others are short of is not taken for a gain of a tenth: within a bucket the
/// scorer decides, and it knows scarcity.
const EDGES_PERMILLE: [u64; 7] = [1_100, 1_500, 2_000, 3_000, 4_000, 6_000, 8_000];
/// The bucket of models that the job has not run on while it has on others: worth a try before those known to be much
/// slower.
const UNKNOWN: u8 = 1;

/// What is known of a job's speed. Jobs that ask alike and have equal buckets are one kind to the planner.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pace {
    /// Buckets by the model's number; empty unless two models or more can be compared.
    known: Vec<(u16, u8)>,
    /// The fastest label on a host with accepted cards, permille; 0 if labels are of no concern.
    best_given: u32,
}

impl Pace {
    /// For one of a job's asks.
    pub(super) fn of(models: &Models, speeds: &Speeds, job: &Job, ask: &Ask) -> Self {
        if ask.gpu_milli == 0 {
            return Self::default();
        }
        if let KnownSpeeds::Stated(..) = KnownSpeeds::of(job, ask, speeds) {
            return Self::stated(models, &KnownSpeeds::of(job, ask, speeds), &ask.gpu_models);
        }
        let runs = speeds::kind(job, ask).into_iter().flat_map(|kind| speeds.of_kind(kind));
        let may_use = runs.filter_map(|(digest, ms)| Some((models.by_digest(digest, &ask.gpu_models)?, ms)));
        let mut known: Vec<(u16, u64)> = may_use.collect();
        let best_ms = known.iter().map(|(_, ms)| *ms).min().unwrap_or(0);
        if known.len() < 2 {
            return Self { known: Vec::new(), best_given: models.best_given(&ask.gpu_models) };
        }
        known.sort_unstable();
        Self { known: known.into_iter().map(|(id, ms)| (id, bucket(best_ms, ms))).collect(), best_given: 0 }
    }

    /// By what the user says of it.
    fn stated(models: &Models, speeds: &KnownSpeeds<'_>, accepted: &[String]) -> Self {
        let known: Vec<(u16, u64)> = models
            .accepted_names(accepted)
            .filter_map(|(id, name)| Some((id, u64::from(speeds.on(name)?))))
            .collect();
        let best = known.iter().map(|(_, speed)| *speed).max().unwrap_or(0);
        Self {
            known: known.into_iter().map(|(id, speed)| (id, bucket(speed, best))).collect(),
            best_given: 0,
        }
    }

    /// The bucket of a host whose cards are of this model.
    pub(super) fn slowness(&self, model: u16, facts: &HostFacts) -> u8 {
        if self.known.is_empty() {
            // Times are to each other as speeds the other way round.
            return bucket(u64::from(given_permille(facts)), u64::from(self.best_given));
        }
        let at = self.known.binary_search_by_key(&model, |(id, _)| *id);
        at.map_or(UNKNOWN, |at| self.known[at].1)
    }
}

/// What a host's label says of its cards; words that are no number above zero say nothing.
pub(super) fn given_permille(facts: &HostFacts) -> u32 {
    let said = facts.labels.get(SPEED_LABEL).and_then(|text| text.parse::<u32>().ok());
    said.filter(|speed| *speed > 0).map_or(SPEED_PERMILLE, |speed| speed.min(SPEED_PERMILLE_MAX))
}

/// By how much `ms` is above the best.
fn bucket(best_ms: u64, ms: u64) -> u8 {
    let within = |edge: &u64| ms.saturating_mul(1_000) <= best_ms.saturating_mul(*edge);
    EDGES_PERMILLE.iter().position(within).unwrap_or(EDGES_PERMILLE.len()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_belong_to_the_lower_bucket() {
        let of = |ms: u64| bucket(1_000, ms);
        let times = [1_000, 1_100, 1_101, 1_500, 1_501, 2_000, 2_001, 8_000, 8_001, u64::MAX];
        assert_eq!(times.map(of), [0, 0, 1, 1, 2, 2, 3, 6, 7, 7]);
    }
}
