//! Raft messages of other peers, checked against who sent them, then given to openraft.

use crate::config::{Raft, Vote};
use crate::log::store::LogStore;
use crate::snapshot_file::{self, SnapshotFile};
use crate::wire::{self, Chunk, ChunkReply};
use openraft::storage::Snapshot;
use rota_protocol::ids::{ClusterId, HostId};
use rota_protocol::limits::{SNAPSHOT_BYTES_MAX, SNAPSHOT_CHUNK_BYTES_MAX};
use rota_protocol::peer::RaftCall;
use rota_protocol::{ErrorCode, PublicError};
use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The receiving side of raft.
pub(crate) struct Inbound {
    raft: Raft,
    log: LogStore,
    cluster: ClusterId,
    dir: PathBuf,
    /// The snapshot that is coming in; one at a time.
    incoming: tokio::sync::Mutex<Option<Incoming>>,
}

struct Incoming {
    from: HostId,
    vote: Vote,
    total: u64,
    next: u64,
    file: Arc<File>,
    path: PathBuf,
}

fn invalid(why: impl Display) -> PublicError {
    PublicError::new(ErrorCode::Invalid, why.to_string())
}

fn internal(why: impl Display) -> PublicError {
    PublicError::new(ErrorCode::Internal, why.to_string())
}

/// A raft message speaks for its sender only.
fn spoken_by(from: HostId, vote: &Vote) -> Result<(), PublicError> {
    if vote.leader_id.voted_for == from.0 {
        return Ok(());
    }
    Err(PublicError::new(
        ErrorCode::Forbidden,
        format!(
            "host {from} sent a raft message of host {}",
            vote.leader_id.voted_for
        ),
    ))
}

impl Inbound {
    pub(crate) fn new(raft: Raft, log: LogStore, cluster: ClusterId, dir: &Path) -> Self {
        Self {
            raft,
            log,
            cluster,
            dir: dir.to_owned(),
            incoming: tokio::sync::Mutex::new(None),
        }
    }

    pub(crate) async fn handle(
        &self,
        from: HostId,
        call: RaftCall,
        body: &[u8],
    ) -> Result<Vec<u8>, PublicError> {
        match call {
            RaftCall::Append => {
                let rpc = wire::append_from_bytes(body).map_err(invalid)?;
                spoken_by(from, &rpc.vote)?;
                if !rpc.entries.is_empty() && self.log.0.is_full() {
                    // What is left of the disk is for votes; heartbeats go on.
                    return Err(PublicError::new(
                        ErrorCode::StorageFull,
                        "no room for log entries",
                    ));
                }
                let reply = self.raft.append_entries(rpc).await.map_err(internal)?;
                Ok(wire::append_reply_to_bytes(reply))
            }
            RaftCall::Vote => {
                let (rpc, pre) = wire::vote_from_bytes(body).map_err(invalid)?;
                spoken_by(from, &rpc.vote)?;
                let reply = if pre {
                    self.raft.pre_vote(rpc).await
                } else {
                    self.raft.vote(rpc).await
                };
                Ok(wire::vote_reply_to_bytes(&reply.map_err(internal)?))
            }
            RaftCall::Transfer => {
                let rpc = wire::transfer_from_bytes(body).map_err(invalid)?;
                spoken_by(from, rpc.from_leader())?;
                self.raft
                    .handle_transfer_leader(rpc)
                    .await
                    .map_err(internal)?
                    .map_err(internal)?;
                Ok(Vec::new())
            }
            RaftCall::Snapshot => {
                let chunk: Chunk = wire::decode(body).map_err(invalid)?;
                spoken_by(from, &chunk.vote())?;
                self.chunk(from, chunk)
                    .await
                    .map(|reply| wire::encode(&reply))
            }
        }
    }

    async fn chunk(&self, from: HostId, chunk: Chunk) -> Result<ChunkReply, PublicError> {
        let len = chunk.bytes.0.len();
        let end = chunk.offset.saturating_add(len as u64);
        if chunk.total > SNAPSHOT_BYTES_MAX as u64
            || len > SNAPSHOT_CHUNK_BYTES_MAX
            || end > chunk.total
        {
            return Err(PublicError::new(
                ErrorCode::TooLarge,
                "a snapshot chunk beyond the limits",
            ));
        }
        if crc32fast::hash(&chunk.bytes.0) != chunk.crc {
            return Err(invalid("a snapshot chunk's checksum is wrong"));
        }
        let vote = chunk.vote();
        if !vote.committed {
            return Err(invalid("snapshots come from a leader only"));
        }
        let own = {
            use openraft::async_runtime::watch::WatchReceiver;
            self.raft.metrics().borrow_watched().vote
        };
        if own > vote {
            return Ok(ChunkReply::new(&own, 0, true));
        }
        let mut slot = self.incoming.lock().await;
        if chunk.offset == 0 {
            *slot = Some(self.begin(from, &chunk)?);
        }
        let Some(incoming) = slot.as_mut().filter(|held| {
            held.from == from
                && held.vote == vote
                && held.total == chunk.total
                && held.next == chunk.offset
        }) else {
            return Ok(ChunkReply::new(&vote, 0, false));
        };
        incoming.write(chunk).await?;
        if incoming.next < incoming.total {
            return Ok(ChunkReply::new(&vote, incoming.next, false));
        }
        // All is here; whatever comes of it, the next snapshot begins anew.
        let Some(incoming) = slot.take() else {
            return Err(internal("the incoming snapshot vanished"));
        };
        self.install(vote, incoming).await
    }

    fn begin(&self, from: HostId, chunk: &Chunk) -> Result<Incoming, PublicError> {
        let path = self.dir.join("snapshot-in.tmp");
        let file = File::create(&path).map_err(disk)?;
        Ok(Incoming {
            from,
            vote: chunk.vote(),
            total: chunk.total,
            next: 0,
            file: Arc::new(file),
            path,
        })
    }

    async fn install(&self, vote: Vote, incoming: Incoming) -> Result<ChunkReply, PublicError> {
        let cluster = self.cluster;
        let total = incoming.total;
        let checked = tokio::task::spawn_blocking(move || {
            incoming.file.sync_all()?;
            let file = SnapshotFile::open(&incoming.path)?;
            let (meta, _) = file.load(cluster)?;
            Ok::<_, snapshot_file::SnapshotFault>(Snapshot {
                meta,
                snapshot: file,
            })
        });
        let snapshot = checked.await.map_err(internal)?.map_err(invalid)?;
        let beyond = |id: &crate::config::LogId| id.leader_id.term > vote.leader_id.term;
        if snapshot.meta.last_log_id.as_ref().is_none_or(beyond) {
            return Err(invalid("a snapshot from beyond its sender's term"));
        }
        let reply = self
            .raft
            .install_full_snapshot(vote, snapshot)
            .await
            .map_err(internal)?;
        Ok(ChunkReply::new(&reply.vote, total, true))
    }
}

fn disk(error: std::io::Error) -> PublicError {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorCode::StorageFull,
        _ => ErrorCode::Internal,
    };
    PublicError::new(code, error.to_string())
}

impl Incoming {
    async fn write(&mut self, chunk: Chunk) -> Result<(), PublicError> {
        let (file, offset) = (self.file.clone(), self.next);
        let len = chunk.bytes.0.len() as u64;
        tokio::task::spawn_blocking(move || file.write_all_at(&chunk.bytes.0, offset))
            .await
            .map_err(internal)?
            .map_err(disk)?;
        self.next += len;
        Ok(())
    }
}
