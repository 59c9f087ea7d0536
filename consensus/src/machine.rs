//! The state machine as openraft sees it: the brain behind a lock, fed from the log, saved as snapshots.
//!
//! What this is not: it decides nothing and reads no clock. An entry that this build cannot read ends the peer; it is
//! never skipped, because the replicas would part.

mod builder;
mod handed;
mod patient;

use crate::changes::{FeedFault, Ring};
use crate::config::{
    EntryPayload, Faults, LogEntry, LogId, Reply, Rota, SnapshotMeta, StoredMembership, Tuning,
};
use crate::disk::{Disk, Step};
use crate::follow::Mark;
use crate::marks::{Marks, hash_whole};
use crate::runtime::{Runtime, blocking};
use crate::snapshot_file::{self, SnapshotFault, SnapshotFile};
use crate::watch;
use builder::Builder;
use futures_util::{Stream, StreamExt};
use openraft::AsyncRuntime;
use openraft::OptionalSend;
use openraft::storage::{EntryResponder, RaftStateMachine, Snapshot};
use rota_core::{Event, State};
use rota_protocol::change::{Changes, StateChange};
use rota_protocol::command::{Command, Entry, Proposal};
use rota_protocol::ids::{ClusterId, HostId};
use rota_protocol::version::OLDER_BUILD;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::broadcast;

/// Notes that a slow reader of events may fall behind before it must look at the state itself.
const EVENTS_BEHIND_MAX: usize = 1_024;

/// What one log entry changed.
#[derive(Debug, Clone)]
pub struct AppliedNote {
    /// The entry's log index.
    pub index: u64,
    /// In the order in which they happened.
    pub events: Vec<Event>,
    /// The whole state was replaced by a snapshot: look at it afresh, as after falling behind.
    pub resync: bool,
}

/// The state with what openraft must know of it; one lock, so that both are of one moment.
#[derive(Clone)]
struct Replica {
    state: State,
    last: Option<LogId>,
    membership: StoredMembership,
}

/// What the state machine shares with readers.
pub(crate) struct Shared {
    replica: RwLock<Replica>,
    events: broadcast::Sender<Arc<AppliedNote>>,
    applied: watch::Sender<u64>,
    changes: Ring,
    /// What another copy was after an entry that is to be applied here.
    expected: Mutex<Option<Mark>>,
    pub(crate) marks: Marks,
    /// The snapshot that counts; the lock also orders changes of the file's name.
    current: Mutex<Option<(SnapshotMeta, SnapshotFile)>>,
    /// Held while snapshot files are written; true once they must not be any more.
    closed: Mutex<bool>,
    /// How long the last snapshot took to be made, in ms.
    built_ms: AtomicU64,
    dir: PathBuf,
    cluster: ClusterId,
    /// The newest version that this peer reads.
    newest: u16,
    /// Some host is trusted no more: whoever asks which must look at the state.
    any_revoked: AtomicBool,
    disk: Arc<dyn Disk>,
    faults: Faults,
}

impl Shared {
    /// Waits for a snapshot that is being written, and refuses further ones. Blocks.
    pub(crate) fn close(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Runs work on snapshot files beside the runtime's own threads, one at a time.
    async fn on_disk<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, SnapshotFault> + Send + 'static,
    ) -> io::Result<T> {
        let worked = blocking(move || {
            let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
            if *closed {
                return Err(SnapshotFault::Io(io::Error::other("this peer is stopping")));
            }
            work(&self)
        });
        worked.await.map_err(io::Error::other)?.map_err(|fault| match fault {
            SnapshotFault::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        })
    }

