//! The agent's handle on its shims: orders, calls, notes, and what is known of each attempt that the log is not done
//! with. The files decide in every doubt; see `adopt` for how they are read.

use super::cage::{CageSettings, Offer, Place};
use super::calls::sync_unconfirmed;
use super::known::{Known, Phase};
use super::link;
use super::notes;
use super::retention::Retention;
use super::wire;
use super::{AGENT_SOCKET, adopt, converse};
use crate::logic::reconcile::{Local, LocalState};
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::spool::{ExitRecord, LaunchOrder, ShimCall, ShimEvent};
use rota_protocol::{BootId, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Most orders that wait for the fork server; past this, launching waits.
const ORDERS_MAX: usize = 4_096;
/// Most signals that are kept for an attempt that does not run yet; a person sends one or two.
const EARLY_SIGNALS_MAX: usize = 16;

/// Why the shims cannot be hosted.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The attempts folder or its socket.
    #[error("cannot use the attempts folder {dir}: {source}")]
    Folder {
        /// Which.
        dir: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The fork server.
    #[error("cannot start the fork server: {0}")]
    Server(io::Error),
    /// This kernel says too little about itself.
    #[error("cannot read the boot id: {0}")]
    Boot(io::Error),
}

/// Why an order was not taken. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The token was ordered before.
    #[error("attempt {0} was ordered before")]
    Known(Token),
    /// It cannot be written down.
    #[error("the order of attempt {token} cannot be sent: {reason}")]
    Order {
        /// Which.
        token: Token,
        /// Why.
        reason: String,
    },
    /// The agent is ending.
    #[error("the agent is ending")]
    Stopped,
}

/// What the agent hears of its attempts. At most once each, except over a restart of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShimNote {
    /// A process runs. Left out for tasks that end within milliseconds.
    Started {
        /// The attempt.
        token: Token,
        /// Its first process.
        pid: u32,
    },
    /// Every process is gone.
    Ended {
        /// How.
        record: ExitRecord,
    },
    /// Nothing runs: the host's fault.
    LaunchFailed {
        /// The attempt.
        token: Token,
        /// The host's words.
        reason: String,
    },
    /// Processes are left although they were killed: its devices are not free.
    Stuck {
        /// The attempt.
        token: Token,
        /// How many.
        left: u32,
    },
    /// The host's epilog did not do its work; the attempt's end follows.
    EpilogFailed {
        /// The attempt.
        token: Token,
        /// What it said.
        reason: String,
    },
}

/// An attempt that was found at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// The attempt.
    pub token: Token,
    /// Its end, or `Launching` for one that lives: its process id follows as a note.
    pub state: LocalState,
}

/// Shared by the handle and its tasks.
#[derive(Debug)]
pub(in crate::shim) struct Inner {
    pub(super) dir: PathBuf,
    /// Where tasks and Rota leave each other notes.
    pub(super) tasks: PathBuf,
    pub(super) boot: BootId,
    /// What tasks are bounded with.
    pub(super) place: Place,
    known: Mutex<BTreeMap<Token, Known>>,
    pub(super) retention: Mutex<Retention>,
    notes: mpsc::Sender<ShimNote>,
    pub(super) lines: converse::Lines,
}

/// The agent's shims. Dropping it lets the fork server go; shims and tasks live on.
#[derive(Debug)]
pub struct ShimHost {
    pub(in crate::shim) inner: Arc<Inner>,
    orders: mpsc::Sender<Token>,
    _tasks: JoinSet<()>,
}

