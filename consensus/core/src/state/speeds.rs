//! How long each kind of job runs on each GPU model: a bounded table of mean run times, learned from runs that ended
//! well. The planner ranks hosts by it and an attempt's expected run time comes from it. It is not the `history`, which
//! foresees a run before anyone knows where it will be, and it compares a kind with itself alone: a model that is
//! faster for one program may be slower for another.

use crate::hash::Digest;
use crate::state::job::Job;
use rota_protocol::ask::Ask;
use rota_protocol::device::{DeviceFacts, DeviceKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Pairs of kind and model kept; the one longest without a run goes first. About 2 MiB when full.
pub const SPEEDS_KEPT_MAX: usize = 16_384;
/// Runs after which the mean forgets: each later one counts one in so many.
const MEMORY: u8 = 4;
/// Longest run that is remembered as such, ms: a hundred years, so that sums cannot overflow.
const RAN_MS_MAX: u64 = 100 * 365 * 86_400_000;

/// A kind of job and a GPU model, each by its digest. Two with one digest would foresee each other, no more.
type Pair = (u64, u64);

/// The table. A replica's copy is a function of the runs recorded and their order, nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Speeds {
    rows: BTreeMap<Pair, Mean>,
    /// Pairs by the record that touched them last.
    by_age: BTreeMap<u64, Pair>,
    /// Records so far.
    touches: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mean {
    touched: u64,
    count: u8,
    ms: u64,
}

impl Speeds {
    /// Takes in a run of `ran_ms`.
    pub fn record(&mut self, kind: u64, model: &str, ran_ms: u64) {
        let pair = (kind, model_digest(model));
        self.touches += 1;
        let mean = self.rows.entry(pair).or_insert(Mean { touched: 0, count: 0, ms: 0 });
        self.by_age.remove(&mean.touched);
        mean.touched = self.touches;
        mean.count = (mean.count + 1).min(MEMORY);
        let (count, ran_ms) = (u64::from(mean.count), ran_ms.clamp(1, RAN_MS_MAX));
        mean.ms = ((mean.ms * (count - 1) + ran_ms) / count).max(1);
        self.by_age.insert(self.touches, pair);
        if self.rows.len() > SPEEDS_KEPT_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.rows.remove(&oldest);
        }
    }

    /// How long such jobs run on a model, ms; none if none has run there.
    #[must_use]
    pub fn mean_ms(&self, kind: u64, model: &str) -> Option<u64> {
        self.rows.get(&(kind, model_digest(model))).map(|mean| mean.ms)
    }

    /// The models that such jobs have run on, by digest, each with their mean run time in ms.
    pub fn of_kind(&self, kind: u64) -> impl Iterator<Item = (u64, u64)> {
        self.rows.range((kind, 0)..=(kind, u64::MAX)).map(|((_, model), mean)| (*model, mean.ms))
    }

    /// Pairs of kind and model known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// No run was recorded yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A model's name as the table knows it.
#[must_use]
pub fn model_digest(model: &str) -> u64 {
    let mut digest = Digest::new(4);
    digest.write(model.as_bytes());
    digest.finish()
}

/// The kind of a job when it runs for one of its asks: who runs it, what its user calls it, and how much GPU it gets.
/// None for work that has no run time to compare: services, jobs without a name or a GPU, and gangs of no fixed size.
#[must_use]
pub fn kind(job: &Job, ask: &Ask) -> Option<u64> {
    let elastic = job.spec.gang.is_some_and(|gang| gang.is_elastic());
    if job.spec.service || job.spec.name.is_empty() || ask.gpu_milli == 0 || elastic {
        return None;
    }
    let parts = job.spec.gang.map_or(1, |gang| gang.max);
    let mut digest = Digest::new(3);
    digest.write(job.tenant.as_bytes());
    digest.write(job.user.as_bytes());
    digest.write(job.spec.name.as_bytes());
    digest.write_u64(u64::from(ask.gpu_milli) * u64::from(parts));
    Some(digest.finish())
}

/// The model of the GPUs among these devices, if all are of one that has a name.
pub(crate) fn one_model<'d>(devices: impl Iterator<Item = &'d DeviceFacts>) -> Option<&'d str> {
    let mut models = devices.filter(|d| d.kind == DeviceKind::Gpu).map(|d| d.model.as_str());
    let first = models.next().filter(|model| !model.is_empty())?;
    models.all(|model| model == first).then_some(first)
}

