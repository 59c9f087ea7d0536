//! The task: takes what callers hand in, makes batches, sends them where the leader is, and deals with what comes of it.

use super::flight::{Disks, Landed, Landing, forward, write};
use super::rules::unknown;
use super::{Answer, ENTRY_HEAD_BYTES_MAX, Item, Proposals, stage};
use crate::config::Raft;
use crate::leadership::Leadership;
use crate::link::PeerLink;
use crate::log::store::LogStore;
use crate::machine::Shared;
use crate::room::Room;
use crate::watch;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rota_protocol::codec;
use rota_protocol::ids::HostId;
use rota_protocol::limits::{BATCH_BYTES_MAX, ENTRY_PROPOSALS_MAX};
use rota_protocol::version;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// Callers that may wait at one peer; beyond it they are told to come back.
const QUEUE_CALLS_MAX: usize = 8_192;
/// Bytes of proposals that may wait at one peer.
const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Entries that are on their way at once: while one is on the disk, others cross the network, and the rest keep the
/// pipe full. Two starve it at a thousand callers; more than these only make entries smaller.
const INFLIGHT_MAX: usize = 8;
/// Proposals that are worth an entry beside those under way. Measured with 64 callers: a tenth less processor time
/// for each proposal than with eight small entries side by side.
const WORTH_AN_ENTRY: usize = 32;
/// Entries that are under way at once although less waits: what comes just after one has left need not wait for a
/// whole round of the disks, and what comes after that gathers.
const SMALL_INFLIGHT_MAX: usize = 2;
/// Rest after a refusal that no change of leader explains (its quorum lapsed, or it cannot be reached): the first is
/// short, because a leader that was elected a moment ago takes writes as soon as one other peer has heard it.
const REST_MIN: Duration = Duration::from_millis(1);
/// It doubles up to this.
const REST_MAX: Duration = Duration::from_millis(10);

/// What the task works with.
pub(crate) struct Proposer {
    pub raft: Raft,
    pub me: HostId,
    pub link: Arc<dyn PeerLink>,
    pub log: LogStore,
    pub room: Arc<Room>,
    pub machine: Arc<Shared>,
    pub leadership: watch::Receiver<Leadership>,
    pub failed: watch::Receiver<Option<String>>,
    pub wall_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
}

struct Run {
    with: Proposer,
    waiting: VecDeque<Item>,
    flying: FuturesUnordered<BoxFuture<'static, Landed>>,
    /// No batch leaves before this, unless the leader changes.
    rest: Option<Instant>,
    /// The next rest.
    pause: Duration,
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
            machine: self.machine.clone(),
        };
        let run = Run {
            with: self,
            waiting: VecDeque::new(),
            flying: FuturesUnordered::new(),
            rest: None,
            pause: REST_MIN,
            at_ms: 0,
        };
        (handle, crate::runtime::spawn(run.run(calls)))
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
                    self.pause = REST_MIN;
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
        while self.rest.is_none() && self.flying.len() < self.flights_max() && !self.waiting.is_empty() {
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
                    Disks { me: self.with.me, log: self.with.log.clone(), room: self.with.room.clone() },
                    batch,
                    bytes,
                    route,
                    leadership,
                ));
            } else {
                self.flying.push(forward(self.with.link.clone(), batch, leader, route, leadership));
            }
        }
    }

    /// What waits is sent beside several others only when there is enough of it; else it gathers until one of those
    /// under way is back, and shares the next one's cost.
    fn flights_max(&self) -> usize {
        let mut count = 0;
        let worth_one = self.waiting.iter().any(|item| {
            count += item.count;
            count >= WORTH_AN_ENTRY
        });
        if worth_one { INFLIGHT_MAX } else { SMALL_INFLIGHT_MAX }
    }

    /// Answers what must not wait for another leader.
    fn turn_away(&mut self, route: Leadership) {
        let leads = route.leader == Some(self.with.me);
        // A failure comes with a change of leadership, so this is looked at in time.
        let failed = self.with.failed.borrow().is_some();
        let stays = |item: &Item| match item.term {
            _ if failed || item.stage.load(Ordering::Acquire) == stage::ABANDONED => false,
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
            let fits =
                bytes + next.bytes.len() <= BATCH_BYTES_MAX && count + next.count <= ENTRY_PROPOSALS_MAX;
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
        self.at_ms = self.at_ms.max((self.with.wall_ms)());
        let count: usize = batch.iter().map(|item| item.count).sum();
        let format = batch.iter().map(|item| item.format).max().unwrap_or(version::FIRST);
        entry_bytes(format, self.at_ms, count, batch.iter().map(|item| &item.bytes[..]))
    }

    fn land(&mut self, landed: Landed) {
        match landed.landing {
            Landing::Done(outcomes) => {
                self.pause = REST_MIN;
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
                self.rest = Some(Instant::now() + self.pause);
                self.pause = (self.pause * 2).min(REST_MAX);
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

/// The bytes of a log entry from the encodings of its proposals.
pub(crate) fn entry_bytes<'a>(
    format: u16,
    at_ms: u64,
    count: usize,
    proposals: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut bytes = codec::encode(&(format, at_ms, count as u64)).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::command::{Command, Entry, LOG_FORMAT, Proposal};
    use rota_protocol::ids::{JobId, RequestId};
    use rota_protocol::job::{Actor, Role};

    fn proposal(index: u32) -> Proposal {
        Proposal {
            request: RequestId(u128::from(index)),
            actor: Actor { user: "ann".into(), tenant: "lab".into(), role: Role::Submitter },
            command: Command::Cancel { job: JobId(7), index: Some(index) },
        }
    }

    /// An entry that is put together from encoded proposals is the entry that the codec would have made.
    #[test]
    fn entries_are_put_together_exactly() {
        for count in [0, 1, 3, 300] {
            let proposals: Vec<_> = (0..count).map(proposal).collect();
            let encoded: Vec<_> = proposals.iter().map(|p| codec::encode(p).expect("encodes")).collect();
            let at_ms = 1_790_000_000_000;
            let made =
                entry_bytes(LOG_FORMAT, at_ms, proposals.len(), encoded.iter().map(|bytes| &bytes[..]));
            let whole = codec::encode(&Entry { format: LOG_FORMAT, at_ms, proposals }).expect("encodes");
            assert_eq!(made, whole);
            assert_eq!(made.first().copied().map(u16::from), Some(LOG_FORMAT));
        }
    }
}
