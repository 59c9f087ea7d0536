//! Proposals on their way into the log: one task per peer that batches, routes to the leader, and tries again.
//!
//! What waits while entries are on their way goes together into the next one, so that the cost of a disk write and a
//! round trip is shared by all. The moment the leader changes, what is under way is proposed again to the next one if
//! a second application would do no harm; otherwise its caller hears `Unknown`. Nothing polls.

use crate::config::{Payload, Raft, Rota};
use crate::leadership::Leadership;
use crate::link::{LinkError, PeerLink};
use crate::log::store::LogStore;
use crate::read::no_leader;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::vote::leader_id_std::CommittedLeaderId;
use rota_protocol::codec;
use rota_protocol::command::{Command, LOG_FORMAT, Outcome, Proposal};
use rota_protocol::ids::{HostId, RequestId};
use rota_protocol::limits::{ENTRY_BYTES_MAX, ENTRY_PROPOSALS_MAX};
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::{ErrorCode, PublicError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

/// Callers that may wait at one peer; beyond it they are told to come back.
const QUEUE_CALLS_MAX: usize = 8_192;
/// Bytes of proposals that may wait at one peer.
const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Entries that are on their way at once: while one is on the disk, the next crosses the network, and the rest keep
/// the pipe full. More would only make entries smaller.
const INFLIGHT_MAX: usize = 4;
/// Longest that a peer waits for the leader to answer a batch, whatever its callers allow.
const FORWARD_TTL_MAX: Duration = Duration::from_secs(10);
/// Rest after a refusal that no change of leader explains (its quorum lapsed, or it cannot be reached).
const REST: Duration = Duration::from_millis(10);
/// Room for format, time and count before an entry's proposals.
const ENTRY_HEAD_BYTES_MAX: usize = 32;

/// What came of one call.
pub(crate) enum Answer {
    Done(Vec<Outcome>),
    /// For a batch that another peer forwarded: nothing was done here.
    NotLeader,
    Failed(PublicError),
}

/// Where a call stands; decides whether its caller may say "surely not".
mod stage {
    pub(super) const WAITING: u8 = 0;
    pub(super) const SENT: u8 = 1;
    pub(super) const ABANDONED: u8 = 2;
}

struct Item {
    /// The proposals' encodings, one behind the other.
    bytes: Vec<u8>,
    count: usize,
    /// Decoded, as long as they were not handed on.
    proposals: Option<Vec<Proposal>>,
    /// A second application does no harm.
    safe: bool,
    forwarded: bool,
    /// May only be written by the leader of this term.
    term: Option<u64>,
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
    stage: Arc<AtomicU8>,
    /// An earlier try may have been delivered.
    maybe: bool,
    _room: OwnedSemaphorePermit,
}

/// Whether applying a proposal twice, or by a later leader, does no harm.
fn is_safe(proposal: &Proposal) -> bool {
    proposal.request != RequestId::NONE
        || !matches!(
            proposal.command,
            Command::Submit { .. } | Command::AdmitHost { .. } | Command::MintToken { .. }
        )
}

/// Whether a proposal rests on what its leader knew: another leader must never commit it. An expiry above all: the
/// next leader may have acknowledged a renewal of the same epoch.
fn is_leader_bound(proposal: &Proposal) -> bool {
    matches!(
        proposal.command,
        Command::Expire { .. } | Command::CommitPlan { .. }
    )
}

fn too_large(what: String) -> PublicError {
    PublicError::new(ErrorCode::TooLarge, what)
}

fn busy() -> PublicError {
    PublicError::new(ErrorCode::Busy, "too many proposals wait at this peer").retry_after(20)
}

fn unknown() -> PublicError {
    PublicError::new(
        ErrorCode::Unknown,
        "the answer was lost, the request may have been carried out: retry with the same request id",
    )
}

/// Hands proposals to the task.
#[derive(Clone)]
pub(crate) struct Proposals {
    queue: mpsc::Sender<Item>,
    room: Arc<Semaphore>,
    leadership: watch::Receiver<Leadership>,
    me: HostId,
}

impl Proposals {
    /// Puts proposals into one entry together, and waits for their outcomes.
    pub(crate) async fn submit(
        &self,
        proposals: Vec<Proposal>,
        deadline: Duration,
        forwarded: bool,
        term: Option<u64>,
    ) -> Answer {
        let (item, answer, stage) = match self.item(proposals, deadline, forwarded, term) {
            Ok(parts) => parts,
            Err(error) => return Answer::Failed(error),
        };
        let deadline = item.deadline;
        if self.queue.try_send(item).is_err() {
            return Answer::Failed(busy());
        }
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // The task ended, or the time is up.
            Ok(Err(_)) | Err(_) => {
                let left = stage.compare_exchange(
                    stage::WAITING,
                    stage::ABANDONED,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                Answer::Failed(if left.is_ok() { no_leader() } else { unknown() })
            }
        }
    }

    fn item(
        &self,
        proposals: Vec<Proposal>,
        deadline: Duration,
        forwarded: bool,
        term: Option<u64>,
    ) -> Result<(Item, oneshot::Receiver<Answer>, Arc<AtomicU8>), PublicError> {
        let count = proposals.len();
        if count > ENTRY_PROPOSALS_MAX {
            return Err(too_large(format!(
                "{count} proposals exceed the limit of {ENTRY_PROPOSALS_MAX} in one call"
            )));
        }
        let mut bytes = Vec::new();
        for proposal in &proposals {
            let one = codec::encode(proposal)
                .map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))?;
            bytes.extend_from_slice(&one);
        }
        let limit = ENTRY_BYTES_MAX - ENTRY_HEAD_BYTES_MAX;
        if bytes.len() > limit {
            return Err(too_large(format!(
                "proposals of {} bytes exceed the limit of {limit}",
                bytes.len()
            )));
        }
        let mut term = term;
        if term.is_none() && proposals.iter().any(is_leader_bound) {
            let now = *self.leadership.borrow();
            if now.leader != Some(self.me) {
                return Err(no_leader());
            }
            term = Some(now.term);
        }
        // Empty calls take a byte, so that a flood of them is bounded too.
        let weight = u32::try_from(bytes.len().max(1)).unwrap_or(u32::MAX);
        let room = self
            .room
            .clone()
            .try_acquire_many_owned(weight)
            .map_err(|_| busy())?;
        let (sender, answer) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(stage::WAITING));
        let item = Item {
            bytes,
            count,
            safe: proposals.iter().all(is_safe),
            proposals: Some(proposals),
            forwarded,
            term,
            deadline: Instant::now() + deadline,
            answer: sender,
            stage: stage.clone(),
            maybe: false,
            _room: room,
        };
        Ok((item, answer, stage))
    }
}

