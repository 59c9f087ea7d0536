//! Errors that cross a wire: a code for programs, a message for people.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What kind of refusal it is. Appended only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ErrorCode {
    /// A field's value cannot be accepted; the same request will never succeed.
    Invalid,
    /// No such thing, or not yours to see.
    NotFound,
    /// No valid credentials.
    Unauthenticated,
    /// Valid credentials, too few rights.
    Forbidden,
    /// The thing is not in a state that allows this.
    Conflict,
    /// Too much is queued; try again after `retry_after_ms`.
    Busy,
    /// No leader with a quorum is known right now; try again.
    NoLeader,
    /// The answer was lost: the request may or may not have been carried out. Retry with the same request id.
    Unknown,
    /// A limit of size or count was passed.
    TooLarge,
    /// The two sides speak no common version.
    Version,
    /// The disk refused a write.
    StorageFull,
    /// A defect of Rota.
    Internal,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Conflict => "conflict",
            Self::Busy => "busy",
            Self::NoLeader => "no_leader",
            Self::Unknown => "unknown",
            Self::TooLarge => "too_large",
            Self::Version => "version",
            Self::StorageFull => "storage_full",
            Self::Internal => "internal",
        })
    }
}

/// What a client is told. What the log says is another field elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct PublicError {
    /// For programs.
    pub code: ErrorCode,
    /// Path of the field at fault, such as `ask.vram`.
    pub field: Option<String>,
    /// Lower case, no full stop; names the value at fault.
    pub message: String,
    /// A value that would be accepted.
    pub example: Option<String>,
    /// When to try again, in ms, for `Busy` and `NoLeader`.
    pub retry_after_ms: Option<u32>,
}

impl PublicError {
    /// An error with a code and a message only.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, field: None, message: message.into(), example: None, retry_after_ms: None }
    }

    /// A field's value cannot be accepted: which, why, and a value that would be.
    #[must_use]
    pub fn invalid(field: &str, message: impl Into<String>, example: &str) -> Self {
        Self {
            field: Some(field.to_owned()),
            example: Some(example.to_owned()),
            ..Self::new(ErrorCode::Invalid, message)
        }
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, ms: u32) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }
}

impl fmt::Display for PublicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(example) = &self.example {
            write!(f, " (for example: {example})")?;
        }
        if let Some(ms) = self.retry_after_ms {
            write!(f, " (try again in {ms} ms)")?;
        }
        Ok(())
    }
}
