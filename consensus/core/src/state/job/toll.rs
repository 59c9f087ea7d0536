//! Hosts that were lost under a job's tasks: a job that takes its hosts down is held before it meets the next (R053).

use super::Job;
use crate::state::rare::Rare;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// So many hosts lost under one task, or one gang, hold its job.
pub const HOST_DEATHS_MAX: u16 = 3;

/// What a job has cost.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Toll {
    /// Hosts lost, by ordinal; those of a gang under the first.
    deaths: Rare<BTreeMap<u32, u16>>,
    /// It is held because of them.
    pub(crate) holds: bool,
}

impl Job {
    /// Notes that a host was lost under a task; true if there were too many of them.
    pub(crate) fn note_host_death(&mut self, ordinal: u32) -> bool {
        let ordinal = if self.spec.gang.is_some() { 0 } else { ordinal };
        let deaths = self.toll.deaths.entry(ordinal).or_default();
        *deaths = deaths.saturating_add(1);
        *deaths >= HOST_DEATHS_MAX
    }

    /// The most hosts that were lost under one of its tasks.
    #[must_use]
    pub fn host_deaths(&self) -> u16 {
        self.toll.deaths.values().copied().max().unwrap_or(0)
    }

    /// It is held because too many hosts were lost under it.
    #[must_use]
    pub fn is_held_for_deaths(&self) -> bool {
        self.held && self.toll.holds
    }

    /// Somebody looked at it: what it has cost so far counts no more.
    pub(crate) fn forgive_deaths(&mut self) {
        self.toll = Toll::default();
    }
}
