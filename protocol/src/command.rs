//! What is written to the log: entries of proposals, and the answers that apply gives.
//!
//! Variants are only ever appended. A new one is proposed only after every member reads the format that brought it.

use crate::care::HostCause;
use crate::codec::{self, DecodeError};
use crate::device::HostRegistration;
use crate::error::PublicError;
use crate::health::{HealthReport, Tending};
use crate::ids::{ClusterId, HostId, JobId, LeaseEpoch, RequestId, Token};
use crate::job::{Actor, JobSpec, Role};
use crate::limits::ENTRY_BYTES_MAX;
use crate::members::MemberChange;
use crate::plan::{Plan, Refusal};
use crate::queue::QueueSpec;
use crate::report::AttemptReport;
use crate::reservation::ReservationSpec;
use crate::trust::TrustChange;
use crate::v1;
use crate::version;
use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The log format of entries that every build of it reads. Entries with newer commands carry the version that brought
/// those ([`version::needs`]); this build reads all up to [`version::NEWEST`].
pub const LOG_FORMAT: u16 = 2;

/// One log entry: a group commit of proposals that are applied in order.
///
/// Reading looks at the format first and turns commands of the first format into today's, so that what was read is at
/// least of [`LOG_FORMAT`] and may be written again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The format of its commands: the first field of every format.
    pub format: u16,
    /// The proposer's wall clock, ms since the Unix epoch. Apply keeps `max(clock, at_ms)`.
    pub at_ms: u64,
    /// At most [`crate::limits::ENTRY_PROPOSALS_MAX`].
    pub proposals: Vec<Proposal>,
}

impl Entry {
    /// The entry from its bytes in the log.
    ///
    /// # Errors
    /// A format that this build does not know, by its number; or malformed, too many or left-over bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::read(bytes, version::NEWEST)
    }

    /// The same as an older build would read it: nothing newer than `newest`.
    ///
    /// # Errors
    /// As [`Entry::from_bytes`].
    pub fn read(bytes: &[u8], newest: u16) -> Result<Self, DecodeError> {
        let found: u16 = codec::decode_first(bytes)?;
        if !(1..=newest.min(version::NEWEST)).contains(&found) {
            return Err(DecodeError::Version { found, newest });
        }
        let entry: Self = codec::decode(bytes, ENTRY_BYTES_MAX)?;
        match entry.proposals.iter().map(|proposal| version::needs(&proposal.command)).max() {
            Some(needed) if needed > entry.format => Err(DecodeError::Malformed(format!(
                "an entry of format {} with a command of format {needed}",
                entry.format
            ))),
            _ => Ok(entry),
        }
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Entry", &["format", "at_ms", "proposals"], EntryVisitor)
    }
}

/// Reads an entry field by field, as the codec lays it out: without names.
struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a log entry of format 1 to {}", version::NEWEST)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Entry, A::Error> {
        let format: u16 = next(&mut fields, 0)?;
        let at_ms = next(&mut fields, 1)?;
        let proposals = match format {
            1 => next::<Vec<v1::Proposal>, A>(&mut fields, 2)?.into_iter().map(Proposal::from).collect(),
            LOG_FORMAT..=version::NEWEST => next(&mut fields, 2)?,
            _ => return Err(A::Error::invalid_value(Unexpected::Unsigned(format.into()), &self)),
        };
        Ok(Entry { format: format.max(LOG_FORMAT), at_ms, proposals })
    }
}

fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(fields: &mut A, at: usize) -> Result<T, A::Error> {
    fields.next_element()?.ok_or_else(|| A::Error::invalid_length(at, &"the three fields of a log entry"))
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry of {} proposals at {} ms", self.proposals.len(), self.at_ms)
    }
}

/// One command with its author and its request id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Deduplicates; [`RequestId::NONE`] for commands idempotent by content.
    pub request: RequestId,
    /// Who asks.
    pub actor: Actor,
    /// What is asked.
    pub command: Command,
}

/// SHA-256 of a secret: secrets themselves never enter the log.
pub type SecretHash = [u8; 32];

/// What a token may be used for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenUse {
    /// Admits one host, once.
    Join {
        /// Only a host of this name, if given.
        host_name: Option<String>,
    },
    /// Authenticates a user until it expires.
    User {
        /// As whom.
        actor: Actor,
    },
}