impl ShimHost {
    /// Starts the fork server (`exe shimd`), adopts what survived an earlier agent, ends what cannot be adopted.
    /// The caller holds the lock on the data directory: two hosts on one folder would end each other's attempts.
    ///
    /// # Errors
    /// The folder cannot be used, or the fork server does not start.
    pub async fn start_caged(
        exe: &Path,
        data_dir: &Path,
        (settings, offer): (&CageSettings, Offer),
        notes: mpsc::Sender<ShimNote>,
    ) -> Result<(Self, Vec<Adopted>), ShimError> {
        let dir = data_dir.join("attempts");
        let folder = |source| ShimError::Folder { dir: dir.clone(), source };
        // Its files and its socket are the agent's alone: what a task could write here would be believed.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(folder)?;
        let dir = dir.canonicalize().map_err(folder)?;
        let folder = |source| ShimError::Folder { dir: dir.clone(), source };
        let tasks = notes::make_folder(data_dir).map_err(folder)?;
        let boot = crate::io::proc::boot_id().map_err(ShimError::Boot)?;
        let place = Place::find(data_dir, settings, offer).map_err(folder)?;
        let inner = Arc::new(Inner {
            dir: dir.clone(),
            tasks,
            boot,
            place,
            known: Mutex::default(),
            retention: Mutex::default(),
            notes,
            lines: converse::Lines::default(),
        });
        let later = link::bind_agent_socket(&dir, AGENT_SOCKET).map_err(folder)?;
        let (reader, writer) = link::event_sockets().map_err(ShimError::Server)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(link::read_events(Arc::clone(&inner), reader));
        tasks.spawn(link::read_events(Arc::clone(&inner), later));
        let adopted = adopt::scan(&inner).await.map_err(folder)?;
        let lives = |one: &&Adopted| !matches!(one.state, LocalState::Ended(_));
        let living: BTreeSet<Token> = adopted.iter().filter(lives).map(|one| one.token).collect();
        inner.place.sweep(&living);
        if let Err(error) = notes::sweep(&inner.tasks, &living) {
            tracing::warn!(%error, "notes of tasks that are gone cannot be removed");
        }
        if let Err(error) = converse::sweep(&inner.dir, |token| !living.contains(&token)) {
            tracing::warn!(%error, "files of sessions that are over cannot be removed");
        }
        let (orders, queue) = mpsc::channel(ORDERS_MAX);
        let server = link::spawn_server(exe, &inner, &writer).map_err(ShimError::Server)?;
        tasks.spawn(link::run_server(Arc::clone(&inner), exe.to_owned(), writer, server, queue));
        tasks.spawn(sync_unconfirmed(Arc::clone(&inner)));
        tasks.spawn(super::expire::look(Arc::clone(&inner)));
        Ok((Self { inner, orders, _tasks: tasks }, adopted))
    }

    /// Orders a launch. What becomes of it comes as notes.
    ///
    /// # Errors
    /// The order was not taken, and nothing was started for it.
    pub async fn launch(&self, order: LaunchOrder) -> Result<(), LaunchError> {
        let token = order.token;
        let bytes =
            wire::encode_order(&order).map_err(|e| LaunchError::Order { token, reason: e.to_string() })?;
        {
            let mut known = self.inner.known();
            if known.contains_key(&token) {
                return Err(LaunchError::Known(token));
            }
            let mut new = Known::new(Phase::Queued);
            new.order = Some(bytes);
            known.insert(token, new);
        }
        self.orders.send(token).await.map_err(|_| {
            self.inner.known().remove(&token);
            LaunchError::Stopped
        })
    }

    /// Asks an attempt to end. Idempotent; the end comes as a note. One that was not handed over yet never starts.
    pub async fn end(&self, token: Token, reason: EndReason) {
        let shim = {
            let mut known = self.inner.known();
            let Some(attempt) = known.get_mut(&token) else { return };
            // A cancel says more than what was asked before: nothing is waited for.
            if attempt.end.is_none() || reason == EndReason::Cancel {
                attempt.end = Some(reason);
            }
            match attempt.phase {
                Phase::Running { shim_pid, .. } => Some(shim_pid),
                // Told to the shim as soon as it is heard of.
                Phase::Queued | Phase::Sent => attempt.preparing,
                Phase::Ended { .. } => None,
            }
        };
        if let Some(shim_pid) = shim {
            self.inner.call(token, shim_pid, ShimCall::End { reason }).await;
        }
    }

    /// Sends a signal to every process of an attempt: at once, or as soon as it runs. One that has ended hears nothing.
    pub async fn signal(&self, token: Token, signal: u8) {
        let shim_pid = {
            let mut known = self.inner.known();
            let Some(attempt) = known.get_mut(&token) else { return };
            match attempt.phase {
                Phase::Running { shim_pid, .. } => shim_pid,
                Phase::Queued | Phase::Sent if attempt.signals.len() < EARLY_SIGNALS_MAX => {
                    attempt.signals.push(signal);
                    return;
                }
                Phase::Queued | Phase::Sent | Phase::Ended { .. } => return,
            }
        };
        self.inner.call(token, shim_pid, ShimCall::Signal { signal }).await;
    }

