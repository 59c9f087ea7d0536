//! How a command fails: what is printed and which status the process ends with.

use rota_protocol::{ErrorCode, PublicError};
use serde_json::json;
use std::fmt;
use std::io;

/// The user wrote something that cannot be accepted; the same command will never succeed.
pub const STATUS_INVALID: u8 = 2;
/// Everything else.
pub const STATUS_FAILED: u8 = 1;
/// The reader of standard output has gone, as a shell calls it (128 + PIPE).
pub const STATUS_CLOSED_OUTPUT: u8 = 141;
/// Ended by the user's interrupt (128 + INT).
pub const STATUS_INTERRUPTED: u8 = 130;
/// The job's end is not known.
pub const STATUS_LOST: u8 = 125;

/// The job was ended by its time limit, as `timeout` calls it.
pub const STATUS_TIME_LIMIT: u8 = 124;
/// The job was ended to make room, for good.
pub const STATUS_PREEMPTED: u8 = 123;
/// The job never started: a job that it waited for ended otherwise than asked.
pub const STATUS_DEPENDENCY: u8 = 122;
/// The job never started before its deadline.
pub const STATUS_DEADLINE: u8 = 121;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Refused by the parser or the cluster.
    Refused(PublicError),
    /// Anything else, in words.
    Other(String),
    /// Everything was said already.
    Quiet(u8),
}

impl Failure {
    /// A failure in words.
    pub fn other(why: impl fmt::Display) -> Self {
        Self::Other(why.to_string())
    }

    /// The process's exit status.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Refused(error) => match error.code {
                ErrorCode::Invalid | ErrorCode::TooLarge => STATUS_INVALID,
                _ => STATUS_FAILED,
            },
            Self::Other(_) => STATUS_FAILED,
            Self::Quiet(status) => *status,
        }
    }

    /// What goes to standard error, if anything: one line, or one JSON document.
    #[must_use]
    pub fn report(&self, as_json: bool) -> Option<String> {
        match self {
            Self::Refused(error) if as_json => Some(json!({ "error": error_json(error) }).to_string()),
            Self::Refused(error) => Some(format!("error: {}", crate::table::clean(&error.to_string()))),
            Self::Other(message) if as_json => {
                Some(json!({ "error": { "code": "failed", "message": message } }).to_string())
            }
            Self::Other(message) => Some(format!("error: {}", crate::table::clean(message))),
            Self::Quiet(_) => None,
        }
    }
}

/// An error as programs read it.
#[must_use]
pub fn error_json(error: &PublicError) -> serde_json::Value {
    json!({
        "code": error.code.to_string(),
        "field": error.field,
        "message": error.message,
        "example": error.example,
        "retry_after_ms": error.retry_after_ms,
    })
}

impl From<PublicError> for Failure {
    fn from(error: PublicError) -> Self {
        Self::Refused(error)
    }
}

/// A write to standard output failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Quiet(STATUS_CLOSED_OUTPUT),
            _ => Self::Other(format!("cannot write: {error}")),
        }
    }
}
