//! The types that openraft works with, fixed once, and the timings of a cluster.
//!
//! What this is not: no behaviour. openraft's own names do not leave this crate, except through here to its modules.

use crate::disk::{self, Disk};
use crate::handing::ENTRIES_TIMES;
use openraft::impls::leader_id_std;
use rota_protocol::command::Outcome;
use rota_protocol::ids::{ClusterId, HostId};
use rota_protocol::limits::{ENTRY_BYTES_MAX, SNAPSHOT_CHUNK_BYTES_MAX};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

openraft::declare_raft_types!(
    /// openraft's type parameters: encoded entries in, outcomes out, hosts as node ids without an address.
    pub Rota:
        D = Payload,
        R = Reply,
        NodeId = u64,
        Node = openraft::EmptyNode,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = crate::runtime::Runtime,
);

pub(crate) type LogId = openraft::alias::LogIdOf<Rota>;
pub(crate) type Vote = openraft::alias::VoteOf<Rota>;
pub(crate) type LogEntry = openraft::alias::EntryOf<Rota>;
pub(crate) type EntryPayload = openraft::alias::PayloadOf<Rota>;
pub(crate) type Membership = openraft::Membership<u64, openraft::EmptyNode>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<Rota>;
pub(crate) type SnapshotMeta = openraft::alias::SnapshotMetaOf<Rota>;
pub(crate) type Raft = openraft::Raft<Rota, crate::machine::Machine>;

/// A log id from its two numbers.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: openraft::vote::leader_id_std::CommittedLeaderId::new(term), index }
}

/// The bytes of one `rota_protocol::command::Entry`; shared, so that the log, replication and apply never copy them.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub Arc<[u8]>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Payload;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes of an entry")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Payload, E> {
                Ok(Payload(Arc::from(bytes)))
            }
            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Payload, E> {
                Ok(Payload(Arc::from(bytes)))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// What apply answers: one outcome for each proposal of the entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply(pub Vec<Outcome>);

/// Steps of the ladder of election waits.
const LADDER_STEPS: usize = 3;

/// How long a cluster waits, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// Between two heartbeats of the leader.
    pub heartbeat_ms: u64,
    /// Shortest wait of a follower before it stands for election, after the leader's lease.
    pub election_min_ms: u64,
    /// Longest such wait, and the leader's lease itself.
    pub election_max_ms: u64,
}

impl Timings {
    /// For disks whose p99 of fsync is at most 15 ms: failover in about 0.6 s.
    pub const PRODUCTION: Self = Self { heartbeat_ms: 50, election_min_ms: 150, election_max_ms: 300 };
    /// For busy test machines: failover in about 1.1 s.
    pub const CHAOS: Self = Self { heartbeat_ms: 100, election_min_ms: 300, election_max_ms: 600 };

    /// Longest time that a cluster with a live majority is expected to be without a leader, in ms: the old leader's
    /// lease, one election wait, and one more for a split vote.
    #[must_use]
    pub const fn leader_gap_ms_max(&self) -> u64 {
        self.election_max_ms * 3
    }

    /// The steps of the ladder that begins with these: each waits twice as long for an election. The heartbeat stays,
    /// so that peers on different steps do not take each other for dead.
    #[must_use]
    pub const fn ladder(self) -> [Self; LADDER_STEPS] {
        let mut steps = [self; LADDER_STEPS];
        let mut at = 1;
        while at < LADDER_STEPS {
            steps[at].election_min_ms = steps[at - 1].election_min_ms * 2;
            steps[at].election_max_ms = steps[at - 1].election_max_ms * 2;
            at += 1;
        }
        steps
    }

    /// Whether a disk of this pace bears these: an election costs each voter a write, and must not end in the wait
    /// of the next one.
    #[must_use]
    pub fn bear(&self, fsync_p99: Duration) -> bool {
        fsync_p99.as_micros() * 10 <= u128::from(self.election_min_ms) * 1_000
    }

    /// Checks the relations that elections rest on.
    ///
    /// # Errors
    /// Says which relation does not hold.
    pub fn check(&self) -> Result<(), String> {
        if self.heartbeat_ms == 0 {
            return Err("heartbeat_ms must be at least 1".into());
        }
        if self.election_min_ms < 2 * self.heartbeat_ms {
            return Err(format!(
                "election_min_ms ({}) must be at least twice heartbeat_ms ({})",
                self.election_min_ms, self.heartbeat_ms
            ));
        }
        if self.election_max_ms <= self.election_min_ms {
            return Err(format!(
                "election_max_ms ({}) must be more than election_min_ms ({})",
                self.election_max_ms, self.election_min_ms
            ));
        }
        Ok(())
    }
}

/// How one peer takes part.
#[derive(Debug, Clone)]
pub struct ConsensusConfig {
    /// This host; also its raft node id.
    pub host: HostId,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// Where the log and the snapshot live. A file of the same name with `.voted` appended stands beside it.
    pub dir: PathBuf,
    /// How long to wait.
    pub timings: Timings,
}