/// What came of one batch.
enum Landing {
    Done(Vec<Outcome>),
    /// Surely not in any log.
    NotDelivered,
    /// It may be in a log.
    Maybe,
    Refused(PublicError),
}

struct Landed {
    batch: Vec<Item>,
    landing: Landing,
}

/// What the task works with.
pub(crate) struct Proposer {
    pub raft: Raft,
    pub me: HostId,
    pub link: Arc<dyn PeerLink>,
    pub log: LogStore,
    pub leadership: watch::Receiver<Leadership>,
}

struct Run {
    with: Proposer,
    waiting: VecDeque<Item>,
    flying: FuturesUnordered<BoxFuture<'static, Landed>>,
    /// No batch leaves before this, unless the leader changes.
    rest: Option<Instant>,
    /// The last entry's time; a wall clock that steps back does not.
    at_ms: u64,
}

impl Proposer {
    /// Starts the task; it ends with the last handle.
    pub(crate) fn start(self) -> (Proposals, tokio::task::JoinHandle<()>) {
        let (queue, calls) = mpsc::channel(QUEUE_CALLS_MAX);
        let handle = Proposals {
            queue,
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
            leadership: self.leadership.clone(),
            me: self.me,
        };
        let run = Run {
            with: self,
            waiting: VecDeque::new(),
            flying: FuturesUnordered::new(),
            rest: None,
            at_ms: 0,
        };
        (handle, tokio::spawn(run.run(calls)))
    }
}

