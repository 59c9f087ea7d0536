//! What there is only one of: the cluster's name, the counters, the clock, the hash chain, and use by tenant.

use rota_protocol::ClusterId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The cluster's identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMeta {
    /// Drawn by `rota init`.
    pub id: ClusterId,
    /// For people.
    pub name: String,
}

/// What a tenant has held, added when an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Card-milliseconds from grant to release, in log time.
    pub gpu_ms: u64,
    /// Milli-core-milliseconds from grant to release, in log time, divided by 1,000: core-milliseconds.
    pub cpu_ms: u64,
    /// Attempts that ended.
    pub attempts: u64,
}

impl Usage {
    /// Adds another's figures.
    pub(crate) fn add(&mut self, other: Self) {
        self.gpu_ms = self.gpu_ms.saturating_add(other.gpu_ms);
        self.cpu_ms = self.cpu_ms.saturating_add(other.cpu_ms);
        self.attempts = self.attempts.saturating_add(other.attempts);
    }
}

/// Counters and clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// Set by the first command of a cluster.
    pub(crate) cluster: Option<ClusterMeta>,
    /// The last log index seen.
    pub(crate) applied_index: u64,
    /// The largest `at_ms` seen.
    pub(crate) clock_ms: u64,
    /// The chain over everything applied.
    pub(crate) rolling_hash: u64,
    /// The next job's number.
    pub(crate) next_job: u64,
    /// The next host's number.
    pub(crate) next_host: u64,
    /// Use by tenant.
    pub(crate) usage: BTreeMap<String, Usage>,
}

impl Default for Meta {
    fn default() -> Self {
        Self {
            cluster: None,
            applied_index: 0,
            clock_ms: 0,
            rolling_hash: 0,
            // Numbers start at 1: zero is what a forgotten field looks like.
            next_job: 1,
            next_host: 1,
            usage: BTreeMap::new(),
        }
    }
}
