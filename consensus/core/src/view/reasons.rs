//! The one word in round brackets behind a job that waits, or that never started.

use crate::apply::depend::{self, Standing};
use crate::explain;
use crate::state::State;
use crate::state::job::{ClassKey, Job};
use rota_protocol::ask::Ask;
use rota_protocol::job::AttemptEnd;
use rota_protocol::queue::Amounts;
use rota_protocol::work::Relation;
use std::collections::BTreeMap;

/// Different classes whose reason for waiting is worked out for one list; the rest just wait.
const REASONS_MAX: usize = 256;

/// Reasons for waiting, worked out once for each class.
#[derive(Default)]
pub(super) struct Reasons(BTreeMap<ClassKey, String>);

impl Reasons {
    pub(super) fn of(&mut self, state: &State, job: &Job) -> String {
        if let Some(own) = own_reason(state, job) {
            return own;
        }
        let class = job.class();
        if let Some(known) = self.0.get(&class) {
            return known.clone();
        }
        if self.0.len() >= REASONS_MAX {
            return "(waits)".into();
        }
        let word = explain::short(state, job, state.clock_ms());
        let word = if word == "some_parts" { "only some parts fit" } else { word };
        let reason = format!("({word})");
        self.0.insert(class, reason.clone());
        reason
    }
}

/// The parent that ended otherwise than a job asked for.
pub(super) fn parent_at_fault(state: &State, job: &Job) -> String {
    let whole = job.spec.after.iter().filter(|dep| !dep.each);
    let never = whole.into_iter().find(|dep| depend::of_job(state, dep) == Standing::Never);
    match never.or(job.spec.after.first()) {
        Some(dep) => match state.job(dep.job) {
            Some(parent) if dep.relation == Relation::Ok => {
                format!("(job {} {}, not ok)", dep.job, parent.state)
            }
            // It did not fail after a start: "not not-ok" would say it, and be read wrongly.
            Some(parent) => format!("(job {} {}, asked was {})", dep.job, parent.state, dep.relation),
            None => format!("(job {} is known no more)", dep.job),
        },
        None => "(dependency)".into(),
    }
}

/// A reason that lies in the job itself or its queue, whatever the hosts offer.
fn own_reason(state: &State, job: &Job) -> Option<String> {
    if job.is_held_for_deaths() {
        return Some(format!("(held: {} hosts lost under it)", job.host_deaths()));
    }
    if job.held {
        return Some("(held)".into());
    }
    if job.pending.is_empty() && !job.blocked.is_empty() {
        return Some("(dependency)".into());
    }
    if state.clock_ms() < job.pauses_until_ms() {
        return Some("(pause)".into());
    }
    if state.clock_ms() < job.earliest_ms() {
        return Some("(begin)".into());
    }
    if job.parallel_room() == 0 {
        return Some("(parallel_cap)".into());
    }
    if job.promise.as_ref().is_some_and(|promise| promise.evicting) {
        return Some("(room is being made)".into());
    }
    if !job.spec.asks().any(|ask| is_admitted(state, job, ask)) {
        return Some("(ceiling)".into());
    }
    launch_failure(state, job)
}

/// The queue's bounds leave room for what the job would hold at least. What the cards would count of their memory is
/// known only once they are chosen.
fn is_admitted(state: &State, job: &Job, ask: &Ask) -> bool {
    let one = Amounts {
        gpu_milli: u64::from(ask.gpu_milli),
        cpus_milli: u64::from(ask.cpus_milli),
        mem_mib: ask.mem_mib,
        vram_mib: 0,
    };
    let (fewest, _) = job.start_range();
    state.queues.admits(job.queue, &job.user, &one.times(u64::from(fewest))).is_ok()
}

/// Why a job waits that hosts could not start: without this it would look as if it were merely next.
fn launch_failure(state: &State, job: &Job) -> Option<String> {
    let hosts = job.avoided(state.clock_ms()).count();
    let newest = job.ended.iter().max_by_key(|attempt| attempt.token)?;
    let noun = if hosts == 1 { "host" } else { "hosts" };
    match &newest.end {
        AttemptEnd::LaunchFailed { reason } if hosts > 0 => {
            Some(format!("(launch failed on {hosts} {noun}: {reason})"))
        }
        AttemptEnd::CannotStart { reason, .. } if hosts > 0 => {
            Some(format!("(cannot start on {hosts} {noun}: {reason})"))
        }
        _ => None,
    }
}
