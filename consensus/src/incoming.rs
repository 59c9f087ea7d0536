//! A snapshot that comes in from the leader: pieces into a file, a check of the whole, then openraft installs it.
//!
//! The installation runs beside the messages: the sender asks how it goes with empty pieces, so that no message waits
//! long, however large the state is.

use crate::config::{Raft, Vote};
use crate::disk::{Disk, Step};
use crate::inbound::{internal, invalid};
use crate::runtime::blocking;
use crate::snapshot_file::{SnapshotFault, SnapshotFile};
use crate::watch;
use crate::wire::{Chunk, ChunkReply};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::storage::Snapshot;
use rota_protocol::ids::{ClusterId, HostId};
use rota_protocol::limits::{SNAPSHOT_BYTES_MAX, SNAPSHOT_CHUNK_BYTES_MAX};
use rota_protocol::{ErrorCode, PublicError};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

/// How long one question waits for the installation's end; well under the sender's patience.
const INSTALL_WAIT: Duration = Duration::from_secs(2);

/// Takes snapshots, one at a time.
pub(crate) struct Receiver {
    raft: Raft,
    cluster: ClusterId,
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    /// The planted defect.
    trusting: bool,
    slot: Mutex<Option<Transfer>>,
    /// Snapshots that began to come in; each has its own file, because an older one may still be under installation.
    begun: AtomicU64,
}

/// The vote after the installation.
type Installed = Result<Vote, PublicError>;

struct Transfer {
    from: HostId,
    vote: Vote,
    total: u64,
    next: u64,
    file: Arc<File>,
    path: PathBuf,
    /// Set once all pieces are here.
    installed: Option<watch::Receiver<Option<Installed>>>,
}

impl Receiver {
    pub(crate) fn new(
        raft: Raft,
        cluster: ClusterId,
        dir: &Path,
        (disk, trusting): (Arc<dyn Disk>, bool),
    ) -> Self {
        Self {
            raft,
            cluster,
            dir: dir.to_owned(),
            disk,
            trusting,
            slot: Mutex::new(None),
            begun: AtomicU64::new(0),
        }
    }

    /// Takes one piece, or a question in the form of an empty one.
    pub(crate) async fn take(&self, from: HostId, chunk: Chunk) -> Result<ChunkReply, PublicError> {
        check(&chunk, self.trusting)?;
        let vote = chunk.vote();
        let own = self.raft.metrics().borrow_watched().vote;
        if own > vote {
            return Ok(ChunkReply::new(&own, 0, true));
        }
        let mut slot = self.slot.lock().await;
        if chunk.offset == 0 {
            if let Some(given_up) = slot.take() {
                given_up.discard();
            }
            *slot = Some(self.begin(from, &chunk)?);
        }
        let lost = Ok(ChunkReply::new(&vote, 0, false));
        let Some(transfer) = slot.as_mut() else {
            return lost;
        };
        if !transfer.is_of(from, &chunk) {
            return lost;
        }
        if transfer.next != chunk.offset {
            // An answer was lost, and the piece came again.
            return Ok(ChunkReply::new(&vote, transfer.next, false));
        }
        if let Some(mut installed) = transfer.installed.clone() {
            let total = transfer.total;
            drop(slot);
            let ended = tokio::time::timeout(INSTALL_WAIT, installed.wait_for(Option::is_some)).await;
            return match ended.map(|ended| ended.map(|result| result.clone())) {
                Ok(Ok(Some(Ok(vote)))) => Ok(ChunkReply::new(&vote, total, true)),
                Ok(Ok(Some(Err(error)))) => Err(error),
                Ok(Ok(None) | Err(_)) => Err(internal("the installation ended without a word")),
                Err(_) => Ok(ChunkReply::new(&vote, total, false)),
            };
        }
        transfer.write(chunk, self.disk.clone()).await?;
        if transfer.next == transfer.total {
            transfer.installed = Some(self.install(transfer));
        }
        Ok(ChunkReply::new(&vote, transfer.next, false))
    }

