//! Lapse: a job that has not started by its deadline is given up.

use super::{Event, Step, change_job, depend};
use crate::state::State;
use rota_protocol::JobId;
use rota_protocol::job::JobState;
use rota_protocol::plan::Refusal;

pub(super) fn lapse(state: &mut State, step: &mut Step, id: JobId) -> Result<(), Refusal> {
    let job = state.job(id).filter(|job| !job.state.is_terminal()).ok_or(Refusal::NotPending)?;
    let past = job.spec.deadline_ms.is_some_and(|at_ms| step.now_ms >= at_ms);
    if !past || job.live > 0 || job.started_ms.is_some() {
        return Err(Refusal::NotYet);
    }
    change_job(state, id, step.now_ms, |job| {
        job.verdict = Some(JobState::DeadlineMissed);
        job.pending.drain_into(&mut job.cancelled);
        job.blocked.drain_into(&mut job.cancelled);
    });
    step.note(Event::JobChanged(id));
    depend::parent_changed(state, step, id, None);
    Ok(())
}
