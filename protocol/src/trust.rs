//! Whom a cluster trusts: keys of hosts, authorities, revocations, tokens. Words only; `rota_core` has the rules.

use crate::ids::HostId;
use crate::job::Role;
use serde::{Deserialize, Serialize};
use std::fmt;

/// SHA-256 of a certificate's or of a public key's DER.
pub type Print = [u8; 32];

/// A change of whom the cluster trusts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrustChange {
    /// The key of a host, once for all: certificates with another one are not the host's.
    Key {
        /// Whose.
        host: HostId,
        /// SHA-256 of its public key, DER `SubjectPublicKeyInfo`.
        key: Print,
    },
    /// A host is trusted no more, for ever.
    Revoke {
        /// Which.
        host: HostId,
        /// For people.
        reason: String,
    },
    /// An authority: the first one, or the one that is to follow.
    OfferCa {
        /// Its certificate, PEM.
        certificate_pem: String,
        /// SHA-256 of that in DER.
        ca: Print,
        /// When it ends, ms since the epoch.
        ends_ms: u64,
    },
    /// A host has done its part of a stage of the change of authorities.
    TookCa {
        /// Itself.
        host: HostId,
        /// The stage.
        stage: CaStage,
        /// The authority that is to follow.
        ca: Print,
    },
    /// All have done their part: on to the next stage.
    AdvanceCa {
        /// The stage that is over.
        from: CaStage,
    },
    /// Tokens are worth nothing from now on.
    RevokeToken {
        /// The beginning of the hash, in hex, as lists show it.
        id: String,
    },
    /// What a host saw that is for the audit log: requests that were refused, many in one line.
    Seen {
        /// Where.
        host: HostId,
        /// What.
        what: String,
        /// How often since the last line.
        count: u32,
    },
}

/// Where a change of authorities stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum CaStage {
    /// There is one authority.
    #[default]
    Settled,
    /// The next one is trusted beside it, host by host, and signs nothing yet.
    Trusting,
    /// The next one signs, host by host; the old one is still trusted.
    Issuing,
}

impl fmt::Display for CaStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Settled => "settled",
            Self::Trusting => "trusting",
            Self::Issuing => "issuing",
        })
    }
}

/// What a client asks to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrustAsk {
    /// Trust a host no more.
    Revoke {
        /// Name or number.
        host: String,
        /// For people.
        reason: String,
    },
    /// Begin to change the authority, or go on with a change that stands still.
    RotateCa,
    /// Tokens are worth nothing from now on.
    RevokeToken {
        /// The beginning of its id.
        id: String,
    },
    /// Raise the cluster's version; to the newest that all hosts read, if none is given.
    RaiseVersion {
        /// To which.
        to: Option<u16>,
    },
}

/// Whom the cluster trusts, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TrustView {
    /// Its version.
    pub version: u16,
    /// What each host reads.
    pub hosts: Vec<HostTrust>,
    /// Where the change of authorities stands.
    pub stage: CaStage,
    /// SHA-256 of its authorities' certificates, the one that signs first.
    pub authorities: Vec<Print>,
    /// When the authority that signs ends, ms since the epoch.
    pub ca_ends_ms: Option<u64>,
    /// Tokens that live.
    pub tokens: Vec<TokenRow>,
    /// Newest lines of the audit log, oldest first.
    pub audit: Vec<AuditRow>,
    /// The audit log is whole: each line's hash follows from the line before.
    pub audit_is_whole: bool,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTrust {
    /// Its number.
    pub host: HostId,
    /// Its name.
    pub name: String,
    /// The newest version that it reads; none before it came up.
    pub reads: Option<u16>,
    /// The build that runs there.
    pub build: String,
    /// Its key is recorded.
    pub has_key: bool,
    /// It has done its part of the stage that is under way.
    pub took_ca: bool,
    /// Why it is trusted no more.
    pub revoked: Option<String>,
}

/// One token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// Beginning of its hash, in hex.
    pub id: String,
    /// `join` or `user`.
    pub kind: String,
    /// The host name that it is for, or the user and tenant that it stands for.
    pub subject: String,
    /// What its user may do.
    pub role: Option<Role>,
    /// Until this log time, in ms.
    pub expires_at_ms: u64,
    /// Who made it, and when; unknown for older ones.
    pub made: Option<(String, u64)>,
}

/// One line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// Its log index.
    pub index: u64,
    /// When, in log time.
    pub at_ms: u64,
    /// Who.
    pub actor: String,
    /// What was asked.
    pub what: String,
    /// `done`, or why not.
    pub result: String,
    /// Hash over the line before and this one.
    pub hash: u64,
}
