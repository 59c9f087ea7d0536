//! Logs of batch machines, replayed on equal processors.

pub mod draw;
pub mod log;
