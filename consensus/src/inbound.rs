//! Raft messages of other peers, checked against who sent them, then given to openraft.

use crate::config::{EntryPayload, LogEntry, Raft, Rota, Vote};
use crate::disk::Disk;
use crate::incoming::Receiver;
use crate::log::store::LogStore;
use crate::pipeline::{self, Turn};
use crate::turn::Heard;
use crate::wire::{self, Chunk, ChunkReply};
use openraft::errors::RaftError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use rota_protocol::ids::{ClusterId, HostId};
use rota_protocol::peer::RaftCall;
use rota_protocol::{ErrorCode, PublicError};
use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// The receiving side of raft.
pub(crate) struct Inbound {
    raft: Raft,
    log: LogStore,
    heard: Arc<Heard>,
    snapshots: Receiver,
    turn: Turn,
}

pub(crate) fn invalid(why: impl Display) -> PublicError {
    PublicError::new(ErrorCode::Invalid, why.to_string())
}

pub(crate) fn internal(why: impl Display) -> PublicError {
    PublicError::new(ErrorCode::Internal, why.to_string())
}

/// A raft message speaks for its sender only.
fn spoken_by(from: HostId, vote: &Vote) -> Result<(), PublicError> {
    if vote.leader_id.voted_for == from.0 {
        return Ok(());
    }
    Err(PublicError::new(
        ErrorCode::Forbidden,
        format!("host {from} sent a raft message of host {}", vote.leader_id.voted_for),
    ))
}

impl Inbound {
    pub(crate) fn new(
        raft: Raft,
        log: LogStore,
        cluster: ClusterId,
        dir: &Path,
        heard: Arc<Heard>,
        on: (Arc<dyn Disk>, bool),
    ) -> Self {
        let snapshots = Receiver::new(raft.clone(), cluster, dir, on);
        let turn = Turn::new(log.0.memory().last());
        Self { raft, log, heard, snapshots, turn }
    }

    /// Gives entries to raft in the order in which they were sent.
    async fn append(
        &self,
        rpc: AppendEntriesRequest<Rota>,
    ) -> Result<AppendEntriesResponse<Rota>, RaftError<Rota>> {
        let last = pipeline::last_index(&rpc.entries);
        // Also what only tells of a commit: it stands behind entries that may be on their way.
        self.turn.comes(rpc.prev_log_id.as_ref(), |before| self.log.0.memory().holds(before)).await;
        let mut taken = pin!(self.raft.append_entries(rpc));
        // The first poll puts them into the queue of the raft core, unless that is full.
        let first = poll_fn(|cx| Poll::Ready(taken.as_mut().poll(cx))).await;
        self.turn.handed(last);
        match first {
            Poll::Ready(reply) => reply,
            Poll::Pending => taken.await,
        }
    }

    /// Gives committed entries to raft that came from another peer than their leader.
    pub(crate) async fn feed(
        &self,
        rpc: AppendEntriesRequest<Rota>,
    ) -> Result<AppendEntriesResponse<Rota>, RaftError<Rota>> {
        self.append(rpc).await
    }

    /// Takes a piece of a snapshot from another peer than the leader.
    pub(crate) async fn piece(&self, from: HostId, chunk: Chunk) -> Result<ChunkReply, PublicError> {
        self.snapshots.take(from, chunk).await
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
                let weighs = |entry: &LogEntry| matches!(entry.payload, EntryPayload::Normal(_));
                if rpc.entries.iter().any(weighs) && self.log.0.is_full() {
                    // What is left of the disk is for votes, and for the blank entry of whoever is elected by them:
                    // without it not even a read would be certain. Heartbeats go on.
                    return Err(PublicError::new(ErrorCode::StorageFull, "no room for log entries"));
                }
                let reply = self.append(rpc).await.map_err(internal)?;
                if !matches!(reply, AppendEntriesResponse::HigherVote(_)) {
                    self.heard.leader(from);
                }
                Ok(wire::append_reply_to_bytes(reply))
            }
            RaftCall::Vote => {
                let (rpc, pre) = wire::vote_from_bytes(body).map_err(invalid)?;
                spoken_by(from, &rpc.vote)?;
                let reply = if pre { self.raft.pre_vote(rpc).await } else { self.raft.vote(rpc).await };
                Ok(wire::vote_reply_to_bytes(&reply.map_err(internal)?))
            }
            RaftCall::Transfer => {
                let rpc = wire::transfer_from_bytes(body).map_err(invalid)?;
                spoken_by(from, rpc.from_leader())?;
                self.raft.handle_transfer_leader(rpc).await.map_err(internal)?.map_err(internal)?;
                Ok(Vec::new())
            }
            RaftCall::Snapshot => {
                let chunk: Chunk = wire::decode(body).map_err(invalid)?;
                spoken_by(from, &chunk.vote())?;
                self.snapshots.take(from, chunk).await.map(|reply| wire::encode(&reply))
            }
            RaftCall::Follow | RaftCall::Compare => Err(invalid("it is answered elsewhere")),
        }
    }
}