    fn begin(&self, from: HostId, chunk: &Chunk) -> Result<Transfer, PublicError> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("snapshot-in-{number}.tmp"));
        let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(refused)?;
        Ok(Transfer {
            from,
            vote: chunk.vote(),
            total: chunk.total,
            next: 0,
            file: Arc::new(file),
            path,
            installed: None,
        })
    }

    fn install(&self, transfer: &Transfer) -> watch::Receiver<Option<Installed>> {
        let (tell, installed) = watch::channel(None);
        let (raft, cluster, vote) = (self.raft.clone(), self.cluster, transfer.vote);
        let (file, path) = (transfer.file.clone(), transfer.path.clone());
        let on = (self.disk.clone(), self.trusting);
        crate::runtime::spawn(async move {
            let result = install(raft, cluster, vote, (file, path, on)).await;
            if let Err(error) = &result {
                tracing::warn!(%error, "a snapshot was not installed");
            }
            // The sender may have gone.
            let _ = tell.send(Some(result));
        });
        installed
    }
}

type Received = (Arc<File>, PathBuf, (Arc<dyn Disk>, bool));

async fn install(
    raft: Raft,
    cluster: ClusterId,
    vote: Vote,
    (file, path, (disk, trusting)): Received,
) -> Installed {
    let checked = blocking(move || {
        disk.sync(&file)?;
        let whole = SnapshotFile::open(&path)?;
        let (meta, _) = whole.load(cluster, rota_protocol::version::NEWEST, trusting)?;
        Ok::<_, SnapshotFault>(Snapshot { meta, snapshot: whole })
    });
    let snapshot = checked.await.map_err(internal)?.map_err(invalid)?;
    // openraft panics on a snapshot from the future.
    let last = snapshot.meta.last_log_id;
    if last.is_none_or(|id| id.leader_id.term > vote.leader_id.term) {
        return Err(invalid("a snapshot from beyond its sender's term"));
    }
    let reply = raft.install_full_snapshot(vote, snapshot).await.map_err(internal)?;
    Ok(reply.vote)
}

/// Limits first, before anything is kept.
fn check(chunk: &Chunk, trusting: bool) -> Result<(), PublicError> {
    let len = chunk.bytes.0.len();
    let end = chunk.offset.saturating_add(len as u64);
    if chunk.total > SNAPSHOT_BYTES_MAX as u64 || len > SNAPSHOT_CHUNK_BYTES_MAX || end > chunk.total {
        return Err(PublicError::new(ErrorCode::TooLarge, "a snapshot chunk beyond the limits"));
    }
    if (len == 0) != (chunk.offset == chunk.total) {
        return Err(invalid("only a question behind the end is empty"));
    }
    if crc32fast::hash(&chunk.bytes.0) != chunk.crc && !trusting {
        return Err(invalid("a snapshot chunk's checksum is wrong"));
    }
    if !chunk.vote().committed {
        return Err(invalid("snapshots come from a leader only"));
    }
    Ok(())
}

fn refused(error: std::io::Error) -> PublicError {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorCode::StorageFull,
        _ => ErrorCode::Internal,
    };
    PublicError::new(code, error.to_string())
}

impl Transfer {
    fn is_of(&self, from: HostId, chunk: &Chunk) -> bool {
        self.from == from && self.vote == chunk.vote() && self.total == chunk.total
    }

    async fn write(&mut self, chunk: Chunk, disk: Arc<dyn Disk>) -> Result<(), PublicError> {
        let (file, path, offset) = (self.file.clone(), self.path.clone(), self.next);
        let len = chunk.bytes.0.len() as u64;
        let work = move || {
            disk.before(Step::Import, &path)?;
            file.write_all_at(&chunk.bytes.0, offset)
        };
        blocking(work).await.map_err(internal)?.map_err(refused)?;
        self.next += len;
        Ok(())
    }

    /// Forgets a transfer whose pieces will never be whole.
    fn discard(self) {
        if self.installed.is_none() {
            // What cannot be removed now is removed at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
