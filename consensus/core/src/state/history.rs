//! What jobs ran for, so that the next ones can be foreseen: a bounded table of the last run times by who ran what.
//! A prediction orders work. It never ends a job, and no promise rests on it: those rest on limits alone.
//!
//! The rule is that of Tsafrir, Etsion and Feitelson (IEEE TPDS 2007): the mean of the last two runs of the same kind
//! is about as good as anything cleverer, because people repeat themselves. "Of the same kind" is tried in steps, see
//! [`Basis`]; the name of a job and the limit that its user types say which of a user's programs it is.

use crate::hash::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Kinds of job kept; the one longest without a run goes first. About 5 MiB when full.
pub const HISTORY_KEPT_MAX: usize = 65_536;
/// Runs kept of one kind, and averaged.
pub const RUNS_KEPT_MAX: usize = 2;
/// Longest run that is remembered as such, ms: a hundred years. Longer ones are cut, so that sums cannot overflow.
const RAN_MS_MAX: u64 = 100 * 365 * 86_400_000;

/// What is known of a job before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryKey<'a> {
    /// Who pays.
    pub tenant: &'a str,
    /// Who submitted it.
    pub user: &'a str,
    /// What its user calls it; empty if nothing.
    pub name: &'a str,
    /// GPUs it asks in all.
    pub gpus: u32,
}

/// What a prediction rests on, best first, with how many runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Basis {
    /// Runs of the same user's jobs with the same name and as many GPUs.
    NameRuns(u8),
    /// Runs of the same user's jobs that asked for the same limit.
    LimitRuns(u8),
    /// Runs of the same user's jobs.
    UserRuns(u8),
    /// No run is known: the limit that was asked for.
    Limit,
    /// Neither a run nor a limit is known.
    None,
}

/// How long a job may be expected to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// From its start, ms; at least 1 and never above the limit. `u64::MAX` if nothing is known.
    pub ms: u64,
    /// Why.
    pub basis: Basis,
}

/// How good predictions with one kind of basis were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Accuracy {
    /// Runs that ended.
    pub count: u64,
    /// Runs that took longer than predicted.
    pub under: u64,
    /// Sum of min(predicted/ran, ran/predicted), permille.
    pub ratio_permille_sum: u64,
}

/// Accuracy by basis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AccuracyByBasis {
    /// See [`Basis::NameRuns`].
    pub name_runs: Accuracy,
    /// See [`Basis::LimitRuns`].
    pub limit_runs: Accuracy,
    /// See [`Basis::UserRuns`].
    pub user_runs: Accuracy,
    /// See [`Basis::Limit`].
    pub limit: Accuracy,
}

/// The table. A replica's copy is a function of the runs recorded and their order, nothing else: reading it changes
/// nothing, since only the leader predicts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct History {
    /// By digest of what makes jobs one kind. Two kinds with one digest would foresee each other's run times, no more.
    kinds: BTreeMap<u64, Runs>,
    /// Kinds by age: the record that touched them last, one entry each.
    by_age: BTreeMap<u64, u64>,
    /// Records so far; a kind's age is its number of touches, of which a record makes up to three.
    touches: u64,
    accuracy: AccuracyByBasis,
}

/// The last runs of one kind, newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Runs {
    touched: u64,
    count: u8,
    ran_ms: [u64; RUNS_KEPT_MAX],
}

impl History {
    /// Remembers that a job ran to its own end for `ran_ms`. Not for runs that were lost, preempted or cancelled:
    /// those say nothing about the program.
    pub fn record(&mut self, key: &HistoryKey<'_>, asked_limit_ms: Option<u64>, ran_ms: u64) {
        let ran_ms = ran_ms.clamp(1, RAN_MS_MAX);
        let foreseen = self.predict(key, asked_limit_ms);
        self.accuracy.count(foreseen, ran_ms);
        for kind in kinds(key, asked_limit_ms).into_iter().flatten() {
            self.touch(kind, ran_ms);
        }
    }

