//! Where a task goes when its attempt has ended, and what that means for its gang. Changes one job, nothing else.

use crate::state::attempt::{Attempt, EndedAttempt};
use crate::state::job::{GangOver, Job, STEADY_MS};
use crate::state::ordinals::Ordinals;
use rota_protocol::cage::Used;
use rota_protocol::job::{AttemptEnd, EndReason, JobState};

/// Ends of one task that were a host's fault; then it fails with the last reason rather than circle for ever.
pub(crate) const HOST_FAULTS_MAX: u16 = 20;
/// Times that a task may ask to be queued again, on average over its job; then its status counts as a failure.
pub(crate) const REQUEUES_MAX: u64 = 10_000;
/// The ordinal under which a gang counts its retries and its hosts' faults.
const GANG: u32 = 0;

/// What others must know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Settled {
    /// The task is over for good.
    pub(super) task_over: bool,
    /// The other parts of the gang are to end.
    pub(super) gang_broken: bool,
}

/// Where a task goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Succeeded,
    /// For good, and what the job is then called.
    Failed(JobState),
    Cancelled,
    /// Waits again; the end counts against the user's retries.
    Retried,
    /// Waits again; the end was a host's fault.
    Moved,
    /// Waits again; it was in the way of something, or asked for it itself.
    Again,
    /// For good, because it was in the way of something and is not to be queued again.
    PutOut,
    /// Waits again after a pause: a service.
    Served,
    /// Goes where its gang goes.
    WithGang,
}

/// Moves the task to its next place and keeps the record of the attempt. `is_final`: it cannot be started, and no
/// further host is tried.
pub(super) fn settle(
    job: &mut Job,
    attempt: &Attempt,
    end: &AttemptEnd,
    is_final: bool,
    ran_ms: Option<u64>,
    now_ms: u64,
) -> Settled {
    job.live = job.live.saturating_sub(1);
    let started_ms = keep_record(job, attempt, end, ran_ms, now_ms);
    if is_final && job.started_ms.is_none() {
        // The rest of an array of which nothing starts anywhere is to learn it at once.
        job.avoid.remove(&attempt.host);
    } else if end.unstarted().is_some() {
        job.avoid_host(attempt.host, now_ms);
    }
    let Some(ordinal) = job.ordinal(attempt.task.index) else {
        return Settled::default();
    };
    if started_ms.is_some() {
        job.stopped.insert(ordinal);
    }
    let counted = Counted::of(job, ordinal);
    let ran_ms = ran_ms.or_else(|| Some(now_ms.saturating_sub(started_ms?))).unwrap_or(0);
    if job.spec.service && ran_ms >= STEADY_MS {
        // A service lives for years: what its hosts did before it ran well again counts no more.
        job.host_faults.remove(&counted.faults);
    }
    let fate = fate(job, counted, attempt.end_reason, end, is_final);
    match fate {
        Fate::Retried => *job.retries_used.entry(counted.retries).or_default() += 1,
        Fate::Moved => *job.host_faults.entry(counted.faults).or_default() += 1,
        Fate::Served => job.pause_service(ran_ms, now_ms),
        _ => {}
    }
    let settled = if job.spec.gang.is_some() {
        settle_part(job, ordinal, fate, end)
    } else {
        settle_task(job, ordinal, fate, end)
    };
    if job.succeeded.contains(ordinal) || job.failed.contains(ordinal) {
        job.stopped.remove(ordinal);
    }
    match fate {
        Fate::Retried => job.rest(counted.retries, ran_ms, now_ms),
        _ if settled.task_over => job.end_rest(ordinal, true),
        _ => {}
    }
    settled
}

/// The ordinals under which an end is counted. A gang is retried as a whole. Hosts' faults of a rigid gang are counted
/// once for all its parts; an elastic one lives on, so each part counts its own.
#[derive(Clone, Copy)]
struct Counted {
    retries: u32,
    faults: u32,
}

