//! Proposals on their way into the log: one task per peer that batches, routes to the leader, and tries again.
//!
//! What waits while entries are on their way goes together into the next one, so that the cost of a disk write and a
//! round trip is shared by all. The moment the leader changes, what is under way is proposed again to the next one if
//! a second application would do no harm; otherwise its caller hears `Unknown`. Nothing polls.
//!
//! Here is the caller's side; `rules.rs` says what may be tried again, `task.rs` batches and routes, `flight.rs` is
//! one batch under way.

mod flight;
mod rules;
mod task;

pub(crate) use rules::refuse_forwarded;
pub(crate) use task::Proposer;

use crate::leadership::Leadership;
use crate::machine::Shared;
use crate::read::no_leader;
use crate::watch;
use rota_core::State;
use rota_protocol::codec;
use rota_protocol::command::{Outcome, Proposal};
use rota_protocol::ids::HostId;
use rota_protocol::limits::{ENTRY_BYTES_MAX, ENTRY_PROPOSALS_MAX};
use rota_protocol::{ErrorCode, PublicError, version};
use rules::{busy, is_leader_bound, is_safe, too_large, unknown};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

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
    /// The format that its newest command needs.
    format: u16,
    /// Decoded, where they may go to another peer, as long as they were not handed on.
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

/// Hands proposals to the task.
#[derive(Clone)]
pub(crate) struct Proposals {
    queue: mpsc::Sender<Item>,
    room: Arc<Semaphore>,
    leadership: watch::Receiver<Leadership>,
    me: HostId,
    machine: Arc<Shared>,
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
        match self.queue.try_send(item) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Answer::Failed(busy()),
            // This peer stops: who asked it asks another.
            Err(TrySendError::Closed(item)) => {
                item.give_up();
                return answer.await.unwrap_or(Answer::Failed(no_leader()));
            }
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
        let format = proposals.iter().map(|one| version::needs(&one.command)).max().unwrap_or(version::FIRST);
        if format > version::FIRST {
            rules::check_version(format, self.machine.read(State::version))?;
        }
        let mut bytes = Vec::new();
        for proposal in &proposals {
            codec::encode_behind(&mut bytes, proposal)
                .map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))?;
        }
        let limit = ENTRY_BYTES_MAX - ENTRY_HEAD_BYTES_MAX;
        if bytes.len() > limit {
            return Err(too_large(format!("proposals of {} bytes exceed the limit of {limit}", bytes.len())));
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
        let room = self.room.clone().try_acquire_many_owned(weight).map_err(|_| busy())?;
        // The leader needs but the bytes; should it lead no more by then, they are decoded again.
        let leads = self.leadership.borrow().leader == Some(self.me);
        let safe = proposals.iter().all(is_safe);
        let (sender, answer) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(stage::WAITING));
        let item = Item {
            bytes,
            count,
            format,
            safe,
            proposals: (!leads).then_some(proposals),
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
