//! The planner: a pure function from a bounded copy of the state to a plan. It decides nothing by itself: `apply`
//! re-checks every move. README.md beside this file gives the properties wanted, the abstraction and the phases.

mod check;
mod choose;
mod plan;
pub mod score;
mod view;

pub use check::check_plan;
pub use plan::{HOLD_AFTER_MS, PlanConfig, held, plan};
pub use view::{ReadyJob, View};
