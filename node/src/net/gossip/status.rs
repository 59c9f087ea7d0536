//! What each host said of itself last, spread with the membership packets. Newest `(incarnation, version)` wins.
//!
//! It is hearsay: a digest passes through other hosts unsigned. It informs people and steers the planner's taste;
//! it never frees, grants or fences anything.

use super::GOSSIP_HOSTS_MAX;
use super::codec::{INCARNATION_MAX, Member};
use crate::net::identity::is_addr;
use foca::{BroadcastHandler, Invalidates};
use rota_protocol::device::DeviceReading;
use rota_protocol::gossip::StatusDigest;
use rota_protocol::limits::{HOST_DEVICES_MAX, NAME_BYTES_MAX};
use rota_protocol::{DeviceUuid, HostId, codec};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Largest encoded digest: leaves room for the packet's header and a few membership updates.
pub(super) const STATUS_BYTES_MAX: usize = 700;
/// A reading that was not repeated for this many periods is no longer shown: a host with many devices sends them in
/// turn.
const READING_PERIODS: u32 = 12;
/// A host that was not heard for this many periods is unknown (fault N12).
pub(super) const STALE_PERIODS: u32 = 3;

/// A host's news as heard here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStatus {
    /// The newest digest; its `devices` are all readings that are still fresh, not only those of the last packet.
    pub digest: StatusDigest,
    /// How long ago it came here.
    pub heard_ago: Duration,
}

/// The table behind the protocol's back: it calls in, we look in.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Mutex<Table>>);

#[derive(Debug)]
pub(super) struct Table {
    own: HostId,
    /// Set before each step.
    pub(super) now: Duration,
    /// Largest stamp of this host's own digests that came back from others.
    pub(super) own_seen: (u64, u64),
    hosts: BTreeMap<HostId, Heard>,
}

#[derive(Debug)]
struct Heard {
    digest: StatusDigest,
    at: Duration,
    readings: BTreeMap<DeviceUuid, (DeviceReading, Duration)>,
}

impl Shared {
    pub(super) fn new(own: HostId) -> Self {
        Self(Arc::new(Mutex::new(Table {
            own,
            now: Duration::ZERO,
            own_seen: (0, 0),
            hosts: BTreeMap::new(),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// A host's news, unless they are older than three periods.
    pub(super) fn status(&self, host: HostId, now: Duration, period: Duration) -> Option<HostStatus> {
        let heard = self.hosts.get(&host)?;
        let heard_ago = now.saturating_sub(heard.at);
        if heard_ago > period * STALE_PERIODS {
            return None;
        }
        let oldest = now.saturating_sub(period * READING_PERIODS);
        let fresh = heard.readings.values().filter(|(_, at)| *at >= oldest);
        let mut digest = heard.digest.clone();
        digest.devices = fresh.map(|(reading, _)| reading.clone()).collect();
        Some(HostStatus { digest, heard_ago })
    }

    fn take(&mut self, digest: StatusDigest, own: bool) -> Result<Option<StatusKey>, StatusError> {
        let key = StatusKey::of(&digest);
        if !is_addr(&digest.addr)
            || digest.incarnation > INCARNATION_MAX
            || digest.version > INCARNATION_MAX
            || digest.devices.len() > HOST_DEVICES_MAX
            || digest.devices.iter().any(|d| d.uuid.0.len() > NAME_BYTES_MAX)
        {
            return Err(StatusError::Implausible(digest.host));
        }
        if digest.host == self.own && !own {
            // Our own words come back, or somebody speaks in our name: never passed on, and outbid next time.
            self.own_seen = self.own_seen.max(key.stamp);
            return Ok(None);
        }
        let known = self.hosts.get(&digest.host);
        if known.is_some_and(|heard| StatusKey::of(&heard.digest).stamp >= key.stamp) {
            return Ok(None);
        }
        if known.is_none() && self.hosts.len() >= GOSSIP_HOSTS_MAX {
            return Err(StatusError::TooMany);
        }
        let now = self.now;
        let mut readings = match self.hosts.remove(&digest.host) {
            // Another life may have other devices.
            Some(heard) if heard.digest.incarnation == digest.incarnation => heard.readings,
            _ => BTreeMap::new(),
        };
        for reading in &digest.devices {
            if readings.len() < HOST_DEVICES_MAX || readings.contains_key(&reading.uuid) {
                readings.insert(reading.uuid.clone(), (reading.clone(), now));
            }
        }
        let heard = Heard { at: now, readings, digest };
        self.hosts.insert(heard.digest.host, heard);
        Ok(Some(key))
    }
}

/// Whose digest, and how new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatusKey {
    host: HostId,
    stamp: (u64, u64),
}

impl StatusKey {
    fn of(digest: &StatusDigest) -> Self {
        Self { host: digest.host, stamp: (digest.incarnation, digest.version) }
    }
}

impl Invalidates for StatusKey {
    fn invalidates(&self, other: &Self) -> bool {
        self.host == other.host && self.stamp >= other.stamp
    }
}

/// Why a digest was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatusError {
    #[error("{0}")]
    Decode(#[from] codec::DecodeError),
    #[error("the status of host {0} cannot be")]
    Implausible(HostId),
    #[error("status of more than {GOSSIP_HOSTS_MAX} hosts")]
    TooMany,
}

impl BroadcastHandler<Member> for Shared {
    type Key = StatusKey;
    type Error = StatusError;

    fn receive_item(
        &mut self,
        data: &[u8],
        sender: Option<&Member>,
    ) -> Result<Option<StatusKey>, StatusError> {
        let digest = codec::decode(data, STATUS_BYTES_MAX)?;
        self.lock().take(digest, sender.is_none())
    }
}

/// Encodes a digest with as many readings as fit, beginning at position `turn` of the list and going round.
pub(super) fn encode_fitting(mut digest: StatusDigest, turn: usize) -> (Vec<u8>, usize) {
    let mut all = std::mem::take(&mut digest.devices);
    if !all.is_empty() {
        let turn = turn % all.len();
        all.rotate_left(turn);
    }
    let mut best = codec::encode(&digest).unwrap_or_default();
    let mut fitted = 0;
    for reading in all {
        digest.devices.push(reading);
        match codec::encode(&digest) {
            Ok(bytes) if bytes.len() <= STATUS_BYTES_MAX => best = bytes,
            _ => break,
        }
        fitted += 1;
    }
    (best, fitted)
}
