//! Lives of processes. Three kinds of process share the work:
//!
//! - the agent, through [`ShimHost`]: orders launches, hears of ends, adopts what survived its own death;
//! - the fork server (`rota shimd`): one thread, no runtime; copies itself into a shim where none sits (`seats`). It dies
//!   with the agent;
//! - a shim, for one attempt at a time: keeps the attempt's record and output, holds the lease deadline, ends the task.
//!   It outlives the agent, and is gone soon after its attempt, unless another comes (`turns`).
//!
//! The files are the truth (`record`): messages between the processes only say where to look. A live attempt costs the
//! agent no connection and no descriptor: shims share one inherited socket for events, and are called by queued
//! signals through a pidfd.
//!
//! Nothing escapes by `setsid` or double forks: the shim is the subreaper of everything its task makes, and where the host
//! has control groups (`cage`) an attempt is over only when the kernel says that its group is empty.

mod adopt;
mod around;
pub mod bench;
pub mod cage;
mod calls;
mod conclude;
mod converse;
mod copy;
mod course;
mod expire;
mod hook;
mod host;
mod inside;
mod keep;
mod known;
mod lease_file;
mod link;
mod logs;
mod notes;
mod pieces;
mod processes;
mod program;
mod pump;
mod record;
mod removed;
mod retention;
mod seats;
mod server;
mod sessions;
mod spill;
mod spool;
mod streams;
mod terminal;
mod timer;
mod turns;
mod uplink;
mod warner;
mod wire;

pub use adopt::tell_adopted;
pub use host::{Adopted, LaunchError, ShimError, ShimHost, ShimNote};
pub use lease_file::{LeaseFile, LeaseReader};
pub use retention::KeepRules;
pub(crate) use seats::SIT;
pub use server::server_main;

/// The hidden argument that turns the binary into the fork server.
pub const SERVER_ARG: &str = "shimd";
/// Socket in the attempts folder on which an agent hears shims that an earlier agent launched.
const AGENT_SOCKET: &str = "agent.sock";
