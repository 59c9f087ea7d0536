//! Hosts that were lost under a job's tasks: a job that takes its hosts down is held before it meets the next (R053).

use super::Job;
use crate::state::rare::Rare;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// So many hosts lost under one task hold its job. A gang stands on many hosts, each of which may fail for reasons of its
/// own: it is held by as many as it has parts, if they are more.
pub const HOST_DEATHS_MAX: u16 = 3;
/// After so long without one, in ms, earlier losses say nothing: what runs for months outlives many hosts.
const FORGET_MS: u64 = 24 * 3_600_000;

/// What a job has cost, and what was done for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Toll {
    /// Hosts lost, by ordinal; those of a gang under the first.
    deaths: Rare<BTreeMap<u32, Deaths>>,
    /// It is held because of them.
    pub(crate) holds: bool,
    /// It was ended once to be placed away from a card that held it up.
    pub(crate) moved: bool,
}

/// Hosts lost under one task or gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Deaths {
    count: u16,
    last_ms: u64,
}

impl Job {
    /// Notes that a host was lost under a task; true if there were too many of them.
    pub(crate) fn note_host_death(&mut self, ordinal: u32, now_ms: u64) -> bool {
        let parts = self.spec.gang.as_ref().map(|gang| u16::try_from(gang.max).unwrap_or(u16::MAX));
        let ordinal = if parts.is_some() { 0 } else { ordinal };
        let deaths = self.toll.deaths.entry(ordinal).or_default();
        if now_ms.saturating_sub(deaths.last_ms) > FORGET_MS {
            deaths.count = 0;
        }
        *deaths = Deaths { count: deaths.count.saturating_add(1), last_ms: now_ms };
        deaths.count >= HOST_DEATHS_MAX.max(parts.unwrap_or(0))
    }

    /// The most hosts that were lost under one of its tasks.
    #[must_use]
    pub fn host_deaths(&self) -> u16 {
        self.toll.deaths.values().map(|deaths| deaths.count).max().unwrap_or(0)
    }

    /// It is held because too many hosts were lost under it.
    #[must_use]
    pub fn is_held_for_deaths(&self) -> bool {
        self.held && self.toll.holds
    }

    /// It may be ended to be placed away from a card that holds it up: once, so that a job that is slow of itself, or
    /// cards that all are, do not keep it from ever getting done (law I18). False if that was done before.
    pub(crate) fn may_move_away(&mut self) -> bool {
        !std::mem::replace(&mut self.toll.moved, true)
    }

    /// Somebody looked at it: what it has cost so far counts no more.
    pub(crate) fn forgive_deaths(&mut self) {
        self.toll = Toll::default();
    }
}
