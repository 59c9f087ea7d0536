//! Agreement for Rota: openraft around the brain, a durable log, batched proposals, linearizable reads, membership.
//!
//! What this crate is not: it knows nothing of scheduling, devices, sockets or actors. The network is one trait,
//! [`PeerLink`]; the brain is `rota_core`; openraft's own names stay inside.
//!
//! How a proposal travels: [`Consensus::propose`] -> `propose.rs` (batch, route, retry) -> openraft -> `log/` (one write
//! and one fsync for all that waited) and `network.rs` (followers) -> `machine.rs` (apply) -> the caller's outcomes.
//!
//! Invariants: a vote and an entry are durable before anyone hears of them; a failed fsync is final; an entry that
//! this build cannot read ends the peer; a host id is never used again; nothing that matters rests on metrics.

mod changes;
mod compare;
mod config;
pub mod disk;
pub mod follow;
mod handing;
mod inbound;
mod incoming;
pub mod inspect;
mod leadership;
mod link;
mod log;
mod machine;
mod marks;
mod membership;
mod membership_bytes;
pub mod memory_link;
mod network;
pub mod offline;
mod pipeline;
mod propose;
mod read;
mod room;
pub mod runtime;
mod snapshot_file;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod transfer;
mod turn;
pub mod watch;
mod wire;

pub use changes::FeedFault;
pub use compare::Difference;
pub use config::{ConsensusConfig, Faults, Timings, Tuning};
pub use leadership::Leadership;
pub use link::{LinkError, PeerLink};
pub use log::{DiskPace, LogError, fsync_pace};
pub use machine::AppliedNote;
pub use membership::{MemberChange, Members};
pub use rota_core::{Event, State};
pub use snapshot_file::SnapshotFault;
pub use start::StartError;
pub use status::RaftStatus;
pub use transfer::Moved;

use leadership::Watched;
use openraft::EmptyNode;
use openraft::errors::{InitializeError, RaftError};
use propose::{Answer, Proposals};
use read::{Reader, no_leader};
use rota_protocol::change::Changes;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};
use rota_protocol::{ErrorCode, PublicError};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// How long a leader works on a batch that a peer forwarded; the peer's own deadline is usually shorter.
const FORWARDED_WAIT: Duration = Duration::from_secs(10);
/// How long the first peer waits for itself to lead.
const FOUND_WAIT: Duration = Duration::from_secs(10);

/// One peer's part in the agreement; clones share it.
#[derive(Clone)]
pub struct Consensus(Arc<Inner>);

