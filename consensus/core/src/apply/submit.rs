//! Submit: accepts a job. One value, whatever the size of its array. Whether the cluster could ever run it is not
//! asked here: hosts come and go, and the edge has told the user.

use super::{Answer, Event, Step, depend, priority};
use crate::explain::span;
use crate::spec;
use crate::state::State;
use crate::state::history::Basis;
use crate::state::job::Job;
use rota_protocol::command::Outcome;
use rota_protocol::job::{Actor, JobSpec, Role};
use rota_protocol::limits::QUEUES_MAX;
use rota_protocol::queue::{QueueId, QueueSpec, is_queue_name};
use rota_protocol::{ErrorCode, JobId, PublicError};

/// Most jobs that are not terminal: at up to 1.5 KiB each, 1.5 GiB on every peer.
pub(super) const OPEN_JOBS_MAX: usize = 1_000_000;

pub(super) fn apply(state: &mut State, step: &mut Step, actor: &Actor, mut spec: JobSpec) -> Answer {
    spec::check_name("tenant", &actor.tenant)?;
    spec::check_name("user", &actor.user)?;
    spec::validate(&spec)?;
    if let Some(at_ms) = spec.deadline_ms.filter(|at_ms| *at_ms <= step.now_ms) {
        let message = format!("passed {} ago", span(step.now_ms - at_ms));
        return Err(PublicError::invalid("deadline", message, "now+2h"));
    }
    check_parents(state, actor, &spec)?;
    let known = known_queue(state, actor, &spec.queue)?;
    priority::check_submit(state, actor, known, &spec)?;
    if state.jobs.open() >= OPEN_JOBS_MAX {
        let message = format!("{OPEN_JOBS_MAX} jobs wait or run already");
        return Err(PublicError::new(ErrorCode::Busy, message).retry_after(60_000));
    }
    let queue = match known {
        Some(queue) => queue,
        None => open_queue(state, &actor.tenant)?,
    };
    if spec.time_limit_ms.is_none() && !spec.service {
        spec.time_limit_ms = state.queues.get(queue).and_then(|queue| queue.spec.time_limit_default_ms);
    }
    let id = JobId(state.meta.next_job);
    state.meta.next_job += 1;
    if state.demand.note(&spec.ask, spec.tasks()) {
        let free = state.hosts.free_by_model();
        state.demand.publish(free);
    }
    let waits = !spec.after.is_empty();
    let mut job = Job::new(id, actor, queue, spec, step.now_ms);
    job.predicted_ms = predict(state, &job);
    if waits {
        job.blocked = std::mem::take(&mut job.pending);
    }
    state.jobs.insert(job);
    state.queues.count_job(queue, true);
    if waits {
        depend::first_look(state, step, id);
    }
    step.note(Event::JobChanged(id));
    step.plan_needed = true;
    Ok(Outcome::Submitted { job: id })
}

/// How long its tasks are expected to run, by past runs of such jobs; none if nothing is known.
fn predict(state: &State, job: &Job) -> Option<u64> {
    if job.spec.service {
        return None;
    }
    let prediction = state.history.predict(&job.history_key(), job.spec.time_limit_ms);
    (prediction.basis != Basis::None).then_some(prediction.ms)
}

/// Every parent must be known to whoever asks, and element-wise ones must have the same indices.
fn check_parents(state: &State, actor: &Actor, spec: &JobSpec) -> Result<(), PublicError> {
    for dep in &spec.after {
        // Another tenant's job is answered exactly like one that does not exist.
        let may_see = |job: &&Job| actor.role >= Role::Operator || job.tenant == actor.tenant;
        let Some(parent) = state.job(dep.job).filter(may_see) else {
            let message = format!("there is no job {}", dep.job);
            return Err(PublicError::invalid("after", message, "the number of a job of yours"));
        };
        let same = |a: rota_protocol::job::ArraySpec, b: rota_protocol::job::ArraySpec| {
            (a.start, a.end, a.step) == (b.start, b.end, b.step)
        };
        if dep.each && !parent.spec.array.zip(spec.array).is_some_and(|(a, b)| same(a, b)) {
            let message = format!("job {} has not the same array indices", dep.job);
            return Err(PublicError::invalid("after", message, "the parent's own array"));
        }
    }
    Ok(())
}

/// The queue of that path if the tenant may enter it; its own one, which may have to be made, if none is named.
pub(super) fn known_queue(state: &State, actor: &Actor, name: &str) -> Result<Option<QueueId>, PublicError> {
    let own = name.is_empty() || name == actor.tenant;
    let name = if own { &actor.tenant } else { name };
    let Some(queue) = state.queues.named(name) else {
        return if own { Ok(None) } else { Err(no_queue(actor, name)) };
    };
    let first = name.split('/').next().unwrap_or(name);
    let listed = &queue.spec.tenants;
    let admitted = if listed.is_empty() { first == actor.tenant } else { listed.contains(&actor.tenant) };
    if admitted || actor.role >= Role::Operator { Ok(Some(queue.id)) } else { Err(no_queue(actor, name)) }
}

/// A tenant's own queue lies at the top: a slash in its name would put it, and what it holds, below another tenant's.
fn open_queue(state: &mut State, tenant: &str) -> Result<QueueId, PublicError> {
    if !is_queue_name(tenant) || tenant.contains('/') {
        let message = format!("tenant '{tenant}' can have no queue of its name, so one must be named");
        return Err(PublicError::invalid("queue", message, "research/vision"));
    }
    if state.queues.len() >= QUEUES_MAX {
        let message = format!("{QUEUES_MAX} queues are the most");
        return Err(PublicError::new(ErrorCode::TooLarge, message));
    }
    Ok(state.queues.set(QueueSpec::open(tenant)))
}

fn no_queue(actor: &Actor, name: &str) -> PublicError {
    let message = format!("there is no queue '{name}' that tenant '{}' may use", actor.tenant);
    PublicError::invalid("queue", message, &actor.tenant)
}
