//! The words of Rota: every byte that crosses a wire or a disk, and one codec for them.
//!
//! What this crate is not: it decides nothing. No IO, no clock, no async, no policy. Types are grown by appending
//! (enum variants at the end, new formats beside old ones); `tests/golden/` holds bytes that must decode for ever, `v1`
//! the old layouts that read them.
//!
//! Units are integers and stand last in a name: `_mib` (2^20 bytes), `_milli` (thousandths), `_ms` (milliseconds),
//! `_permille`. Wall times are `_ms` since the Unix epoch, stamped by whoever proposes and clamped monotone by the log.

mod access;
pub mod api;
pub mod around;
pub mod ask;
pub mod attempt;
pub mod bytes;
pub mod cage;
pub mod care;
pub mod change;
pub mod codec;
pub mod command;
pub mod container;
pub mod data;
pub mod device;
mod device_detail;
pub mod error;
mod filter;
pub mod follow;
pub mod frame;
pub mod gossip;
pub mod health;
pub mod ids;
pub mod job;
pub mod lead;
pub mod limits;
pub mod members;
pub mod output;
pub mod pace;
pub mod peer;
pub mod plan;
pub mod queue;
pub mod report;
pub mod reservation;
pub mod secret;
pub mod session;
pub mod spool;
pub mod trust;
pub mod v1;
pub mod version;
pub mod view;
pub mod why;
pub mod why_more;
pub mod work;

pub use error::{ErrorCode, PublicError};
pub use ids::{BootId, ClusterId, DeviceUuid, HostId, JobId, LeaseEpoch, RequestId, TaskId, Token};
pub use queue::QueueId;
