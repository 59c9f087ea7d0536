//! Interactive sessions: a terminal on a task, or a command run inside a running one.
//!
//! A session is no stream: it is asked, call by call, and each call can be sent again. What is typed has an offset, so that
//! it is taken once; what comes out has one too, so that a reader goes on where it was. A connection that is lost, a peer
//! that dies in between, an agent that is restarted cost time and nothing else.
//!
//! Session 0 is the terminal of the task itself; any other number is drawn by whoever starts a command.

use crate::api::{LogChunk, OutputStream};
use crate::ids::{JobId, Token};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The session that is the task's own terminal.
pub const MAIN_SESSION: u64 = 0;
/// Most bytes that are typed in one call.
pub const INPUT_BYTES_MAX: usize = 16 << 10;
/// Most commands inside one attempt at once.
pub const SESSIONS_MAX: usize = 64;
/// Longest time, in ms, for which a session may be kept without a word of its client.
pub const HOLD_MS_MAX: u32 = 24 * 3_600 * 1_000;
/// Longest wait for output in one call, in ms.
pub const READ_WAIT_MS_MAX: u32 = 5_000;

/// A window, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

/// What a job says of its terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionSpec {
    /// Its first size.
    pub size: TerminalSize,
    /// The task is hung up when its client was not heard of for this long, in ms; none: it does not need one.
    pub hold_ms: Option<u32>,
}

/// What a client asks of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCall {
    /// Whose.
    pub job: JobId,
    /// Which task; 0 for a plain job.
    pub index: u32,
    /// Which attempt; the live one when absent.
    pub attempt: Option<Token>,
    /// Which session of it.
    pub session: u64,
    /// What.
    pub ask: SessionAsk,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionAsk {
    /// Run a command inside the attempt. Asked again, nothing is run again.
    Start {
        /// Program and arguments.
        argv: Vec<Vec<u8>>,
        /// On a terminal of this size; none: on pipes.
        terminal: Option<TerminalSize>,
        /// `TERM`, for a terminal.
        term: Vec<u8>,
    },
    /// Take what was typed; also how a client says that it is there.
    Send {
        /// Drawn by each client: several may sit at one terminal.
        client: u64,
        /// Of this client's first byte; what was taken before is skipped.
        offset: u64,
        /// What was typed.
        bytes: Vec<u8>,
        /// Nothing follows.
        last: bool,
        /// The window has this size.
        size: Option<TerminalSize>,
        /// Hang up after this long without a word, in ms. None: never (a command is then held for a time of its own).
        hold_ms: Option<u32>,
    },
    /// Give output.
    Read {
        /// Which.
        stream: OutputStream,
        /// From this byte on.
        offset: u64,
        /// Wait up to this long, in ms.
        wait_ms: u32,
    },
    /// Its client has all it wants: forget the output; a command that still runs is hung up.
    Close,
}

/// How a command inside an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEnd {
    /// It returned.
    Exited {
        /// Its exit code.
        code: u8,
    },
    /// A signal ended it.
    Signalled {
        /// The signal's number.
        signal: u8,
    },
    /// Its task ended, and it with it.
    WithTask,
    /// It could not be started.
    NotStarted {
        /// Why.
        reason: String,
    },
}

impl SessionEnd {
    /// What a shell would call its status.
    #[must_use]
    pub fn shell_status(&self) -> u8 {
        match self {
            Self::Exited { code } => *code,
            Self::Signalled { signal } => 128_u8.saturating_add(*signal),
            Self::WithTask => 125,
            Self::NotStarted { .. } => 127,
        }
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(f, "exit {code}"),
            Self::Signalled { signal } => write!(f, "signal {signal}"),
            Self::WithTask => f.write_str("its task ended"),
            Self::NotStarted { reason } => write!(f, "not started: {reason}"),
        }
    }
}

/// Where a session stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionNews {
    /// Of this attempt.
    pub attempt: Token,
    /// Typed bytes that were taken of the client that asks, from the first one on.
    pub taken: u64,
    /// Bytes of standard output so far; of a terminal, all that it showed.
    pub stdout: u64,
    /// Bytes of standard error so far.
    pub stderr: u64,
    /// What was read.
    pub chunk: Option<LogChunk>,
    /// How the command ended, once it has.
    pub end: Option<SessionEnd>,
}

impl SessionNews {
    /// Nothing happened yet.
    #[must_use]
    pub fn none(attempt: Token) -> Self {
        Self { attempt, taken: 0, stdout: 0, stderr: 0, chunk: None, end: None }
    }
}

/// Agent to shim, over the shim's session socket: one message for each, and one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimSessionCall {
    /// Which session.
    pub session: u64,
    /// What; output is read from the files.
    pub ask: SessionAsk,
}

/// What an order says of everything around the task itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LifeOrder {
    /// The job's user, for hooks.
    pub user: String,
    /// The host's own programs before and after.
    pub hooks: HookOrder,
    /// The task gets a terminal.
    pub session: Option<SessionSpec>,
    /// A task with a terminal that neither reads nor writes for this long is ended, in ms.
    pub idle_ms: Option<u64>,
}

/// The host's own programs around an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HookOrder {
    /// Run before the task; empty for none.
    pub prolog: Vec<u8>,
    /// Run after the last process of it is gone; empty for none.
    pub epilog: Vec<u8>,
    /// Each is killed after this time, in ms.
    pub timeout_ms: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_what_a_shell_would_say() {
        assert_eq!(SessionEnd::Exited { code: 7 }.shell_status(), 7);
        assert_eq!(SessionEnd::Signalled { signal: 9 }.shell_status(), 137);
        assert_eq!(SessionEnd::Signalled { signal: 200 }.shell_status(), 255);
        assert_eq!(SessionEnd::NotStarted { reason: "no such program".into() }.shell_status(), 127);
    }
}