    /// How long a job would run if it started now.
    #[must_use]
    pub fn predict(&self, key: &HistoryKey<'_>, asked_limit_ms: Option<u64>) -> Prediction {
        let bases = [Basis::NameRuns, Basis::LimitRuns, Basis::UserRuns];
        for (kind, basis) in kinds(key, asked_limit_ms).into_iter().zip(bases) {
            if let Some(runs) = kind.and_then(|kind| self.kinds.get(&kind)) {
                let ms = runs.mean_ms().min(asked_limit_ms.unwrap_or(u64::MAX)).max(1);
                return Prediction { ms, basis: basis(runs.count) };
            }
        }
        match asked_limit_ms {
            Some(ms) => Prediction { ms: ms.max(1), basis: Basis::Limit },
            None => Prediction { ms: u64::MAX, basis: Basis::None },
        }
    }

    /// How good the predictions were that this table would have given just before each run was recorded.
    #[must_use]
    pub fn accuracy(&self) -> &AccuracyByBasis {
        &self.accuracy
    }

    /// Kinds of job known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// No run was recorded yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    fn touch(&mut self, kind: u64, ran_ms: u64) {
        self.touches += 1;
        let runs =
            self.kinds.entry(kind).or_insert(Runs { touched: 0, count: 0, ran_ms: [0; RUNS_KEPT_MAX] });
        self.by_age.remove(&runs.touched);
        runs.touched = self.touches;
        runs.ran_ms.rotate_right(1);
        runs.ran_ms[0] = ran_ms;
        runs.count = (runs.count + 1).min(RUNS_KEPT_MAX as u8);
        self.by_age.insert(self.touches, kind);
        if self.kinds.len() > HISTORY_KEPT_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.kinds.remove(&oldest);
        }
    }
}

/// A prediction for a job that has run for `elapsed_ms`. One that has been passed is worth nothing: the limit is all
/// that is left. Small steps up instead were worse on every log where both were tried (Gaussier et al., SC 2015).
#[must_use]
pub fn corrected(prediction: Prediction, elapsed_ms: u64, asked_limit_ms: Option<u64>) -> Prediction {
    match asked_limit_ms {
        _ if elapsed_ms < prediction.ms => prediction,
        Some(ms) => Prediction { ms: ms.max(1), basis: Basis::Limit },
        None => Prediction { ms: u64::MAX, basis: Basis::None },
    }
}

impl Accuracy {
    /// Mean of min(predicted/ran, ran/predicted), permille: 1000 is always right.
    #[must_use]
    pub fn mean_permille(&self) -> u64 {
        self.ratio_permille_sum.checked_div(self.count).unwrap_or(0)
    }

    /// Share of runs that took longer than predicted, permille.
    #[must_use]
    pub fn under_permille(&self) -> u64 {
        self.under.saturating_mul(1_000).checked_div(self.count).unwrap_or(0)
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            under: self.under + other.under,
            ratio_permille_sum: self.ratio_permille_sum + other.ratio_permille_sum,
        }
    }
}

impl AccuracyByBasis {
    /// Counts a run that ended against what was predicted for it. What was not predicted at all is not counted.
    pub fn count(&mut self, prediction: Prediction, ran_ms: u64) {
        let row = match prediction.basis {
            Basis::NameRuns(_) => &mut self.name_runs,
            Basis::LimitRuns(_) => &mut self.limit_runs,
            Basis::UserRuns(_) => &mut self.user_runs,
            Basis::Limit => &mut self.limit,
            Basis::None => return,
        };
        let (low, high) = (prediction.ms.min(ran_ms), prediction.ms.max(ran_ms).max(1));
        row.count += 1;
        row.under += u64::from(ran_ms > prediction.ms);
        row.ratio_permille_sum += (u128::from(low) * 1_000 / u128::from(high)) as u64;
    }

    /// Over all that was predicted.
    #[must_use]
    pub fn all(&self) -> Accuracy {
        self.name_runs.plus(self.limit_runs).plus(self.user_runs).plus(self.limit)
    }
}

impl Runs {
    /// Rounded down, as published. No overflow: each run is at most [`RAN_MS_MAX`].
    fn mean_ms(&self) -> u64 {
        let known = &self.ran_ms[..usize::from(self.count)];
        known.iter().sum::<u64>().checked_div(known.len() as u64).unwrap_or(0)
    }
}

