//! Submit: accepts a job. One value, whatever the size of its array. Whether the cluster could ever run it is not
//! asked here: hosts come and go, and the edge has told the user.

use super::{Answer, Event, Step};
use crate::spec;
use crate::state::State;
use crate::state::job::Job;
use rota_protocol::command::Outcome;
use rota_protocol::job::{Actor, JobSpec};
use rota_protocol::{ErrorCode, JobId, PublicError};

/// Most jobs that are not terminal: at up to 1.5 KiB each, 1.5 GiB on every peer.
pub(super) const OPEN_JOBS_MAX: usize = 1_000_000;

pub(super) fn apply(state: &mut State, step: &mut Step, actor: &Actor, spec: &JobSpec) -> Answer {
    spec::check_name("tenant", &actor.tenant)?;
    spec::check_name("user", &actor.user)?;
    spec::validate(spec)?;
    if state.jobs.open() >= OPEN_JOBS_MAX {
        let message = format!("{OPEN_JOBS_MAX} jobs wait or run already");
        return Err(PublicError::new(ErrorCode::Busy, message).retry_after(60_000));
    }
    let job = JobId(state.meta.next_job);
    state.meta.next_job += 1;
    state.jobs.insert(Job::new(job, actor, spec.clone(), step.now_ms));
    step.note(Event::JobChanged(job));
    step.plan_needed = true;
    Ok(Outcome::Submitted { job })
}
