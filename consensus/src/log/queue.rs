//! What waits for the writer: jobs in order, and the newest commit index. Bounded by bytes; a failure is final.

use crate::config::{LogEntry, LogId, Rota, Vote};
use openraft::storage::IOFlushed;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Bytes that may wait for the disk; more make the raft core wait, and it then pushes back on proposals.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// A commit index that nothing else carries to the disk waits this long for company.
const COMMITTED_LINGER: Duration = Duration::from_millis(5);

/// One change of the log.
pub(crate) enum Job {
    Append { entries: Vec<LogEntry>, bytes: usize, done: IOFlushed<Rota> },
    Vote { vote: Vote, done: oneshot::Sender<io::Result<()>> },
    Truncate(Option<LogId>),
    Purge(LogId),
}

/// Jobs on their way to the writer.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<Waiting>,
    wake: Condvar,
    /// As `wake`, for a writer that is a task.
    stirred: Notify,
    room: Notify,
}

#[derive(Default)]
struct Waiting {
    jobs: Vec<Job>,
    bytes: usize,
    /// A commit index that is not on disk yet; a newer one replaces it.
    committed: Option<LogId>,
    closed: bool,
    /// The writer waits for a time only, and then looks by itself.
    looks_soon: bool,
    failure: Option<(io::ErrorKind, String)>,
}

/// All that waited.
pub(super) struct Taken {
    pub(super) jobs: Vec<Job>,
    pub(super) committed: Option<LogId>,
    pub(super) closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it holds this lock half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, job: Job) -> io::Result<()> {
        let mut state = self.lock();
        if let Some((kind, text)) = &state.failure {
            return Err(io::Error::new(*kind, text.clone()));
        }
        if state.closed {
            return Err(io::Error::other("the log is closed"));
        }
        if let Job::Append { bytes, .. } = &job {
            state.bytes += bytes;
        }
        state.jobs.push(job);
        self.stir();
        Ok(())
    }

    pub(crate) fn committed(&self, committed: LogId) {
        let mut state = self.lock();
        let first = state.committed.replace(committed).is_none();
        if first && state.jobs.is_empty() && !state.looks_soon {
            self.stir();
        }
    }

    /// Waits until the queue is short enough.
    pub(crate) async fn room(&self) {
        loop {
            let notified = self.room.notified();
            {
                let state = self.lock();
                if state.bytes < QUEUE_BYTES_MAX || state.failure.is_some() || state.closed {
                    return;
                }
            }
            notified.await;
        }
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.stir();
        self.room.notify_waiters();
    }

    /// Waits for something to do, and takes all of it.
    pub(super) fn take(&self) -> Taken {
        let mut state = self.lock();
        // Just after a write a commit index follows soon, and need not wake anybody for it.
        let mut looks_soon = true;
        while !state.closed && state.jobs.is_empty() {
            if looks_soon {
                let lingers = state.committed.is_some();
                state.looks_soon = true;
                let (next, timeout) =
                    self.wake.wait_timeout(state, COMMITTED_LINGER).unwrap_or_else(PoisonError::into_inner);
                state = next;
                state.looks_soon = false;
                if timeout.timed_out() {
                    if lingers {
                        break;
                    }
                    looks_soon = state.committed.is_some();
                }
            } else {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                looks_soon = state.committed.is_some();
            }
        }
        self.hand_over(&mut state)
    }

    /// The same for a task.
    pub(super) async fn taken(&self) -> Taken {
        loop {
            let stirred = self.stirred.notified();
            let lingers = {
                let mut state = self.lock();
                if state.closed || !state.jobs.is_empty() {
                    return self.hand_over(&mut state);
                }
                state.committed.is_some()
            };
            if !lingers {
                stirred.await;
            } else if tokio::time::timeout(COMMITTED_LINGER, stirred).await.is_err() {
                return self.hand_over(&mut self.lock());
            }
        }
    }

    fn stir(&self) {
        self.wake.notify_one();
        self.stirred.notify_one();
    }

    fn hand_over(&self, state: &mut Waiting) -> Taken {
        state.bytes = 0;
        self.room.notify_waiters();
        Taken {
            jobs: std::mem::take(&mut state.jobs),
            committed: state.committed.take(),
            closed: state.closed,
        }
    }

    /// From now on every job is refused.
    pub(super) fn fail(&self, error: &io::Error) {
        self.lock().failure = Some((error.kind(), error.to_string()));
        self.room.notify_waiters();
    }
}