/// Limits and surroundings that only tests change.
#[derive(Clone)]
pub struct Tuning {
    /// Size of one log segment file, in bytes.
    pub segment_bytes: u64,
    /// Entries after which a snapshot is taken; of a large state later, up to [`SNAPSHOT_ENTRIES_TIMES`] as many.
    pub snapshot_entries: u64,
    /// Entries kept behind a snapshot, for followers that are a little late.
    pub keep_entries: u64,
    /// Whole states are hashed at every so many entries, to be compared; a power of two, or the next one.
    pub whole_entries: u64,
    /// How often copies of the state are compared, in ms.
    pub compare_ms: u64,
    /// Log bytes in memory after which a snapshot is taken, whatever the number of entries.
    pub snapshot_log_bytes: usize,
    /// The newest version that is read: an older build's, where one is tried out.
    pub newest: u16,
    /// What makes files durable.
    pub disk: Arc<dyn Disk>,
    /// The wall clock, in ms since the epoch: it stamps entries, and nothing is decided by it here.
    pub wall_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Planted defects.
    #[doc(hidden)]
    pub faults: Faults,
}

/// Defects planted on purpose, to prove that the tests outside can see them.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Forget every request id.
    pub skip_dedup: bool,
    /// Apply the proposals of an entry in an order that is drawn anew by each peer, as one that iterates a hash map would.
    pub disorder: bool,
    /// Install snapshots without looking at any checksum.
    pub trusting: bool,
    /// Never compare copies of the state.
    pub blind: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            snapshot_entries: 10_000,
            keep_entries: 1_000,
            whole_entries: 1_024,
            compare_ms: 5_000,
            snapshot_log_bytes: 64 << 20,
            newest: rota_protocol::version::NEWEST,
            disk: disk::real(),
            wall_ms: Arc::new(|| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
            }),
            faults: Faults::default(),
        }
    }
}

/// By how much a large state may put off its snapshots: 200,000 small entries are replayed within a few seconds.
pub(crate) const SNAPSHOT_ENTRIES_TIMES: u64 = 20;

/// Largest append request, in bytes of entries: with its envelope it fits one frame, and one entry always does.
pub(crate) const APPEND_BYTES_MAX: usize = ENTRY_BYTES_MAX + (384 << 10);
/// Bytes of one snapshot chunk: 2 s on a line of 64 kB/s, so that heartbeats get through beside it.
pub(crate) const CHUNK_BYTES: usize = SNAPSHOT_CHUNK_BYTES_MAX / 4;

/// openraft's settings for these timings.
pub(crate) fn raft_config(
    cluster: ClusterId,
    timings: Timings,
    tuning: &Tuning,
) -> Result<Arc<openraft::Config>, String> {
    timings.check()?;
    openraft::Config {
        cluster_name: cluster.to_string(),
        heartbeat_interval: timings.heartbeat_ms,
        election_timeout_min: timings.election_min_ms,
        election_timeout_max: timings.election_max_ms,
        // A peer that cannot win must not raise the term and unseat a healthy leader.
        enable_pre_vote: Some(true),
        // A leader that restarts is elected again, so that it never serves a state older than its log.
        enable_leader_restore: Some(false),
        // A wiped peer is refused at its start, never healed silently.
        allow_log_reversion: Some(false),
        // A peer that comes back is found within half a second; one that is gone costs two calls a second.
        backoff: "50ms 100ms 200ms ...500ms".into(),
        install_snapshot_timeout: 10_000,
        max_payload_entries: 256,
        // Asked for by `start::keep_log_short`, which knows how large the state is.
        snapshot_policy: openraft::SnapshotPolicy::Never,
        // More than the longest snapshot interval, or a snapshot would not end a follower's lag.
        replication_lag_threshold: tuning.snapshot_entries * SNAPSHOT_ENTRIES_TIMES * ENTRIES_TIMES * 2,
        max_in_snapshot_log_to_keep: tuning.keep_entries,
        purge_batch_size: 1,
        // openraft's default of 65,536 slots each costs tens of MiB; the proposer bounds what is in flight.
        api_channel_size: Some(1_024),
        notification_channel_size: Some(4_096),
        state_machine_channel_size: Some(256),
        ..openraft::Config::default()
    }
    .validate()
    .map(Arc::new)
    .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_is_climbed_by_the_pace_of_the_disk() {
        let steps = Timings::PRODUCTION.ladder();
        let waits = steps.map(|step| (step.heartbeat_ms, step.election_min_ms, step.election_max_ms));
        assert_eq!(waits, [(50, 150, 300), (50, 300, 600), (50, 600, 1_200)]);
        for (fsync_ms, expected) in [(0, 0), (15, 0), (16, 1), (30, 1), (31, 2), (60, 2)] {
            let fsync = Duration::from_millis(fsync_ms);
            assert_eq!(steps.iter().position(|step| step.bear(fsync)), Some(expected), "{fsync_ms} ms");
        }
        assert!(!steps[2].bear(Duration::from_micros(60_001)));
        for step in steps {
            assert_eq!(step.check(), Ok(()));
        }
    }

    #[test]
    fn timings_that_cannot_elect_are_refused() {
        let good = Timings::PRODUCTION;
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Timings::CHAOS.check(), Ok(()));
        for bad in [
            Timings { heartbeat_ms: 0, ..good },
            Timings { heartbeat_ms: 150, ..good },
            Timings { election_max_ms: 150, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
            assert!(raft_config(ClusterId(1), bad, &Tuning::default()).is_err());
        }
        assert!(raft_config(ClusterId(1), good, &Tuning::default()).is_ok());
    }
}
