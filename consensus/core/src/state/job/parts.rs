//! What a job's row is made of, besides numbers and sets: its class, its promise, its back-offs, the name of its end.

use rota_protocol::ask::Ask;
use rota_protocol::plan::{PromiseBreak, Slot};
use rota_protocol::queue::QueueId;
use rota_protocol::work::{GangSpec, Layout};
use serde::{Deserialize, Serialize};

/// A start that a waiting job was promised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// It starts no later than this log time.
    pub at_ms: u64,
    /// Since when it is promised.
    pub made_ms: u64,
    /// Where.
    pub slots: Vec<Slot>,
    /// With which of its asks.
    pub choice: u8,
    /// Attempts are being ended for it: the slots are its own as soon as they are free.
    pub evicting: bool,
    /// Why the promise before this one did not hold.
    pub broken_by: Option<PromiseBreak>,
}

/// Jobs that ask the same of the same hosts on the same account: if one of them does not fit, none does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClassKey {
    /// Whose account.
    pub queue: QueueId,
    /// Who pays: shares of a card are not lent across tenants.
    pub tenant: String,
    /// Who submitted it: a queue is shared by its users.
    pub user: String,
    /// What each task asks.
    pub ask: Ask,
    /// What would do as well.
    pub alternatives: Vec<Ask>,
    /// Parts that must start together.
    pub gang: Option<GangSpec>,
    /// How tasks lie to one another.
    pub layout: Layout,
    /// They take turns: a round may have seats for some of them and not for others.
    pub turns: bool,
}

/// A job's back-off from one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Avoid {
    /// Not placed there before this log time.
    pub until_ms: u64,
    /// How often it backed off from there.
    pub failures: u32,
}

/// How a gang ends for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangOver {
    /// A part failed.
    Failed,
    /// It was ended to make room, and is not to be queued again.
    Preempted,
}
