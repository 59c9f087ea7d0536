//! CommitPlan: the leader's decisions, each re-checked here against the state as it is now, with the planner's own
//! `fits`. A move is accepted or refused by itself; no planner, however wrong, can grant a device twice.

use super::{Answer, Event, Step};
use crate::fit::{self, Misfit};
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::host::HostLife;
use rota_protocol::command::Outcome;
use rota_protocol::job::AttemptState;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::{Move, Plan, Refusal};
use rota_protocol::{DeviceUuid, HostId, LeaseEpoch, PublicError, TaskId, Token};

/// Tokens of one entry are told apart by this many values (20 bits of `Token`).
const GRANTS_PER_ENTRY_MAX: u32 = 1 << 20;

pub(super) fn apply(state: &mut State, step: &mut Step, plan: &Plan) -> Answer {
    if plan.moves.len() > PLAN_MOVES_MAX {
        let message = format!("{} moves are above {PLAN_MOVES_MAX}", plan.moves.len());
        return Err(PublicError::invalid("plan.moves", message, "1024 moves"));
    }
    let mut refused = Vec::new();
    for (at, one) in (0..).zip(&plan.moves) {
        let Move::Place { task, host, epoch, devices } = one;
        if let Err(refusal) = place(state, step, *task, *host, *epoch, devices) {
            refused.push((at, refusal));
            // The planner saw something else: let it look again.
            step.plan_needed = true;
        }
    }
    Ok(Outcome::Planned { refused })
}

fn place(
    state: &mut State,
    step: &mut Step,
    task: TaskId,
    host_id: HostId,
    epoch: LeaseEpoch,
    devices: &[DeviceUuid],
) -> Result<(), Refusal> {
    let job = state.job(task.job).ok_or(Refusal::NotPending)?;
    let ordinal = job.ordinal(task.index).ok_or(Refusal::NotPending)?;
    if !job.pending.contains(ordinal) || job.cancel_asked {
        return Err(Refusal::NotPending);
    }
    if job.parallel_room() == 0 {
        return Err(Refusal::ParallelCap);
    }
    let host = state.host(host_id).ok_or(Refusal::HostGone)?;
    if host.life != HostLife::Up || host.epoch != epoch {
        return Err(Refusal::HostGone);
    }
    fit::takes(host, &host.used, &job.spec.ask, devices, step.now_ms).map_err(|misfit| match misfit {
        Misfit::Joining | Misfit::Lost => Refusal::HostGone,
        Misfit::Draining | Misfit::Suspended | Misfit::Probation => Refusal::HostDraining,
        _ => Refusal::DoesNotFit,
    })?;
    if step.grants >= GRANTS_PER_ENTRY_MAX {
        return Err(Refusal::DoesNotFit);
    }
    let attempt = Attempt {
        token: Token::new(step.index, step.grants),
        task,
        host: host_id,
        epoch,
        devices: devices.to_vec(),
        gpus: job.spec.ask.gpus(),
        cpus_milli: job.spec.ask.cpus_milli,
        mem_mib: job.spec.ask.mem_mib,
        state: AttemptState::Granted,
        end_reason: None,
        pid: None,
        granted_ms: step.now_ms,
        started_ms: None,
    };
    step.grants += 1;
    grant(state, step, ordinal, attempt);
    Ok(())
}

fn grant(state: &mut State, step: &mut Step, ordinal: u32, attempt: Attempt) {
    let (token, host, job) = (attempt.token, attempt.host, attempt.task.job);
    state.jobs.update(job, step.now_ms, |job| {
        job.pending.remove(ordinal);
        job.live += 1;
    });
    state.hosts.hold(&attempt);
    state.attempts.insert(attempt);
    step.note(Event::Granted { host, token });
    step.note(Event::JobChanged(job));
}
