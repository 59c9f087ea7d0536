//! openraft's calls to other peers, over the link. Peers are named by id alone; the link knows where they are.

use crate::config::{CHUNK_BYTES, Rota, Timings, Vote};
use crate::handing::Handing;
use crate::link::{LinkError, PeerLink};
use crate::pipeline;
use crate::room::Room;
use crate::snapshot_file::SnapshotFile;
use crate::wire::{self, Chunk, ChunkReply, WireError};
use futures_util::future::{BoxFuture, Either, select};
use futures_util::stream::{BoxStream, Stream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, OptionalSend};
use rota_protocol::ErrorCode;
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Least time that entries get to become durable at a follower, in ms: a disk may stall, and a repeat costs more.
const APPEND_TTL_MS_MIN: u64 = 1_000;
/// Time for one chunk of a snapshot, or for one look at how its installation goes: a peer that takes messages and
/// answers none costs this much, and the transfer goes on where it was.
const CHUNK_TTL: Duration = Duration::from_secs(5);

/// How often one piece is sent before the transfer begins anew.
const CHUNK_TRIES: u32 = 3;

/// Results of appends, in order.
type Appended<'s> = BoxStream<'s, Result<StreamAppendResult<Rota>, RPCError<Rota>>>;

/// Makes clients; they are cheap, connections are pooled by the link.
#[derive(Clone)]
pub(crate) struct Network {
    me: u64,
    target: u64,
    link: Arc<dyn PeerLink>,
    timings: Timings,
    room: Arc<Room>,
    handing: Arc<Handing>,
}

impl Network {
    pub(crate) fn new(
        me: HostId,
        link: Arc<dyn PeerLink>,
        timings: Timings,
        room: Arc<Room>,
        handing: Arc<Handing>,
    ) -> Self {
        Self { me: me.0, target: me.0, link, timings, room, handing }
    }

    async fn call(&self, call: RaftCall, body: Vec<u8>, ttl: Duration) -> Result<Vec<u8>, RPCError<Rota>> {
        let request = PeerRequest::Raft { call, body };
        match self.link.call(HostId(self.target), request, ttl).await {
            Ok(PeerReply::Raft { body }) => Ok(body),
            Ok(PeerReply::Refused(error)) => {
                if error.code == ErrorCode::StorageFull {
                    self.room.lacks(self.target);
                }
                Err(Unreachable::from_string(error).into())
            }
            Ok(_) => Err(Unreachable::from_string("not an answer to a raft message").into()),
            Err(LinkError::Timeout) => Err(RPCError::Timeout(Timeout {
                action: match call {
                    RaftCall::Append | RaftCall::Follow | RaftCall::Compare => RPCTypes::AppendEntries,
                    RaftCall::Vote => RPCTypes::Vote,
                    RaftCall::Snapshot => RPCTypes::InstallSnapshot,
                    RaftCall::Transfer => RPCTypes::TransferLeader,
                },
                id: self.me,
                target: self.target,
                timeout: ttl,
            })),
            Err(error) => Err(Unreachable::from_string(error).into()),
        }
    }

    async fn append(
        &self,
        rpc: AppendEntriesRequest<Rota>,
        heartbeat_ttl: Duration,
    ) -> Result<AppendEntriesResponse<Rota>, RPCError<Rota>> {
        // openraft's own limit is one heartbeat; its heartbeat worker enforces it by itself.
        let patience = Duration::from_millis(APPEND_TTL_MS_MIN.max(2 * self.timings.election_max_ms));
        let heartbeat = rpc.entries.is_empty();
        let ttl = if heartbeat { heartbeat_ttl * 4 } else { patience };
        let reply = self.call(RaftCall::Append, wire::append_to_bytes(rpc), ttl).await?;
        if !heartbeat {
            self.room.has(self.target);
        }
        wire::append_reply_from_bytes(&reply).map_err(bad)
    }

