//! What a client asks of a peer and what it hears. One connection carries many requests, told apart by `seq`;
//! a reply with `more` is followed by others.
//!
//! Transport: frames ([`crate::frame`]) over the agent's unix socket (the kernel vouches for the user) or over
//! QUIC with the API's ALPN (the first request must be `Authenticate`).
use crate::change::Changes;
use crate::command::{JobChange, TokenUse};
use crate::data::{DataAsk, DataNews};
use crate::error::PublicError;
pub use crate::filter::QueueFilter;
use crate::health::Tending;
use crate::ids::{HostId, JobId, RequestId, Token};
use crate::job::{Actor, JobSpec};
use crate::lead::LeadMoved;
use crate::members::{MembersAnswer, MembersAsk};
pub use crate::output::LogChunk;
use crate::output::{LogAsk, LogNote};
use crate::queue::QueueSpec;
use crate::reservation::ReservationAsk;
use crate::secret::Secret;
use crate::session::{SessionCall, SessionNews};
use crate::view::{
    Accepted, ClusterView, DeviceRow, DoctorRow, HostRow, IdleRow, JobRow, JobView, QueueRow, ReservationRow,
};
use crate::why::WhyView;
use serde::{Deserialize, Serialize};

/// A request with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiCall {
    /// Chosen by the client, unique among its open calls.
    pub seq: u32,
    /// What is asked.
    pub request: ApiRequest,
}

/// A reply to the request of the same number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiAnswer {
    /// The request's number.
    pub seq: u32,
    /// Others follow.
    pub more: bool,
    /// What is answered.
    pub result: Result<ApiReply, PublicError>,
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Freshness {
    /// Confirmed by a quorum after the request came in.
    #[default]
    Linearizable,
    /// Whatever this peer has applied; works without a quorum.
    Stale,
    /// What this peer knows, if that was the whole truth at most so many ms ago; else confirmed anew. Answered by `Aged`.
    Within(u32),
}

/// Which of a task's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiRequest {
    /// First request on a QUIC connection.
    Authenticate {
        /// The token's secret text.
        token: Secret,
    },
    /// Accept jobs, each with its own request id; answered by `Submitted` in the same order.
    Submit {
        /// Request ids and specs.
        jobs: Vec<(RequestId, JobSpec)>,
    },
    /// End a job or one task.
    Cancel {
        /// Deduplicates.
        request: RequestId,
        /// Which job.
        job: JobId,
        /// One index only.
        index: Option<u32>,
    },
    /// Send a signal to every live process of a job.
    Signal {
        /// Which job.
        job: JobId,
        /// One index only.
        index: Option<u32>,
        /// The signal's number.
        signal: u8,
    },
    /// List jobs.
    Queue {
        /// Which.
        filter: QueueFilter,
        /// How fresh.
        freshness: Freshness,
    },
    /// All about one job.
    Show {
        /// Which.
        job: JobId,
        /// How fresh.
        freshness: Freshness,
    },
    /// Why a job waits.
    Why {
        /// Which.
        job: JobId,
    },
    /// Stream a job's row at each change of its state until it is terminal.
    Watch {
        /// Which.
        job: JobId,
    },
    /// Stream a task's output.
    Logs {
        /// Which job.
        job: JobId,
        /// Which task; 0 for a plain job.
        index: u32,
        /// Which attempt; the newest when absent.
        attempt: Option<Token>,
        /// Which output.
        stream: OutputStream,
        /// First byte wanted.
        offset: u64,
        /// Go on until the task has ended for good, over retries.
        follow: bool,
    },
    /// List hosts.
    Hosts {
        /// How fresh.
        freshness: Freshness,
    },
    /// List devices.
    Devices {
        /// How fresh.
        freshness: Freshness,
    },
    /// Place nothing new on a host.
    Drain {
        /// Deduplicates.
        request: RequestId,
        /// Name or number.
        host: String,
        /// For people.
        reason: String,
    },
    /// End a drain.
    Undrain {
        /// Deduplicates.
        request: RequestId,
        /// Name or number.
        host: String,
    },
    /// The cluster as this peer sees it.
    Cluster {
        /// How fresh.
        freshness: Freshness,
    },
    /// Make a token; the secret is in the answer and nowhere else.
    MintToken {
        /// Deduplicates.
        request: RequestId,
        /// What for.
        usage: TokenUse,
        /// How long it lives, in ms.
        ttl_ms: u64,
    },
    /// The agent's own checks.
    Doctor,
    /// Digest of the whole state, for comparing peers.
    Digest {
        /// Wait until this log index is applied.
        at_least: u64,
    },
    /// Who the caller is to the cluster, and its newest job.
    Me,
    /// Like `Submit`, answered by `Accepted`: with what the cluster made of each job.
    SubmitNoted {
        /// Request ids and specs.
        jobs: Vec<(RequestId, JobSpec)>,
    },
    /// Make a queue, or give it new rules.
    SetQueue {
        /// Deduplicates.
        request: RequestId,
        /// Its path and rules.
        queue: QueueSpec,
    },
    /// Remove a queue that has no open jobs and no children.
    RemoveQueue {
        /// Deduplicates.
        request: RequestId,
        /// Its path.
        name: String,
    },
    /// List queues.
    Queues {
        /// How fresh.
        freshness: Freshness,
    },
    /// Hold a job, release it, change its priority, or queue it again.
    Adjust {
        /// Deduplicates.
        request: RequestId,
        /// Which job.
        job: JobId,
        /// What to change.
        change: JobChange,
    },
    /// Keep hosts for a time.
    Reserve {
        /// Deduplicates.
        request: RequestId,
        /// Which, when, for whom.
        reservation: ReservationAsk,
    },
    /// Give reserved hosts back.
    Unreserve {
        /// Deduplicates.
        request: RequestId,
        /// The reservation's name.
        name: String,
    },
    /// List reservations.
    Reservations {
        /// How fresh.
        freshness: Freshness,
    },
    /// Drain with a rule for what runs.
    DrainWith {
        /// Deduplicates.
        request: RequestId,
        /// Name or number.
        host: String,
        /// For people.
        reason: String,
        /// What runs is asked to end after this time, in ms; none: it may finish.
        evict_in_ms: Option<u64>,
    },
    /// Stream a task's output, with notes on its attempts.
    Output {
        /// Which.
        ask: LogAsk,
    },
    /// One step of an interactive session.
    Session(Box<SessionCall>),
    /// An operator's word about the health of a device, or about the breaker.
    Tend {
        /// Deduplicates.
        request: RequestId,
        /// What is to be done. The beginning of a device's UUID will do.
        tending: Tending,
    },
    /// Card time that users held and did not use.
    Idle(Freshness),
    /// Stream changes of jobs after a log index, or from now on.
    Changes {
        /// Where an earlier stream, at whichever peer, left off.
        after: Option<u64>,
    },
    /// Let another host lead: this one, by name or number, or whichever is best.
    MoveLead {
        /// Whom.
        to: Option<String>,
    },
    /// Whom the cluster trusts, and its version.
    Trust(Freshness),
    /// Change that; the number deduplicates.
    ChangeTrust(RequestId, crate::trust::TrustAsk),
    /// Who belongs to the cluster.
    Members(MembersAsk),
    /// GPUs and CPUs that users held since the cluster began.
    Usage(Freshness),
    /// About blobs on the host that is asked.
    Data(DataAsk),
}

