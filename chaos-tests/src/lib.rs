//! Doubt: simulator, fault injection and checkers for Rota. Nothing of the product depends on this crate.

pub mod report;
pub mod world;
