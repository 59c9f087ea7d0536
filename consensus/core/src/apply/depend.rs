//! Dependencies: what a parent's end does to the jobs that wait for it. The table of relations and ends is
//! `of_job`; for element-wise dependencies it is `of_tasks`, which costs by runs of tasks that ended alike: a million
//! tasks that are cancelled at once are one run.

use super::{Event, Step, change_job};
use crate::state::State;
use crate::state::job::Job;
use crate::state::ordinals::Ordinals;
use crate::state::runs::Runs;
use rota_protocol::JobId;
use rota_protocol::job::JobState;
use rota_protocol::work::{Dependency, Relation};

/// Where a dependency stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The child may start as far as this parent is concerned.
    Met,
    /// The parent is not over.
    Open,
    /// The parent ended otherwise than asked: the child can never start.
    Never,
}

/// A parent is over, or its task of this index is: whoever waits for it goes on or ends, and so do those that wait
/// for them in turn. Each job in a chain is visited once for each change above it.
pub(super) fn parent_changed(state: &mut State, step: &mut Step, parent: JobId, index: Option<u32>) {
    let mut work = vec![(parent, index)];
    while let Some((parent, index)) = work.pop() {
        // A job's own end says more than that of its task.
        let index = index.filter(|_| state.job(parent).is_some_and(|job| !job.state.is_terminal()));
        for child in state.jobs.children_of(parent) {
            if let Some(index) = settle(state, step, child, parent, index) {
                work.push((child, index));
            }
        }
    }
}

/// Something that each of a job's blocked tasks waits for is not over.
pub(crate) fn still_waits(state: &State, job: &Job) -> bool {
    let whole = job.spec.after.iter().filter(|dep| !dep.each).map(|dep| of_job(state, dep));
    match whole.fold(Standing::Met, worse) {
        Standing::Open => return true,
        Standing::Never => return false,
        Standing::Met => {}
    }
    let settled = Settled::of(state, job, hull(&job.blocked));
    settled.open.is_empty() && settled.lost.is_empty()
}

/// Brings a new job's waiting tasks in line with its parents as they are.
pub(super) fn first_look(state: &mut State, step: &mut Step, child: JobId) {
    settle(state, step, child, JobId(0), None);
}

/// Re-reads a child's dependencies; gives what to tell its own children: that it is over, or an index of it is.
fn settle(
    state: &mut State,
    step: &mut Step,
    child: JobId,
    parent: JobId,
    index: Option<u32>,
) -> Option<Option<u32>> {
    let job = state.job(child)?;
    let whole = job.spec.after.iter().filter(|dep| !dep.each).map(|dep| of_job(state, dep));
    let whole = whole.fold(Standing::Met, worse);
    let by_element = job.spec.after.iter().any(|dep| dep.each);
    // A task's end alone matters only to those that wait element by element.
    let element_of_parent = job.spec.after.iter().any(|dep| dep.each && dep.job == parent);
    if index.is_some() && !element_of_parent {
        return None;
    }
    match (whole, by_element) {
        (Standing::Open, _) => None,
        (Standing::Never, _) => {
            never(state, step, child);
            Some(None)
        }
        (Standing::Met, false) => {
            state.jobs.update(child, step.now_ms, |job| job.blocked.drain_into(&mut job.pending));
            step.note(Event::JobChanged(child));
            step.plan_needed = true;
            None
        }
        (Standing::Met, true) => by_elements(state, step, child, index),
    }
}

/// Element by element: all that are blocked, or the one of `index`.
fn by_elements(state: &mut State, step: &mut Step, child: JobId, index: Option<u32>) -> Option<Option<u32>> {
    let job = state.job(child)?;
    let window = match index {
        Some(index) => job.ordinal(index).map_or((0, 0), |ordinal| (ordinal, ordinal + 1)),
        None => hull(&job.blocked),
    };
    let Settled { open, lost } = Settled::of(state, job, window);
    if open.is_empty() && lost.is_empty() {
        return None;
    }
    let failed = !lost.is_empty();
    let (_, ended) = change_job(state, child, step.now_ms, |job| {
        move_runs(&open, &mut job.blocked, &mut job.pending);
        move_runs(&lost, &mut job.blocked, &mut job.cancelled);
        if failed {
            job.verdict.get_or_insert(JobState::DependencyFailed);
        }
    })?;
    step.note(Event::JobChanged(child));
    step.plan_needed = true;
    match (ended, failed) {
        (true, _) => Some(None),
        // Only its own children that wait element by element can be concerned.
        (false, true) => Some(index),
        (false, false) => None,
    }
}