    fn replica(&self) -> RwLockReadGuard<'_, Replica> {
        // A panic in apply ends the raft core, and with it the process; until then reads show what was there.
        self.replica.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn replica_mut(&self) -> RwLockWriteGuard<'_, Replica> {
        self.replica.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        f(&self.replica().state)
    }

    /// Why a host is trusted no more. Without any such host it costs no lock: raft's messages pass here.
    pub(crate) fn revoked(&self, host: HostId) -> Option<String> {
        if !self.any_revoked.load(Ordering::Acquire) {
            return None;
        }
        self.read(|state| state.trust().revoked(host).map(|why| why.reason.clone()))
    }

    /// This moment as the bytes of a snapshot, with its log index. Costs a copy of pointers under the lock.
    pub(crate) fn to_bytes(&self) -> Result<(u64, Vec<u8>), SnapshotFault> {
        let replica = self.replica().clone();
        let index = replica.state.applied_index();
        let meta = SnapshotMeta { last_log_id: replica.last, last_membership: replica.membership };
        Ok((index, snapshot_file::to_bytes(self.cluster, &meta, &replica.state)?.concat()))
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<Arc<AppliedNote>> {
        self.events.subscribe()
    }

    pub(crate) fn changes_since(&self, after: u64) -> Result<Changes, FeedFault> {
        self.changes.since(after)
    }

    pub(crate) fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// Bytes of the snapshot that counts.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map_or(0, |(_, file)| file.bytes)
    }

    /// How long the last snapshot took to be made, in ms; 0 without one since the start.
    pub(crate) fn snapshot_ms(&self) -> u64 {
        self.built_ms.load(Ordering::Relaxed)
    }

    /// Index of the last entry in the snapshot that counts.
    pub(crate) fn snapshot_index(&self) -> Option<u64> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (meta, _) = current.as_ref()?;
        meta.last_log_id.as_ref().map(|id| id.index)
    }

    /// Makes a durable file the snapshot that counts, unless a newer one does already.
    fn adopt(&self, meta: SnapshotMeta, path: &Path) -> Result<(), SnapshotFault> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|(held, _)| held.last_log_id > meta.last_log_id) {
            std::fs::remove_file(path)?;
            return Ok(());
        }
        let place = snapshot_file::current_path(&self.dir);
        if path != place {
            snapshot_file::promote(path, &self.dir, &*self.disk)?;
        }
        *current = Some((meta, SnapshotFile::open(&place)?));
        Ok(())
    }
}

/// The state machine that openraft drives; clones share it.
#[derive(Clone)]
pub(crate) struct Machine(pub(crate) Arc<Shared>);

impl Machine {
    /// Loads the snapshot of a directory, if there is one.
    ///
    /// # Errors
    /// A damaged or foreign snapshot: without it the log cannot be applied, so the peer must not start.
    pub(crate) fn open(dir: &Path, cluster: ClusterId, tuning: &Tuning) -> Result<Self, SnapshotFault> {
        let (disk, faults, newest) = (tuning.disk.clone(), tuning.faults, tuning.newest);
        std::fs::create_dir_all(dir)?;
        snapshot_file::remove_leftovers(dir)?;
        let place = snapshot_file::current_path(dir);
        let found = if place.try_exists()? {
            disk.before(Step::Read, &place)?;
            let file = SnapshotFile::open(&place)?;
            let (meta, state) = file.load(cluster, newest, false)?;
            Some((meta, state, file))
        } else {
            None
        };
        let (replica, current) = match found {
            Some((meta, state, file)) => {
                let replica = Replica {
                    state: planted(state, faults),
                    last: meta.last_log_id,
                    membership: meta.last_membership.clone(),
                };
                (replica, Some((meta, file)))
            }
            None => (
                Replica {
                    state: planted(State::new(), faults),
                    last: None,
                    membership: StoredMembership::default(),
                },
                None,
            ),
        };
        let applied = replica.state.applied_index();
        let any_revoked = has_revoked(&replica.state);
        Ok(Self(Arc::new(Shared {
            replica: RwLock::new(replica),
            events: broadcast::Sender::new(EVENTS_BEHIND_MAX),
            applied: watch::Sender::new(applied),
            changes: Ring::after(applied),
            expected: Mutex::default(),
            marks: Marks::new(tuning),
            current: Mutex::new(current),
            closed: Mutex::new(false),
            built_ms: AtomicU64::new(0),
            dir: dir.to_owned(),
            cluster,
            newest,
            any_revoked: AtomicBool::new(any_revoked),
            disk,
            faults,
        })))
    }

