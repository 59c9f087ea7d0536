//! One pooled connection to one peer for one class of calls: dialled when first needed, shared by all callers,
//! replaced when it dies. Each link has its own state, so that a dead peer costs only those who call it.

use super::dial::DialError;
use super::{Inner, LinkError};
use rota_consensus::watch;
use rota_protocol::HostId;
use rota_protocol::peer::PeerRequest;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// First pause after a failed dial; it doubles up to [`super::NetTimings::backoff_max`].
const BACKOFF_FIRST: Duration = Duration::from_millis(50);

/// Calls that must not wait behind others have a connection of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Class {
    /// Heartbeats, entries, votes, lease renewals, read confirmations, clocks.
    Raft,
    /// Proposals, logs, signals.
    Rest,
    /// Blobs: nothing waits behind gigabytes.
    Bulk,
    /// Datagrams.
    Gossip,
}

impl Class {
    pub(super) fn of(request: &PeerRequest) -> Self {
        match request {
            PeerRequest::Raft { .. }
            | PeerRequest::ReadIndex
            | PeerRequest::Renew { .. }
            | PeerRequest::Clock
            | PeerRequest::Renewals { .. }
            | PeerRequest::Hail(_) => Self::Raft,
            PeerRequest::Propose { .. }
            | PeerRequest::ReadLog { .. }
            | PeerRequest::FindLog { .. }
            | PeerRequest::FindTask { .. }
            | PeerRequest::Signal { .. }
            | PeerRequest::Authority { .. }
            | PeerRequest::Session { .. }
            | PeerRequest::Lead(_) => Self::Rest,
            PeerRequest::Data(_) => Self::Bulk,
        }
    }
}

/// A live connection, greeted.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) connection: quinn::Connection,
    pub(super) version: u16,
    /// Of the certificate that it was made with.
    generation: u64,
    /// Of the last call, in ms since `born`.
    used_ms: AtomicU64,
    born: Instant,
}

impl Up {
    pub(super) fn new(connection: quinn::Connection, version: u16, generation: u64) -> Self {
        Self { connection, version, generation, used_ms: AtomicU64::new(0), born: Instant::now() }
    }

    fn alive(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    fn touch(&self) {
        let ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used_ms.store(ms, Ordering::Relaxed);
    }

    fn unused_for(&self) -> Duration {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(used)
    }
}

#[derive(Debug)]
enum State {
    /// Never dialled, or let go.
    Idle,
    Dialling,
    Up(Arc<Up>),
    /// The last dial failed; the next may begin at `until`.
    Down {
        until: Instant,
        error: LinkError,
    },
}

#[derive(Debug)]
struct Shared {
    state: State,
    /// Counts dials begun, so that a caller can tell a failure that it waited for from an older one.
    dials: u64,
    /// Failures in a row.
    failures: u32,
}

/// What a caller does next.
enum Next {
    Use(Arc<Up>),
    Dial,
    Wait,
    Sleep(Instant, LinkError),
    Fail(LinkError),
}

/// A slot of the pool.
#[derive(Debug)]
pub(super) struct Link {
    to: HostId,
    class: Class,
    shared: Mutex<Shared>,
    changed: watch::Sender<()>,
}

impl Link {
    pub(super) fn new(to: HostId, class: Class) -> Self {
        Self {
            to,
            class,
            shared: Mutex::new(Shared { state: State::Idle, dials: 0, failures: 0 }),
            changed: watch::Sender::new(()),
        }
    }

    pub(super) fn to(&self) -> HostId {
        self.to
    }

    pub(super) fn class(&self) -> Class {
        self.class
    }

    /// Of the certificate that its live connection was made with.
    pub(super) fn generation(&self) -> Option<u64> {
        match &self.lock().state {
            State::Up(up) if up.alive() => Some(up.generation),
            _ => None,
        }
    }

    /// Puts a connection in the place of the live one, which it gives back; its calls go on there.
    pub(super) fn exchange(&self, fresh: Up) -> Option<Arc<Up>> {
        let mut shared = self.lock();
        let State::Up(old) = &shared.state else {
            // A dial is under way or was given up: that one is as new.
            super::CloseCode::Done.close(&fresh.connection, "");
            return None;
        };
        let old = old.clone();
        shared.state = State::Up(Arc::new(fresh));
        Some(old)
    }

    /// The connection, if there is a live one.
    pub(super) fn up(&self) -> Option<Arc<Up>> {
        match &self.lock().state {
            State::Up(up) if up.alive() => {
                up.touch();
                Some(up.clone())
            }
            _ => None,
        }
    }

