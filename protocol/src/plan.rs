//! What the leader's planner proposes. A plan leaves no choice to whoever executes it.

use crate::ids::{DeviceUuid, HostId, LeaseEpoch, TaskId};
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
}
