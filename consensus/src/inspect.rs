//! What checkers outside compare: where a peer stands by its own account, and what its log holds.
//!
//! What this is not: a way to act. The product uses none of it.

use crate::snapshot_file::SEALED;
use crate::wire;
use crate::{Consensus, config};
use openraft::async_runtime::watch::WatchReceiver;
use rota_protocol::command::{Entry, LOG_FORMAT, Proposal};
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};

/// Term and index of an entry.
pub type Mark = (u64, u64);

/// Where a peer stands, all of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Term and candidate of its vote, and whether that candidate won.
    pub vote: (u64, HostId, bool),
    /// It takes itself for the leader.
    pub leads: bool,
    /// Last entry of the log.
    pub last: u64,
    /// Last entry known to be committed.
    pub committed: Option<Mark>,
    /// Last entry applied.
    pub applied: Option<Mark>,
    /// Last entry in the snapshot.
    pub snapshot: Option<Mark>,
    /// Last entry given up.
    pub purged: Option<Mark>,
}

impl Consensus {
    /// Where this peer stands.
    #[must_use]
    pub fn inspect(&self) -> Inspection {
        let metrics = self.0.raft.metrics().borrow_watched().clone();
        let mark = |id: &Option<config::LogId>| id.as_ref().map(|id| (id.leader_id.term, id.index));
        let vote = metrics.vote;
        Inspection {
            vote: (vote.leader_id.term, HostId(vote.leader_id.voted_for), vote.committed),
            leads: metrics.state.is_leader(),
            last: metrics.last_log_index.unwrap_or(0),
            committed: mark(&metrics.local_committed),
            applied: mark(&metrics.last_applied),
            snapshot: mark(&metrics.snapshot),
            purged: mark(&metrics.purged),
        }
    }

    /// The term of the vote in this peer's log, which it must never go behind; 0 for none.
    #[must_use]
    pub fn voted_term(&self) -> u64 {
        self.0.log.0.memory().vote.map_or(0, |vote| vote.leader_id.term)
    }

    /// Writes bytes as an entry, whatever they mean: what a peer of another build might have written.
    pub async fn write_raw(&self, bytes: Vec<u8>) {
        // Every peer is about to fail on it; that is what is looked at.
        let _ = self.0.raft.client_write(config::Payload(bytes.into())).await;
    }

    /// Writes one proposal as an entry of its own, past the gathering of proposals.
    pub async fn write_entry(&self, proposal: Proposal) {
        let entry = Entry { format: LOG_FORMAT, at_ms: 1, proposals: vec![proposal] };
        self.write_raw(rota_protocol::codec::encode(&entry).unwrap_or_default()).await;
    }

    /// The messages by which this peer would send a snapshot of these bytes, and the question behind them. `total` is
    /// the length that it announces.
    #[must_use]
    pub fn pieces_of(&self, snapshot: &[u8], total: u64) -> Vec<PeerRequest> {
        let vote = self.0.raft.metrics().borrow_watched().vote;
        let pieces = snapshot.chunks(config::CHUNK_BYTES).enumerate().map(|(at, piece)| {
            wire::Chunk::new(&vote, total, (at * config::CHUNK_BYTES) as u64, piece.to_vec())
        });
        let question = wire::Chunk::new(&vote, total, total, Vec::new());
        let message = |chunk| PeerRequest::Raft { call: RaftCall::Snapshot, body: wire::encode(&chunk) };
        pieces.chain([question]).map(message).collect()
    }

    /// Term, index and checksum of the entries of this peer's log from an index on.
    #[must_use]
    pub fn entries_from(&self, index: u64) -> Vec<(Mark, u32)> {
        self.0.log.0.memory().checksums_from(index)
    }
}

/// The term and the candidate for which this reply grants a vote; none for anything else, and for a mere poll.
#[must_use]
pub fn granted_vote(request: &PeerRequest, reply: &PeerReply) -> Option<(u64, HostId)> {
    let (PeerRequest::Raft { call: RaftCall::Vote, body }, PeerReply::Raft { body: answer }) =
        (request, reply)
    else {
        return None;
    };
    let (asked, is_poll) = wire::vote_from_bytes(body).ok()?;
    let answered = wire::vote_reply_from_bytes(answer).ok()?;
    (!is_poll && answered.vote_granted && answered.vote == asked.vote)
        .then_some((asked.vote.leader_id.term, HostId(asked.vote.leader_id.voted_for)))
}

/// The entries that an append carries from its sender: 0 for a heartbeat, none for anything else.
#[must_use]
pub fn appended(request: &PeerRequest) -> Option<usize> {
    match request {
        PeerRequest::Raft { call: RaftCall::Append, body } => {
            wire::append_from_bytes(body).ok().map(|append| append.entries.len())
        }
        _ => None,
    }
}

/// A reply that says that all entries of an append are durable. Only a planted defect sends it by itself.
#[must_use]
pub fn feigned_success() -> PeerReply {
    PeerReply::Raft { body: wire::append_reply_to_bytes(openraft::raft::AppendEntriesResponse::Success) }
}

/// What a peer answers to a piece of a snapshot: where the next begins, and whether all is installed.
#[must_use]
pub fn piece_taken(reply: &PeerReply) -> Option<(u64, bool)> {
    let PeerReply::Raft { body } = reply else { return None };
    wire::decode::<wire::ChunkReply>(body).ok().map(|reply| (reply.next, reply.done))
}

/// Makes the checksum of a snapshot's header fit again, as one who forges it would.
pub fn reseal_snapshot(bytes: &mut [u8]) {
    if let Some((header, rest)) = bytes.split_at_mut_checked(SEALED)
        && let Some(crc) = rest.first_chunk_mut::<4>()
    {
        *crc = crc32fast::hash(header).to_le_bytes();
    }
}
