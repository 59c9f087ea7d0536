//! The brain of Rota: a replicated state machine and its placement engine, both pure.
//!
//! `State::apply` is total: any command on any state gives an outcome or a named refusal, never a panic. Time enters
//! as data (`at_ms` of entries, `now_ms` of callers); there is no IO, no clock, no thread, no randomness here, and
//! nothing whose iteration order could differ between replicas. `state` and `apply` know nothing of `placement`:
//! the planner proposes, `apply` re-checks with the same `fit::fits`.

pub mod apply;
pub mod explain;
pub mod fit;
pub mod hash;
pub mod invariant;
pub mod placement;
pub mod snapshot;
pub mod spec;
pub mod state;
pub mod view;

pub use apply::{Applied, Event};
pub use state::attempt::{Attempt, EndedAttempt};
pub use state::host::Host;
pub use state::job::Job;
pub use state::meta::ClusterMeta;
pub use state::{Faults, State};
