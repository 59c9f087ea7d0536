//! What the leader's planner proposes. A plan leaves no choice to whoever executes it.

use crate::ids::{DeviceUuid, HostId, JobId, LeaseEpoch, TaskId, Token};
use crate::job::EndReason;
use serde::{Deserialize, Serialize};

/// One round's decisions. Apply re-checks each move and accepts or refuses it on its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The log index that the planner saw.
    pub seen_index: u64,
    /// In order; a later move may rest on an earlier one.
    pub moves: Vec<Move>,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Move {
    /// Start a task.
    Place {
        /// Which task.
        task: TaskId,
        /// Where.
        host: HostId,
        /// The lease epoch of the host that the planner saw; another one refuses the move.
        epoch: LeaseEpoch,
        /// Exactly these devices.
        devices: Vec<DeviceUuid>,
    },
    /// Start several tasks of one job: all of them or none. The way in which gangs start and grow.
    Start {
        /// Whose.
        job: JobId,
        /// Which of the job's asks: 0 for `ask`, then its alternatives.
        choice: u8,
        /// Task by task.
        parts: Vec<Part>,
    },
    /// End attempts so that a job, or nobody in particular, finds room. All of them or none; accepted only if the
    /// slots are free once the victims are gone.
    Evict {
        /// For whom; none when a host is drained or a ceiling was lowered.
        job: Option<JobId>,
        /// Why, as the victims hear it.
        reason: EndReason,
        /// The attempts to be ended.
        victims: Vec<Token>,
        /// Where the job will start, and with which of its asks.
        slots: Vec<Slot>,
        /// Which of the job's asks the slots are for.
        choice: u8,
    },
    /// Promise a waiting job that it starts no later than a stated time, in stated slots.
    Promise {
        /// Which job.
        job: JobId,
        /// The latest start, ms since the epoch.
        at_ms: u64,
        /// Where, and with which of its asks.
        slots: Vec<Slot>,
        /// Which of the job's asks the slots are for.
        choice: u8,
        /// Why an earlier promise to the same job no longer holds; none for a first one, or for an earlier start.
        broken_by: Option<PromiseBreak>,
    },
    /// Give up a waiting job whose deadline has passed.
    Lapse {
        /// Which job.
        job: JobId,
    },
}

/// One task of a `Start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Array index or rank.
    pub index: u32,
    /// Where.
    pub host: HostId,
    /// The lease epoch of the host that the planner saw.
    pub epoch: LeaseEpoch,
    /// Exactly these devices.
    pub devices: Vec<DeviceUuid>,
}

/// Room for one task on one host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// Where.
    pub host: HostId,
    /// Which devices.
    pub devices: Vec<DeviceUuid>,
}

/// Why a promised start moved later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PromiseBreak {
    /// A host of it was lost, drained or suspended, or a device of it is not healthy.
    HostGone,
    /// A job of higher standing came before it.
    Outranked,
    /// Work that it waited for ran on past its limit while being ended.
    Overrun,
    /// A host of it was reserved for others at that time since.
    Reserved,
}

/// Why apply refused a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// The task no longer waits.
    NotPending,
    /// No such host, it is gone, or its epoch moved.
    HostGone,
    /// The host takes no new work.
    HostDraining,
    /// The ask does not fit what is free there now.
    DoesNotFit,
    /// The job's cap on parallel tasks is reached.
    ParallelCap,
    /// A queue or user would be above its ceiling.
    OverCeiling,
    /// Not a number of parts with which the gang may run.
    GangSize,
    /// A victim is not live, or may not be ended for this.
    NotEvictable,
    /// The job was evicted too often within the hour.
    EvictedTooOften,
    /// The hosts are reserved for others at that time.
    Reserved,
    /// The host has no free ports left for a gang to meet at.
    NoPorts,
    /// The job may not start yet: held, too early, or something it waits for is not over.
    NotYet,
    /// A victim's queue lets it run longer before it may be ended to make room.
    RanTooShort,
}
