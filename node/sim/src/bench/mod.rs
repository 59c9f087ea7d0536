//! How long the planner takes: rounds at a given scale (`plan`), taking back what a queue is owed (`reclaim`), and
//! getting many jobs of many queues admitted (`admit`); and whether all replicas plan alike (`replicas`). Wall time of this machine, on the production scheduler.

pub mod admit;
pub mod plan;
pub mod reclaim;
pub mod replicas;

use serde::Serialize;
use std::time::Duration;

/// Times of many rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// How many.
    pub count: usize,
    /// Half of them took no longer, ms.
    pub p50_ms: f64,
    /// 99 of 100 took no longer, ms.
    pub p99_ms: f64,
    /// The longest, ms.
    pub max_ms: f64,
}

impl Times {
    /// Of times taken one by one.
    #[must_use]
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |permille: usize| {
            let place = (times.len() * permille).div_ceil(1_000).saturating_sub(1);
            times.get(place).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
        };
        Self { count: times.len(), p50_ms: at(500), p99_ms: at(990), max_ms: at(1_000) }
    }
}

/// Memory that the process holds, in KiB; none where the system does not say.
#[must_use]
pub fn rss_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
