//! Advance reservations: which hosts are kept when and for whom.

use crate::state::queue::QueueTable;
use rota_protocol::HostId;
use rota_protocol::queue::QueueId;
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All reservations that are not over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ReservationTable {
    map: BTreeMap<String, Arc<ReservationSpec>>,
}

impl ReservationTable {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ReservationSpec> {
        self.map.values().map(|row| &**row)
    }

    pub(crate) fn shared(&self) -> impl Iterator<Item = &Arc<ReservationSpec>> {
        self.map.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(crate) fn insert(&mut self, spec: ReservationSpec) {
        self.map.insert(spec.name.clone(), Arc::new(spec));
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.map.remove(name).is_some()
    }

    /// Drops those that are over.
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        if self.map.values().any(|row| row.end_ms <= now_ms) {
            self.map.retain(|_, row| row.end_ms > now_ms);
        }
    }
}

/// The first reservation that keeps work of a queue off a host from `from_ms` until `until_ms` (none: without end).
pub(crate) fn in_the_way<'r>(
    rows: impl Iterator<Item = &'r ReservationSpec>,
    queues: &QueueTable,
    queue: QueueId,
    host: HostId,
    from_ms: u64,
    until_ms: Option<u64>,
) -> Option<&'r ReservationSpec> {
    let mut rows = rows;
    rows.find(|row| {
        let ours = match &row.kept_for {
            ReservedFor::Nobody => false,
            ReservedFor::Queues(names) => names.iter().any(|name| queues.lies_in(queue, name)),
        };
        !ours && row.hosts.contains(&host) && row.meets(from_ms, until_ms)
    })
}

/// Reservations by host, for many questions in a row.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReservedHosts<'r> {
    by_host: BTreeMap<HostId, Vec<&'r ReservationSpec>>,
}

impl<'r> ReservedHosts<'r> {
    pub(crate) fn new(rows: impl Iterator<Item = &'r ReservationSpec>) -> Self {
        let mut by_host: BTreeMap<HostId, Vec<&'r ReservationSpec>> = BTreeMap::new();
        for row in rows {
            for host in &row.hosts {
                by_host.entry(*host).or_default().push(row);
            }
        }
        Self { by_host }
    }

    /// The host is named by some reservation.
    pub(crate) fn any(&self, host: HostId) -> bool {
        self.by_host.contains_key(&host)
    }

    /// The first time from `from_ms` on at which work of this length may come to the host; without a length it never
    /// ends. None: not while these reservations stand.
    pub(crate) fn free_from(
        &self,
        host: HostId,
        from_ms: u64,
        length_ms: Option<u64>,
        ours: impl Fn(&String) -> bool,
    ) -> Option<u64> {
        let mut at_ms = from_ms;
        loop {
            let until_ms = length_ms.map(|length_ms| at_ms.saturating_add(length_ms));
            let Some(row) = self.first_in_the_way(host, at_ms, until_ms, &ours) else {
                return Some(at_ms);
            };
            // Each step leaves one behind.
            at_ms = Some(row.end_ms).filter(|end_ms| *end_ms > at_ms)?;
        }
    }

    /// The first that keeps work off the host between these times; `ours` says whether the work's queue lies in one of a
    /// name.
    fn first_in_the_way(
        &self,
        host: HostId,
        from_ms: u64,
        until_ms: Option<u64>,
        ours: &impl Fn(&String) -> bool,
    ) -> Option<&'r ReservationSpec> {
        self.by_host.get(&host).into_iter().flatten().copied().find(|row| {
            let kept_for_us = match &row.kept_for {
                ReservedFor::Nobody => false,
                ReservedFor::Queues(names) => names.iter().any(ours),
            };
            !kept_for_us && row.meets(from_ms, until_ms)
        })
    }
}
