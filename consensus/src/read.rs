//! Linearizable reads: rounds of quorum confirmation that many callers share.
//!
//! A caller joins the round that begins after its call, never one under way: a confirmation counts only if it began
//! after the question.

use crate::config::Raft;
use crate::leadership::Leadership;
use crate::link::PeerLink;
use crate::log::store::LogStore;
use crate::watch;
use openraft::ReadPolicy;
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::{ErrorCode, PublicError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// Callers that may wait for the next round.
const WAITING_MAX: usize = 16_384;
/// How long a caller rests after a refusal that no change of leader explains.
const REST: Duration = Duration::from_millis(10);

/// How long a peer whose disk is full may take to apply what it has: what it lacks it will not get.
const APPLIES: Duration = Duration::from_millis(250);

/// The log index up to which a reader must have applied.
type Confirmed = Result<u64, PublicError>;

/// Hands callers to a task that runs one round at a time.
#[derive(Clone)]
pub(crate) struct Rounds(mpsc::Sender<oneshot::Sender<Confirmed>>);

impl Rounds {
    /// Starts the task. It ends with the last handle.
    pub(crate) fn start<F, Fut>(mut round: F) -> (Self, tokio::task::JoinHandle<()>)
    where
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Confirmed> + Send,
    {
        let (sender, mut waiting) = mpsc::channel::<oneshot::Sender<Confirmed>>(WAITING_MAX);
        let task = crate::runtime::spawn(async move {
            while let Some(first) = waiting.recv().await {
                let mut joined = vec![first];
                while let Ok(next) = waiting.try_recv() {
                    joined.push(next);
                }
                let confirmed = round().await;
                for caller in joined {
                    // A caller may have given up.
                    let _ = caller.send(confirmed.clone());
                }
            }
        });
        (Self(sender), task)
    }

    /// Waits for a round that begins after this call.
    pub(crate) async fn join(&self) -> Confirmed {
        let (sender, confirmed) = oneshot::channel();
        self.0.try_send(sender).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                PublicError::new(ErrorCode::Busy, "too many readers wait").retry_after(10)
            }
            mpsc::error::TrySendError::Closed(_) => stopped(),
        })?;
        confirmed.await.map_err(|_| stopped())?
    }
}

fn stopped() -> PublicError {
    PublicError::new(ErrorCode::NoLeader, "this peer is stopping")
}

pub(crate) fn no_leader() -> PublicError {
    PublicError::new(ErrorCode::NoLeader, "no leader with a quorum is known").retry_after(100)
}

/// One confirmation at the leader itself.
pub(crate) async fn confirm_local(raft: &Raft) -> Confirmed {
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(linearizer.read_log_id().index()),
        Err(error) => Err(PublicError::new(ErrorCode::NoLeader, error.to_string()).retry_after(100)),
    }
}

/// One confirmation by another peer that leads; given up as soon as the leader changes.
pub(crate) async fn confirm_remote(
    link: &Arc<dyn PeerLink>,
    leadership: &mut watch::Receiver<Leadership>,
    me: HostId,
    ttl: Duration,
) -> Confirmed {
    let at = *leadership.borrow_and_update();
    let Some(leader) = at.leader.filter(|leader| *leader != me) else {
        return Err(no_leader());
    };
    let call = link.call(leader, PeerRequest::ReadIndex, ttl);
    let answer = tokio::select! {
        biased;
        answer = call => answer,
        _ = leadership.wait_for(|now| now.leader != Some(leader) || now.term != at.term) => return Err(no_leader()),
    };
    match answer {
        Ok(PeerReply::ReadIndex { index }) => Ok(index),
        Ok(PeerReply::Refused(error)) => Err(error),
        _ => Err(no_leader()),
    }
}

/// Everything that a read needs.
pub(crate) struct Reader {
    pub me: HostId,
    pub leadership: watch::Receiver<Leadership>,
    pub failed: watch::Receiver<Option<String>>,
    pub applied: watch::Receiver<u64>,
    pub log: LogStore,
    pub local: Rounds,
    pub remote: Rounds,
    pub fresh: Fresh,
}

/// When this peer's state was last known to be the whole truth: the beginning of the last barrier that it passed. Later
/// states only know more, so what is read now is at most as old as that.
#[derive(Default)]
pub(crate) struct Fresh(Mutex<Option<Instant>>);

impl Fresh {
    fn as_of(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passed(&self, begun: Instant) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *held = (*held).max(Some(begun));
    }
}

impl Reader {
    /// Returns how old the state is at most, which is no more than `age`.
    pub(crate) async fn within(&self, age: Duration, deadline: Duration) -> Result<Duration, PublicError> {
        let begun = Instant::now();
        let held = self.fresh.as_of().map(|at| begun.duration_since(at));
        if let Some(held) = held.filter(|held| *held <= age) {
            return Ok(held);
        }
        self.barrier(deadline).await.map_err(|error| match held {
            Some(held) => PublicError {
                message: format!("{}; what this peer knows is {} ms old", error.message, held.as_millis()),
                ..error
            },
            None => error,
        })?;
        Ok(begun.elapsed())
    }

    /// Returns the confirmed index once this peer has applied it.
    pub(crate) async fn barrier(&self, deadline: Duration) -> Confirmed {
        let begun = Instant::now();
        let confirmed = self.confirm(begun + deadline).await?;
        self.fresh.passed(begun);
        Ok(confirmed)
    }

    async fn confirm(&self, deadline: Instant) -> Confirmed {
        let mut leadership = self.leadership.clone();
        loop {
            let at = *leadership.borrow_and_update();
            if self.failed.borrow().is_some() {
                return Err(stopped());
            }
            let confirmed = match at.leader {
                Some(leader) if leader == self.me => timeout_at(deadline, self.local.join()).await,
                Some(leader) => {
                    let joined = self.remote.join();
                    tokio::select! {
                        biased;
                        confirmed = timeout_at(deadline, joined) => confirmed,
                        _ = leadership.wait_for(|now| now.leader != Some(leader)) => continue,
                    }
                }
                None => Ok(Err(no_leader())),
            };
            match confirmed {
                Err(_) => return Err(no_leader()),
                Ok(Ok(index)) => return self.reach(index, deadline).await,
                Ok(Err(error)) if error.code == ErrorCode::Busy => return Err(error),
                Ok(Err(_)) => {
                    let rest = async {
                        match at.leader {
                            Some(_) => {
                                tokio::time::timeout(REST, leadership.changed()).await.unwrap_or(Ok(()))
                            }
                            None => leadership.changed().await,
                        }
                    };
                    match timeout_at(deadline, rest).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Err(stopped()),
                        Err(_) => return Err(no_leader()),
                    }
                }
            }
        }
    }
    /// Waits until this is applied here.
    async fn reach(&self, index: u64, deadline: Instant) -> Confirmed {
        let mut applied = self.applied.clone();
        let soon = deadline.min(Instant::now() + APPLIES);
        for until in [soon, deadline] {
            match timeout_at(until, applied.wait_for(|done| *done >= index)).await {
                Ok(Ok(_)) => return Ok(index),
                Ok(Err(_)) => return Err(stopped()),
                Err(_) if self.log.0.is_full() => {
                    let why = "this peer is behind: its disk has no room for log entries; ask another host";
                    return Err(PublicError::new(ErrorCode::StorageFull, why).retry_after(1_000));
                }
                Err(_) => {}
            }
        }
        Err(PublicError::new(ErrorCode::NoLeader, "this peer is behind").retry_after(100))
    }
}
