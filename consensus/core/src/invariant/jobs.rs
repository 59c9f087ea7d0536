//! Laws of one job: its tasks, its state, its gang, what it waits for and what it was promised.

use super::Violation;
use crate::apply::depend;
use crate::state::State;
use crate::state::job::Job;
use rota_protocol::HostId;
use rota_protocol::job::AttemptState;
use rota_protocol::work::Layout;
use std::collections::BTreeSet;

pub(super) fn check(state: &State, job: &Job, broken: &mut Vec<Violation>) {
    let id = job.id;
    let sets = [&job.pending, &job.blocked, &job.succeeded, &job.failed, &job.cancelled];
    let over = [&job.succeeded, &job.failed];
    let stopped = &job.stopped;
    let sound = sets.iter().all(|set| set.is_sound(job.tasks()))
        && stopped.is_sound(job.tasks())
        && over.iter().all(|set| set.is_disjoint(stopped));
    let apart = (0..sets.len()).all(|a| (a + 1..sets.len()).all(|b| sets[a].is_disjoint(sets[b])));
    let live = state.attempts_of(id).count();
    let sum: u64 = sets.iter().map(|set| u64::from(set.len())).sum::<u64>() + live as u64;
    let sound = sound && job.rests_are_sound();
    if !sound || !apart || live != job.live as usize || sum != u64::from(job.tasks()) {
        broken.push(Violation::TasksDiffer { job: id });
    }
    let (now, should) = (job.state, job.state_of_tasks());
    if now != should {
        broken.push(Violation::JobState { job: id, state: now, should });
    }
    gang(state, job, broken);
    let cap = job.spec.array.map_or(0, |array| array.parallel_max);
    if cap > 0 && job.live > cap {
        broken.push(Violation::ParallelCap { job: id, live: job.live });
    }
    if !job.blocked.is_empty() && !depend::still_waits(state, job) {
        broken.push(Violation::WaitsForNobody { job: id });
    }
    if let Some(promise) = &job.promise
        && (now.is_terminal() || promise.slots.is_empty() || promise.slots.len() > job.tasks() as usize)
    {
        broken.push(Violation::Promise { job: id });
    }
    let open = job.live > 0 || !job.pending.is_empty() || !job.blocked.is_empty() || job.ended_ms.is_none();
    if now.is_terminal() == open {
        broken.push(Violation::TerminalHolds { job: id, state: now });
    }
    if id.0 == 0 || id.0 >= state.meta.next_job {
        let (what, number) = ("job", id.0);
        broken.push(Violation::Number { what, number });
    }
}

/// A gang that is not being ended holds all it needs or nothing.
fn gang(state: &State, job: &Job, broken: &mut Vec<Violation>) {
    let Some(spec) = job.spec.gang else {
        return;
    };
    let ending = || state.attempts_of(job.id).any(|attempt| attempt.state == AttemptState::Ending);
    let partly = job.live > 0 && job.live + job.succeeded.len() < spec.min;
    if partly && !job.gang_ending && !job.cancel_asked && !ending() {
        broken.push(Violation::GangSplit { job: job.id, live: job.live });
    }
    let all_end = || state.attempts_of(job.id).all(|attempt| attempt.state == AttemptState::Ending);
    if job.gang_ending && (job.live == 0 || !all_end()) {
        broken.push(Violation::GangEnding { job: job.id });
    }
    let hosts: BTreeSet<HostId> = state.attempts_of(job.id).map(|attempt| attempt.host).collect();
    if job.spec.layout == Layout::SameHost && hosts.len() > 1 {
        broken.push(Violation::LayoutBroken { job: job.id });
    }
}

/// In how many of the five sets an ordinal is.
pub(super) fn places(job: &Job, ordinal: u32) -> usize {
    [&job.pending, &job.blocked, &job.succeeded, &job.failed, &job.cancelled]
        .into_iter()
        .filter(|set| set.contains(ordinal))
        .count()
}
