//! Attempts: where a live one stands, why it is to end, and how it may have ended.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a live attempt stands: Granted -> Running -> Ending, any of them -> ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AttemptState {
    /// Holds its devices; the host has not reported a process yet.
    Granted,
    /// The host reported its process.
    Running,
    /// To be ended; holds its devices until the host proves it gone.
    Ending,
}

/// Why a live attempt is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EndReason {
    /// The user or an operator cancelled it.
    Cancel,
    /// Something more urgent needs its devices.
    Preempt,
    /// Another part of its gang is gone.
    Gang,
    /// Its host is being drained.
    Drain,
    /// It is to run elsewhere, so that something wide finds room.
    Move,
    /// A queue takes back what it was promised.
    Reclaim,
    /// Its queue's ceiling was lowered.
    Ceiling,
    /// Its device or its host is broken.
    Device,
    /// Its program failed on its device by its own doing.
    Program,
    /// It used more of a shared card's memory than it asked for.
    Vram,
    /// The service through which it shared its card died.
    SharedFault,
    /// It held its cards idle, and was warned.
    Idle,
    /// Its turn is over: it goes on later, or on another model.
    Turn,
}

impl EndReason {
    /// The end of an attempt that was ended for this reason.
    #[must_use]
    pub fn end(self) -> AttemptEnd {
        match self {
            Self::Cancel => AttemptEnd::Cancelled,
            Self::Gang => AttemptEnd::GangBroken,
            Self::Preempt | Self::Drain | Self::Move | Self::Reclaim | Self::Ceiling | Self::Turn => {
                AttemptEnd::Preempted
            }
            // The state puts in what was found.
            Self::Device => AttemptEnd::DeviceFault { reason: String::new() },
            Self::Program => AttemptEnd::ProgramFault { reason: String::new() },
            // The log puts the figures in.
            Self::Vram => AttemptEnd::VramLimit { asked_mib: 0, used_mib: 0 },
            Self::SharedFault => AttemptEnd::SharedFault,
            Self::Idle => AttemptEnd::Idle { idle_ms: 0 },
        }
    }

    /// The task is to run again: its end is no one's fault.
    #[must_use]
    pub fn is_eviction(self) -> bool {
        !matches!(
            self,
            Self::Cancel
                | Self::Gang
                | Self::Device
                | Self::Program
                | Self::Vram
                | Self::SharedFault
                | Self::Idle
        )
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancel => "cancel",
            Self::Preempt => "preempt",
            Self::Gang => "gang",
            Self::Drain => "drain",
            Self::Move => "move",
            Self::Reclaim => "reclaim",
            Self::Ceiling => "ceiling",
            Self::Device => "device",
            Self::Program => "program",
            Self::Vram => "vram",
            Self::SharedFault => "shared_fault",
            Self::Idle => "idle",
            Self::Turn => "turn",
        })
    }
}

/// How an attempt ended. Exactly one for each attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AttemptEnd {
    /// The process returned.
    Exited {
        /// Its exit code, 0 to 255.
        code: u8,
    },
    /// A signal ended the process, not one that Rota sent.
    Signalled {
        /// The signal's number.
        signal: u8,
    },
    /// Ended by its time limit.
    TimeLimit,
    /// Ended on request.
    Cancelled,
    /// Ended to make room; runs again.
    Preempted,
    /// The host could not start it; not the user's fault.
    LaunchFailed {
        /// The host's words.
        reason: String,
    },
    /// Its shim ended it because the host's lease ran out.
    Fenced,
    /// The host's lease expired in the log, or the host came back under a new boot id.
    Lost,
    /// The host found neither its process nor a record of its end; whatever was left was ended.
    Vanished {
        /// What the host found.
        reason: String,
    },
    /// The task asked to be queued again.
    Requeued {
        /// Its exit code.
        code: u8,
    },
    /// Ended because another part of its gang was gone; runs again with it, or ends with it.
    GangBroken,
    /// Ended in order because its host was shut down: planned, and nobody's fault.
    HostStopped,
    /// Its device or its host failed; not the user's fault, runs again elsewhere.
    DeviceFault {
        /// What was found.
        reason: String,
    },
    /// The driver says that the program did something wrong on its device; the device is well.
    ProgramFault {
        /// What was found.
        reason: String,
    },
    /// The kernel killed a process of it because its memory limit was reached, and it did not succeed.
    OutOfMemory {
        /// The limit, in MiB.
        limit_mib: u64,
        /// The greatest use, in MiB.
        peak_mib: u64,
    },
    /// Ended because it used more of a shared card's memory than it asked for.
    VramLimit {
        /// In MiB.
        asked_mib: u64,
        /// In MiB.
        used_mib: u64,
    },
    /// Ended because the service through which it shared its card died; runs again.
    SharedFault,
    /// Ended because it held its cards idle.
    Idle {
        /// For how long, in ms.
        idle_ms: u64,
    },
    /// Its inputs could not be had on its host; nothing was started.
    InputsMissing {
        /// No host of the cluster has them: nothing that another host could help with.
        nowhere: bool,
        /// Which, and why.
        reason: String,
    },
    /// The host could not start it for a reason that lies in the job: tried on a few hosts, then the job is over.
    CannotStart {
        /// As a shell has it: 126 or 127.
        code: u8,
        /// The host's words.
        reason: String,
    },
}