impl Run {
    async fn run(mut self, mut calls: mpsc::Receiver<Item>) {
        let mut leadership = self.with.leadership.clone();
        loop {
            let route = *leadership.borrow_and_update();
            self.dispatch(route);
            let rest = self.rest;
            tokio::select! {
                // What landed first: it frees a place, and its answers are waited for.
                biased;
                Some(landed) = self.flying.next(), if !self.flying.is_empty() => self.land(landed),
                changed = leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.rest = None;
                }
                // A queue that is long enough stays in the channel, which pushes back.
                call = calls.recv(), if self.waiting.len() < ENTRY_PROPOSALS_MAX => match call {
                    Some(item) => {
                        self.waiting.push_back(item);
                        while self.waiting.len() < ENTRY_PROPOSALS_MAX && let Ok(item) = calls.try_recv() {
                            self.waiting.push_back(item);
                        }
                    }
                    None => return,
                },
                () = sleep_until(rest), if rest.is_some() => self.rest = None,
            }
        }
    }

    fn dispatch(&mut self, route: Leadership) {
        self.turn_away(route);
        while self.rest.is_none() && self.flying.len() < INFLIGHT_MAX && !self.waiting.is_empty() {
            let Some(leader) = route.leader else {
                return;
            };
            let batch = self.take_batch();
            if batch.is_empty() {
                continue;
            }
            let leadership = self.with.leadership.clone();
            if leader == self.with.me {
                let bytes = self.entry(&batch);
                self.flying.push(write(
                    self.with.raft.clone(),
                    self.with.log.clone(),
                    batch,
                    bytes,
                    route,
                    leadership,
                ));
            } else {
                self.flying.push(forward(
                    self.with.link.clone(),
                    batch,
                    leader,
                    route,
                    leadership,
                ));
            }
        }
    }

    /// Answers what must not wait for another leader.
    fn turn_away(&mut self, route: Leadership) {
        let leads = route.leader == Some(self.with.me);
        let stays = |item: &Item| match item.term {
            _ if item.stage.load(Ordering::Acquire) == stage::ABANDONED => false,
            Some(term) => leads && term == route.term,
            None => leads || !item.forwarded,
        };
        if self.waiting.iter().all(stays) {
            return;
        }
        for item in std::mem::take(&mut self.waiting) {
            if stays(&item) {
                self.waiting.push_back(item);
            } else {
                item.give_up();
            }
        }
    }

    fn take_batch(&mut self) -> Vec<Item> {
        let mut batch = Vec::new();
        let (mut bytes, mut count) = (ENTRY_HEAD_BYTES_MAX, 0);
        while let Some(next) = self.waiting.front() {
            let fits = bytes + next.bytes.len() <= ENTRY_BYTES_MAX
                && count + next.count <= ENTRY_PROPOSALS_MAX;
            if !fits && !batch.is_empty() {
                break;
            }
            bytes += next.bytes.len();
            count += next.count;
            if let Some(item) = self.waiting.pop_front() {
                let sent = item.stage.compare_exchange(
                    stage::WAITING,
                    stage::SENT,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                // An item that was sent before stays sent.
                if sent != Err(stage::ABANDONED) && !item.answer.is_closed() {
                    batch.push(item);
                }
            }
        }
        batch
    }

    /// The bytes of `Entry { format, at_ms, proposals }`, put together from what is encoded already.
    fn entry(&mut self, batch: &[Item]) -> Vec<u8> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.at_ms = self
            .at_ms
            .max(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        let count: usize = batch.iter().map(|item| item.count).sum();
        entry_bytes(self.at_ms, count, batch.iter().map(|item| &item.bytes[..]))
    }

    fn land(&mut self, landed: Landed) {
        match landed.landing {
            Landing::Done(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                for item in landed.batch {
                    let own = outcomes.by_ref().take(item.count).collect();
                    // A caller may have given up.
                    let _ = item.answer.send(Answer::Done(own));
                }
            }
            Landing::Refused(error) => {
                for item in landed.batch {
                    // An earlier try of it may have been delivered all the same.
                    let error = if item.maybe { unknown() } else { error.clone() };
                    let _ = item.answer.send(Answer::Failed(error));
                }
            }
            Landing::NotDelivered => {
                self.rest = Some(Instant::now() + REST);
                self.again(landed.batch, |item| {
                    if !item.maybe {
                        item.stage.store(stage::WAITING, Ordering::Release);
                    }
                    !item.forwarded && item.term.is_none()
                });
            }
            Landing::Maybe => self.again(landed.batch, |item| {
                item.maybe = true;
                item.safe && !item.forwarded && item.term.is_none()
            }),
        }
    }

    /// Puts items back to the front, in their order, or gives them up.
    fn again(&mut self, batch: Vec<Item>, mut may: impl FnMut(&mut Item) -> bool) {
        for mut item in batch.into_iter().rev() {
            if may(&mut item) {
                self.waiting.push_front(item);
            } else {
                item.give_up();
            }
        }
    }
}