pub(crate) struct Inner {
    host: HostId,
    timings: Timings,
    raft: config::Raft,
    log: log::store::LogStore,
    machine: Arc<machine::Shared>,
    inbound: Arc<inbound::Inbound>,
    own: Arc<follow::Own>,
    follow: follow::Server<follow::Own>,
    watched: Arc<Watched>,
    heard: Arc<turn::Heard>,
    proposals: Proposals,
    reader: Reader,
    /// One membership change at a time.
    changing: tokio::sync::Mutex<()>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Consensus {
    /// Opens the log and the snapshot, and takes part from now on. A new peer waits until a leader adds it, unless it
    /// is the first one, which [`Consensus::found`]s the cluster.
    ///
    /// # Errors
    /// Bad timings, damaged or foreign files, a log that is gone, or the disk.
    pub async fn start(config: ConsensusConfig, link: Arc<dyn PeerLink>) -> Result<Self, StartError> {
        start::start(config, Tuning::default(), link).await
    }

    /// As [`Consensus::start`], on a disk and a clock that a test made, with limits that it made smaller.
    ///
    /// # Errors
    /// Those of [`Consensus::start`].
    pub async fn start_in(
        config: ConsensusConfig,
        tuning: Tuning,
        link: Arc<dyn PeerLink>,
    ) -> Result<Self, StartError> {
        start::start(config, tuning, link).await
    }

    /// As [`Consensus::start`], but reading nothing newer than this version: how an older build takes part.
    ///
    /// # Errors
    /// As there, and where the files say that the cluster is of a newer version.
    pub async fn start_as(
        config: ConsensusConfig,
        newest: u16,
        link: Arc<dyn PeerLink>,
    ) -> Result<Self, StartError> {
        let newest = newest.min(rota_protocol::version::NEWEST);
        start::start(config, config::Tuning { newest, ..config::Tuning::default() }, link).await
    }

    /// Makes this peer the only voter of a new cluster and commits its first entry. Idempotent: where the same
    /// cluster exists already, nothing changes.
    ///
    /// # Errors
    /// `Conflict` if another cluster exists here; otherwise as for [`Consensus::propose`].
    pub async fn found(&self, create: Proposal) -> Result<(), PublicError> {
        let Command::CreateCluster { cluster, .. } = &create.command else {
            return Err(PublicError::new(ErrorCode::Invalid, "the first entry must create the cluster"));
        };
        let cluster = *cluster;
        let alone = BTreeMap::from([(self.0.host.0, EmptyNode::new())]);
        match self.0.raft.initialize(alone).await {
            // It was done before; a crash may have come between this and the first entry.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(PublicError::new(ErrorCode::Internal, error.to_string())),
        }
        let mut leadership = self.leadership();
        let leads = tokio::time::timeout(FOUND_WAIT, leadership.wait_for(|now| now.leader.is_some()));
        leads.await.map_err(|_| no_leader())?.map_err(|_| no_leader())?;
        let same = |state: &State| state.cluster().map(|meta| meta.id == cluster);
        self.read_barrier(FOUND_WAIT).await?;
        match self.read(same) {
            Some(true) => return Ok(()),
            Some(false) => {
                return Err(PublicError::new(ErrorCode::Conflict, "another cluster exists here"));
            }
            None => {}
        }
        match self.propose(vec![create], FOUND_WAIT).await?.pop() {
            Some(Outcome::Refused(_)) if self.read(same) == Some(true) => Ok(()),
            Some(Outcome::Refused(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Answers another peer. `from` is its certificate's host. Takes `Raft`, `Propose` and `ReadIndex`.
    pub async fn handle(&self, from: HostId, request: PeerRequest) -> PeerReply {
        // It neither votes nor is heard, whatever connection it still has.
        if let Some(why) = self.0.machine.revoked(from) {
            let message = format!("host {from} was revoked: {why}");
            return PeerReply::Refused(PublicError::new(ErrorCode::Unauthenticated, message));
        }
        match request {
            PeerRequest::Raft { call: RaftCall::Follow, body } => {
                match self.0.follow.answer(from, &body).await {
                    Ok(body) => PeerReply::Raft { body },
                    Err(error) => PeerReply::Refused(error),
                }
            }
            PeerRequest::Raft { call: RaftCall::Compare, body } => {
                compare::reply(&self.0.machine.marks, &body)
            }
            PeerRequest::Raft { call, body } => match self.0.inbound.handle(from, call, &body).await {
                Ok(body) => PeerReply::Raft { body },
                Err(error) => PeerReply::Refused(error),
            },
            PeerRequest::Propose { proposals } => self.forwarded(from, proposals).await,
            PeerRequest::ReadIndex => match self.0.reader.local.join().await {
                Ok(index) => PeerReply::ReadIndex { index },
                Err(error) => PeerReply::Refused(error),
            },
            _ => PeerReply::Refused(PublicError::new(ErrorCode::Invalid, "not a request to the agreement")),
        }
    }

    async fn forwarded(&self, from: HostId, proposals: Vec<Proposal>) -> PeerReply {
        if let Some(error) = proposals.iter().find_map(|one| propose::refuse_forwarded(from, one)) {
            return PeerReply::Refused(error);
        }
        match self.0.proposals.submit(proposals, FORWARDED_WAIT, true, None).await {
            Answer::Done(outcomes) => PeerReply::Proposed { outcomes },
            Answer::NotLeader => PeerReply::NotLeader { leader: self.0.watched.leadership.borrow().leader },
            Answer::Failed(error) => PeerReply::Refused(error),
        }
    }

    /// Commits proposals, in one entry together, and returns one outcome for each. Forwards to the leader, and tries
    /// again when the leader changes, until the deadline.
    ///
    /// `Expire` and `CommitPlan` rest on what the leader knows: they are refused with `NoLeader` elsewhere, and are
    /// never carried into another term. See [`Consensus::propose_in_term`].
    ///
    /// # Errors
    /// `TooLarge` (over [`rota_protocol::limits::ENTRY_PROPOSALS_MAX`] or `ENTRY_BYTES_MAX`), `Busy`, `StorageFull`,
    /// `NoLeader` (surely not carried out), `Unknown` (perhaps carried out: retry with the same request ids).
    pub async fn propose(
        &self,
        proposals: Vec<Proposal>,
        deadline: Duration,
    ) -> Result<Vec<Outcome>, PublicError> {
        self.submit(proposals, deadline, None).await
    }

    /// As [`Consensus::propose`], but only if this peer still leads in this term when the entry is written.
    ///
    /// # Errors
    /// `NoLeader` when the term has passed, and those of [`Consensus::propose`].
    pub async fn propose_in_term(
        &self,
        term: u64,
        proposals: Vec<Proposal>,
        deadline: Duration,
    ) -> Result<Vec<Outcome>, PublicError> {
        self.submit(proposals, deadline, Some(term)).await
    }

    async fn submit(
        &self,
        proposals: Vec<Proposal>,
        deadline: Duration,
        term: Option<u64>,
    ) -> Result<Vec<Outcome>, PublicError> {
        match self.0.proposals.submit(proposals, deadline, false, term).await {
            Answer::Done(outcomes) => Ok(outcomes),
            Answer::NotLeader => Err(no_leader()),
            Answer::Failed(error) => Err(error),
        }
    }

    /// Waits until this peer has applied everything that was committed anywhere before the call. Reads after it are
    /// linearizable. Returns the index.
    ///
    /// # Errors
    /// `NoLeader` at the deadline, `Busy` if too many readers wait, `StorageFull` if this peer has no room for what it lacks.
    pub async fn read_barrier(&self, deadline: Duration) -> Result<u64, PublicError> {
        self.0.reader.barrier(deadline).await
    }

    /// As [`Consensus::read_barrier`], but where this peer's state was the whole truth at most `age` ago, it will do as it
    /// is. Returns how long ago that was.
    ///
    /// # Errors
    /// As for [`Consensus::read_barrier`], when the state is older and cannot be confirmed.
    pub async fn read_within(&self, age: Duration, deadline: Duration) -> Result<Duration, PublicError> {
        self.0.reader.within(age, deadline).await
    }

    /// What jobs went through after the entry of this index, as far as this peer has applied it.
    ///
    /// # Errors
    /// It is not known any more.
    pub fn changes_since(&self, after: u64) -> Result<Changes, FeedFault> {
        self.0.machine.changes_since(after)
    }

    /// Confirms that this peer leads, by a round of a quorum that begins after the call. Callers share rounds.
    ///
    /// # Errors
    /// `NoLeader` if it does not lead or no quorum answers within a lease.
    pub async fn confirm_quorum(&self) -> Result<(), PublicError> {
        self.0.reader.local.join().await.map(|_| ())
    }

    /// Reads this peer's state as it is now; it may be behind the cluster. Apply waits while `f` runs.
    pub fn read<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        self.0.machine.read(f)
    }

    /// What is applied from now on. A reader that falls behind, or sees `resync`, looks at the state itself.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<AppliedNote>> {
        self.0.machine.events()
    }

    /// The index that this peer has applied.
    #[must_use]
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.0.machine.applied()
    }

    /// Who leads.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.0.watched.leadership.subscribe()
    }

    /// Becomes true once this peer has applied all that was committed when it started, and stays so.
    #[must_use]
    pub fn recovered(&self) -> watch::Receiver<bool> {
        self.0.watched.recovered.subscribe()
    }

    /// Becomes `Some(reason)` when this peer can take no further part (disk error, unreadable entry). The process
    /// must end: only a restart reads the log afresh.
    #[must_use]
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.0.watched.failed.subscribe()
    }