impl Counted {
    fn of(job: &Job, ordinal: u32) -> Self {
        match job.spec.gang {
            None => Self { retries: ordinal, faults: ordinal },
            Some(gang) if gang.is_elastic() => Self { retries: GANG, faults: ordinal },
            Some(_) => Self { retries: GANG, faults: GANG },
        }
    }
}

fn settle_task(job: &mut Job, ordinal: u32, fate: Fate, end: &AttemptEnd) -> Settled {
    let task_over = match fate {
        Fate::Succeeded => job.succeeded.insert(ordinal),
        Fate::Failed(state) => {
            fail(job, state, end);
            job.failed.insert(ordinal)
        }
        Fate::PutOut => {
            fail(job, JobState::Preempted, end);
            job.failed.insert(ordinal)
        }
        Fate::Cancelled => job.cancelled.insert(ordinal),
        Fate::Retried | Fate::Moved | Fate::Again | Fate::Served | Fate::WithGang => {
            job.pending.insert(ordinal);
            false
        }
    };
    if task_over {
        job.retries_used.remove(&ordinal);
        job.host_faults.remove(&ordinal);
    }
    Settled { task_over, gang_broken: false }
}

/// A part of a gang. A part that did well leaves the others at work. Any other end breaks a rigid gang, and an
/// elastic one if too few are left or the program itself failed.
fn settle_part(job: &mut Job, rank: u32, fate: Fate, end: &AttemptEnd) -> Settled {
    let was_ending = job.gang_ending;
    let fewest = job.spec.gang.filter(|gang| gang.is_elastic()).map_or(u32::MAX, |gang| gang.min);
    let enough = job.live > 0 && !was_ending && job.live + job.succeeded.len() >= fewest;
    let mut goes_on = false;
    match fate {
        Fate::Succeeded => {
            job.succeeded.insert(rank);
            goes_on = true;
        }
        Fate::Failed(state) => {
            fail(job, state, end);
            job.failed.insert(rank);
            job.gang_over = Some(GangOver::Failed);
        }
        // A gang that only shrinks is not queued again, and goes on whatever its rule for that is.
        Fate::PutOut if !enough => {
            fail(job, JobState::Preempted, end);
            job.failed.insert(rank);
            job.gang_over.get_or_insert(GangOver::Preempted);
        }
        Fate::Cancelled => {
            job.cancelled.insert(rank);
        }
        Fate::PutOut | Fate::Moved | Fate::Again => {
            job.pending.insert(rank);
            goes_on = enough;
        }
        Fate::Retried | Fate::Served | Fate::WithGang => {
            job.pending.insert(rank);
        }
    }
    // Of a gang that is cancelled every part goes its own last way.
    if job.cancel_asked {
        job.gang_ending = false;
        return Settled::default();
    }
    job.gang_ending |= !goes_on;
    if job.live == 0 {
        if job.gang_ending {
            gang_is_gone(job);
        } else {
            // All that ran did well: ranks that an elastic gang never filled are not wanted any more.
            job.pending.drain_into(&mut job.cancelled);
        }
    }
    Settled { task_over: false, gang_broken: job.gang_ending && !was_ending && job.live > 0 }
}

/// The last part of a gang that was to end is gone: it waits again as a whole, or it is over.
fn gang_is_gone(job: &mut Job) {
    job.gang_ending = false;
    // A cancel that came while it was ending is the last word.
    if job.gang_over.is_some() || job.cancel_asked {
        job.pending.drain_into(&mut job.cancelled);
        return;
    }
    // Every part was faster than the order to end.
    if job.pending.is_empty() && job.failed.is_empty() {
        return;
    }
    job.pending = Ordinals::full(job.tasks());
    job.succeeded = Ordinals::default();
    job.failed = Ordinals::default();
    job.cancelled = Ordinals::default();
}

