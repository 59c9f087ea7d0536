//! CommitPlan: the leader's decisions, each re-checked here against the state as it is now, with the planner's own
//! `fits`. A move is accepted or refused by itself; no planner, however wrong, can grant a device twice.

use super::{Answer, Step, evict, lapse, promise, start};
use crate::state::State;
use rota_protocol::PublicError;
use rota_protocol::command::Outcome;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::{Move, Part, Plan, Refusal};

pub(super) fn apply(state: &mut State, step: &mut Step, plan: &Plan) -> Answer {
    if plan.moves.len() > PLAN_MOVES_MAX {
        let message = format!("{} moves are above {PLAN_MOVES_MAX}", plan.moves.len());
        return Err(PublicError::invalid("plan.moves", message, "1024 moves"));
    }
    let mut refused = Vec::new();
    for (at, one) in (0..).zip(&plan.moves) {
        if let Err(refusal) = perform(state, step, one) {
            refused.push((at, refusal));
            // The planner saw something else: let it look again.
            step.plan_needed = true;
        }
    }
    Ok(Outcome::Planned { refused })
}

fn perform(state: &mut State, step: &mut Step, one: &Move) -> Result<(), Refusal> {
    match one {
        Move::Place { task, host, epoch, devices } => {
            let part = Part { index: task.index, host: *host, epoch: *epoch, devices: devices.clone() };
            start::start(state, step, task.job, 0, &[part])
        }
        Move::Start { job, choice, parts } => start::start(state, step, *job, *choice, parts),
        Move::Evict { job, reason, victims, slots, choice } => {
            let evict = evict::Eviction { job: *job, reason: *reason, victims, slots, choice: *choice };
            evict::evict(state, step, &evict)
        }
        Move::Promise { job, at_ms, slots, choice, broken_by } => {
            promise::promise(state, step, *job, *at_ms, slots, *choice, *broken_by)
        }
        Move::Lapse { job } => lapse::lapse(state, step, *job),
    }
}
