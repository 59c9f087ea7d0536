//! How long jobs turn out to be, learned from those that ended, and what that says of a job that has run for a while:
//! the best chance of an end per time spent (Gittins' index). For work whose length nobody states. Counts only, by
//! length on a logarithmic scale; no names and no single jobs.
//!
//! Source: Gittins, Journal of the Royal Statistical Society B 41, 1979.

use serde::{Deserialize, Serialize};

/// Buckets per doubling of the length.
const PER_DOUBLING: u32 = 4;
/// Doublings that are told apart, from one second on: up to 2^24 s, half a year.
const DOUBLINGS: u32 = 24;
/// Bounds of the buckets of one doubling, in 1/1024: 2^(i/4).
const BOUNDS: [u64; PER_DOUBLING as usize] = [1024, 1218, 1448, 1722];
/// Total count at which all counts are halved, so that old habits fade.
const COUNT_MAX: u64 = 20_000;
/// Weight of one job that ended. Each bucket starts with 1, as if lengths were spread evenly over the scale.
const ENDED: u64 = 16;

/// Counts of lengths of ended jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct Lengths {
    counts: Vec<u64>,
}

/// Counts that are none of ours.
#[derive(Debug, thiserror::Error)]
#[error("the counts of lengths are damaged")]
pub struct Damaged;

impl From<Lengths> for Vec<u64> {
    fn from(lengths: Lengths) -> Self {
        lengths.counts
    }
}

impl TryFrom<Vec<u64>> for Lengths {
    type Error = Damaged;

    fn try_from(counts: Vec<u64>) -> Result<Self, Damaged> {
        let within = |count: &u64| (1..=(COUNT_MAX + 1) * ENDED).contains(count);
        let sound = counts.len() == (PER_DOUBLING * DOUBLINGS) as usize && counts.iter().all(within);
        if sound { Ok(Self { counts }) } else { Err(Damaged) }
    }
}

impl Default for Lengths {
    fn default() -> Self {
        Self { counts: vec![1; (PER_DOUBLING * DOUBLINGS) as usize] }
    }
}

impl Lengths {
    /// Takes the length of a job that ended, as time alone on its best model.
    pub fn observe(&mut self, length_ms: u64) {
        let bucket = bucket(length_ms);
        self.counts[bucket] += ENDED;
        if self.counts.iter().sum::<u64>() > COUNT_MAX * ENDED {
            for count in &mut self.counts {
                *count = (*count / 2).max(1);
            }
        }
    }

    /// The index by bucket of the work done so far, in ends per second of work. See `Indices::of`.
    #[must_use]
    pub fn indices(&self) -> Indices {
        let size = self.counts.len();
        let mut by_bucket = vec![0.0_f64; size];
        for (start, index) in by_bucket.iter_mut().enumerate() {
            let from_s = lower_s(start);
            let alive: u64 = self.counts[start..].iter().sum();
            let (mut ended, mut spent_s) = (0_u64, 0.0);
            for last in start..size {
                ended += self.counts[last];
                let middle_s = (lower_s(last) + lower_s(last + 1)) / 2.0;
                spent_s += self.counts[last] as f64 * (middle_s - from_s).max(0.1);
                let others = (alive - ended) as f64 * (lower_s(last + 1) - from_s);
                *index = index.max(ended as f64 / (spent_s + others));
            }
        }
        Indices { by_bucket }
    }
}

/// A round's copy of the indices.
#[derive(Debug, Clone)]
pub struct Indices {
    by_bucket: Vec<f64>,
}

impl Indices {
    /// The best chance of an end per second of work for a job that has done so much.
    #[must_use]
    pub fn of(&self, attained_ms: u64) -> f64 {
        self.by_bucket[bucket(attained_ms)]
    }
}

fn bucket(length_ms: u64) -> usize {
    let length_s = (length_ms / 1000).max(1);
    let doubling = length_s.ilog2();
    let part = (length_s << 10) >> doubling;
    let within = BOUNDS.iter().rposition(|bound| part >= *bound).unwrap_or(0) as u32;
    ((doubling * PER_DOUBLING + within).min(PER_DOUBLING * DOUBLINGS - 1)) as usize
}

fn lower_s(bucket: usize) -> f64 {
    let (doubling, within) = (bucket as u32 / PER_DOUBLING, bucket as u32 % PER_DOUBLING);
    (BOUNDS[within as usize] << doubling) as f64 / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_the_bounds_they_say() {
        for at in 20..90 {
            let lower_ms = (lower_s(at) * 1000.0) as u64;
            assert!(bucket(lower_ms + 1000).abs_diff(at) <= 1, "{at}");
            assert!(lower_s(at) < lower_s(at + 1));
        }
    }

    /// Nine in ten jobs take about 10 minutes, the others 100 hours: a new job is likely to end soon; one that has run
    /// for an hour is a long one; one that is nearly done with the long time is worth most again.
    #[test]
    fn a_job_that_outlived_the_short_ones_counts_as_long() {
        let mut lengths = Lengths::default();
        for at in 0..1000 {
            lengths.observe(if at % 10 == 0 { 360_000_000 } else { 600_000 });
        }
        let indices = lengths.indices();
        assert!(indices.of(0) > 1.0 / 1_000.0);
        assert!(indices.of(3_600_000) < 1.0 / 100_000.0);
        assert!(indices.of(350_000_000) > indices.of(3_600_000));
    }

    #[test]
    fn forgets() {
        let mut lengths = Lengths::default();
        for _ in 0..100_000 {
            lengths.observe(5_000);
        }
        let sum: u64 = lengths.counts.iter().sum();
        assert!(sum <= (COUNT_MAX + 1) * ENDED);
    }
}
