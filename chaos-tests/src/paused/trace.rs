//! What happened, as one number: equal runs have equal ones. With lines for a person who asks.

use rota_protocol::HostId;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Lines that are kept.
const LINES_MAX: usize = 4_000;

struct Inner {
    began: Instant,
    hash: u64,
    lines: Option<VecDeque<String>>,
    counts: BTreeMap<String, u64>,
}

/// The trace of a run. Clones share it.
#[derive(Clone)]
pub(super) struct Trace(Arc<Mutex<Inner>>);

impl Trace {
    /// An empty one; `talks` keeps lines.
    pub(super) fn new(seed: u64, talks: bool) -> Self {
        let lines = talks.then(VecDeque::new);
        Self(Arc::new(Mutex::new(Inner {
            began: Instant::now(),
            hash: seed,

            lines,
            counts: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Virtual time since the beginning, in ms.
    pub(super) fn now_ms(&self) -> u64 {
        let elapsed = self.lock().began.elapsed();
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Something happened.
    pub(super) fn note(&self, what: impl Display) {
        let now = self.now_ms();
        let text = format!("{now:>7} {what}");
        let mut inner = self.lock();
        for byte in text.bytes() {
            inner.hash = (inner.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if let Some(lines) = &mut inner.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(text);
        }
    }

    /// Something went from one host to another.
    pub(super) fn hop(&self, what: &str, from: HostId, to: HostId) {
        let now = self.now_ms();
        let mut inner = self.lock();
        for number in [now, from.0, to.0, what.len() as u64] {
            inner.hash = (inner.hash.rotate_left(7) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    /// Something was met that runs should meet.
    pub(super) fn met(&self, what: &str, times: u64) {
        *self.lock().counts.entry(what.to_owned()).or_default() += times;
    }

    /// What was met, and how often.
    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        self.lock().counts.clone()
    }

    /// The number.
    pub(super) fn hash(&self) -> u64 {
        self.lock().hash
    }

    /// The last lines.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lock().lines.iter().flatten().cloned().collect()
    }
}
