//! The planner: a pure function from a bounded copy of the state to a plan. It decides nothing by itself: `apply`
//! re-checks every move. README.md beside this file gives the properties wanted, the abstraction and the phases.

mod check;
mod choose;
mod defrag;
mod evict;
mod gang;
mod groups;
pub mod hetero;
mod look;
mod market;
mod models;
mod nearer;
mod openings;
pub mod order;
mod pace;
mod pledge;
mod post;
mod promise;
mod rotate;
mod round;
pub mod score;
mod share;
mod sites;
mod start;
mod turns;
mod victims;
mod view;

pub use check::check_plan;
pub use look::{Evicts, Expected, Look, Verdict};
pub use market::TURN_MS;
pub use nearer::Smaller;
pub(crate) use share::{ShareKey, Shares};
pub(crate) use turns::standing;
pub use view::{HostView, Turning, View};

use crate::state::job::Job;
use rota_protocol::HostId;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::Plan;
use round::Round;
use score::Policy;
use sites::Ground;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A round is due after this even if nothing is known to have changed, in ms: should a time be overlooked, it costs a
/// minute.
const QUIET_MS_MAX: u64 = 60_000;

/// What a round may do. One set of values serves all workloads; tests and replays may differ.
#[derive(Debug, Clone)]
pub struct PlanConfig {
    /// Hosts that are silent just now: nothing is placed there.
    pub avoid_hosts: BTreeSet<HostId>,
    /// Most moves; never more than [`PLAN_MOVES_MAX`].
    pub moves_max: usize,
    /// How hosts are compared.
    pub policy: Policy,
    /// How long work without a limit is taken to run, in ms.
    pub default_limit_ms: u64,
    /// How long the end of work without a grace of its own may take beyond its limit, in ms.
    pub grace_ms: u64,
    /// Most promises that bind a round.
    pub promises_max: usize,
    /// A promise is written down once its job has waited so long, in ms: those that start at once need none.
    pub promise_after_ms: u64,
    /// Lengths of its own limit that a job may have to wait before a promise to it is as early as can be; see
    /// [`order::promised_start_ms`].
    pub promise_slack_limits: u64,
    /// Attempts may be ended to make room.
    pub evicts: bool,
}

impl Default for PlanConfig {
    fn default() -> Self {
        Self {
            avoid_hosts: BTreeSet::new(),
            moves_max: PLAN_MOVES_MAX,
            policy: Policy::Rota,
            default_limit_ms: 24 * 3_600 * 1_000,
            grace_ms: 10_000,
            promises_max: 8,
            promise_after_ms: 1_000,
            promise_slack_limits: 0,
            evicts: true,
        }
    }
}

/// The planner with what it keeps from round to round: an index over hosts and asks. It only saves time; a fresh one
/// gives the same plans.
#[derive(Debug, Clone, Default)]
pub struct Planner {
    ground: Ground,
    /// The index and the time until which a round is known to give nothing.
    quiet: Option<(u64, u64)>,
}

impl Planner {
    /// What is to be done now.
    #[must_use]
    pub fn plan(&mut self, view: &View, config: &PlanConfig, now_ms: u64) -> Plan {
        let mut round = Round::new(view, config, &mut self.ground, now_ms);
        round.run();
        let (plan, wake_ms) = round.plan();
        self.quiet =
            plan.moves.is_empty().then_some((view.index, wake_ms.min(now_ms.saturating_add(QUIET_MS_MAX))));
        debug_assert_eq!(check_plan(view, config, now_ms, &plan), Vec::<String>::new());
        plan
    }

    /// A round at `now_ms` over the state of log index `index` would give nothing: the last one gave nothing, and
    /// neither the state nor anything that time alone changes is different. Not to be asked when other hosts are to be
    /// avoided than then.
    #[must_use]
    pub fn is_quiet(&self, index: u64, now_ms: u64) -> bool {
        self.quiet.is_some_and(|(at, until_ms)| at == index && now_ms < until_ms)
    }

    /// What a round makes of one waiting job, host by host. Jobs that cannot be in its way are left out of the round.
    /// A job whose class is out before its turn is looked at when all that come before it have had theirs.
    #[must_use]
    pub fn look(&mut self, view: &View, config: &PlanConfig, now_ms: u64, job: &Arc<Job>) -> Look {
        let view = view.until(job);
        let mut round = Round::new(&view, config, &mut self.ground, now_ms);
        round.probe = Some(job.id);
        round.run();
        if round.look.is_none() {
            round.look_at(job);
        }
        let mut look = round.look.unwrap_or_default();
        let mut starts = |other: &Arc<Job>| {
            let view = view.with(other);
            let mut round = Round::new(&view, config, &mut self.ground, now_ms);
            round.run();
            round.has_started(other.id)
        };
        look.smaller = look.smaller.take().filter(|smaller| starts(&nearer::with_ask(job, smaller)));
        look.shorter_limit_ms = look.shorter_limit_ms.filter(|ms| starts(&nearer::with_limit(job, *ms)));
        look
    }
}

/// What is to be done now, by a fresh planner.
#[must_use]
pub fn plan(view: &View, config: &PlanConfig, now_ms: u64) -> Plan {
    Planner::default().plan(view, config, now_ms)
}
