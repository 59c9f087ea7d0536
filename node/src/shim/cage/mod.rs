//! What keeps one attempt apart from the rest of its host. Two sides share it:
//!
//! - the agent finds out once what the host has ([`Place`]) and gives each attempt a plan ([`Place::cage`]); it sweeps what
//!   dead shims left, and says whose a process is;
//! - the shim makes the groups before the task's first process, kills by them, and removes them after the last
//!   ([`Groups`]); between fork and exec the task walks through [`steps`].
//!
//! Not here: which devices are granted, when to end a task, and the user that it runs as.
//!
//! | file | |
//! |---|---|
//! | `settings` | what an operator may set |
//! | `hierarchy` | which control groups there are |
//! | `place` | the agent's folders, the plan of each attempt |
//! | `ask` | from a grant to what must be let through |
//! | `left` | whose a process is, and what dead shims left |
//! | `group` | an attempt's groups: limits, killing, counting |
//! | `pool` | groups that are used again |
//! | `held` | what a shim holds open of them |
//! | `survey` | what `rota doctor` says without an agent |
//! | `trial` | all of it tried before a task depends on it |
//! | `view` | its own mounts, limits, rights |
//! | `words` | what a host has, for people |
//! | `filter` | its system calls |
//! | `host` | the calls of `ShimHost` |
//! | `nodes`, `device_program` | its device nodes |

mod ask;
mod device_program;
mod filter;
mod group;
mod held;
mod hierarchy;
mod host;
mod left;
mod nodes;
mod place;
mod pool;
mod settings;
mod survey;
mod trial;
mod view;
mod words;

pub use group::{Groups, end_with};
pub use nodes::{Granted, of_grant};
pub use place::{CageAsk, Offer, Place};
pub use settings::{CageSettings, Means};
pub use view::steps;

pub(super) use held::Held;
pub(super) use left::{bases_of, tidy};
pub(crate) use place::NAME_FILE;
pub(super) use pool::{Numbers, Spare};
pub(crate) use pool::{SPARE, SPARES_OF_AGENT_MAX};

/// Prepares what every copy of this process will need.
pub(super) fn warm_up() {
    let _ = filter::shared();
}