    /// Hands leadership to a voter (by default the one that is furthest), and waits until it leads.
    ///
    /// # Errors
    /// `NoLeader` if this peer does not lead; `Conflict` if there is no such voter, it is behind or silent, or did not
    /// take over.
    pub async fn transfer_leader(&self, to: Option<HostId>) -> Result<Moved, PublicError> {
        let transfer = self.transfer();
        let first = || transfer.able().first().copied();
        // Nobody able: naming any other voter tells why.
        let to =
            to.or_else(first).or_else(|| self.voters().find(|id| *id != self.0.host)).unwrap_or(self.0.host);
        self.0.heard.forget();
        transfer.run(to).await
    }

    /// At the leader: voters that would take over if they were named, the best first.
    #[must_use]
    pub fn successors(&self) -> Vec<HostId> {
        self.transfer().able()
    }

    /// Leaves the lead to others for a while: this peer stands for election only when nobody else comes to lead.
    pub fn rest(&self, time: Duration) {
        self.0.heard.rest(time);
    }

    /// The times that this peer goes by.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.0.timings
    }

    fn voters(&self) -> impl Iterator<Item = HostId> {
        self.status().voters.into_iter()
    }

    fn transfer(&self) -> transfer::Transfer<'_> {
        let leadership = self.leadership();
        transfer::Transfer { raft: &self.0.raft, me: self.0.host, timings: self.0.timings, leadership }
    }

    /// The state's index and full hash, of one moment: equal indices must have equal hashes at all peers.
    #[must_use]
    pub fn fingerprint(&self) -> (u64, u64) {
        self.read(|state| (state.applied_index(), state.full_hash()))
    }

    /// Stops taking part; what is queued for the disk is written first.
    pub async fn shutdown(&self) {
        self.0.watched.stopping.store(true, Ordering::Release);
        // An error means that the core had ended by itself.
        let _ = self.0.raft.shutdown().await;
        let tasks = std::mem::take(&mut *self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        let (log, machine) = (self.0.log.clone(), self.0.machine.clone());
        let close = move || {
            machine.close();
            log.0.close();
        };
        let _ = runtime::blocking(close).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            task.abort();
        }
    }
}
