//! Doubt: simulator, fault injection and checkers for Rota. Nothing of the product depends on this crate.

pub mod paused;
pub mod real;
pub mod report;
pub mod table;
pub mod world;
