//! What an answer to "why does it wait?" says beside its first fields.

use crate::data::StagingRow;
use crate::ids::JobId;
use serde::{Deserialize, Serialize};

/// Further parts of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WhyMore {
    /// The reservation whose end is the expected start.
    pub reservation: Option<String>,
    /// What the queues on its path hold and what is theirs by weight, nearest first.
    pub shares: Vec<WhyShare>,
    /// Its newest attempt was ended to make room, and nothing of it runs: what its owner was told.
    pub evicted: Option<String>,
    /// An array of which some tasks have started: how long others wait beside them is in `waits` as `runs`.
    pub partly: bool,
    /// What was granted and waits for its inputs.
    pub staging: Vec<StagingRow>,
    /// Who holds what it waits for, the first to go first; the first few.
    pub holders: Vec<WhyHolder>,
    /// How many more.
    pub more_holders: u32,
}

/// What one job holds on one host of what another waits for. Its number alone: whose it is may be nobody's business.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyHolder {
    /// Which.
    pub job: JobId,
    /// The host's name.
    pub host: String,
    /// When its limit, with its grace, is over, ms since the epoch; none if it has no limit.
    pub until_ms: Option<u64>,
    /// GPUs, in thousandths.
    pub gpu_milli: u64,
    /// It may be ended for a job of higher priority.
    pub preemptible: bool,
    /// It is being ended.
    pub ending: bool,
}

/// What one queue holds, against its siblings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyShare {
    /// Its path.
    pub queue: String,
    /// `gpus` or `cpus`, in thousandths.
    pub part: String,
    /// Held by the queue.
    pub held: u64,
    /// Held by the user in it.
    pub held_by_user: u64,
    /// What the hosts have.
    pub whole: u64,
    /// Its weight.
    pub weight: u32,
    /// The weights of all of its siblings that hold or want something, its own included.
    pub weights: u64,
    /// Users that hold something in it.
    pub users: u32,
}

/// What users held, as it is to be paid for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// Who pays.
    pub tenant: String,
    /// The user.
    pub user: String,
    /// The queue's path.
    pub queue: String,
    /// Card-milliseconds, from grant to release, those of what runs included.
    pub gpu_ms: u64,
    /// Core-milliseconds.
    pub cpu_ms: u64,
    /// Attempts.
    pub attempts: u64,
    /// Live attempts among them.
    pub live: Vec<JobId>,
}
