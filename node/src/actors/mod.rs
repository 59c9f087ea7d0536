//! The actor tree. An actor translates messages, calls pure code and carries out what it says; who supervises whom
//! stands in `boot::TABLE`.

pub mod api;
pub mod attempt;
pub mod auditor;
pub mod certifier;
pub mod device;
pub mod devices;
pub mod door;
pub(crate) mod early;
pub mod failpoint;
pub mod gossip;
pub mod health;
pub mod leases;
pub mod meter;
mod order;
pub mod raft;
pub mod reconciler;
pub mod renewer;
pub mod restart;
mod returning;
pub mod root;
pub mod scheduler;
mod stains;
mod telling;
pub mod warden;