impl AttemptEnd {
    /// The task did what it was asked.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Exited { code: 0 })
    }

    /// The host's words, if nothing was started.
    #[must_use]
    pub fn unstarted(&self) -> Option<&str> {
        match self {
            Self::LaunchFailed { reason }
            | Self::InputsMissing { reason, .. }
            | Self::CannotStart { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// The end counts against the user's retries (a host's fault and a preemption do not).
    #[must_use]
    pub fn is_users(&self) -> bool {
        use AttemptEnd::{
            Exited, Idle, InputsMissing, OutOfMemory, ProgramFault, Signalled, TimeLimit, VramLimit,
        };
        matches!(
            self,
            Exited { .. }
                | Signalled { .. }
                | TimeLimit
                | ProgramFault { .. }
                | OutOfMemory { .. }
                | VramLimit { .. }
                | Idle { .. }
                | InputsMissing { nowhere: true, .. }
        )
    }

    /// What a shell would call its status: the code, 128 + signal, or a code of Rota's own.
    #[must_use]
    pub fn shell_status(&self) -> u8 {
        match self {
            Self::Exited { code } | Self::CannotStart { code, .. } => *code,
            Self::Signalled { signal } => 128_u8.saturating_add(*signal),
            Self::TimeLimit => 124,
            Self::OutOfMemory { .. } => 137,
            Self::Cancelled => 130,
            Self::Preempted => 123,
            Self::Requeued { code } => *code,
            Self::LaunchFailed { .. } | Self::InputsMissing { .. } => 127,
            Self::ProgramFault { .. } | Self::VramLimit { .. } | Self::Idle { .. } => 120,
            Self::Fenced
            | Self::Lost
            | Self::Vanished { .. }
            | Self::GangBroken
            | Self::HostStopped
            | Self::SharedFault
            | Self::DeviceFault { .. } => 125,
        }
    }
}

impl fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(f, "exit {code}"),
            Self::Signalled { signal } => write!(f, "signal {signal}"),
            Self::TimeLimit => f.write_str("time limit"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Preempted => f.write_str("preempted"),
            Self::LaunchFailed { reason } => write!(f, "launch failed: {reason}"),
            Self::CannotStart { reason, .. } => write!(f, "cannot start: {reason}"),
            Self::Fenced => f.write_str("fenced: the host lost contact"),
            Self::Lost => f.write_str("lost: the host was declared gone"),
            Self::Vanished { reason } => write!(f, "vanished: {reason}"),
            Self::Requeued { code } => write!(f, "asked to be queued again (exit {code})"),
            Self::GangBroken => f.write_str("ended with its gang"),
            Self::HostStopped => f.write_str("ended while its host was shut down"),
            Self::DeviceFault { reason } => write!(f, "its device failed: {reason}"),
            Self::ProgramFault { reason } => write!(f, "its program failed on the device: {reason}"),
            Self::OutOfMemory { limit_mib, peak_mib } => {
                write!(f, "out of memory: used {peak_mib} MiB of {limit_mib} MiB")
            }
            Self::VramLimit { asked_mib, used_mib } => {
                write!(f, "vram limit: asked {}, used {}", Mib(*asked_mib), Mib(*used_mib))
            }
            Self::SharedFault => f.write_str("shared GPU fault"),
            Self::InputsMissing { reason, .. } => write!(f, "its inputs are missing: {reason}"),
            Self::Idle { idle_ms } => write!(f, "held its cards idle for {} min", idle_ms / 60_000),
        }
    }
}

/// MiB, or GiB where it comes out even.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            mib if mib > 0 && mib.is_multiple_of(1_024) => write!(f, "{} GiB", mib / 1_024),
            mib => write!(f, "{mib} MiB"),
        }
    }
}
