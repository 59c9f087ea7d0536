//! Delivery of a warning: to every process of the task that is ready for it, each once.
//!
//! A process is ready when it catches the signal or holds it back to fetch it: sent to one that does neither, a warning
//! would end it. That matters for shells and launchers, which stand above the program and know nothing of it, and for
//! programs that are still starting. So whoever was not ready is looked at again: often at first, then, as long as
//! nobody at all was ready, now and then.

use super::processes::Processes;
use rota_protocol::work::Warning;
use std::collections::BTreeSet;

/// Pause between two looks at first, in ms: a program hears within this of being ready.
const LOOK_MS: u64 = 100;
/// For how long, in ms.
const LOOKS_OFTEN_MS: u64 = 5_000;
/// Pause between two looks later, in ms.
const LOOK_LATER_MS: u64 = 1_000;

/// One attempt's warnings.
#[derive(Debug)]
pub(super) struct Warner {
    warning: Option<Warning>,
    since_ms: Option<u64>,
    due_ms: u64,
    told: BTreeSet<(i32, u64)>,
}

impl Warner {
    pub(super) fn new(warning: Option<Warning>) -> Self {
        Self { warning, since_ms: None, due_ms: 0, told: BTreeSet::new() }
    }

    /// A warning is due, of an end that nobody was told of.
    pub(super) fn begin(&mut self, now_ms: u64) {
        self.since_ms = Some(now_ms);
        self.due_ms = now_ms;
        self.told.clear();
    }

    /// What follows needs no warning any more.
    pub(super) fn stop(&mut self) {
        self.since_ms = None;
    }

    /// When [`Self::look`] is to be called next, in ms.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.since_ms.map(|_| self.due_ms)
    }

    /// Warns whoever is ready now.
    pub(super) fn look(&mut self, processes: &Processes, now_ms: u64) {
        let (Some(since_ms), Some(warning)) = (self.since_ms.filter(|_| now_ms >= self.due_ms), self.warning)
        else {
            return;
        };
        processes.warn(warning.signal, warning.leader_only, &mut self.told);
        let often = now_ms.saturating_sub(since_ms) < LOOKS_OFTEN_MS;
        self.due_ms = now_ms + if often { LOOK_MS } else { LOOK_LATER_MS };
        let leader_told = warning.leader_only && !self.told.is_empty();
        if leader_told || (!often && !self.told.is_empty()) {
            self.stop();
        }
    }
}
