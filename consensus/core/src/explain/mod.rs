//! Why does it wait? Answered by the planner's own filters over one consistent copy, never by a second opinion.
//!
//! Each host is counted once, under the first obstacle that `fit` names (or the job's own back-off, or a host held
//! for another job), so the numbers add up to the number of hosts.

mod lack;
mod tally;

use crate::fit::{self, Want};
use crate::state::State;
use crate::state::job::Job;
use crate::view::ask_text;
use lack::lack;
use rota_protocol::ask::Ask;
use rota_protocol::job::JobState;
use rota_protocol::view::WhyView;
use rota_protocol::{JobId, PublicError};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tally::{Tally, settled, tally};

/// Whether a job can start, and if not, why. None for an unknown job.
#[must_use]
pub fn why(state: &State, id: JobId, now_ms: u64) -> Option<WhyView> {
    let job = state.jobs.shared(id)?;
    let ask = &job.spec.ask;
    let waits = job.state == JobState::Pending || (job.state == JobState::Running && !job.pending.is_empty());
    let lack = if waits { lack(state, ask) } else { None };
    let tally = if waits { tally(state, job, now_ms) } else { settled(state, job) };
    let (ahead_tasks, ahead_gpus) = if waits { ahead(state, job) } else { (0, 0) };
    let verdict = match (&lack, waits) {
        (Some(lack), _) => format!("cannot run on this cluster: {}", lack.message),
        (None, true) => waiting_verdict(job, &tally, ahead_tasks),
        (None, false) => settled_verdict(job),
    };
    let hint = match &lack {
        Some(lack) => Some(format!("ask for {}, or add a host that has it", lack.example)),
        None if waits => tally.hint(job),
        None => None,
    };
    Some(WhyView {
        index: state.applied_index(),
        job: id,
        state: job.state,
        verdict,
        impossible: lack.is_some(),
        ask: ask_text(ask),
        hosts: u32::try_from(state.hosts.len()).unwrap_or(u32::MAX),
        by_reason: tally.into_rows(),
        ahead_tasks,
        ahead_gpus,
        largest_offer: lack.and_then(|lack| lack.offer),
        hint,
        waited_ms: waited_ms(job, now_ms),
    })
}

/// Could any registered host run this ask, even if it were empty, undrained and up? Yes while no host has
/// registered: nothing is known yet.
///
/// # Errors
/// Names the field that no host meets and the largest offer, or the fields that no host meets together.
pub fn feasible(state: &State, ask: &Ask) -> Result<(), PublicError> {
    match lack(state, ask) {
        None => Ok(()),
        Some(lack) => {
            let message = format!("cannot run on this cluster: {}", lack.message);
            Err(PublicError::invalid(lack.field, message, &lack.example))
        }
    }
}

/// One word for a queue's row: the commonest reason among the hosts that could run it.
pub(crate) fn short(state: &State, job: &Job, now_ms: u64) -> &'static str {
    let want = Want { ask: &job.spec.ask, tenant: &job.tenant };
    let mut counts: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut lasting = true;
    for host in state.hosts() {
        match fit::fits(host, &host.used, want, now_ms) {
            Ok(_) => return "next",
            Err(misfit) => {
                lasting &= misfit.is_lasting();
                if !misfit.is_lasting() {
                    *counts.entry(misfit.kind()).or_default() += 1;
                }
            }
        }
    }
    if lasting && state.hosts.len() > 0 {
        return "impossible";
    }
    let commonest = counts.into_iter().max_by_key(|(kind, n)| (*n, Reverse(*kind)));
    commonest.map_or("no_hosts", |(kind, _)| kind)
}

/// Waiting tasks of ready jobs before it in the order, and the GPUs they ask.
fn ahead(state: &State, job: &Job) -> (u64, u64) {
    let place = job.place();
    let mut sums = (0_u64, 0_u64);
    for (key, class) in state.jobs.ready() {
        let ask = &key.ask;
        let before = class.range(..place).filter_map(|(_, _, id)| state.job(*id));
        let tasks: u64 = before.map(|j| u64::from(j.pending.len())).sum();
        sums.0 += tasks;
        sums.1 = sums.1.saturating_add(tasks.saturating_mul(u64::from(ask.gpus())));
    }
    sums
}

fn waiting_verdict(job: &Job, tally: &Tally, ahead_tasks: u64) -> String {
    if job.parallel_room() == 0 {
        return format!("waits for its own tasks: at most {} run at once", job.live);
    }
    if let Some(group) = tally.of("fits") {
        let queue = match ahead_tasks {
            0 => "nothing is in front of it".to_owned(),
            1 => "1 task is in front of it".to_owned(),
            n => format!("{n} tasks are in front of it"),
        };
        return format!("fits {} now and is placed in its turn: {queue}", hosts_text(group.hosts));
    }
    match tally.main() {
        None => "waits: the cluster has no hosts".into(),
        Some(("joining", _)) => "waits: no host that could run it has registered yet".into(),
        Some((_, group)) => {
            let able = hosts_text(tally.able());
            format!("waits: {able} could run it, {} of them: {}", group.hosts, group.detail)
        }
    }
}

fn settled_verdict(job: &Job) -> String {
    let counts = job.counts();
    match job.state {
        JobState::Running => format!("runs: {} live, nothing waits", counts.live),
        JobState::Ending => format!("was cancelled: {} attempts are not yet proven gone", counts.live),
        state => format!("is over: {state}"),
    }
}

fn hosts_text(n: u32) -> String {
    if n == 1 { "1 host".into() } else { format!("{n} hosts") }
}

fn waited_ms(job: &Job, now_ms: u64) -> u64 {
    let until_ms = job.started_ms.or(job.ended_ms).unwrap_or(now_ms);
    until_ms.saturating_sub(job.submitted_ms)
}