    fn apply_one(&self, entry: LogEntry) -> io::Result<Reply> {
        let index = entry.log_id.index;
        let decoded = match &entry.payload {
            EntryPayload::Normal(data) => Some(decode(&data.0, index, self.0.newest)?),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        };
        let (reply, events, whole) = {
            let mut replica = self.0.replica_mut();
            replica.last = Some(entry.log_id);
            let (reply, events) = match (decoded, entry.payload) {
                (Some(mut commands), _) => {
                    let turned = self.0.faults.disorder && disorder(&mut commands);
                    let mut applied = replica.state.take(index, commands);
                    if turned {
                        applied.outcomes.reverse();
                    }
                    check_version(&replica.state, self.0.newest)?;
                    self.0.any_revoked.store(has_revoked(&replica.state), Ordering::Release);
                    (Reply(applied.outcomes), applied.events)
                }
                (None, EntryPayload::Membership(membership)) => {
                    replica.state.skip(index);
                    replica.membership = StoredMembership::new(Some(entry.log_id), membership);
                    (Reply::default(), Vec::new())
                }
                (None, _) => {
                    replica.state.skip(index);
                    (Reply::default(), Vec::new())
                }
            };
            (reply, events, self.0.marks.took(index, &replica.state))
        };
        hash_whole(&self.0, whole);
        self.0.check_expected(index)?;
        self.note_changes(index, &events);
        if !events.is_empty() {
            // Nobody listening is fine.
            let _ = self.0.events.send(Arc::new(AppliedNote { index, events, resync: false }));
        }
        self.0.applied.send_replace(index);
        Ok(reply)
    }

    /// The states of the jobs that an entry changed, as it left them: apply goes on only after this.
    fn note_changes(&self, index: u64, events: &[Event]) {
        let replica = self.0.replica();
        let mut seen = BTreeSet::new();
        let changed = events.iter().filter_map(|event| match event {
            Event::JobChanged(job) if seen.insert(*job) => {
                Some(StateChange { index, job: *job, state: replica.state.job(*job)?.state })
            }
            _ => None,
        });
        self.0.changes.add(index, changed);
    }
}

fn has_revoked(state: &State) -> bool {
    state.trust().all_revoked().next().is_some()
}

fn planted(state: State, faults: Faults) -> State {
    state.with_faults(rota_core::state::Faults { skip_dedup: faults.skip_dedup, ..Default::default() })
}

/// The planted defect: turns the proposals round by chance; true if it did.
fn disorder(entry: &mut Entry) -> bool {
    // Entries that the cluster itself rests on are left alone: it should live long enough to be seen.
    let of_users = |one: &Proposal| matches!(one.command, Command::Submit { .. } | Command::Adjust { .. });
    let turns = Runtime::thread_rng().coin() && entry.proposals.iter().all(of_users);
    if turns {
        entry.proposals.reverse();
    }
    turns
}

pub(crate) fn decode(bytes: &[u8], index: u64, newest: u16) -> io::Result<Entry> {
    Entry::read(bytes, newest).map_err(|error| halt(format!("cannot read the entry at {index}: {error}")))
}

/// A version that this build does not know may mean anything from here on.
fn check_version(state: &State, newest: u16) -> io::Result<()> {
    let version = state.version();
    if version <= newest {
        return Ok(());
    }
    Err(halt(format!("the cluster is of version {version}, this build reads up to {newest}; {OLDER_BUILD}")))
}

fn halt(why: String) -> io::Error {
    tracing::error!(why, "this build cannot read what was committed, so it must not go on");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl RaftStateMachine<Rota> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let replica = self.0.replica();
        Ok((replica.last, replica.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Rota>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let reply = self.apply_patiently(entry).await?;
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { shared: self.0.clone(), replica: self.0.replica().clone() }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        let want = meta.clone();
        let install = move |shared: &Shared| {
            let (found, state) = snapshot.load(shared.cluster, shared.newest, shared.faults.trusting)?;
            if found != want {
                return Err(SnapshotFault::Damaged("it is not the snapshot that was announced".into()));
            }
            shared.adopt(found, &snapshot.path)?;
            Ok(planted(state, shared.faults))
        };
        let state = self.0.clone().on_disk(install).await?;
        let index = state.applied_index();
        self.0.any_revoked.store(has_revoked(&state), Ordering::Release);
        *self.0.replica_mut() =
            Replica { state, last: meta.last_log_id, membership: meta.last_membership.clone() };
        self.0.changes.forget(index);
        self.0.marks.forget();
        let _ = self.0.events.send(Arc::new(AppliedNote { index, events: Vec::new(), resync: true }));
        self.0.applied.send_replace(index);
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<openraft::alias::SnapshotOf<Rota, SnapshotFile>>, io::Error> {
        let current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(current.as_ref().map(|(meta, file)| Snapshot { meta: meta.clone(), snapshot: file.clone() }))
    }
}