impl Item {
    fn give_up(self) {
        let answer = match (self.maybe, self.forwarded) {
            (true, _) => Answer::Failed(unknown()),
            (false, true) => Answer::NotLeader,
            (false, false) => Answer::Failed(no_leader()),
        };
        let _ = self.answer.send(answer);
    }

    fn take_proposals(&mut self) -> Vec<Proposal> {
        match self.proposals.take() {
            Some(proposals) => proposals,
            None => {
                let mut list = codec::encode(&(self.count as u64)).unwrap_or_default();
                list.extend_from_slice(&self.bytes);
                // They were encoded here from the same values.
                codec::decode(&list, ENTRY_BYTES_MAX).unwrap_or_default()
            }
        }
    }
}

/// The bytes of a log entry from the encodings of its proposals.
pub(crate) fn entry_bytes<'a>(
    at_ms: u64,
    count: usize,
    proposals: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut bytes = codec::encode(&(LOG_FORMAT, at_ms, count as u64)).unwrap_or_default();
    for proposal in proposals {
        bytes.extend_from_slice(proposal);
    }
    bytes
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}

/// Ends when the leader of `route` is no longer known as the leader.
async fn deposed(mut leadership: watch::Receiver<Leadership>, route: Leadership) {
    // An error means that this peer stops; the answer is lost just as well.
    let _ = leadership
        .wait_for(|now| now.leader != route.leader || now.term != route.term)
        .await;
}

fn write(
    raft: Raft,
    log: LogStore,
    batch: Vec<Item>,
    bytes: Vec<u8>,
    route: Leadership,
    leadership: watch::Receiver<Leadership>,
) -> BoxFuture<'static, Landed> {
    Box::pin(async move {
        if log.0.is_full() {
            let error = PublicError::new(
                ErrorCode::StorageFull,
                "the leader's disk has no room for log entries",
            );
            return Landed {
                batch,
                landing: Landing::Refused(error.retry_after(1_000)),
            };
        }
        let count: usize = batch.iter().map(|item| item.count).sum();
        let (responder, done) = ProgressResponder::<Rota, _>::complete_only();
        let submitted = raft
            .write(Payload(bytes.into()))
            .with_leader(CommittedLeaderId::new(route.term))
            .responder(responder)
            .await;
        if submitted.is_err() {
            return Landed {
                batch,
                landing: Landing::NotDelivered,
            };
        }
        let landing = tokio::select! {
            biased;
            done = done => match done {
                Ok(Ok(written)) if written.data.0.len() == count => Landing::Done(written.data.0),
                Ok(Err(ClientWriteError::ForwardToLeader(_))) => Landing::NotDelivered,
                // Discarded here, but another leader may have it; or the core died with it.
                Ok(_) | Err(_) => Landing::Maybe,
            },
            () = deposed(leadership, route) => Landing::Maybe,
        };
        Landed { batch, landing }
    })
}