/// Which of a child's blocked tasks wait no more.
struct Settled {
    /// They may start.
    open: Runs,
    /// They never can.
    lost: Runs,
}

impl Settled {
    /// Of those in `window`, as far as what is waited for element by element is concerned.
    fn of(state: &State, child: &Job, window: (u32, u32)) -> Self {
        let blocked = Runs::of(&child.blocked, window);
        let (mut open, mut lost) = (blocked.clone(), Runs::default());
        for dep in child.spec.after.iter().filter(|dep| dep.each) {
            let (met, never) = of_tasks(state, dep, child, window);
            open = open.and(&met);
            lost = lost.or(&never);
        }
        Self { open: open.minus(&lost), lost: blocked.and(&lost) }
    }
}

fn move_runs(runs: &Runs, from: &mut Ordinals, to: &mut Ordinals) {
    for (start, end) in runs.iter() {
        from.remove_range(start, end);
        to.insert_range(start, end);
    }
}

/// From the first to one past the last.
fn hull(set: &Ordinals) -> (u32, u32) {
    let first = set.ranges().next().map_or(0, |(start, _)| start);
    (first, set.end())
}

fn never(state: &mut State, step: &mut Step, child: JobId) {
    change_job(state, child, step.now_ms, |job| {
        job.verdict.get_or_insert(JobState::DependencyFailed);
        job.blocked.drain_into(&mut job.cancelled);
        job.pending.drain_into(&mut job.cancelled);
    });
    step.note(Event::JobChanged(child));
    step.plan_needed = true;
}

/// The table for a whole job. A requeue and a retry are no ends: the job is not terminal.
///
/// | parent | ok | not-ok | any |
/// |---|---|---|---|
/// | succeeded | met | never | met |
/// | failed, time limit, host lost for good, preempted for good | never | met | met |
/// | cancelled after a start | never | met | met |
/// | cancelled before any start, dependency failed, deadline missed | never | never | met |
///
/// An array of which some elements ran while others lost their dependency counts as started.
pub(crate) fn of_job(state: &State, dep: &Dependency) -> Standing {
    // A parent is kept as long as somebody waits for it; only a damaged state lacks one.
    let Some(parent) = state.job(dep.job) else {
        return Standing::Never;
    };
    if !parent.state.is_terminal() {
        return Standing::Open;
    }
    of_end(dep.relation, parent.state == JobState::Succeeded, failed_after_start(parent))
}

fn failed_after_start(parent: &Job) -> bool {
    match parent.state {
        JobState::Failed | JobState::TimedOut | JobState::HostLost | JobState::Preempted => true,
        JobState::Cancelled | JobState::DependencyFailed => parent.started_ms.is_some(),
        _ => false,
    }
}

/// The same for the parent's tasks in `window`: those of which it is met, and those of which it never will be. The
/// others are open. Parent and child have the same indices, so each task stands where its counterpart does.
fn of_tasks(state: &State, dep: &Dependency, child: &Job, window: (u32, u32)) -> (Runs, Runs) {
    let indices = |job: &Job| job.spec.array.map(|array| (array.start, array.end, array.step));
    let Some(parent) = state.job(dep.job).filter(|parent| indices(parent) == indices(child)) else {
        return (Runs::default(), Runs::of(&Ordinals::full(child.tasks()), window));
    };
    let of = |set: &Ordinals| Runs::of(set, window);
    let (succeeded, cancelled) = (of(&parent.succeeded), of(&parent.cancelled));
    let started = cancelled.and(&of(&parent.stopped));
    let never_started = cancelled.minus(&started);
    // How they ended: well, otherwise after a start, and without one.
    let ends = [
        (succeeded, true, false),
        (of(&parent.failed).or(&started), false, true),
        (never_started, false, false),
    ];
    let (mut met, mut never) = (Runs::default(), Runs::default());
    for (runs, succeeded, failed_after_start) in ends {
        match of_end(dep.relation, succeeded, failed_after_start) {
            Standing::Met => met = met.or(&runs),
            Standing::Never | Standing::Open => never = never.or(&runs),
        }
    }
    (met, never)
}

fn of_end(relation: Relation, succeeded: bool, failed_after_start: bool) -> Standing {
    let met = match relation {
        Relation::Any => true,
        Relation::Ok => succeeded,
        Relation::NotOk => failed_after_start,
    };
    if met { Standing::Met } else { Standing::Never }
}

fn worse(a: Standing, b: Standing) -> Standing {
    match (a, b) {
        (Standing::Never, _) | (_, Standing::Never) => Standing::Never,
        (Standing::Open, _) | (_, Standing::Open) => Standing::Open,
        _ => Standing::Met,
    }
}

#[cfg(test)]
mod tests;
