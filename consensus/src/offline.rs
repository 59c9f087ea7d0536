//! A peer's files without a peer: looked at, read as a state, and made anew. No agent may run on them.
//!
//! What this is not: a way around agreement. A cluster that is begun here has another id than the one its state comes
//! from, so that no certificate of the old one is taken in it; who may do that, and when, is the caller's to ask.

use crate::config::{
    EntryPayload, LogEntry, LogId, Membership, SnapshotMeta, StoredMembership, Vote, log_id,
};
use crate::disk::RealDisk;
use crate::log::header::Owner;
use crate::log::{self, LogConfig, LogError, recover};
use crate::snapshot_file::{self, SnapshotFault, SnapshotFile};
use crate::{Consensus, StartError, State, machine};
use openraft::storage::RaftLogStorage;
use rota_protocol::ids::{ClusterId, HostId};
use rota_protocol::version::NEWEST;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// What a peer's files hold.
#[derive(Debug)]
pub struct Found {
    /// The state with all entries of the log, those too of which this peer did not hear that they were committed.
    pub state: State,
    /// The highest term that this peer has seen.
    pub term: u64,
    /// Entries that it did not know to be committed.
    pub unconfirmed: u64,
    /// Who voted, as of the last membership in the log.
    pub voters: BTreeSet<HostId>,
}

/// A log that was cut needs the snapshot that holds what was before.
pub(crate) fn check_joined(purged: Option<&LogId>, snapshot: Option<u64>) -> Result<(), StartError> {
    match purged {
        Some(purged) if snapshot.is_none_or(|index| index < purged.index) => Err(StartError::Raft(format!(
            "the log begins behind entry {}, and the snapshot that held what came before it is missing or older",
            purged.index
        ))),
        _ => Ok(()),
    }
}

/// Reads a peer's files without changing them.
///
/// # Errors
/// Damaged, foreign, missing, of a newer format.
pub fn read(dir: &Path, cluster: ClusterId, host: HostId) -> Result<Found, StartError> {
    if matches!(dir.try_exists(), Ok(false)) {
        return Err(LogError::Wiped { dir: dir.to_owned(), marker: log::marker_path(dir) }.into());
    }
    let place = snapshot_file::current_path(dir);
    let from_snapshot = match place.try_exists() {
        Ok(true) => Some(SnapshotFile::open(&place)?.load(cluster, NEWEST, false)?),
        Ok(false) => None,
        Err(error) => return Err(SnapshotFault::Io(error).into()),
    };
    let memory = recover::look(dir, Owner { cluster, host })?
        .ok_or_else(|| LogError::Wiped { dir: dir.to_owned(), marker: log::marker_path(dir) })?;
    let snapshot_index = from_snapshot.as_ref().and_then(|(meta, _)| Some(meta.last_log_id.as_ref()?.index));
    check_joined(memory.purged.as_ref(), snapshot_index)?;
    let mut found = match from_snapshot {
        Some((meta, state)) => Found {
            state,
            term: meta.last_log_id.map_or(0, |id| id.leader_id.term),
            unconfirmed: 0,
            voters: voters(meta.last_membership.membership()),
        },
        None => Found { state: State::new(), term: 0, unconfirmed: 0, voters: BTreeSet::new() },
    };
    found.term = found.term.max(memory.vote.map_or(0, |vote| vote.leader_id.term));
    let committed = memory.committed.map_or(0, |id| id.index);
    for entry in memory.entries() {
        found.take(entry, committed)?;
    }
    Ok(found)
}

fn voters(membership: &Membership) -> BTreeSet<HostId> {
    membership.voter_ids().map(HostId).collect()
}

