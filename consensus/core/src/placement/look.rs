//! What a round makes of one job, host by host: the planner's own filters, asked at the job's turn. `explain` turns
//! the answers into words.

use super::round::{Round, at_least};
use crate::fit::{self, Misfit, Want};
use crate::state::job::Job;
use rota_protocol::ask::Ask;
use rota_protocol::plan::Slot;
use rota_protocol::{HostId, JobId};
use std::sync::Arc;

/// What keeps a job off a host just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: a task fits there.
    Fits,
    /// The host does not have it, is not open, or has too little free.
    Misfit(Misfit),
    /// A launch failed there; not tried again before this time, ms since the epoch.
    BacksOff {
        /// Until when.
        until_ms: u64,
        /// Failures so far.
        failures: u32,
    },
    /// Kept for others by an advance reservation.
    Reserved,
    /// Promised to another job: this one would not be over in time and does not fit beside it.
    Promised {
        /// To whom.
        job: JobId,
        /// From when, ms since the epoch.
        at_ms: u64,
    },
    /// The leader has not heard of it just now.
    Silent,
    /// It fits, but not where the job's layout wants its tasks.
    Layout,
}

/// When and where a job would start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The latest start by the limits of what runs, ms since the epoch.
    pub at_ms: u64,
    /// Where.
    pub slots: Vec<Slot>,
}

/// A round's view of one job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Look {
    /// Each host once, by number, for the first of the job's asks; the best verdict if there are several asks.
    pub hosts: Vec<(HostId, Option<Verdict>)>,
    /// The round would start it, or some of it, now.
    pub starts: bool,
    /// Ceilings of its account leave room for one more task.
    pub within_ceilings: bool,
    /// The earliest opening, if it does not start now and there will be one.
    pub expected: Option<Expected>,
}

impl<'p> Round<'p> {
    /// Notes what the round makes of a job, before it tries to start it.
    pub(super) fn look_at(&mut self, job: &Arc<Job>) {
        let hosts = (0..self.ground.sites.len()).map(|at| {
            let asks = job.spec.asks().map(|ask| self.verdict(at, job, ask));
            let best = asks.min_by_key(rank);
            (self.ground.sites[at].id(), best)
        });
        let hosts = hosts.collect();
        let within_ceilings = job.spec.asks().any(|ask| self.shares.admits(self.view, job, &at_least(ask)));
        let expected = self.earliest(job).map(|(_, at_ms, slots)| Expected {
            at_ms,
            slots: slots.into_iter().map(|(_, slot)| slot).collect(),
        });
        self.look = Some(Look { hosts, starts: false, within_ceilings, expected });
    }

    fn verdict(&self, at: usize, job: &Arc<Job>, ask: &Ask) -> Verdict {
        let want = Want { ask, tenant: &job.tenant };
        let site = &self.ground.sites[at];
        if let Err(misfit) = fit::fits(&site.row.host, site.used(), want, self.now_ms) {
            return Verdict::Misfit(misfit);
        }
        if self.config.avoid_hosts.contains(&site.id()) {
            return Verdict::Silent;
        }
        if let Some(avoid) = job.avoid.get(&site.id()).filter(|avoid| self.now_ms < avoid.until_ms) {
            return Verdict::BacksOff { until_ms: avoid.until_ms, failures: avoid.failures };
        }
        if self.keeps_away(at, job, self.guards.ends_ms(job)) {
            return Verdict::Reserved;
        }
        if !self.lies_right(job, at) {
            return Verdict::Layout;
        }
        if self.devices_on(at, job, want).is_ok() {
            return Verdict::Fits;
        }
        match self.guards.first_on(at, job) {
            Some((job, at_ms)) => Verdict::Promised { job, at_ms },
            None => Verdict::Layout,
        }
    }
}

/// Of several asks the one that is nearest to fitting speaks.
fn rank(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Fits => 0,
        Verdict::Promised { .. } | Verdict::Reserved | Verdict::Layout => 1,
        Verdict::BacksOff { .. } | Verdict::Silent => 2,
        Verdict::Misfit(misfit) if !misfit.is_lasting() => 3,
        Verdict::Misfit(_) => 4,
    }
}
