//! Advance reservations: hosts that are kept for somebody, or for nobody, over a stated time.

use crate::ids::HostId;
use serde::{Deserialize, Serialize};

/// Whom a reservation is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReservedFor {
    /// Nobody: maintenance.
    Nobody,
    /// Jobs of these queues, or of queues below them.
    Queues(Vec<String>),
}

/// Hosts kept from `start_ms` until `end_ms`. Work of others that might run into it is not started there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReservationSpec {
    /// For people, unique.
    pub name: String,
    /// Which hosts.
    pub hosts: Vec<HostId>,
    /// From when, ms since the epoch.
    pub start_ms: u64,
    /// Until when, ms since the epoch.
    pub end_ms: u64,
    /// Whom it is for.
    pub kept_for: ReservedFor,
    /// Why, for people.
    pub reason: String,
}

impl ReservationSpec {
    /// Work from `from_ms` until `until_ms` (none: without end) would meet it.
    #[must_use]
    pub fn meets(&self, from_ms: u64, until_ms: Option<u64>) -> bool {
        from_ms < self.end_ms && until_ms.is_none_or(|until| until > self.start_ms)
    }
}

/// A reservation as a person asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationAsk {
    /// For people, unique.
    pub name: String,
    /// Names or numbers of hosts.
    pub hosts: Vec<String>,
    /// From when, ms since the epoch.
    pub start_ms: u64,
    /// Until when, ms since the epoch.
    pub end_ms: u64,
    /// Whom it is for.
    pub kept_for: ReservedFor,
    /// Why, for people.
    pub reason: String,
}