    /// A live connection, dialled if need be. Every caller sees at least one dial through that began after it came,
    /// if the deadline allows; nothing was delivered when this fails.
    pub(super) async fn connected(
        self: &Arc<Self>,
        inner: &Arc<Inner>,
        deadline: Instant,
    ) -> Result<Arc<Up>, LinkError> {
        let mut changed = self.changed.subscribe();
        let dials_seen = self.lock().dials;
        loop {
            changed.mark_unchanged();
            match self.next(dials_seen) {
                Next::Use(up) => {
                    up.touch();
                    return Ok(up);
                }
                Next::Fail(error) => return Err(error),
                Next::Sleep(until, error) if until >= deadline => return Err(error),
                Next::Sleep(until, _) => {
                    tokio::select! {
                        biased;
                        () = sleep_until(until) => {}
                        _ = changed.changed() => {}
                    }
                    continue;
                }
                Next::Dial => self.start_dial(inner),
                Next::Wait => {}
            }
            if timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(LinkError::Unreachable(format!(
                    "no connection to host {} within the call's time",
                    self.to
                )));
            }
        }
    }

    /// Drops this connection from the pool, so that the next call dials anew. Calls that still wait on it go on.
    pub(super) fn forget(&self, up: &Arc<Up>) {
        let mut shared = self.lock();
        if matches!(&shared.state, State::Up(now) if Arc::ptr_eq(now, up)) {
            shared.state = State::Idle;
        }
    }

    /// Why dials fail, if they have failed several times in a row.
    pub(super) fn failing(&self) -> Option<String> {
        let shared = self.lock();
        match &shared.state {
            State::Down { error, .. } if shared.failures >= 3 => Some(error.to_string()),
            _ => None,
        }
    }

    /// Closes the connection, if there is one.
    pub(super) fn cut(&self) {
        let mut shared = self.lock();
        if let State::Up(up) = &shared.state {
            super::CloseCode::Unauthenticated.close(&up.connection, "no longer part of the cluster");
            shared.state = State::Idle;
        }
    }

    /// The peer may be reachable again: its address changed.
    pub(super) fn retry_now(&self) {
        let mut shared = self.lock();
        if matches!(shared.state, State::Down { .. }) {
            shared.state = State::Idle;
            shared.failures = 0;
        }
        drop(shared);
        self.changed.send_replace(());
    }

    /// Closes the connection if it had no call for `unused` and has none now.
    pub(super) fn close_if_unused(&self, unused: Duration) {
        let mut shared = self.lock();
        if let State::Up(up) = &shared.state
            && Arc::strong_count(up) == 1
            && up.unused_for() >= unused
        {
            super::CloseCode::Unused.close(&up.connection, "unused");
            shared.state = State::Idle;
        }
    }

    fn next(&self, dials_seen: u64) -> Next {
        let mut shared = self.lock();
        let now = Instant::now();
        match &shared.state {
            State::Up(up) if up.alive() => return Next::Use(up.clone()),
            State::Dialling => return Next::Wait,
            State::Down { error, .. } if shared.dials > dials_seen => {
                return Next::Fail(error.clone());
            }
            State::Down { until, error } if *until > now => {
                return Next::Sleep(*until, error.clone());
            }
            State::Up(_) | State::Idle | State::Down { .. } => {}
        }
        shared.state = State::Dialling;
        shared.dials += 1;
        Next::Dial
    }

    /// The dial is a task of its own: it goes on when the caller that began it gives up.
    fn start_dial(self: &Arc<Self>, inner: &Arc<Inner>) {
        let link = self.clone();
        let inner = inner.clone();
        tokio::spawn(async move {
            let dial = tokio::spawn({
                let inner = inner.clone();
                let (to, class) = (link.to, link.class);
                async move { inner.dial(to, class).await }
            });
            let result = dial.await.unwrap_or_else(|_| Err(DialError::Ended));
            link.dialled(result, inner.timings.backoff_max);
        });
    }

    fn dialled(&self, result: Result<Up, DialError>, backoff_max: Duration) {
        let mut shared = self.lock();
        match result {
            Ok(up) => {
                shared.failures = 0;
                shared.state = State::Up(Arc::new(up));
            }
            Err(error) => {
                let pause = BACKOFF_FIRST.saturating_mul(1 << shared.failures.min(16)).min(backoff_max);
                if shared.failures == 0 {
                    tracing::info!(host = %self.to, class = ?self.class, %error, "cannot reach peer");
                }
                shared.failures = shared.failures.saturating_add(1);
                shared.state = State::Down { until: Instant::now() + pause, error: link_error(error) };
            }
        }
        drop(shared);
        self.changed.send_replace(());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        // Each change is one assignment, so a panic elsewhere cannot leave it half done.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn link_error(error: DialError) -> LinkError {
    match error {
        DialError::Refused(refused) => LinkError::Refused(refused),
        other => LinkError::Unreachable(other.to_string()),
    }
}