fn forward(
    link: Arc<dyn PeerLink>,
    mut batch: Vec<Item>,
    leader: HostId,
    route: Leadership,
    leadership: watch::Receiver<Leadership>,
) -> BoxFuture<'static, Landed> {
    Box::pin(async move {
        let count: usize = batch.iter().map(|item| item.count).sum();
        let latest = batch.iter().map(|item| item.deadline).max();
        let left = latest.map_or(Duration::ZERO, |latest| {
            latest.saturating_duration_since(Instant::now())
        });
        let proposals = batch.iter_mut().flat_map(Item::take_proposals).collect();
        let call = link.call(
            leader,
            PeerRequest::Propose { proposals },
            left.min(FORWARD_TTL_MAX),
        );
        let landing = tokio::select! {
            biased;
            answer = call => match answer {
                Ok(PeerReply::Proposed { outcomes }) if outcomes.len() == count => Landing::Done(outcomes),
                Ok(PeerReply::NotLeader { .. }) | Err(LinkError::Unreachable(_)) => Landing::NotDelivered,
                Ok(PeerReply::Refused(error)) if error.code == ErrorCode::NoLeader => Landing::NotDelivered,
                Ok(PeerReply::Refused(error)) if error.code == ErrorCode::Unknown => Landing::Maybe,
                Ok(PeerReply::Refused(error)) | Err(LinkError::Refused(error)) => Landing::Refused(error),
                Ok(_) | Err(LinkError::Timeout) => Landing::Maybe,
            },
            () = deposed(leadership, route) => Landing::Maybe,
        };
        Landed { batch, landing }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::command::Entry;
    use rota_protocol::ids::JobId;
    use rota_protocol::job::{Actor, Role};

    fn proposal(index: u32) -> Proposal {
        Proposal {
            request: RequestId(u128::from(index)),
            actor: Actor {
                user: "ann".into(),
                tenant: "lab".into(),
                role: Role::Submitter,
            },
            command: Command::Cancel {
                job: JobId(7),
                index: Some(index),
            },
        }
    }

    /// An entry that is put together from encoded proposals is the entry that the codec would have made.
    #[test]
    fn entries_are_put_together_exactly() {
        for count in [0, 1, 3, 300] {
            let proposals: Vec<_> = (0..count).map(proposal).collect();
            let encoded: Vec<_> = proposals
                .iter()
                .map(|p| codec::encode(p).expect("encodes"))
                .collect();
            let at_ms = 1_790_000_000_000;
            let made = entry_bytes(
                at_ms,
                proposals.len(),
                encoded.iter().map(|bytes| &bytes[..]),
            );
            let whole = codec::encode(&Entry {
                format: LOG_FORMAT,
                at_ms,
                proposals,
            })
            .expect("encodes");
            assert_eq!(made, whole);
            assert_eq!(made.first().copied().map(u16::from), Some(LOG_FORMAT));
        }
    }

    #[test]
    fn only_what_may_be_applied_twice_is_proposed_twice() {
        let mint = Command::MintToken {
            token: [0; 32],
            usage: rota_protocol::command::TokenUse::Join { host_name: None },
            expires_at_ms: 0,
        };
        let with = |request, command| Proposal {
            request,
            command,
            ..proposal(0)
        };
        assert!(is_safe(&with(RequestId::NONE, proposal(1).command)));
        assert!(!is_safe(&with(RequestId::NONE, mint.clone())));
        assert!(is_safe(&with(RequestId(1), mint)));
        let expire = Command::Expire {
            host: HostId(1),
            epoch: rota_protocol::LeaseEpoch(1),
        };
        assert!(is_leader_bound(&with(RequestId::NONE, expire)));
    }
}
