//! The one word in a queue's row. Cheaper than a whole answer: no round is planned, every host is asked once, and equal
//! jobs share the answer.

use super::account;
use super::lack::lack;
use crate::fit::{self, Want};
use crate::state::State;
use crate::state::host::Host;
use crate::state::job::Job;
use crate::state::reservation::in_the_way;
use rota_protocol::HostId;
use rota_protocol::ask::Ask;
use rota_protocol::work::Layout;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// One word for a job whose own rules and account let it start: `next`, or the commonest reason among the hosts that
/// could run it. The same for all jobs of its class, but for one that room is being made for.
pub(crate) fn short(state: &State, job: &Job, now_ms: u64) -> &'static str {
    if lack(state, &job.spec).is_some() {
        return "impossible";
    }
    if account::too_large(state, &job.spec, job.queue).is_some() {
        return "ceiling";
    }
    let (fewest, _) = job.start_range();
    let mut places = Places { state, job, now_ms, promised: promised_to_others(state, job), left: fewest };
    let mut counts: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut some = false;
    for host in state.hosts() {
        match places.obstacle(host) {
            None if places.left == 0 => return "next",
            None => some = true,
            Some(Obstacle::Lasting) => {}
            Some(Obstacle::Passing(kind)) => *counts.entry(kind).or_default() += 1,
        }
    }
    if some {
        return "some_parts";
    }
    let commonest = counts.into_iter().max_by_key(|(kind, n)| (*kind != "joining", *n, Reverse(*kind)));
    commonest.map_or("no_hosts", |(kind, _)| kind)
}

enum Obstacle {
    /// The host does not have it.
    Lasting,
    Passing(&'static str),
}

struct Places<'s> {
    state: &'s State,
    job: &'s Job,
    now_ms: u64,
    promised: BTreeSet<HostId>,
    /// Parts that have no place yet.
    left: u32,
}

impl Places<'_> {
    /// What keeps all asks off a host; none if a task fits, which is then counted.
    fn obstacle(&mut self, host: &Host) -> Option<Obstacle> {
        let mut first = None;
        for ask in self.job.spec.asks() {
            match fit::fits(host, &host.used, Want::of(self.job, ask), self.now_ms) {
                Ok(eligible) => {
                    let kept = self.kept_away(host);
                    if kept.is_some() {
                        return kept.map(Obstacle::Passing);
                    }
                    let tasks = tasks_at_least(host, ask, eligible.len());
                    if self.job.spec.layout == Layout::SameHost && tasks < self.left {
                        return Some(Obstacle::Passing("layout"));
                    }
                    self.left = self.left.saturating_sub(tasks);
                    return None;
                }
                Err(misfit) if misfit.is_lasting() => first = first.or(Some(Obstacle::Lasting)),
                Err(misfit) => {
                    if !matches!(first, Some(Obstacle::Passing(_))) {
                        first = Some(Obstacle::Passing(misfit.kind()));
                    }
                }
            }
        }
        first
    }

    fn kept_away(&self, host: &Host) -> Option<&'static str> {
        let ends_ms = self.job.spec.time_limit_ms.map(|limit| self.now_ms.saturating_add(limit));
        let rows = self.state.reservations.iter();
        let queues = &self.state.queues;
        if in_the_way(rows, queues, self.job.queue, host.id, self.now_ms, ends_ms).is_some() {
            return Some("reserved");
        }
        self.promised.contains(&host.id).then_some("promised")
    }
}

/// Tasks that surely find room beside each other, at least the one that fits.
fn tasks_at_least(host: &Host, ask: &Ask, eligible: usize) -> u32 {
    let mut tasks = u64::MAX;
    let mut bound = |has: u64, asks: u64| {
        if let Some(times) = has.checked_div(asks) {
            tasks = tasks.min(times);
        }
    };
    bound(u64::from(host.facts.cpus_milli).saturating_sub(host.used.cpus_milli), u64::from(ask.cpus_milli));
    bound(host.facts.mem_mib.saturating_sub(host.used.mem_mib), fit::pool_asked_mib(&host.facts, ask));
    bound(eligible as u64, u64::from(ask.gpus()) + ask.devices.values().map(|n| u64::from(*n)).sum::<u64>());
    u32::try_from(tasks.max(1)).unwrap_or(u32::MAX)
}

/// Hosts with a place that another job of no lower priority was promised.
fn promised_to_others(state: &State, job: &Job) -> BTreeSet<HostId> {
    let others = state.jobs.promised().filter(|id| *id != job.id).filter_map(|id| state.job(id));
    let others = others.filter(|other| other.priority >= job.priority);
    others.filter_map(|other| other.promise.as_ref()).flat_map(|p| &p.slots).map(|slot| slot.host).collect()
}
