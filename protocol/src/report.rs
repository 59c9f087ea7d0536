//! What a host reports of its attempts: facts, at least once, idempotent by token.

use crate::cage::Used;
use crate::care::Release;
use crate::ids::Token;
use crate::job::AttemptEnd;
use serde::{Deserialize, Serialize};

/// One fact about one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptReport {
    /// Which attempt.
    pub token: Token,
    /// What happened.
    pub fact: AttemptFact,
}

/// What may happen to an attempt on its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptFact {
    /// A process runs.
    Started {
        /// Its process id, for people.
        pid: u32,
    },
    /// Every process of it is gone and its devices are clean.
    Ended {
        /// How.
        end: AttemptEnd,
        /// How long it ran, in ms of the host's monotonic clock.
        ran_ms: u64,
    },
    /// The same, with what the kernel counted of it.
    EndedWith {
        /// How.
        end: AttemptEnd,
        /// How long it ran, in ms of the host's monotonic clock.
        ran_ms: u64,
        /// What it used.
        used: Used,
    },
    /// How its cards were given back; told before its end.
    Released {
        /// The steps.
        release: Release,
    },
    /// Words for its owner.
    Noted {
        /// At most [`crate::limits::REASON_BYTES_MAX`] are kept.
        text: String,
    },
    /// It holds cards and does nothing with them.
    HeldIdle {
        /// Card-milliseconds of that since its start; a smaller figure than the last changes nothing.
        gpu_ms: u64,
    },
}