/// The kinds that a job belongs to, narrowest first: name and GPUs, limit, user. None where it has no name or limit.
fn kinds(key: &HistoryKey<'_>, asked_limit_ms: Option<u64>) -> [Option<u64>; 3] {
    let digest = |step: u64| {
        let mut digest = Digest::new(step);
        digest.write(key.tenant.as_bytes());
        digest.write(key.user.as_bytes());
        digest
    };
    let by_name = (!key.name.is_empty()).then(|| {
        let mut digest = digest(0);
        digest.write(key.name.as_bytes());
        digest.write_u64(u64::from(key.gpus));
        digest.finish()
    });
    let by_limit = asked_limit_ms.map(|limit_ms| {
        let mut digest = digest(1);
        digest.write_u64(limit_ms);
        digest.finish()
    });
    [by_name, by_limit, Some(digest(2).finish())]
}

/// What is stored. The index by age follows from the rows.
#[derive(Serialize, Deserialize)]
struct Stored {
    kinds: BTreeMap<u64, Runs>,
    touches: u64,
    accuracy: AccuracyByBasis,
}

/// Why stored rows are no history.
#[derive(Debug, thiserror::Error)]
#[error("the history of run times is damaged: {0}")]
struct Damaged(&'static str);

impl From<History> for Stored {
    fn from(history: History) -> Self {
        Self { kinds: history.kinds, touches: history.touches, accuracy: history.accuracy }
    }
}

impl TryFrom<Stored> for History {
    type Error = Damaged;

    fn try_from(stored: Stored) -> Result<Self, Damaged> {
        let Stored { kinds, touches, accuracy } = stored;
        let by_age: BTreeMap<u64, u64> = kinds.iter().map(|(kind, runs)| (runs.touched, *kind)).collect();
        if kinds.len() > HISTORY_KEPT_MAX {
            return Err(Damaged("too many kinds"));
        }
        if by_age.len() != kinds.len()
            || by_age.last_key_value().is_some_and(|(touched, _)| *touched > touches)
        {
            return Err(Damaged("ages"));
        }
        let counted = |runs: &Runs| (1..=RUNS_KEPT_MAX).contains(&usize::from(runs.count));
        if !kinds.values().all(|runs| counted(runs) && runs.ran_ms.iter().all(|ms| *ms <= RAN_MS_MAX)) {
            return Err(Damaged("runs"));
        }
        Ok(Self { kinds, by_age, touches, accuracy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::codec;

    const fn key(name: &'static str, gpus: u32) -> HistoryKey<'static> {
        HistoryKey { tenant: "physics", user: "ada", name, gpus }
    }

    #[track_caller]
    fn check(history: &History, key: HistoryKey<'_>, limit_ms: Option<u64>, ms: u64, basis: Basis) {
        assert_eq!(history.predict(&key, limit_ms), Prediction { ms, basis });
    }

    #[test]
    fn nothing_known_is_the_limit_or_nothing() {
        let history = History::default();
        check(&history, key("train", 8), Some(5_000), 5_000, Basis::Limit);
        check(&history, key("train", 8), None, u64::MAX, Basis::None);
    }

    #[test]
    fn the_narrowest_kind_speaks() {
        let mut history = History::default();
        history.record(&key("train", 8), Some(90_000), 10_000);
        history.record(&key("train", 8), Some(90_000), 20_000);
        history.record(&key("test", 1), Some(7_000), 1_000);
        check(&history, key("train", 8), Some(50_000), 15_000, Basis::NameRuns(2));
        check(&history, key("train", 4), Some(90_000), 15_000, Basis::LimitRuns(2));
        check(&history, key("", 8), Some(7_000), 1_000, Basis::LimitRuns(1));
        check(&history, key("other", 8), Some(60_000), 10_500, Basis::UserRuns(2));
        let other_user = HistoryKey { user: "bob", ..key("train", 8) };
        check(&history, other_user, Some(90_000), 90_000, Basis::Limit);
        let other_tenant = HistoryKey { tenant: "biology", ..key("train", 8) };
        check(&history, other_tenant, Some(90_000), 90_000, Basis::Limit);
    }

    #[test]
    fn only_the_last_two_count_and_never_above_the_limit() {
        let mut history = History::default();
        for ran_ms in [900_000, 10_000, 30_000] {
            history.record(&key("train", 8), None, ran_ms);
        }
        check(&history, key("train", 8), None, 20_000, Basis::NameRuns(2));
        check(&history, key("train", 8), Some(12_000), 12_000, Basis::NameRuns(2));
    }

    #[test]
    fn extremes_neither_overflow_nor_give_zero() {
        let mut history = History::default();
        history.record(&key("a", 1), None, u64::MAX);
        history.record(&key("a", 1), None, u64::MAX);
        check(&history, key("a", 1), None, RAN_MS_MAX, Basis::NameRuns(2));
        history.record(&key("b", 1), None, 0);
        check(&history, key("b", 1), Some(0), 1, Basis::NameRuns(1));
        check(&History::default(), key("b", 1), Some(0), 1, Basis::Limit);
    }

    #[test]
    fn a_passed_prediction_falls_back_to_the_limit() {
        let foreseen = Prediction { ms: 100, basis: Basis::UserRuns(2) };
        assert_eq!(corrected(foreseen, 99, Some(500)), foreseen);
        assert_eq!(corrected(foreseen, 100, Some(500)), Prediction { ms: 500, basis: Basis::Limit });
        assert_eq!(corrected(foreseen, 100, None), Prediction { ms: u64::MAX, basis: Basis::None });
    }

    #[test]
    fn accuracy_is_of_what_was_foreseen_before_the_run() {
        let mut history = History::default();
        history.record(&key("a", 1), Some(10_000), 5_000); // foreseen 10,000
        history.record(&key("a", 1), Some(10_000), 10_000); // foreseen 5,000
        let Accuracy { count, under, ratio_permille_sum } = history.accuracy().name_runs;
        assert_eq!((count, under, ratio_permille_sum), (1, 1, 500));
        assert_eq!((history.accuracy().limit.count, history.accuracy().limit.under), (1, 0));
        let all = history.accuracy().all();
        assert_eq!((all.count, all.under_permille(), all.mean_permille()), (2, 500, 500));
        history.record(&HistoryKey { user: "new", ..key("a", 1) }, None, 1);
        assert_eq!(history.accuracy().all().count, 2, "what was not foreseen is not counted");
    }

    #[test]
    fn bounded_and_the_longest_unused_goes_first() {
        let mut history = History::default();
        let record = |history: &mut History, n: usize| {
            let user = format!("u{n}");
            history.record(&HistoryKey { tenant: "t", user: &user, name: "", gpus: 1 }, None, 1_000);
        };
        let known = |history: &History, n: usize| {
            let user = format!("u{n}");
            let key = HistoryKey { tenant: "t", user: &user, name: "", gpus: 1 };
            history.predict(&key, None).basis == Basis::UserRuns(1)
        };
        for n in 0..HISTORY_KEPT_MAX {
            record(&mut history, n);
        }
        assert!(known(&history, 0) && known(&history, 1));
        record(&mut history, 0);
        record(&mut history, HISTORY_KEPT_MAX);
        assert_eq!((history.len(), history.by_age.len()), (HISTORY_KEPT_MAX, HISTORY_KEPT_MAX));
        assert!(!known(&history, 1), "the one longest without a run went");
        assert!(known(&history, 2) && known(&history, HISTORY_KEPT_MAX));
    }

    #[test]
    fn stored_and_loaded_it_goes_on_the_same() {
        let mut history = History::default();
        for n in 0..50_u64 {
            history.record(&key(["a", "b", "c"][n as usize % 3], n as u32 % 4), Some(n * 7 + 1), n * n + 1);
        }
        let bytes = codec::encode(&history).unwrap();
        let mut loaded: History = codec::decode(&bytes, 1 << 20).unwrap();
        assert_eq!(loaded, history);
        for table in [&mut history, &mut loaded] {
            table.record(&key("a", 1), Some(3), 8);
        }
        assert_eq!(loaded, history);
    }

    #[test]
    fn damaged_rows_are_refused() {
        let mut history = History::default();
        history.record(&key("a", 1), None, 8);
        let refused = |change: fn(&mut Stored)| {
            let mut stored = Stored::from(history.clone());
            change(&mut stored);
            History::try_from(stored).is_err()
        };
        assert!(!refused(|_| ()));
        assert!(refused(|stored| stored.touches = 0));
        assert!(refused(|stored| stored.kinds.values_mut().for_each(|runs| runs.count = 9)));
        assert!(refused(|stored| stored.kinds.values_mut().for_each(|runs| runs.count = 0)));
        assert!(refused(|stored| stored.kinds.values_mut().for_each(|runs| runs.touched = 1)));
        assert!(refused(|stored| stored.kinds.values_mut().for_each(|runs| runs.ran_ms[0] = u64::MAX)));
    }
}
