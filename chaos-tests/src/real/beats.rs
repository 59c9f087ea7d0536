//! A task that says every few milliseconds that it lives: token and time, into a file outside of Rota.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The file that beating tasks append to.
#[derive(Debug, Clone)]
pub struct Beats {
    path: PathBuf,
}

/// The time by which tasks beat, in ns since the epoch.
#[must_use]
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// First and last sign of life of one attempt, in ns since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// First beat.
    pub first_ns: u64,
    /// Last beat.
    pub last_ns: u64,
}

impl Beats {
    /// A file of this name in `dir`.
    #[must_use]
    pub fn new(dir: &Path, name: &str) -> Self {
        Self { path: dir.join(name) }
    }

    /// Beats for about `seconds` s, then ends well.
    #[must_use]
    pub fn script(&self, seconds: u32) -> String {
        format!(
            "n=0; while [ $n -lt {} ]; do echo \"$ROTA_TOKEN $(date +%s%N)\" >> {}; n=$((n+1)); sleep 0.02; done",
            u64::from(seconds) * 40,
            self.path.display()
        )
    }

    /// The lives of all attempts, by token.
    #[must_use]
    pub fn lives(&self) -> BTreeMap<u64, Life> {
        let mut lives = BTreeMap::new();
        for line in std::fs::read_to_string(&self.path).unwrap_or_default().lines() {
            let Some((token, at_ns)) = line.split_once(' ') else { continue };
            let (Ok(token), Ok(at_ns)) = (token.parse(), at_ns.parse()) else { continue };
            let life = lives.entry(token).or_insert(Life { first_ns: at_ns, last_ns: at_ns });
            life.first_ns = life.first_ns.min(at_ns);
            life.last_ns = life.last_ns.max(at_ns);
        }
        lives
    }

    /// The smallest time between the last beat of one attempt and the first of the next, in ms; negative when two
    /// were alive at once; none with fewer than two attempts.
    #[must_use]
    pub fn distance_ms(&self) -> Option<i64> {
        let mut lives: Vec<Life> = self.lives().into_values().collect();
        lives.sort_unstable_by_key(|life| life.first_ns);
        lives
            .windows(2)
            .map(|pair| (i128::from(pair[1].first_ns) - i128::from(pair[0].last_ns)) / 1_000_000)
            .map(|ms| i64::try_from(ms).unwrap_or(i64::MIN))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_negative_and_a_gap_is_positive() {
        let dir = tempfile::tempdir().unwrap();
        let beats = Beats::new(dir.path(), "b");
        std::fs::write(&beats.path, "1 1000000000\n1 2000000000\n2 2500000000\ntorn").unwrap();
        assert_eq!(beats.distance_ms(), Some(500));
        std::fs::write(&beats.path, "1 1000000000\n2 1900000000\n1 2000000000\n").unwrap();
        assert_eq!(beats.distance_ms(), Some(-100));
        std::fs::write(&beats.path, "1 1000000000\n").unwrap();
        assert_eq!(beats.distance_ms(), None);
    }
}
