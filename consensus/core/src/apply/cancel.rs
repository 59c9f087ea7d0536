//! Cancel: ends a job, or one index of it, in whatever state it is. What waits is gone at once; what lives is asked
//! to end and keeps its devices until its host proves it gone. Cancelling again changes nothing.
//!
//! A task whose end was asked is cancelled whatever its process then reports, exit 0 included.

use super::{Answer, Event, Step, change_job, depend, end, no_job};
use crate::state::State;
use rota_protocol::command::Outcome;
use rota_protocol::job::{Actor, AttemptState, EndReason, Role};
use rota_protocol::{ErrorCode, JobId, PublicError, Token};

pub(super) fn apply(
    state: &mut State,
    step: &mut Step,
    actor: &Actor,
    id: JobId,
    index: Option<u32>,
) -> Answer {
    // Another tenant's job is answered exactly like one that does not exist.
    let may_see = |tenant: &str| actor.role >= Role::Operator || tenant == actor.tenant;
    let Some(job) = state.job(id).filter(|job| may_see(&job.tenant)) else {
        return Err(no_job(id));
    };
    let ordinal = match index {
        None => None,
        Some(index) => match job.ordinal(index) {
            None => {
                let message = format!("job {id} has no index {index}");
                return Err(PublicError::new(ErrorCode::NotFound, message));
            }
            // A gang lives and ends as a whole.
            Some(_) if job.spec.array.is_none() => None,
            Some(ordinal) => Some(ordinal),
        },
    };
    if job.state.is_terminal() {
        return Ok(Outcome::Cancelling { live: 0 });
    }
    let tokens: Vec<Token> = match ordinal {
        None => state.attempts_of(id).map(|a| a.token).collect(),
        Some(ordinal) => state.attempt_of(job.task(ordinal)).map(|a| a.token).into_iter().collect(),
    };
    let changed = change_job(state, id, step.now_ms, |job| match ordinal {
        None => {
            let changed = !job.cancel_asked;
            job.cancel_asked = true;
            job.pending.drain_into(&mut job.cancelled);
            job.blocked.drain_into(&mut job.cancelled);
            job.end_rests();
            job.promise = None;
            changed
        }
        Some(ordinal) => {
            let waited = job.pending.remove(ordinal) || job.blocked.remove(ordinal);
            if waited {
                job.end_rest(ordinal, true);
                job.cancelled.insert(ordinal);
            }
            waited
        }
    });
    if changed.is_some_and(|(changed, _)| changed) {
        step.note(Event::JobChanged(id));
        // Whoever waited behind it may be first now.
        step.plan_needed = true;
        depend::parent_changed(state, step, id, index);
    }
    for token in &tokens {
        ask_end(state, step, *token, EndReason::Cancel);
    }
    Ok(Outcome::Cancelling { live: u32::try_from(tokens.len()).unwrap_or(u32::MAX) })
}

/// Asks a host to end an attempt. A cancel overrides every other reason; otherwise the first one stands.
pub(super) fn ask_end(state: &mut State, step: &mut Step, token: Token, reason: EndReason) {
    let Some(attempt) = state.attempt(token) else {
        return;
    };
    if attempt.end_reason == Some(EndReason::Cancel)
        || (attempt.end_reason.is_some() && reason != EndReason::Cancel)
    {
        return;
    }
    let (host, job) = (attempt.host, attempt.task.job);
    state.attempts.change(token, |attempt| attempt.end_reason = Some(reason));
    end::advance(state, token, AttemptState::Ending);
    if state.faults.free_on_cancel
        && reason == EndReason::Cancel
        && let Some(attempt) = state.attempts.get(token)
    {
        state.hosts.release(attempt);
        step.plan_needed = true;
    }
    step.note(Event::EndAsked { host, token });
    step.note(Event::JobChanged(job));
}