    /// The log has the end of this attempt: forget it. Its output stays for a while.
    pub async fn release(&self, token: Token) {
        self.release_sessions(token);
        let ended = {
            let mut known = self.inner.known();
            match known.get(&token).map(|a| &a.phase) {
                Some(Phase::Ended { .. }) => known.remove(&token),
                _ => None,
            }
        };
        if let Some(Known { phase: Phase::Ended { record, .. }, .. }) = ended {
            self.inner.keep_output(&record);
        }
    }

    /// Every attempt that was not released, for `reconcile`.
    #[must_use]
    pub fn locals(&self) -> BTreeMap<Token, Local> {
        let local = |attempt: &Known| Local {
            state: match &attempt.phase {
                Phase::Queued | Phase::Sent => LocalState::Launching,
                Phase::Running { task_pid, .. } => LocalState::Running { pid: *task_pid },
                Phase::Ended { record, .. } => LocalState::Ended(record.clone()),
            },
            end_asked: attempt.end,
        };
        self.inner.known().iter().map(|(token, attempt)| (*token, local(attempt))).collect()
    }

    pub(in crate::shim) fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl Inner {
    pub(super) fn known(&self) -> MutexGuard<'_, BTreeMap<Token, Known>> {
        // Every change under the lock is complete when it is let go, also by a panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A hint that an attempt's output or end is news; to be taken before the files are looked at.
    pub(super) fn watch_changes(&self, token: Token) -> Option<Arc<Notify>> {
        let mut known = self.known();
        let attempt = known.get_mut(&token)?;
        Some(Arc::clone(attempt.changed.get_or_insert_default()))
    }

    /// Handles what a shim, or a fork server for it, says.
    pub(super) async fn on_event(self: &Arc<Self>, token: Token, event: ShimEvent) {
        match event {
            ShimEvent::Started { shim_pid, task_pid } => self.on_started(token, shim_pid, task_pid).await,
            ShimEvent::Preparing { shim_pid } => self.on_preparing(token, shim_pid).await,
            ShimEvent::EpilogFailed { reason } => {
                tracing::error!(%token, reason, "the host's epilog did not do its work");
                self.note(ShimNote::EpilogFailed { token, reason }).await;
            }
            ShimEvent::Output { .. } | ShimEvent::Session => {
                if let Some(attempt) = self.known().get(&token) {
                    attempt.wake();
                }
            }
            ShimEvent::Ended(record) => self.on_ended(record).await,
            ShimEvent::Stuck { left } => {
                tracing::warn!(%token, left, "processes are left although they were killed");
                self.note(ShimNote::Stuck { token, left }).await;
            }
            // Both need a look at the files, which may take a while.
            ShimEvent::ShimDied | ShimEvent::Exists => {
                let inner = Arc::clone(self);
                tokio::spawn(async move { adopt::look(&inner, token).await });
            }
        }
    }

    async fn on_started(self: &Arc<Self>, token: Token, shim_pid: u32, task_pid: u32) {
        let (signals, end) = {
            let mut known = self.known();
            let Some(attempt) = known.get_mut(&token) else { return };
            if matches!(attempt.phase, Phase::Ended { .. }) {
                return;
            }
            attempt.phase = Phase::Running { shim_pid, task_pid };
            attempt.order = None;
            (std::mem::take(&mut attempt.signals), attempt.end)
        };
        for signal in signals {
            self.call(token, shim_pid, ShimCall::Signal { signal }).await;
        }
        if let Some(reason) = end {
            self.call(token, shim_pid, ShimCall::End { reason }).await;
        }
        self.note(ShimNote::Started { token, pid: task_pid }).await;
    }

    /// Takes note of an end, once.
    pub(super) async fn on_ended(&self, record: ExitRecord) {
        {
            let mut known = self.known();
            let Some(attempt) = known.get_mut(&record.token) else { return };
            if matches!(attempt.phase, Phase::Ended { .. }) {
                return;
            }
            attempt.phase = Phase::Ended { record: record.clone(), at: Instant::now(), synced: false };
            attempt.order = None;
            attempt.wake();
        }
        self.note(match record.end {
            AttemptEnd::LaunchFailed { ref reason } => {
                ShimNote::LaunchFailed { token: record.token, reason: reason.clone() }
            }
            _ => ShimNote::Ended { record },
        })
        .await;
    }

    /// Whoever listens may be gone while the agent ends; the files keep everything.
    async fn note(&self, note: ShimNote) {
        let _ = self.notes.send(note).await;
    }
}
