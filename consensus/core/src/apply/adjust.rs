//! Adjust: hold a waiting job, release it, give it another priority, or queue again what runs of it.

use super::{Answer, Event, Step, cancel, no_job, priority};
use crate::state::State;
use rota_protocol::command::{JobChange, Outcome};
use rota_protocol::job::{Actor, EndReason, Role};
use rota_protocol::limits::{PRIORITY_DEFAULT, PRIORITY_MAX};
use rota_protocol::{ErrorCode, JobId, PublicError, Token};

pub(super) fn apply(
    state: &mut State,
    step: &mut Step,
    actor: &Actor,
    id: JobId,
    change: JobChange,
) -> Answer {
    // Another tenant's job is answered exactly like one that does not exist.
    let may_see = |tenant: &str| actor.role >= Role::Operator || tenant == actor.tenant;
    let Some(job) = state.job(id).filter(|job| may_see(&job.tenant)) else {
        return Err(no_job(id));
    };
    if job.state.is_terminal() {
        let message = format!("job {id} is over: {}", job.state);
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    match change {
        JobChange::Hold | JobChange::Release => {
            let held = change == JobChange::Hold;
            state.jobs.update(id, step.now_ms, |job| {
                job.held = held;
                if !held {
                    job.forgive_deaths();
                }
                if held {
                    job.promise = None;
                }
            });
        }
        JobChange::Priority(wanted) => {
            if wanted > PRIORITY_MAX {
                let message = format!("{wanted} is above {PRIORITY_MAX}");
                return Err(PublicError::invalid("priority", message, "50"));
            }
            let own = PRIORITY_DEFAULT.max(job.spec.priority);
            priority::check(state, actor, Some(job.queue), own, wanted)?;
            state.jobs.update(id, step.now_ms, |job| job.priority = wanted);
            // What runs of it is as hard to displace as what waits.
            let tokens: Vec<Token> = state.attempts_of(id).map(|attempt| attempt.token).collect();
            for token in tokens {
                state.attempts.change(token, |attempt| attempt.priority = wanted);
            }
        }
        JobChange::Requeue => requeue(state, step, id),
    }
    step.note(Event::JobChanged(id));
    step.plan_needed = true;
    Ok(Outcome::Done)
}

/// What runs of it is ended as for a move: it waits again whatever its own rules for evictions are.
fn requeue(state: &mut State, step: &mut Step, id: JobId) {
    let tokens: Vec<Token> = state.attempts_of(id).map(|attempt| attempt.token).collect();
    if tokens.is_empty() {
        return;
    }
    for token in &tokens {
        cancel::ask_end(state, step, *token, EndReason::Move);
    }
    state.jobs.update(id, step.now_ms, |job| {
        if job.spec.gang.is_some() {
            job.gang_ending = true;
        }
    });
}
