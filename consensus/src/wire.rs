//! Raft messages as bytes: this crate's own mirror types, so that a new openraft cannot move the wire format.
//!
//! Every decode is bounded, and checks what openraft takes for granted (entries without gaps, no term above the
//! sender's), because a peer's defect must not become a panic here.

use crate::config::{EntryPayload, LogEntry, LogId, Payload, Rota, Vote, log_id};
use crate::membership_bytes::MembershipBytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use rota_protocol::codec;
use rota_protocol::limits::FRAME_BYTES_MAX;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Why a raft message was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error(transparent)]
    Decode(#[from] codec::DecodeError),
    #[error("not a raft message: {0}")]
    Rule(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireVote {
    term: u64,
    node: u64,
    committed: bool,
}

impl From<&Vote> for WireVote {
    fn from(vote: &Vote) -> Self {
        Self { term: vote.leader_id.term, node: vote.leader_id.voted_for, committed: vote.committed }
    }
}

impl From<WireVote> for Vote {
    fn from(vote: WireVote) -> Self {
        if vote.committed {
            Vote::new_committed(vote.term, vote.node)
        } else {
            Vote::new(vote.term, vote.node)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct WireId {
    pub(crate) term: u64,
    pub(crate) index: u64,
}

pub(crate) fn wire_id(id: &LogId) -> WireId {
    WireId { term: id.leader_id.term, index: id.index }
}

pub(crate) fn plain_id(id: WireId) -> LogId {
    log_id(id.term, id.index)
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct WireEntry {
    id: WireId,
    form: WireForm,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum WireForm {
    Blank,
    Commands(Payload),
    Membership(MembershipBytes),
}

/// Entries, or word of a commit, as they stand in a message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WireAppend {
    vote: WireVote,
    prev: Option<WireId>,
    commit: Option<WireId>,
    entries: Vec<WireEntry>,
}

impl From<AppendEntriesRequest<Rota>> for WireAppend {
    fn from(rpc: AppendEntriesRequest<Rota>) -> Self {
        let entry = |entry: LogEntry| WireEntry {
            id: wire_id(&entry.log_id),
            form: match entry.payload {
                EntryPayload::Blank => WireForm::Blank,
                EntryPayload::Normal(data) => WireForm::Commands(data),
                EntryPayload::Membership(membership) => WireForm::Membership((&membership).into()),
            },
        };
        Self {
            vote: (&rpc.vote).into(),
            prev: rpc.prev_log_id.as_ref().map(wire_id),
            commit: rpc.leader_commit.as_ref().map(wire_id),
            entries: rpc.entries.into_iter().map(entry).collect(),
        }
    }
}

impl WireAppend {
    /// It brings no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The last entry, or the one before where there is none.
    pub(crate) fn last(&self) -> Option<WireId> {
        self.entries.last().map(|entry| entry.id).or(self.prev)
    }

    /// What it says, once it was checked.
    pub(crate) fn request(self) -> Result<AppendEntriesRequest<Rota>, WireError> {
        if !self.vote.committed {
            return Err(WireError::Rule("entries come from a leader only"));
        }
        let mut before = self.prev;
        let mut entries = Vec::with_capacity(self.entries.len());
        for entry in self.entries {
            let joined = match before {
                Some(before) => entry.id.index == before.index + 1 && entry.id.term >= before.term,
                None => entry.id.index == 0,
            };
            if !joined || entry.id.term > self.vote.term {
                return Err(WireError::Rule("entries with a gap, or of a wrong term"));
            }
            before = Some(entry.id);
            entries.push(LogEntry {
                log_id: plain_id(entry.id),
                payload: match entry.form {
                    WireForm::Blank => EntryPayload::Blank,
                    WireForm::Commands(data) => EntryPayload::Normal(data),
                    WireForm::Membership(stored) => EntryPayload::Membership(
                        stored.membership().ok_or(WireError::Rule("a membership that is not one"))?,
                    ),
                },
            });
        }
        Ok(AppendEntriesRequest {
            vote: self.vote.into(),
            prev_log_id: self.prev.map(plain_id),
            entries,
            leader_commit: self.commit.map(plain_id),
        })
    }
}

pub(crate) fn append_to_bytes(rpc: AppendEntriesRequest<Rota>) -> Vec<u8> {
    encode(&WireAppend::from(rpc))
}

pub(crate) fn append_from_bytes(bytes: &[u8]) -> Result<AppendEntriesRequest<Rota>, WireError> {
    decode::<WireAppend>(bytes)?.request()
}

#[derive(Debug, Serialize, Deserialize)]
enum WireAppendReply {
    Success,
    Partial(Option<WireId>),
    Conflict,
    HigherVote(WireVote),
}

pub(crate) fn append_reply_to_bytes(reply: AppendEntriesResponse<Rota>) -> Vec<u8> {
    encode(&match reply {
        AppendEntriesResponse::Success => WireAppendReply::Success,
        AppendEntriesResponse::PartialSuccess(id) => WireAppendReply::Partial(id.as_ref().map(wire_id)),
        AppendEntriesResponse::Conflict => WireAppendReply::Conflict,
        AppendEntriesResponse::HigherVote(vote) => WireAppendReply::HigherVote((&vote).into()),
    })
}

pub(crate) fn append_reply_from_bytes(bytes: &[u8]) -> Result<AppendEntriesResponse<Rota>, WireError> {
    Ok(match decode(bytes)? {
        WireAppendReply::Success => AppendEntriesResponse::Success,
        WireAppendReply::Partial(id) => AppendEntriesResponse::PartialSuccess(id.map(plain_id)),
        WireAppendReply::Conflict => AppendEntriesResponse::Conflict,
        WireAppendReply::HigherVote(vote) => AppendEntriesResponse::HigherVote(vote.into()),
    })
}

#[derive(Debug, Serialize, Deserialize)]
struct WireVoteRequest {
    pre: bool,
    vote: WireVote,
    last: Option<WireId>,
    transfer: bool,
}

pub(crate) fn vote_to_bytes(rpc: &VoteRequest<Rota>, pre: bool) -> Vec<u8> {
    encode(&WireVoteRequest {
        pre,
        vote: (&rpc.vote).into(),
        last: rpc.last_log_id.as_ref().map(wire_id),
        transfer: rpc.leadership_transfer,
    })
}

/// The request, and whether it is a pre-vote.
pub(crate) fn vote_from_bytes(bytes: &[u8]) -> Result<(VoteRequest<Rota>, bool), WireError> {
    let wire: WireVoteRequest = decode(bytes)?;
    if wire.vote.committed {
        return Err(WireError::Rule("a candidate is not a leader yet"));
    }
    let mut request = VoteRequest::new(wire.vote.into(), wire.last.map(plain_id));
    request.leadership_transfer = wire.transfer;
    Ok((request, wire.pre))
}

#[derive(Debug, Serialize, Deserialize)]
struct WireVoteReply {
    vote: WireVote,
    granted: bool,
    last: Option<WireId>,
}

pub(crate) fn vote_reply_to_bytes(reply: &VoteResponse<Rota>) -> Vec<u8> {
    encode(&WireVoteReply {
        vote: (&reply.vote).into(),
        granted: reply.vote_granted,
        last: reply.last_log_id.as_ref().map(wire_id),
    })
}

pub(crate) fn vote_reply_from_bytes(bytes: &[u8]) -> Result<VoteResponse<Rota>, WireError> {
    let wire: WireVoteReply = decode(bytes)?;
    let vote: Vote = wire.vote.into();
    Ok(VoteResponse::new(vote, wire.last.map(plain_id), wire.granted))
}

#[derive(Debug, Serialize, Deserialize)]
struct WireTransfer {
    from: WireVote,
    to: u64,
    last: Option<WireId>,
}

pub(crate) fn transfer_to_bytes(rpc: &TransferLeaderRequest<Rota>) -> Vec<u8> {
    encode(&WireTransfer {
        from: rpc.from_leader().into(),
        to: *rpc.to_node_id(),
        last: rpc.last_log_id().map(wire_id),
    })
}

pub(crate) fn transfer_from_bytes(bytes: &[u8]) -> Result<TransferLeaderRequest<Rota>, WireError> {
    let wire: WireTransfer = decode(bytes)?;
    Ok(TransferLeaderRequest::new(wire.from.into(), wire.to, wire.last.map(plain_id)))
}

/// One piece of a snapshot file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Chunk {
    vote: WireVote,
    /// Bytes of the whole file.
    pub total: u64,
    /// Where this piece belongs.
    pub offset: u64,
    /// CRC-32 of the piece.
    pub crc: u32,
    /// The piece.
    pub bytes: Payload,
}

impl Chunk {
    pub(crate) fn new(vote: &Vote, total: u64, offset: u64, bytes: Vec<u8>) -> Self {
        Self { vote: vote.into(), total, offset, crc: crc32fast::hash(&bytes), bytes: Payload(bytes.into()) }
    }

    pub(crate) fn vote(&self) -> Vote {
        self.vote.into()
    }

    /// The empty piece behind the last one, which asks whether all is installed.
    pub(crate) fn question(&self) -> Self {
        Self::new(&self.vote(), self.total, self.total, Vec::new())
    }
}

/// The answer to a chunk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChunkReply {
    vote: WireVote,
    /// Where the next chunk must begin; the whole length once it is installed.
    pub next: u64,
    /// All of it is installed, or the vote above forbids it: either way, do not go on.
    pub done: bool,
}

impl ChunkReply {
    pub(crate) fn new(vote: &Vote, next: u64, done: bool) -> Self {
        Self { vote: vote.into(), next, done }
    }

    pub(crate) fn vote(&self) -> Vote {
        self.vote.into()
    }
}

/// Encodes any of these; they are all plain.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Numbers, lists and bytes always encode; an empty message would be refused by the other side.
    codec::encode(value).unwrap_or_default()
}

/// Decodes within a frame's limit.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    Ok(codec::decode(bytes, FRAME_BYTES_MAX)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn entry(term: u64, index: u64, payload: EntryPayload) -> LogEntry {
        LogEntry { log_id: log_id(term, index), payload }
    }

    fn request(prev: Option<LogId>, entries: Vec<LogEntry>) -> AppendEntriesRequest<Rota> {
        AppendEntriesRequest {
            vote: Vote::new_committed(3, 1),
            prev_log_id: prev,
            entries,
            leader_commit: None,
        }
    }

    #[test]
    fn appends_come_back() {
        let membership = crate::config::Membership::new_with_defaults(vec![[1, 2, 3].into()], [9]);
        let sent = request(
            Some(log_id(2, 4)),
            vec![
                entry(2, 5, EntryPayload::Normal(Payload(Arc::from(&[0, 255, 3][..])))),
                entry(3, 6, EntryPayload::Blank),
                entry(3, 7, EntryPayload::Membership(membership)),
            ],
        );
        let got = append_from_bytes(&append_to_bytes(sent.clone())).expect("valid");
        assert_eq!(got.entries, sent.entries);
        assert_eq!((got.vote, got.prev_log_id), (sent.vote, sent.prev_log_id));
    }

    #[test]
    fn appends_that_openraft_would_panic_on_are_refused() {
        let bad = [
            request(Some(log_id(2, 4)), vec![entry(3, 6, EntryPayload::Blank)]),
            request(Some(log_id(2, 4)), vec![entry(1, 5, EntryPayload::Blank)]),
            request(Some(log_id(2, 4)), vec![entry(4, 5, EntryPayload::Blank)]),
            request(None, vec![entry(3, 1, EntryPayload::Blank)]),
            AppendEntriesRequest { vote: Vote::new(3, 1), ..request(None, vec![]) },
        ];
        for rpc in bad {
            assert!(append_from_bytes(&append_to_bytes(rpc.clone())).is_err(), "{rpc}");
        }
    }

    #[test]
    fn no_prefix_and_no_extension_of_a_message_is_a_message() {
        let bytes = append_to_bytes(request(None, vec![entry(3, 0, EntryPayload::Blank)]));
        for len in 0..bytes.len() {
            assert!(append_from_bytes(&bytes[..len]).is_err(), "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(append_from_bytes(&longer).is_err());
    }
}