/// What can be answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiReply {
    /// Done, with nothing to tell.
    Done,
    /// One result for each job submitted, in order.
    Submitted(Vec<Result<JobId, PublicError>>),
    /// Attempts still to be proven gone.
    Cancelling {
        /// How many.
        live: u32,
    },
    /// Rows, and the number to ask the next page after.
    Queue {
        /// Log index of the copy.
        index: u64,
        /// Rows in order.
        rows: Vec<JobRow>,
        /// More follow after this number.
        next: Option<JobId>,
    },
    /// All about one job.
    Job(Box<JobView>),
    /// Why it waits.
    Why(Box<WhyView>),
    /// The job's row changed.
    Changed(Box<JobRow>),
    /// A piece of output.
    Log(LogChunk),
    /// Hosts.
    Hosts {
        /// Log index of the copy.
        index: u64,
        /// Rows by number.
        rows: Vec<HostRow>,
    },
    /// Devices.
    Devices {
        /// Log index of the copy.
        index: u64,
        /// Rows by host and UUID.
        rows: Vec<DeviceRow>,
    },
    /// The cluster.
    Cluster(Box<ClusterView>),
    /// A token's secret text.
    Token {
        /// Shown once.
        secret: Secret,
    },
    /// The agent's checks.
    Doctor(Vec<DoctorRow>),
    /// Digest of the whole state.
    Digest {
        /// At this log index.
        index: u64,
        /// Rolling hash of all that was applied.
        rolling: u64,
        /// Hash of the state itself.
        full: u64,
        /// The peer that answers.
        host: HostId,
    },
    /// The caller.
    Me {
        /// As whom the caller acts.
        actor: Actor,
        /// The newest job that this user submitted and that is still known.
        last: Option<JobId>,
    },
    /// One result for each job submitted, in order.
    Accepted(Vec<Result<Accepted, PublicError>>),
    /// Queues.
    Queues {
        /// Log index of the copy.
        index: u64,
        /// Rows by path.
        rows: Vec<QueueRow>,
    },
    /// Reservations.
    Reservations {
        /// Log index of the copy.
        index: u64,
        /// Rows by start.
        rows: Vec<ReservationRow>,
    },
    /// What to know of the output that follows, or does not.
    LogNote(LogNote),
    /// Where a session stands.
    Session(Box<SessionNews>),
    /// Card time held idle, most first.
    Idle(Vec<IdleRow>),
    /// The lead moved.
    LeadMoved(LeadMoved),
    /// The next piece of the feed of changes; the first tells where it begins.
    Changes(Changes),
    /// An answer that was true so long ago, or later.
    Aged {
        /// At most this old, in ms.
        age_ms: u64,
        /// The answer.
        reply: Box<ApiReply>,
    },
    /// Whom the cluster trusts.
    Trust(Box<crate::trust::TrustView>),
    /// About membership.
    Members(MembersAnswer),
    /// What users held, by tenant, user and queue.
    Usage(Vec<crate::why_more::UsageRow>),
    /// About blobs.
    Data(DataNews),
}
