//! Membership: who belongs to the cluster, which data directory speaks for a host, and what was changed and why.

use crate::error::PublicError;
use crate::follow::FollowView;
use crate::ids::{HostId, RequestId};
use serde::{Deserialize, Serialize};

/// Most notes of the autopilot that the state keeps.
pub const NOTES_MAX: usize = 32;

/// Which data directory a host's agent runs on, and which start of it: an identity that was copied, restored from an
/// old backup or put beside other data is told apart by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DataLife {
    /// Drawn when the data directory was first used; zero before a host has told.
    pub data: u128,
    /// Counts the starts of an agent on it.
    pub starts: u64,
    /// Drawn by each start.
    pub session: u128,
}

/// What an agent says of itself on a fresh connection, before anything else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLife {
    /// Its data directory and start.
    pub life: DataLife,
    /// The name that its machine has.
    pub machine: String,
    /// Where it says that it can be dialled.
    pub addr: String,
}

/// Why a host is not let in, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotLetIn {
    /// It was removed from the cluster.
    Removed,
    /// Another agent speaks under the same identity just now.
    InUse,
    /// A copy of its data directory was started since.
    Copied,
    /// Its data is older than what the cluster knows of it: restored from a backup.
    Older,
    /// Its identity stands beside another data directory than the one that the cluster knows: wiped, or swapped.
    OtherData,
}

/// What a fellow peer answers to [`PeerLife`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Admission {
    /// Let in; and who answers.
    LetIn(PeerLife),
    /// Not let in.
    Refused {
        /// Why.
        why: NotLetIn,
        /// In words, with the next step.
        text: String,
    },
    /// It cannot be told yet: ask again.
    NotYet(PublicError),
}

/// A host that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// When, in log time.
    pub at_ms: u64,
    /// By whom.
    pub by: String,
    /// Why, for people.
    pub reason: String,
}

/// A change of membership in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberChange {
    /// A host is no longer part of the cluster; its id is never used again.
    Remove {
        /// Which.
        host: HostId,
        /// For people.
        reason: String,
    },
    /// This host shall vote, before others.
    Promote {
        /// Which.
        host: HostId,
    },
    /// An agent started on this data directory.
    Started {
        /// Itself.
        host: HostId,
        /// The data directory and the start.
        life: DataLife,
    },
    /// What the leader did to the voters, and why.
    Note {
        /// For people.
        text: String,
    },
}

/// One thing that was done, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberNote {
    /// When, in log time.
    pub at_ms: u64,
    /// For people.
    pub text: String,
}

/// Where membership stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MembersView {
    /// Counts how often the cluster began anew from a backup or from one surviving host.
    pub epoch: u64,
    /// How many more voters may be lost before nothing can be decided.
    pub tolerates: u32,
    /// How many voters the cluster wants.
    pub wanted: u32,
    /// What the leader is about to do, or waits for; empty if all is as it should be, or if the answer is not a leader's.
    pub next: String,
    /// What a person should know or do.
    pub advice: Vec<String>,
    /// What was done last, oldest first.
    pub notes: Vec<MemberNote>,
    /// How the others are fed.
    pub follow: FollowView,
}

/// What can be asked about membership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembersAsk {
    /// Remove a host.
    Remove {
        /// Deduplicates.
        request: RequestId,
        /// Name or number.
        host: String,
        /// For people.
        reason: String,
        /// Only say what would happen.
        only_look: bool,
    },
    /// Let a host vote, before others.
    Promote {
        /// Deduplicates.
        request: RequestId,
        /// Name or number.
        host: String,
    },
    /// A host is at another address than this peer knows. Works without a quorum.
    Address {
        /// Name or number.
        host: String,
        /// `host:port`.
        addr: String,
    },
    /// The whole state as one file; answered by several [`MembersAnswer::Backup`].
    Backup {
        /// Take what this peer has, even without a quorum.
        stale: bool,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembersAnswer {
    /// What was done or would be, one line each.
    Told(Vec<String>),
    /// A piece of a backup.
    Backup {
        /// Bytes of the whole file.
        total: u64,
        /// The log index that it holds.
        index: u64,
        /// The next bytes.
        #[serde(with = "crate::bytes")]
        piece: Vec<u8>,
    },
}
