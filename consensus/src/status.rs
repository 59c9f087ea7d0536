//! Where a peer stands, for people and metrics.

use crate::{Consensus, DiskPace, config};
use openraft::async_runtime::watch::WatchReceiver;
use rota_protocol::ids::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Where a peer stands, for status pages; it may be out of date as soon as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftStatus {
    /// This host.
    pub host: HostId,
    /// Its current term.
    pub term: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<HostId>,
    /// Index of the last entry in its log.
    pub last_log: u64,
    /// Index that it knows to be committed.
    pub committed: u64,
    /// Index that it has applied.
    pub applied: u64,
    /// Index of its last snapshot.
    pub snapshot: u64,
    /// Hosts that vote.
    pub voters: BTreeSet<HostId>,
    /// Hosts that follow only.
    pub learners: BTreeSet<HostId>,
    /// At the leader: how many entries each member is behind.
    pub lag: BTreeMap<HostId, u64>,
    /// 99th percentile of this peer's recent fsyncs, in microseconds.
    pub fsync_p99_us: u64,
    /// The disk refused room for log entries.
    pub storage_full: bool,
    /// Bytes that this peer's log has written since it started, and fsyncs that it made.
    pub log_written: (u64, u64),
    /// Bytes of its newest snapshot; 0 without one.
    pub snapshot_bytes: u64,
    /// How long the last one took to be made, in ms; 0 if none was made since the start.
    pub snapshot_ms: u64,
    /// Entries that are in memory, in bytes.
    pub log_memory_bytes: u64,
}

impl Consensus {
    /// Where this peer stands.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        let metrics = self.0.raft.metrics().borrow_watched().clone();
        let index = |id: &Option<config::LogId>| id.as_ref().map_or(0, |id| id.index);
        let last_log = metrics.last_log_index.unwrap_or(0);
        let membership = metrics.membership_config.membership();
        RaftStatus {
            host: self.0.host,
            term: metrics.current_term,
            leader: self.0.watched.leadership.borrow().leader,
            last_log,
            committed: index(&metrics.local_committed),
            applied: index(&metrics.last_applied),
            snapshot: index(&metrics.snapshot),
            voters: membership.voter_ids().map(HostId).collect(),
            learners: membership.learner_ids().map(HostId).collect(),
            lag: metrics
                .replication
                .iter()
                .flatten()
                .map(|(id, matched)| (HostId(*id), last_log.saturating_sub(index(matched))))
                .collect(),
            fsync_p99_us: u64::try_from(self.disk(Duration::MAX).p99.as_micros()).unwrap_or(u64::MAX),
            storage_full: self.0.log.0.is_full(),
            log_written: self.0.log.0.written(),
            snapshot_bytes: self.0.machine.snapshot_bytes(),
            snapshot_ms: self.0.machine.snapshot_ms(),
            log_memory_bytes: self.0.log.0.memory().bytes() as u64,
        }
    }
    /// How this peer's disk does; an fsync that takes longer than this is slow.
    #[must_use]
    pub fn disk(&self, slow_above: Duration) -> DiskPace {
        self.0.log.0.pace(slow_above)
    }
}
