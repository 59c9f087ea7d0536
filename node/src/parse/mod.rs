//! The one parser: whatever a person writes about a job, whether as flags, in a spec file, in a script's header, over
//! HTTP or on a web page, comes through here, so that the same text gives the same stored value everywhere.
//!
//! - [`amount`]: memory, CPUs, GPUs, counts; [`time`]: lengths of time; [`moment`]: points in time; [`word`]: arrays,
//!   signals, states, job numbers; [`shape`]: gangs, layouts, dependencies, warnings; [`rules`]: bounds of queues; [`pace`]: speeds and turns;
//! - [`key`]: what can be said of a job; [`draft`]: a job being put together, and its defaults; `needs`, `terms`, `streams`: its parts;
//! - [`fields`]: spec files (TOML) and JSON bodies; [`script`]: `#ROTA` lines and how a script is run.
//!
//! What this is not: it never asks the cluster. Whether an ask can be met is the server's answer. Every refusal is a
//! [`rota_protocol::PublicError`] with the field at fault, the value, and a value that would be taken.

pub mod amount;
pub mod draft;
pub mod fields;
mod image;
mod inputs;
pub mod key;
pub mod moment;
mod needs;
pub mod pace;
mod pieces;
pub mod rules;
pub mod script;
pub mod shape;
mod share;
mod streams;
mod terms;
pub mod time;
pub mod word;

#[cfg(test)]
mod tests;

pub use amount::{cpus_milli, memory_mib};
pub use draft::{Defaults, JobDraft};
pub use fields::{SPEC_TEXT_BYTES_MAX, draft_from_json, draft_from_toml};
pub use key::{Key, Scalar, Value};
pub use script::{Script, read_script};
pub use time::duration_ms;
pub use word::{JobRef, job_ref};