/// What is stored. The index by age follows from the rows.
#[derive(Serialize, Deserialize)]
struct Stored {
    rows: BTreeMap<Pair, Mean>,
    touches: u64,
}

/// Why stored rows are no table.
#[derive(Debug, thiserror::Error)]
#[error("the table of speeds is damaged: {0}")]
struct Damaged(&'static str);

impl From<Speeds> for Stored {
    fn from(speeds: Speeds) -> Self {
        Self { rows: speeds.rows, touches: speeds.touches }
    }
}

impl TryFrom<Stored> for Speeds {
    type Error = Damaged;

    fn try_from(stored: Stored) -> Result<Self, Damaged> {
        let Stored { rows, touches } = stored;
        let by_age: BTreeMap<u64, Pair> = rows.iter().map(|(pair, mean)| (mean.touched, *pair)).collect();
        if rows.len() > SPEEDS_KEPT_MAX {
            return Err(Damaged("too many rows"));
        }
        if by_age.len() != rows.len()
            || by_age.last_key_value().is_some_and(|(touched, _)| *touched > touches)
        {
            return Err(Damaged("ages"));
        }
        let sound = |mean: &Mean| (1..=MEMORY).contains(&mean.count) && (1..=RAN_MS_MAX).contains(&mean.ms);
        if !rows.values().all(sound) {
            return Err(Damaged("means"));
        }
        Ok(Self { rows, by_age, touches })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::codec;

    #[test]
    fn the_mean_is_of_all_up_to_four_and_forgets_beyond() {
        let mut speeds = Speeds::default();
        let mut means = Vec::new();
        for ran_ms in [1_000, 2_000, 3_000, 4_000, 6_500, u64::MAX] {
            speeds.record(7, "A100", ran_ms);
            means.extend(speeds.mean_ms(7, "A100"));
        }
        assert_eq!(means, [1_000, 1_500, 2_000, 2_500, 3_500, (3_500 * 3 + RAN_MS_MAX) / 4]);
        assert_eq!((speeds.mean_ms(7, "H100"), speeds.mean_ms(8, "A100")), (None, None));
        speeds.record(9, "A100", 0);
        assert_eq!(speeds.mean_ms(9, "A100"), Some(1));
    }

    #[test]
    fn bounded_and_the_longest_unused_goes_first() {
        let mut speeds = Speeds::default();
        for kind in 0..SPEEDS_KEPT_MAX as u64 {
            speeds.record(kind, "A100", 1_000);
        }
        speeds.record(0, "A100", 1_000);
        speeds.record(u64::MAX, "A100", 1_000);
        assert_eq!((speeds.len(), speeds.by_age.len()), (SPEEDS_KEPT_MAX, SPEEDS_KEPT_MAX));
        let known = |kind| speeds.mean_ms(kind, "A100").is_some();
        assert!(known(0) && !known(1) && known(2) && known(u64::MAX));
    }

    #[test]
    fn stored_and_loaded_it_goes_on_the_same() {
        let mut speeds = Speeds::default();
        for n in 0..50_u64 {
            speeds.record(n % 3, ["A100", "H100"][n as usize % 2], n * n);
        }
        let bytes = codec::encode(&speeds).unwrap();
        let mut loaded: Speeds = codec::decode(&bytes, 1 << 20).unwrap();
        for table in [&mut speeds, &mut loaded] {
            table.record(1, "A100", 8);
        }
        assert_eq!(loaded, speeds);
    }

    #[test]
    fn damaged_rows_are_refused() {
        let mut speeds = Speeds::default();
        speeds.record(1, "A100", 8);
        speeds.record(1, "H100", 8);
        let refused = |change: fn(&mut Stored)| {
            let mut stored = Stored::from(speeds.clone());
            change(&mut stored);
            Speeds::try_from(stored).is_err()
        };
        assert!(!refused(|_| ()));
        assert!(refused(|stored| stored.touches = 1));
        assert!(refused(|stored| stored.rows.values_mut().for_each(|mean| mean.touched = 1)));
        assert!(refused(|stored| stored.rows.values_mut().for_each(|mean| mean.count = 5)));
        assert!(refused(|stored| stored.rows.values_mut().for_each(|mean| mean.count = 0)));
        assert!(refused(|stored| stored.rows.values_mut().for_each(|mean| mean.ms = u64::MAX)));
        assert!(refused(|stored| stored.rows.values_mut().for_each(|mean| mean.ms = 0)));
    }
}
