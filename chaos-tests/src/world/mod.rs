//! The simulator: the real state machine, planner and deciders of a host, on a perfect log, under a virtual clock,
//! with everything around them modelled and everything that can go wrong going wrong.
//!
//! Two phases: faults, in which nothing may happen that must not; then healing, after which everything must happen
//! that should. One seed decides everything: the same seed gives the same run, step by step. Single-threaded, no real
//! time, no hash maps, no tokio.
//!
//! Real here: `rota_core` (state, apply, planner, invariants, snapshots), `rota_node::logic` (lease, lease book,
//! reconcile, outbox, life, gang). Modelled: raft (`log`), network (`net`), machines, shims and processes (`host`, `shim`),
//! the pumps that the product's actors are (`agent`, `process`, `lead`), users (`client`). The witness (`oracle`) stands outside.

pub mod agent;
pub mod client;
pub mod clock;
pub mod host;
pub mod lead;
pub mod log;
pub mod nemesis;
pub mod net;
pub mod oracle;
pub mod params;
pub mod plant;
pub mod process;
pub mod propose;
pub mod queue;
pub mod reach;
pub mod rng;
pub mod settle;
pub mod shim;
pub mod sim;
pub mod sweep;
pub mod witness;
