//! What the agent knows of one attempt that the log is not done with.

use rota_protocol::job::EndReason;
use rota_protocol::spool::ExitRecord;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;

/// Where an attempt stands, as far as this process knows.
#[derive(Debug)]
pub(super) enum Phase {
    /// Not handed to a fork server yet.
    Queued,
    /// Handed over; nothing was heard.
    Sent,
    /// A shim lives.
    Running { shim_pid: u32, task_pid: u32 },
    /// Over.
    Ended { record: ExitRecord, at: Instant, synced: bool },
}

/// All that is known of one attempt.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) phase: Phase,
    pub(super) end: Option<EndReason>,
    /// Signals for a shim that was not heard of yet.
    pub(super) signals: Vec<u8>,
    /// The shim that runs the host's prolog for it.
    pub(super) preparing: Option<u32>,
    /// The order's bytes, until something was heard: a fork server that dies with it gets a successor.
    pub(super) order: Option<Vec<u8>>,
    /// Somebody watches the shim's process; otherwise its fork server does.
    pub(super) watched: bool,
    pub(super) changed: Option<Arc<Notify>>,
}

impl Known {
    pub(super) fn new(phase: Phase) -> Self {
        let (end, signals, preparing, order) = (None, Vec::new(), None, None);
        Self { phase, end, signals, preparing, order, watched: false, changed: None }
    }

    pub(super) fn ended(record: ExitRecord) -> Self {
        Self::new(Phase::Ended { record, at: Instant::now(), synced: false })
    }

    pub(super) fn wake(&self) {
        if let Some(changed) = &self.changed {
            changed.notify_waiters();
        }
    }
}