fn fate(job: &Job, counted: Counted, asked: Option<EndReason>, end: &AttemptEnd, is_final: bool) -> Fate {
    if job.cancel_asked || asked == Some(EndReason::Cancel) {
        return Fate::Cancelled;
    }
    if asked == Some(EndReason::Gang) {
        return Fate::WithGang;
    }
    if end.is_success() && !job.spec.service {
        return Fate::Succeeded;
    }
    match asked {
        // A drain or a move is the operator's wish, not a reason to lose the job.
        Some(EndReason::Drain | EndReason::Move | EndReason::Turn) => return Fate::Again,
        // Its user was warned; holding the cards again would be idle again.
        Some(EndReason::Idle) if end.is_users() => return Fate::Failed(JobState::Failed),
        Some(reason) if reason.is_eviction() => {
            return if job.spec.requeue { Fate::Again } else { Fate::PutOut };
        }
        _ => {}
    }
    if let AttemptEnd::Requeued { .. } = end {
        let most = REQUEUES_MAX * u64::from(job.tasks());
        return if u64::from(job.requeues) <= most { Fate::Again } else { Fate::Failed(JobState::Failed) };
    }
    if job.spec.service && end.is_users() {
        return Fate::Served;
    }
    if end.is_users() {
        let used = job.retries_used.get(&counted.retries).copied().unwrap_or(0);
        if used < job.spec.retries && !failed_on_two_cards(job, end) {
            return Fate::Retried;
        }
        let timed_out = *end == AttemptEnd::TimeLimit;
        return Fate::Failed(if timed_out { JobState::TimedOut } else { JobState::Failed });
    }
    // Launch failed, lost, fenced, vanished; and a host that ended it unasked.
    let faults = job.host_faults.get(&counted.faults).copied().unwrap_or(0);
    match end {
        AttemptEnd::CannotStart { .. } if is_final => Fate::Failed(JobState::Failed),
        _ if faults + 1 < HOST_FAULTS_MAX => Fate::Moved,
        AttemptEnd::CannotStart { .. } => Fate::Failed(JobState::Failed),
        _ => Fate::Failed(JobState::HostLost),
    }
}

/// The same program failed by its own doing on other cards before: trying a third one tells nothing new.
fn failed_on_two_cards(job: &Job, end: &AttemptEnd) -> bool {
    let is_programs = |end: &AttemptEnd| matches!(end, AttemptEnd::ProgramFault { .. });
    // The record of this end is the last one.
    let Some(last) = job.ended.back().filter(|_| is_programs(end)) else {
        return false;
    };
    let apart = |other: &EndedAttempt| other.devices.iter().all(|uuid| !last.devices.contains(uuid));
    job.ended.iter().any(|other| is_programs(&other.end) && apart(other))
}

/// The first failure gives the job its name and its status.
fn fail(job: &mut Job, state: JobState, end: &AttemptEnd) {
    if job.first_failure.is_none() {
        job.first_failure = Some(end.shell_status());
        job.verdict = Some(state);
    }
}

/// Gives when its process started, if it ever did.
fn keep_record(
    job: &mut Job,
    attempt: &Attempt,
    end: &AttemptEnd,
    ran_ms: Option<u64>,
    now_ms: u64,
) -> Option<u64> {
    // The start's report may have been lost on the way. An end that needs no process is no proof that there was one.
    let started_ms = attempt.started_ms.or_else(|| {
        let ran = |ms: &u64| {
            end.unstarted().is_none()
                && (*ms > 0 || end.is_users() || matches!(end, AttemptEnd::Requeued { .. }))
        };
        let ran_ms = ran_ms.filter(ran)?;
        Some(now_ms.saturating_sub(ran_ms).max(attempt.granted_ms))
    });
    if job.started_ms.is_none() {
        job.started_ms = started_ms;
    }
    if let AttemptEnd::Requeued { .. } = end {
        job.requeues = job.requeues.saturating_add(1);
    }
    job.keep_ended(EndedAttempt {
        token: attempt.token,
        index: attempt.task.index,
        host: attempt.host,
        devices: attempt.devices.clone(),
        end: end.clone(),
        asked: attempt.end_reason,
        pid: attempt.pid,
        granted_ms: attempt.granted_ms,
        started_ms,
        ended_ms: now_ms,
        ran_ms,
        used: Used::default(),
        care: attempt.care.clone(),
    });
    started_ms
}