/// Every way to change the replicated state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "most entries hold submits: a box would cost each an allocation"
)]
pub enum Command {
    /// The first entry of a cluster; refused ever after.
    CreateCluster {
        /// Drawn by `rota init`.
        cluster: ClusterId,
        /// For people.
        name: String,
        /// The founder's host name; it becomes host 1.
        host_name: String,
        /// Where peers reach the founder.
        addr: String,
    },
    /// Uses up a join token and hands out a host id.
    AdmitHost {
        /// Hash of the token's secret.
        token: SecretHash,
        /// The new host's name.
        host_name: String,
        /// Where peers reach it.
        addr: String,
    },
    /// An agent came up, or its facts or address changed.
    RegisterHost {
        /// Itself.
        host: HostId,
        /// What it has.
        registration: HostRegistration,
    },
    /// Place nothing new there.
    DrainHost {
        /// Which host.
        host: HostId,
        /// For people.
        reason: String,
    },
    /// End a drain or a suspension.
    UndrainHost {
        /// Which host.
        host: HostId,
    },
    /// Store a token's hash.
    MintToken {
        /// Hash of its secret.
        token: SecretHash,
        /// What it is good for.
        usage: TokenUse,
        /// After this log time, in ms, it is refused.
        expires_at_ms: u64,
    },
    /// Accept a job.
    Submit {
        /// What to run.
        spec: JobSpec,
    },
    /// End a job, or one task of it.
    Cancel {
        /// Which job.
        job: JobId,
        /// One array index only.
        index: Option<u32>,
    },
    /// The leader's decisions.
    CommitPlan {
        /// The moves.
        plan: Plan,
    },
    /// A host's facts about its attempts.
    Report {
        /// Itself.
        host: HostId,
        /// At most [`crate::limits::REPORTS_MAX`].
        reports: Vec<AttemptReport>,
    },
    /// A host was silent past its lease, by a leader that confirmed its quorum after the timer.
    Expire {
        /// Which host.
        host: HostId,
        /// The epoch whose lease ran out; another one makes this void.
        epoch: LeaseEpoch,
    },
    /// Make a queue, or give it new rules.
    SetQueue {
        /// Its name and rules.
        queue: QueueSpec,
    },
    /// Remove a queue that has no jobs and no children.
    RemoveQueue {
        /// Its path.
        name: String,
    },
    /// Hold a waiting job, release it, or change its place.
    Adjust {
        /// Which job.
        job: JobId,
        /// What to change.
        change: JobChange,
    },
    /// Keep hosts for a time.
    Reserve {
        /// Which, when, for whom.
        reservation: ReservationSpec,
    },
    /// Give reserved hosts back.
    Unreserve {
        /// The reservation's name.
        name: String,
    },
    /// Drain with a rule for what runs.
    DrainWith {
        /// Which host.
        host: HostId,
        /// For people.
        reason: String,
        /// Running work is asked to end from this log time on, ms since the epoch; none: it may finish.
        evict_at_ms: Option<u64>,
    },
    /// What a host found about its devices and itself.
    Health {
        /// Itself.
        host: HostId,
        /// What it found.
        report: HealthReport,
    },
    /// An operator's word about the health of a device, or about the breaker.
    Tend {
        /// What is to be done.
        tending: Tending,
    },
    /// A host asks for the end of attempts that it runs.
    EndOwn {
        /// Itself.
        host: HostId,
        /// Which, and why; at most [`crate::limits::REPORTS_MAX`].
        ends: Vec<(Token, HostCause)>,
    },
    /// From now on the log may hold what this version brought. Refused while a host cannot read it.
    RaiseVersion {
        /// To which.
        to: u16,
    },
    /// Whom the cluster trusts. Of version 3.
    Trust {
        /// The change.
        change: TrustChange,
    },
    /// Who belongs to the cluster.
    Members(MemberChange),
}

/// A change to a job that is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobChange {
    /// It waits until it is released.
    Hold,
    /// It waits no longer for a release.
    Release,
    /// Another priority.
    Priority(u16),
    /// End what runs of it and queue it again.
    Requeue,
}

/// Apply's answer to one proposal. The same request id gets the same answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done, with nothing to tell.
    Done,
    /// Refused, and nothing changed.
    Refused(PublicError),
    /// The host's id, from `AdmitHost` and `CreateCluster`.
    HostAdmitted {
        /// Never used before.
        host: HostId,
    },
    /// From `RegisterHost`.
    HostRegistered {
        /// Renewals must carry it.
        epoch: LeaseEpoch,
    },
    /// From `Submit`.
    Submitted {
        /// Never used before.
        job: JobId,
    },
    /// From `CommitPlan`: the moves that were refused, by position; all others hold.
    Planned {
        /// Position and reason.
        refused: Vec<(u32, Refusal)>,
    },
    /// From `Cancel`.
    Cancelling {
        /// Attempts whose processes are not yet proven gone.
        live: u32,
    },
}

/// Least role for each command, read by the edge and re-checked by apply.
#[must_use]
pub fn least_role(command: &Command) -> Role {
    match command {
        Command::Submit { .. } | Command::Cancel { .. } | Command::Adjust { .. } => Role::Submitter,
        Command::DrainHost { .. }
        | Command::DrainWith { .. }
        | Command::UndrainHost { .. }
        | Command::SetQueue { .. }
        | Command::RemoveQueue { .. }
        | Command::Reserve { .. }
        | Command::Tend { .. }
        | Command::Unreserve { .. } => Role::Operator,
        Command::CreateCluster { .. }
        | Command::AdmitHost { .. }
        | Command::RegisterHost { .. }
        | Command::MintToken { .. }
        | Command::CommitPlan { .. }
        | Command::Report { .. }
        | Command::Health { .. }
        | Command::EndOwn { .. }
        | Command::RaiseVersion { .. }
        | Command::Trust { .. }
        | Command::Members(_)
        | Command::Expire { .. } => Role::Admin,
    }
}
