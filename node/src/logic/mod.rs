//! Deciders without IO: they are told what happened and when, and answer what is to be done. Actors drive them in the
//! product, the simulator drives the same code under a virtual clock.
//!
//! Absent on purpose: tokio, ractor, files, sockets, clocks. Every `now_ms` is an argument, in ms of the machine's
//! boot-time clock (`CLOCK_BOOTTIME`), whose origin differs from host to host and is never compared between hosts.

pub mod attempts;
pub mod audit;
pub mod autopilot;
pub mod cards;
pub mod container;
pub mod dirt;
pub mod door;
pub mod drift;
pub mod duty;
pub mod env;
pub mod gang;
pub mod gather;
pub mod granted;
pub mod health;
pub mod idle;
pub mod lead;
pub mod lease;
pub mod lease_book;
pub mod ledger;
pub mod life;
pub mod outbox;
pub mod output;
pub mod own_drain;
pub mod reclaim;
pub mod reconcile;
pub mod renewal;
pub mod shelf;
pub mod storage;
pub mod strangers;
pub mod vram;

/// Planted bugs, for proving that the harness sees them (fault I24). All false in the product.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// The leader acknowledges a renewal before a quorum confirmed that it still leads.
    pub ack_renewal_at_once: bool,
    /// The leader expires a lease from its own timer, without confirming its quorum after it.
    pub expire_without_quorum: bool,
    /// The holder counts its lease from the time of the acknowledgement instead of the time it asked.
    pub count_from_ack: bool,
}
