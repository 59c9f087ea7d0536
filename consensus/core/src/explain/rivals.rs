//! Which waiting jobs are after the same as one that waits: the same cards, or CPUs and memory where those are what is
//! missing. And who holds what it waits for.

use super::times::limit_over_ms;
use crate::fit;
use crate::placement::{Look, Verdict};
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::host::Host;
use crate::state::job::{Job, Promise};
use rota_protocol::JobId;
use rota_protocol::ask::Ask;
use rota_protocol::job::AttemptState;
use rota_protocol::why_more::WhyHolder;
use std::collections::BTreeMap;

/// Holders that are named.
const HOLDERS_SHOWN_MAX: usize = 4;

/// What a waiting job is after.
pub(super) struct Wanted<'s> {
    job: &'s Job,
    /// Hosts that could run it.
    hosts: Vec<&'s Host>,
    /// CPUs or memory are what is missing on one of them.
    beside_cards: bool,
    /// The start it was promised holds.
    promise: Option<&'s Promise>,
}

impl<'s> Wanted<'s> {
    pub(super) fn new(state: &'s State, job: &'s Job, look: &Look) -> Self {
        let able = |host: &&Host| job.spec.asks().any(|ask| fit::capable(host, ask).is_ok());
        let lacks_beside = |verdict: &Verdict| match verdict {
            Verdict::Misfit(misfit) | Verdict::Ahead(misfit) => {
                matches!(misfit.kind(), "cpus_busy" | "mem_busy")
            }
            _ => false,
        };
        Self {
            job,
            hosts: state.hosts().filter(able).collect(),
            beside_cards: look.hosts.iter().any(|(_, verdict)| lacks_beside(verdict)),
            promise: job.promise.as_deref().filter(|_| look.promise_broken.is_none()),
        }
    }

    /// Both want the same of some host. Those of a class ask alike.
    pub(super) fn is_sought_by(&self, other: &Job) -> bool {
        self.hosts.iter().any(|host| {
            other.spec.asks().filter(|theirs| fit::capable(host, theirs).is_ok()).any(|theirs| {
                let own = self.job.spec.asks().filter(|own| fit::capable(host, own).is_ok());
                own.into_iter().any(|own| self.meet(host, own, theirs))
            })
        })
    }

    fn meet(&self, host: &Host, own: &Ask, theirs: &Ask) -> bool {
        if self.beside_cards || own.gpus() == 0 && own.devices.is_empty() {
            return true;
        }
        let both = |device| fit::gpu_matches(device, own) && fit::gpu_matches(device, theirs);
        own.gpus() > 0 && theirs.gpus() > 0 && host.facts.devices.iter().any(both)
            || !own.devices.is_empty() && !theirs.devices.is_empty()
            // Parts of cards are devices, and keep whole cards from being granted.
            || own.gpus().min(theirs.gpus()) == 0 && !(own.devices.is_empty() && theirs.devices.is_empty())
    }

    /// What was submitted later, and is no more urgent, does not take what is promised to the job.
    pub(super) fn is_kept_from(&self, other: &Job) -> bool {
        self.promise.is_some_and(|own| {
            let sooner = other.promise.as_ref().is_some_and(|theirs| theirs.at_ms <= own.at_ms);
            other.id > self.job.id && other.spec.priority <= self.job.spec.priority && !sooner
        })
    }

    /// Who holds what it waits for, the first to go first: what is being ended, then by their limits.
    pub(super) fn holders(&self, state: &State, now_ms: u64, grace_ms: u64) -> (Vec<WhyHolder>, u32) {
        let mut rows: BTreeMap<(JobId, &str), WhyHolder> = BTreeMap::new();
        for host in &self.hosts {
            for attempt in state.attempts_on(host.id).filter(|one| self.holds(host, one)) {
                let until_ms = limit_over_ms(attempt, now_ms, grace_ms);
                let name = host.name.as_str();
                let row = rows.entry((attempt.task.job, name)).or_insert_with(|| WhyHolder {
                    job: attempt.task.job,
                    host: host.name.clone(),
                    until_ms,
                    gpu_milli: 0,
                    preemptible: attempt.preemptible,
                    ending: attempt.state == AttemptState::Ending,
                });
                row.gpu_milli = row.gpu_milli.saturating_add(attempt.gpu_milli.into());
                // The last of its attempts there says until when.
                row.until_ms = row.until_ms.zip(until_ms).map(|(a, b)| a.max(b));
                row.ending &= attempt.state == AttemptState::Ending;
            }
        }
        let mut rows: Vec<WhyHolder> = rows.into_values().collect();
        rows.sort_by_key(|row| (!row.ending, row.until_ms.unwrap_or(u64::MAX), row.job));
        let more = u32::try_from(rows.len().saturating_sub(HOLDERS_SHOWN_MAX)).unwrap_or(u32::MAX);
        rows.truncate(HOLDERS_SHOWN_MAX);
        (rows, more)
    }

    fn holds(&self, host: &Host, attempt: &Attempt) -> bool {
        if attempt.task.job == self.job.id {
            return false;
        }
        let wants = |ask: &Ask| {
            let of_it = |uuid| host.device(uuid).is_some_and(|device| fit::gpu_matches(device, ask));
            ask.gpus() > 0 && attempt.devices.iter().any(of_it)
                || !ask.devices.is_empty() && !attempt.devices.is_empty()
                || ask.gpus() == 0 && ask.devices.is_empty()
        };
        self.beside_cards || self.job.spec.asks().any(wants)
    }
}
