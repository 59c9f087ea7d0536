//! What peers ask of each other over QUIC. The caller's identity is its certificate; each request is checked
//! against it (a host may only report itself).

use crate::api::{LogChunk, OutputStream};
use crate::command::{Outcome, Proposal};
use crate::data::{BlobAsk, BlobNews};
use crate::error::PublicError;
use crate::ids::{BootId, ClusterId, HostId, JobId, LeaseEpoch, TaskId, Token};
use crate::job::Actor;
use crate::lead::{LeadAsk, LeadNews};
use crate::members::{Admission, PeerLife};
use crate::secret::Secret;
use crate::session::{SessionAsk, SessionNews};
use crate::trust::Print;
use serde::{Deserialize, Serialize};

/// Which raft call the opaque bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RaftCall {
    /// Entries or a heartbeat.
    Append,
    /// A vote or pre-vote.
    Vote,
    /// One chunk of a snapshot.
    Snapshot,
    /// The leader hands over.
    Transfer,
    /// A host that is no member asks for what was committed; any peer that has it answers.
    Follow,
    /// What the state was after an entry: copies are compared.
    Compare,
}

/// What a peer can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerRequest {
    /// A raft message, opaque to everything but `consensus`.
    Raft {
        /// Which call.
        call: RaftCall,
        /// Its bytes.
        #[serde(with = "crate::bytes")]
        body: Vec<u8>,
    },
    /// Proposals for the leader; a peer that does not lead answers `NotLeader`.
    Propose {
        /// A batch.
        proposals: Vec<Proposal>,
    },
    /// The index that a linearizable read must wait for; leader only.
    ReadIndex,
    /// Extend a host's lease; any peer relays it to the leader once.
    Renew {
        /// Whose lease.
        host: HostId,
        /// Its epoch.
        epoch: LeaseEpoch,
        /// Set by a relay: not relayed again.
        relayed: bool,
    },
    /// Read a piece of an attempt's output on its host.
    ReadLog {
        /// Whose.
        attempt: Token,
        /// Which output.
        stream: OutputStream,
        /// First byte wanted.
        offset: u64,
        /// Wait up to this long, in ms, for a byte or the end.
        wait_ms: u32,
    },
    /// Send a signal to an attempt's processes on its host.
    Signal {
        /// Whose.
        attempt: Token,
        /// The signal's number.
        signal: u8,
    },
    /// Where the last lines of an attempt's output begin.
    FindLog {
        /// Whose.
        attempt: Token,
        /// Which output.
        stream: OutputStream,
        /// How many lines.
        lines: u32,
    },
    /// One step of an interactive session of an attempt on its host, which checks the caller's rights itself.
    Session {
        /// Whose.
        job: JobId,
        /// Which attempt of it.
        attempt: Token,
        /// Who asks, as the first peer authenticated it.
        actor: Actor,
        /// Which session.
        session: u64,
        /// What.
        ask: SessionAsk,
    },
    /// About the lead.
    Lead(LeadAsk),
    /// The key of an authority that the state names and this host does not hold yet.
    Authority {
        /// SHA-256 of its certificate.
        ca: Print,
    },
    /// Who calls, on which data directory: the first request of a connection.
    Hail(PeerLife),
    /// What the peer's boot-time clock says: rates are compared, never the times of two hosts.
    Clock,
    /// Extend the leases of several hosts, which asked the caller or were handed to it: on their way to the leader.
    Renewals {
        /// Whose, and their epochs.
        renewals: Vec<(HostId, LeaseEpoch)>,
        /// How many peers have handed them on.
        hops: u8,
    },
    /// Which ended attempts of a task the peer still has the output of.
    FindTask {
        /// Which task.
        task: TaskId,
    },
    /// About blobs.
    Data(BlobAsk),
}

/// What a peer answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerReply {
    /// The raft answer, opaque.
    Raft {
        /// Its bytes.
        #[serde(with = "crate::bytes")]
        body: Vec<u8>,
    },
    /// One outcome for each proposal, in order, after the commit.
    Proposed {
        /// The outcomes.
        outcomes: Vec<Outcome>,
    },
    /// This peer does not lead; nothing was done.
    NotLeader {
        /// Who leads, as far as it knows.
        leader: Option<HostId>,
    },
    /// A quorum confirmed this index after the request came in.
    ReadIndex {
        /// Wait for it, then read.
        index: u64,
    },
    /// A quorum confirmed the leader after it received the renewal: the lease counts from the renewal's send time.
    Renewed,
    /// A piece of output.
    Log(LogChunk),
    /// Done, with nothing to tell.
    Done,
    /// Refused.
    Refused(PublicError),
    /// Where something in an output begins.
    LogAt {
        /// The position of its first byte.
        offset: u64,
    },
    /// Where a session stands.
    Session(Box<SessionNews>),
    /// About the lead.
    Lead(LeadNews),
    /// An authority's key, PEM. Kept 0600.
    Authority {
        /// The key.
        key_pem: Secret,
    },
    /// Whether the caller is let in.
    Admission(Box<Admission>),
    /// A clock.
    Clock {
        /// Of which boot.
        boot: BootId,
        /// Microseconds since that boot.
        boottime_us: u64,
    },
    /// What became of each of several renewals, in order.
    Renewals(Vec<Renewal>),
    /// Attempts, in their order.
    Attempts(Vec<Token>),
    /// About blobs.
    Data(BlobNews),
}

/// What became of one renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Renewal {
    /// As [`PeerReply::Renewed`].
    Renewed,
    /// As [`PeerReply::NotLeader`].
    NotLeader {
        /// Who leads, as far as the one who was asked last knows.
        leader: Option<HostId>,
    },
    /// As [`PeerReply::Refused`].
    Refused(PublicError),
}

/// What a host without a certificate asks with its join token, inside TLS to a server whose CA fingerprint the
/// token named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The token's secret text.
    pub token: Secret,
    /// Its own name.
    pub host_name: String,
    /// Where peers will reach it.
    pub addr: String,
    /// Its public key, DER `SubjectPublicKeyInfo`; the private one never leaves the host.
    pub public_key_der: Vec<u8>,
}

/// The same of a host that listens at its address while it asks: whoever is asked calls there before it admits anybody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinListening {
    /// What it asks.
    pub request: JoinRequest,
    /// Only who knows this can answer a call.
    pub key: [u8; 32],
}

/// All that a new host needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinGrant {
    /// The cluster.
    pub cluster: ClusterId,
    /// The cluster's name.
    pub cluster_name: String,
    /// Its own id, never used before.
    pub host: HostId,
    /// Its certificate, PEM.
    pub certificate_pem: String,
    /// The cluster CA's certificate, PEM.
    pub ca_pem: String,
    /// The cluster CA's key, PEM: hosts are equal, so each can admit the next. Kept 0600.
    pub ca_key_pem: Secret,
    /// Peers to dial: id and address.
    pub peers: Vec<(HostId, String)>,
}

/// The answer to a join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinReply {
    /// Admitted.
    Granted(Box<JoinGrant>),
    /// Refused; the token is not used up unless the message says so.
    Refused(PublicError),
}
