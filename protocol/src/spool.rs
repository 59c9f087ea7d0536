//! What an attempt leaves on its host's disk, and what agent and shim say to each other.
//!
//! `<data>/attempts/`: `<token>.record` (a [`ShimRecord`], then an [`ExitRecord`], each with length and checksum, so
//! that a torn one is seen), `<token>.stdout`, `<token>.stderr` (raw bytes from the first one on; made with it). The shim
//! holds a lock on its record for as long as it lives: the lock proves that the process named there is the one meant.
//! A stream that grows past its head goes on in `<token>.more/stdout.<offset>`, each file named by the position of its
//! first byte; what no file covers was not kept.
//!
//! `<data>/tasks/<token>-<random>.<name>`, while a task runs: [`NOTICE_NAME`] and [`GANG_NAME`] are written for the task
//! to read, each replaced as a whole, lines of `name=value`; [`REQUEUE_NAME`] is made by the task, and of it only the
//! presence counts.

use crate::around::Around;
use crate::cage::{Cage, Used};
use crate::ids::{BootId, ClusterId, DeviceUuid, HostId, LeaseEpoch, TaskId, Token};
use crate::job::{AttemptEnd, EndReason};
use crate::output::OutputOrder;
use crate::session::LifeOrder;
use crate::work::Warning;
use serde::{Deserialize, Serialize};

/// Name of the file that says why and by when the task is to end.
pub const NOTICE_NAME: &str = "notice";
/// Name of the file by which the task asks to be queued again.
pub const REQUEUE_NAME: &str = "requeue";
/// Name of the file that says who the present parts of the task's gang are.
pub const GANG_NAME: &str = "gang";

/// All that a shim needs to run one attempt. It has no choices left. Agent and shim are of one build, so that fields
/// may be added here, at the end.
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
    /// The beginning of the paths of the task's notes, `<data>/tasks/<token>-<random>`.
    pub notes_base: Vec<u8>,
    /// A signal before an end that Rota brings about.
    pub warning: Option<Warning>,
    /// Exit status by which the task asks to be queued again.
    pub requeue_status: Option<u8>,
    /// First content of [`GANG_NAME`]; empty if the task is no part of a gang.
    pub gang: Vec<u8>,
    /// Its output and input.
    pub output: OutputOrder,
    /// Hooks, terminal.
    pub life: LifeOrder,
    /// What it has around its program.
    pub around: Around,
    /// What bounds it.
    pub cage: Cage,
    /// The folder of its inputs; empty for none.
    pub inputs: Vec<u8>,
}

/// Who keeps an attempt, written before its task starts: whoever finds the record knows that the token was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimRecord {
    /// The cluster.
    pub cluster: ClusterId,
    /// The attempt.
    pub token: Token,
    /// The lease epoch under which it was granted.
    pub epoch: LeaseEpoch,
    /// The kernel's boot id.
    pub boot: BootId,
    /// The shim's process id; meant only while the record is locked.
    pub shim_pid: u32,
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
    /// Length of standard output, bytes that were not kept included: the position of its end.
    pub stdout_bytes: u64,
    /// Length of standard error.
    pub stderr_bytes: u64,
    /// Bytes of both that were not kept because a stream passed its limit or its rate, or the disk refused them.
    pub dropped_bytes: u64,
    /// What the kernel counted.
    pub used: Used,
}

impl ExitRecord {
    /// The end of an attempt that never ran and said nothing.
    #[must_use]
    pub fn never_ran(token: Token, end: AttemptEnd) -> Self {
        let used = Used::default();
        Self { token, end, ran_ms: 0, stdout_bytes: 0, stderr_bytes: 0, dropped_bytes: 0, used }
    }
}

/// Agent to shim: small enough to travel as the value of a queued signal, so that a live attempt needs no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShimCall {
    /// End the attempt: TERM, grace, KILL, for this reason.
    End {
        /// Why.
        reason: EndReason,
    },
    /// Send a signal to every process of the attempt.
    Signal {
        /// Its number.
        signal: u8,
    },
    /// A new agent listens: connect to it and say where the attempt stands.
    Attach,
    /// Open the socket for sessions.
    Sessions,
}

/// Shim to agent, unasked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShimEvent {
    /// The task runs. Left out when it ended within the first few milliseconds.
    Started {
        /// The shim.
        shim_pid: u32,
        /// The task's first process.
        task_pid: u32,
    },
    /// Output grew to these lengths.
    Output {
        /// Bytes of standard output.
        stdout: u64,
        /// Bytes of standard error.
        stderr: u64,
    },
    /// Every process is gone.
    Ended(ExitRecord),
    /// Processes are left although they were killed (a driver holds them): their devices are not free.
    Stuck {
        /// How many.
        left: u32,
    },
    /// From the fork server: the shim itself died, and what it left behind was ended.
    ShimDied,
    /// The token was used before: nothing was started.
    Exists,
    /// The task does not run yet: the host's prolog does.
    Preparing {
        /// The shim.
        shim_pid: u32,
    },
    /// The host's epilog failed or took too long.
    EpilogFailed {
        /// What it said.
        reason: String,
    },
    /// A session's output grew, or it ended; its files say more.
    Session,
}
