//! Behaviour of the brain, seen from outside: scripts with their full trace, properties over arbitrary commands,
//! and the field reports and fault rows that this crate answers. One binary, so that it links once.

mod explain;
mod golden;
mod lab;
mod life;
mod planner;
mod policy;
mod props;
mod rules;
mod scripts;
mod views;
