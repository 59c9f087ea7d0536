//! Replays of traces against the production scheduler, in virtual time and from a seed. What is scheduled here is a
//! `rota_core::State`, planned by `rota_core::placement`; this crate reads traces, moves the clock, plays the hosts
//! and counts. No sockets, no async: it builds in seconds and runs in the CLI as `rota sim`.

pub mod bench;
pub mod chart;
pub mod cluster;
pub mod field;
pub mod gavel;
pub mod input;
pub mod openb;
pub mod replay;
pub mod rng;
pub mod shockwave;
pub mod swf;
pub mod threads;
