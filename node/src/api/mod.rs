//! The server side of the API: who calls, what they may do, what they hear.
//!
//! One session per connection (unix socket or QUIC), one task per call, so that a slow call never holds up a fast
//! one. Writes go through agreement, reads are confirmed by a quorum unless the caller says `Stale`.

pub mod caller;
pub mod log_source;
mod logs;
mod notes;
pub mod read;
pub mod session;
pub mod sessions;
mod staging;
mod together;
mod trust;
mod write;

use rota_protocol::error::{ErrorCode, PublicError};
use std::time::Duration;

/// How long a write may take before its outcome is told to be unknown: a failover and a half.
pub const WRITE_DEADLINE: Duration = Duration::from_millis(4_000);
/// How long a linearizable read may take.
pub const READ_DEADLINE: Duration = Duration::from_millis(4_000);

/// The same answer for what does not exist and what is not the caller's to see.
#[must_use]
pub fn not_found(what: &str, name: &str) -> PublicError {
    PublicError {
        field: Some(what.to_owned()),
        ..PublicError::new(ErrorCode::NotFound, format!("no {what} {name}"))
    }
}