impl Found {
    fn take(&mut self, entry: &LogEntry, committed: u64) -> Result<(), StartError> {
        let index = entry.log_id.index;
        self.term = self.term.max(entry.log_id.leader_id.term);
        if index <= self.state.applied_index() && index > 0 {
            return Ok(());
        }
        self.unconfirmed += u64::from(index > committed);
        match &entry.payload {
            EntryPayload::Normal(data) => {
                let entry =
                    machine::decode(&data.0, index, NEWEST).map_err(|e| StartError::Raft(e.to_string()))?;
                self.state.apply(index, &entry);
            }
            EntryPayload::Membership(membership) => {
                self.voters = voters(membership);
                self.state.skip(index);
            }
            EntryPayload::Blank => self.state.skip(index),
        }
        Ok(())
    }
}

/// Makes the files of a peer that alone votes in a new cluster, which goes on from this state. `dir` must not exist.
///
/// # Errors
/// It exists, or the disk refuses; what was made is removed then.
pub async fn begin(
    dir: &Path,
    cluster: ClusterId,
    host: HostId,
    state: &State,
    term: u64,
) -> Result<(), StartError> {
    let io = |error| StartError::Snapshot(SnapshotFault::Io(error));
    std::fs::create_dir_all(dir.parent().unwrap_or(Path::new("."))).map_err(io)?;
    std::fs::create_dir(dir).map_err(io)?;
    let made = fill(dir, cluster, host, state, term).await;
    if made.is_err() {
        // Half a peer would be taken for a whole one.
        let _ = std::fs::remove_dir_all(dir);
        let _ = std::fs::remove_file(log::marker_path(dir));
    }
    made
}

async fn fill(
    dir: &Path,
    cluster: ClusterId,
    host: HostId,
    state: &State,
    term: u64,
) -> Result<(), StartError> {
    let last = log_id(term, state.applied_index());
    let membership = Membership::new_with_defaults(vec![[host.0].into()], [host.0]);
    let meta = SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(last), membership),
    };
    let bytes = snapshot_file::to_bytes(cluster, &meta, state)?;
    let beside = dir.join("snapshot-new.tmp");
    snapshot_file::write_durable(&beside, &bytes, &RealDisk).map_err(SnapshotFault::Io)?;
    let config = LogConfig {
        dir: dir.to_owned(),
        owner: Owner { cluster, host },
        segment_bytes: crate::config::Tuning::default().segment_bytes,
        disk: Arc::new(RealDisk),
        on_failure: Box::new(|_| {}),
    };
    let mut store = log::open(config)?;
    // The next term is above all that the old cluster has seen, and the log begins where the snapshot ends.
    let written = async {
        store.save_vote(&Vote::new(term, host.0)).await?;
        store.purge(last).await
    };
    let written = written.await;
    store.0.close();
    written.map_err(SnapshotFault::Io)?;
    // Last, so that a crash before leaves no snapshot that counts.
    snapshot_file::promote(&beside, dir, &RealDisk).map_err(SnapshotFault::Io)?;
    Ok(())
}

/// A backup as it was found: whose it is, and the state.
#[derive(Debug)]
pub struct Backup {
    /// The cluster that it was made of.
    pub cluster: ClusterId,
    /// The state.
    pub state: State,
    /// The term of its last entry.
    pub term: u64,
}

/// Checks a backup whole and reads it.
///
/// # Errors
/// Cut, changed, or of a newer format.
pub fn read_backup(bytes: &[u8]) -> Result<Backup, SnapshotFault> {
    let cluster = snapshot_file::cluster_of(bytes)?;
    let (meta, state) = snapshot_file::parse(bytes, cluster)?;
    Ok(Backup { cluster, state, term: meta.last_log_id.map_or(0, |id| id.leader_id.term) })
}

impl Consensus {
    /// The whole state of this moment as one file: versioned, checksummed, with the cluster's id and the log index,
    /// which is given too. Blocks for as long as encoding takes.
    ///
    /// # Errors
    /// The state is larger than a snapshot may be.
    pub fn backup(&self) -> Result<(u64, Vec<u8>), SnapshotFault> {
        self.0.machine.to_bytes()
    }
}
