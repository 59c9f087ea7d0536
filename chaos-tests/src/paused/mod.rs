//! Rung 2: the real agreement - openraft, log, snapshots, wire - of several peers in one process, over the product's own QUIC
//! with mutual TLS on sockets in memory, on disks that forget, under a paused clock. One seed is one run.
//!
//! Real here: all of `rota_consensus` and below, and `rota_node::net`. Modelled: datagrams (`air`, `socket`), what a disk keeps
//! (`disk`), machines that go off and on (`peer`), users (`client`). Outside stand the checkers: laws of agreement
//! (`laws`), histories (`history`, `linear`), streams of events (`streams`).
//!
//! What varies from run to run, and is kept out of the trace: keys, certificates and signatures come from the system's random
//! numbers, so the bytes of datagrams differ, and the length of some by a byte or two. When they are sent, how many there
//! are and where they go does not.

mod air;
mod client;
pub mod command;
mod desk;
mod direct;
mod disk;
mod history;
mod lab;
mod laws;
mod linear;
mod peer;
mod plant;
pub mod rows;
mod socket;
mod steward;
pub mod storm;
mod streams;
pub mod table;
mod trace;
mod verdict;

pub use peer::Way;
pub use plant::Plant;
