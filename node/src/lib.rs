//! The hands of Rota: actors, devices, processes, gossip, API, command line.

pub mod framing;

pub mod cli;
pub mod client;
pub mod devices;
pub mod doctor;
pub mod http;
pub mod meters;
pub mod notify;
pub mod parse;
pub mod table;

pub mod net;

pub mod io;
pub mod logic;
pub mod shim;