    /// Sends one piece; a lost one is sent again, and the receiver names its place.
    async fn send_chunk(&self, body: Vec<u8>) -> Result<Vec<u8>, RPCError<Rota>> {
        for _ in 1..CHUNK_TRIES {
            match self.call(RaftCall::Snapshot, body.clone(), CHUNK_TTL).await {
                Err(RPCError::Timeout(_)) => {}
                answered => return answered,
            }
        }
        self.call(RaftCall::Snapshot, body, CHUNK_TTL).await
    }

    /// Sends a snapshot piece by piece, then asks with empty pieces until it is installed.
    async fn send_chunks(&self, vote: Vote, snapshot: &SnapshotFile) -> Result<Vote, StreamingError<Rota>> {
        let total = snapshot.bytes;
        let mut offset = 0;
        loop {
            self.handing.piece(HostId(self.target));
            let file = snapshot.clone();
            let piece = crate::runtime::blocking(move || file.piece(offset, CHUNK_BYTES))
                .await
                .map_err(|e| network(&e.to_string()))?
                .map_err(|e| network(&e.to_string()))?;
            let body = wire::encode(&Chunk::new(&vote, total, offset, piece));
            let reply = self.send_chunk(body).await?;
            let reply: ChunkReply = wire::decode(&reply).map_err(bad::<StreamingError<Rota>>)?;
            if reply.done {
                return Ok(reply.vote());
            }
            if reply.next > total || (offset > 0 && reply.next == 0) {
                // Another transfer took its place, or it restarted: begin anew, with the newest snapshot.
                return Err(network("the receiver lost its place in the snapshot"));
            }
            // The receiver names its place.
            offset = reply.next;
        }
    }
}

fn network(why: &str) -> StreamingError<Rota> {
    StreamingError::Network(NetworkError::from_string(why))
}

fn bad<E: From<Unreachable<Rota>>>(error: WireError) -> E {
    E::from(Unreachable::from_string(error))
}

impl RaftNetworkFactory<Rota> for Network {
    type Network = Self;

    async fn new_client(&mut self, target: u64, _node: &EmptyNode) -> Self {
        Self { target, ..self.clone() }
    }
}

impl RaftNetworkV2<Rota> for Network {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Rota>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Rota>, RPCError<Rota>> {
        self.append(rpc, option.hard_ttl()).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<Appended<'s>, RPCError<Rota>>>
    where
        S: Stream<Item = AppendEntriesRequest<Rota>> + OptionalSend + Unpin + 'static,
    {
        let network = &*self;
        let appended = pipeline::stream(input, move |rpc| network.append(rpc, option.hard_ttl()));
        Box::pin(async move { Ok(appended) })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Rota>,
        option: RPCOption,
    ) -> Result<VoteResponse<Rota>, RPCError<Rota>> {
        let reply = self.call(RaftCall::Vote, wire::vote_to_bytes(&rpc, false), option.hard_ttl()).await?;
        wire::vote_reply_from_bytes(&reply).map_err(bad)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Rota>,
        option: RPCOption,
    ) -> Result<VoteResponse<Rota>, RPCError<Rota>> {
        let reply = self.call(RaftCall::Vote, wire::vote_to_bytes(&rpc, true), option.hard_ttl()).await?;
        wire::vote_reply_from_bytes(&reply).map_err(bad)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::alias::SnapshotOf<Rota, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Rota>, StreamingError<Rota>> {
        let sending = pin!(self.send_chunks(vote, &snapshot.snapshot));
        match select(sending, pin!(cancel)).await {
            Either::Left((sent, _)) => sent.map(SnapshotResponse::new),
            Either::Right((closed, _)) => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<Rota>,
        option: RPCOption,
    ) -> Result<openraft::raft::TransferLeaderResponse<Rota>, RPCError<Rota>> {
        self.call(RaftCall::Transfer, wire::transfer_to_bytes(&req), option.hard_ttl()).await?;
        Ok(Ok(()))
    }
}
