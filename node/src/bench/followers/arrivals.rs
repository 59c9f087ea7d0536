//! When entries came to the last of many hosts.

use super::Accepted;
use rota_consensus::follow::light::LightLog;
use rota_protocol::command::Entry;
use rota_protocol::ids::RequestId;
use rota_protocol::version;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For each index, how many have it, and when the last one got it.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    counting: bool,
    indices: BTreeMap<u64, (usize, Option<Instant>)>,
}

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts from now on.
    pub(super) fn begin(&self) {
        *self.lock() = Seen { counting: true, indices: BTreeMap::new() };
    }

    /// A host got these.
    pub(super) fn note(&self, first: u64, last: u64) {
        let mut seen = self.lock();
        if !seen.counting {
            return;
        }
        let now = Instant::now();
        for index in first..=last {
            let (count, at) = seen.indices.entry(index).or_default();
            *count += 1;
            *at = (*at).max(Some(now));
        }
    }

    /// How long after its client had heard of it each job was at all hosts; none before the last one is.
    pub(super) fn complete(
        &self,
        accepted: &[Accepted],
        hosts: usize,
        log: &LightLog,
    ) -> Option<Vec<Duration>> {
        let seen = self.lock();
        let mut at: BTreeMap<RequestId, Instant> = BTreeMap::new();
        for (index, (count, last)) in &seen.indices {
            let Some(last) = last.filter(|_| *count >= hosts) else { continue };
            let entry = log.commands(*index).and_then(|bytes| Entry::read(&bytes, version::NEWEST).ok());
            for proposal in entry.into_iter().flat_map(|entry| entry.proposals) {
                at.entry(proposal.request).or_insert(last);
            }
        }
        let visible = |one: &Accepted| Some(at.get(&one.request)?.saturating_duration_since(one.at));
        accepted.iter().map(visible).collect()
    }
}
