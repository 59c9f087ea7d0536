//! Report: a host's facts about its attempts, at least once and in any order. A token that is over, unknown or of
//! another host is passed over: reporting again changes nothing.

use super::{Answer, Event, Step, care, end, no_host};
use crate::state::State;
use rota_protocol::cage::Used;
use rota_protocol::command::Outcome;
use rota_protocol::job::AttemptState;
use rota_protocol::limits::REPORTS_MAX;
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::{HostId, JobId, PublicError, Token};

pub(super) fn apply(state: &mut State, step: &mut Step, host: HostId, reports: &[AttemptReport]) -> Answer {
    if state.host(host).is_none() {
        return Err(no_host(host));
    }
    if reports.len() > REPORTS_MAX {
        let message = format!("{} reports are above {REPORTS_MAX}", reports.len());
        return Err(PublicError::invalid("reports", message, "1024 reports"));
    }
    for report in reports {
        if state.attempt(report.token).is_none_or(|a| a.host != host) {
            continue;
        }
        match &report.fact {
            AttemptFact::Started { pid } => started(state, step, report.token, *pid),
            AttemptFact::Ended { end, ran_ms } => {
                end::end_attempt(state, step, report.token, end, Some(*ran_ms));
            }
            AttemptFact::EndedWith { end, ran_ms, used } => {
                let job = state.attempt(report.token).map(|attempt| attempt.task.job);
                end::end_attempt(state, step, report.token, end, Some(*ran_ms));
                keep_used(state, step, job, report.token, *used);
            }
            AttemptFact::Released { release } => care::released(state, report.token, release),
            AttemptFact::Noted { text } => care::noted(state, step, report.token, text),
            AttemptFact::HeldIdle { gpu_ms } => care::held_idle(state, report.token, *gpu_ms),
        }
    }
    Ok(Outcome::Done)
}

/// Beside the end that was just kept.
fn keep_used(state: &mut State, step: &Step, job: Option<JobId>, token: Token, used: Used) {
    let Some(job) = job else { return };
    state.jobs.update(job, step.now_ms, |job| {
        if let Some(ended) = job.ended.back_mut().filter(|ended| ended.token == token) {
            ended.used = used;
        }
    });
}

fn started(state: &mut State, step: &mut Step, token: Token, pid: u32) {
    let Some((id, host)) =
        state.attempt(token).filter(|a| a.started_ms.is_none()).map(|a| (a.task.job, a.host))
    else {
        return;
    };
    state.attempts.change(token, |attempt| {
        attempt.started_ms = Some(step.now_ms);
        attempt.pid = Some(pid);
    });
    // One that is already to end stays so.
    end::advance(state, token, AttemptState::Running);
    state.jobs.update(id, step.now_ms, |job| {
        job.started_ms.get_or_insert(step.now_ms);
    });
    step.note(Event::JobChanged(id));
    // A launch worked: earlier failures of the host count no more.
    if state.hosts.get_mut(host).is_some_and(|h| h.clear_launch_failures()) {
        step.note(Event::HostChanged(host));
        step.plan_needed = true;
    }
}
