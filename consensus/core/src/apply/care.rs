//! What a host tells of its cards between start and end: how they were given back, words for the owner, idle time; and
//! the ends that the host itself asks for. Unknown tokens are passed over, like reports.

use super::{Answer, Step, cancel, cut, no_host};
use crate::state::State;
use rota_protocol::care::{Care, HostCause, NOTES_MAX, Release};
use rota_protocol::command::Outcome;
use rota_protocol::limits::REPORTS_MAX;
use rota_protocol::{HostId, PublicError, Token};

/// Most steps kept of one release: each once, and a few that were proven again.
const STEPS_MAX: usize = 16;

/// EndOwn: a host asks for ends of what it runs. An end that was asked before stands.
pub(super) fn end_own(
    state: &mut State,
    step: &mut Step,
    host: HostId,
    ends: &[(Token, HostCause)],
) -> Answer {
    if state.host(host).is_none() {
        return Err(no_host(host));
    }
    if ends.len() > REPORTS_MAX {
        let message = format!("{} ends are above {REPORTS_MAX}", ends.len());
        return Err(PublicError::invalid("ends", message, "1024 ends"));
    }
    for (token, cause) in ends {
        let open = |a: &&crate::state::attempt::Attempt| a.host == host && a.end_reason.is_none();
        if state.attempt(*token).filter(open).is_none() {
            continue;
        }
        change(state, *token, |care| care.cause = Some(*cause));
        cancel::ask_end(state, step, *token, cause.reason());
    }
    Ok(Outcome::Done)
}

/// How an attempt's cards were given back.
pub(super) fn released(state: &mut State, token: Token, release: &Release) {
    let mut release = release.clone();
    release.steps.truncate(STEPS_MAX);
    release.dirty = release.dirty.map(|reason| cut(&reason));
    change(state, token, |care| care.release = Some(release));
}

/// Words for its owner; the same words again change nothing.
pub(super) fn noted(state: &mut State, step: &mut Step, token: Token, text: &str) {
    let text = cut(text);
    let job = change(state, token, |care| {
        if care.notes.last() != Some(&text) {
            care.notes.push(text);
            let over = care.notes.len().saturating_sub(NOTES_MAX);
            care.notes.drain(..over);
        }
    });
    if let Some(job) = job {
        step.note(super::Event::JobChanged(job));
    }
}

/// Adds what is new of an attempt's idle time to its user's.
pub(super) fn held_idle(state: &mut State, token: Token, gpu_ms: u64) {
    let Some(attempt) = state.attempt(token) else { return };
    let before = attempt.care.as_ref().map_or(0, |care| care.idle_gpu_ms);
    let Some(more) = gpu_ms.checked_sub(before).filter(|more| *more > 0) else { return };
    let (tenant, user) = (attempt.tenant.clone(), attempt.user.clone());
    state.idle.add(&tenant, &user, more);
    change(state, token, |care| care.idle_gpu_ms = gpu_ms);
}

fn change(state: &mut State, token: Token, change: impl FnOnce(&mut Care)) -> Option<rota_protocol::JobId> {
    state.attempts.change(token, |attempt| {
        change(attempt.care.get_or_insert_default());
        attempt.task.job
    })
}
