//! What an attempt leaves on its host's disk, and what agent and shim say to each other.
//!
//! `<data>/attempts/<token>/`: `order` ([`LaunchOrder`]), `shim` ([`ShimRecord`]), `stdout`, `stderr` (raw bytes),
//! `exit` ([`ExitRecord`]), `ctl` (unix socket of the shim). Records are written beside and renamed, so that a
//! reader sees a whole one or none.

use crate::ids::{BootId, ClusterId, DeviceUuid, HostId, LeaseEpoch, TaskId, Token};
use crate::job::{AttemptEnd, EndReason};
use serde::{Deserialize, Serialize};

/// All that a shim needs to run one attempt. It has no choices left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOrder {
    /// The cluster.
    pub cluster: ClusterId,
    /// This host.
    pub host: HostId,
    /// The lease epoch under which it was granted.
    pub epoch: LeaseEpoch,
    /// The attempt.
    pub token: Token,
    /// The task.
    pub task: TaskId,
    /// Program and arguments.
    pub argv: Vec<Vec<u8>>,
    /// The whole environment, Rota's own variables included.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory.
    pub workdir: Vec<u8>,
    /// Run as, if the agent may change users.
    pub uid_gid: Option<(u32, u32)>,
    /// Granted devices.
    pub devices: Vec<DeviceUuid>,
    /// Longest run, in ms.
    pub time_limit_ms: Option<u64>,
    /// Time between TERM and KILL, in ms, when ended on request or by the time limit.
    pub grace_ms: u32,
    /// The part of the lease that killing may take, in ms (K): killing begins at `deadline - kill_budget_ms`.
    pub kill_budget_ms: u32,
    /// The file that holds the host's lease deadline.
    pub lease_path: Vec<u8>,
}

/// Who the shim and its task are; enough to find them again after the agent restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimRecord {
    /// The attempt.
    pub token: Token,
    /// The kernel's boot id.
    pub boot: BootId,
    /// The shim's process id.
    pub shim_pid: u32,
    /// The shim's start time, in clock ticks since boot (`/proc/<pid>/stat` field 22).
    pub shim_start_ticks: u64,
    /// The task's process id.
    pub task_pid: u32,
    /// The task's start time, in clock ticks since boot.
    pub task_start_ticks: u64,
}

/// How an attempt ended, written when its last process was gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The attempt.
    pub token: Token,
    /// How.
    pub end: AttemptEnd,
    /// How long it ran, in ms.
    pub ran_ms: u64,
}

/// Agent to shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShimCall {
    /// End the attempt: TERM, grace, KILL, for this reason.
    End {
        /// Why.
        reason: EndReason,
    },
    /// Send a signal to the task.
    Signal {
        /// Its number.
        signal: u8,
    },
    /// The log has the end of this attempt: the shim may go.
    Release,
}

/// Shim to agent, unasked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShimEvent {
    /// The task runs.
    Started(ShimRecord),
    /// Output grew to these lengths.
    Output {
        /// Bytes of standard output.
        stdout: u64,
        /// Bytes of standard error.
        stderr: u64,
    },
    /// Every process is gone.
    Ended(ExitRecord),
}
