//! What a round makes of one job, host by host: the planner's own filters, asked at the job's turn. `explain` turns
//! the answers into words; what would have to change is in `nearer.rs`.

use super::nearer::Smaller;
use super::round::{Round, at_least};
use crate::fit::{self, Misfit, Want};
use crate::state::attempt::GANG_PORT_BLOCKS;
use crate::state::job::Job;
use crate::state::queue::OverCeiling;
use rota_protocol::ask::Ask;
use rota_protocol::job::AttemptState;
use rota_protocol::plan::{PromiseBreak, Slot};
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::work::Layout;
use rota_protocol::{HostId, JobId, Token};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What keeps a job off a host just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: a task fits there.
    Fits,
    /// The host does not have it, is not open, or has too little free.
    Misfit(Misfit),
    /// There is room, but this very round gives it to jobs before this one; what is then in the way.
    Ahead(Misfit),
    /// A launch failed there; not tried again before this time, ms since the epoch.
    BacksOff {
        /// Until when.
        until_ms: u64,
        /// Failures so far.
        failures: u32,
    },
    /// Kept for others by an advance reservation.
    Reserved {
        /// Its name.
        name: String,
        /// From when, ms since the epoch.
        start_ms: u64,
        /// Until when, ms since the epoch.
        end_ms: u64,
    },
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
    /// It fits, but no block of ports is left for a gang to meet at.
    Ports,
    /// It takes turns, and it is the turn of others there, or its own on another model.
    OthersTurn,
}

/// When and where a job would start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The start by the limits of what runs, ms since the epoch.
    pub at_ms: u64,
    /// Where.
    pub slots: Vec<Slot>,
    /// Some of what runs there has no limit; it was taken to end after the time that the config says.
    pub assumed: bool,
}

/// Whom a round would end for a job, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicts {
    /// From when on it may, ms since the epoch: now, or when they are protected no more.
    pub at_ms: u64,
    /// Who has to go.
    pub victims: Vec<Token>,
    /// Where it finds room then.
    pub slots: Vec<Slot>,
}

/// A round's view of one job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Look {
    /// Each host once, by number: the best verdict over the job's asks.
    pub hosts: Vec<(HostId, Verdict)>,
    /// The round would start it, or some of it, now.
    pub starts: bool,
    /// The bound of its account that one more task, or the fewest parts of its gang, would break.
    pub over: Option<OverCeiling>,
    /// Of a gang that has not started: its fewest parts, and how many of them find room together.
    pub parts: Option<(u32, u32)>,
    /// The earliest opening, if there will be one.
    pub expected: Option<Expected>,
    /// When others may be ended so that it finds room, if that will be.
    pub evicts: Option<Evicts>,
    /// Why the start that it was promised cannot be kept, although nobody has said so yet.
    pub promise_broken: Option<PromiseBreak>,
    /// The nearest ask that the round would start now, if it does not start this one.
    pub smaller: Option<Smaller>,
    /// The longest time limit, in ms, with which it would start now beside promises and reservations.
    pub shorter_limit_ms: Option<u64>,
}

impl<'p> Round<'p> {
    /// Notes what the round makes of a job, before it tries to start it for the first time.
    pub(super) fn look_at(&mut self, job: &Arc<Job>) {
        if self.look.is_some() {
            return;
        }
        let mut verdicts: Vec<Verdict> =
            (0..self.ground.sites.len()).map(|at| self.best_verdict(at, job)).collect();
        let parts = self.gang_room(job, &mut verdicts);
        let fits = match parts {
            Some((needed, fit)) => fit >= needed,
            None => verdicts.contains(&Verdict::Fits),
        };
        let over = self.first_over(job, &verdicts);
        let promise_broken = job.promise.as_ref().and_then(|one| self.broken(job, one));
        let expected = self.expected(job);
        let mut look = Look { over, parts, expected, promise_broken, ..Look::default() };
        if !fits || look.over.is_some() {
            look.smaller = self.smaller(job, parts.map(|(_, fit)| fit));
        }
        if !fits && look.over.is_none() {
            look.shorter_limit_ms = self.shorter_limit_ms(job, &verdicts);
        }
        look.hosts = self.ground.sites.iter().map(super::sites::Site::id).zip(verdicts).collect();
        self.look = Some(look);
    }

    /// What keeps one task of an ask off a site.
    pub(super) fn verdict(&self, at: usize, job: &Arc<Job>, ask: &Ask) -> Verdict {
        let want = Want::of(job, ask);
        let site = &self.ground.sites[at];
        let host = &site.row.host;
        if let Err(misfit) = fit::fits(host, site.used(), want, self.now_ms) {
            let taken = fit::fits(host, &host.used, want, self.now_ms).is_ok();
            return if taken { Verdict::Ahead(misfit) } else { Verdict::Misfit(misfit) };
        }
        if self.config.avoid_hosts.contains(&site.id()) {
            return Verdict::Silent;
        }
        if let Some(avoid) = job.avoid.get(&site.id()).filter(|avoid| self.now_ms < avoid.until_ms) {
            return Verdict::BacksOff { until_ms: avoid.until_ms, failures: avoid.failures };
        }
        if !self.is_its_turn_on(at, job) {
            return Verdict::OthersTurn;
        }
        if self.keeps_away(at, job) {
            return self.reserved_by(site.id(), job);
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

    pub(super) fn best_verdict(&self, at: usize, job: &Arc<Job>) -> Verdict {
        let asks = job.spec.asks().map(|ask| self.verdict(at, job, ask));
        asks.min_by_key(rank).unwrap_or(Verdict::Layout)
    }

    /// The reservation that is in the way: the one that begins first.
    fn reserved_by(&self, host: HostId, job: &Job) -> Verdict {
        let until_ms = job.spec.time_limit_ms.map(|_| self.guards.ends_ms(job));
        let rows = self.view.reservations.iter().filter(|row| {
            row.hosts.contains(&host) && row.meets(self.now_ms, until_ms) && !self.is_ours(row, job)
        });
        rows.min_by_key(|row| row.start_ms).map_or(Verdict::Layout, |row| Verdict::Reserved {
            name: row.name.clone(),
            start_ms: row.start_ms,
            end_ms: row.end_ms,
        })
    }

    fn is_ours(&self, row: &ReservationSpec, job: &Job) -> bool {
        match &row.kept_for {
            ReservedFor::Nobody => false,
            ReservedFor::Queues(names) => {
                self.view.queue_path(job.queue).any(|queue| names.contains(&queue.spec.name))
            }
        }
    }

    /// Of a gang that has not started: how many of its fewest parts find room together. Hosts on which they do not
    /// lie as asked, or have no ports to meet at, are told so.
    fn gang_room(&mut self, job: &Arc<Job>, verdicts: &mut [Verdict]) -> Option<(u32, u32)> {
        if job.spec.gang.is_none() || job.live > 0 {
            return None;
        }
        let (needed, _) = job.start_range();
        let spec = &job.spec;
        let mut best: Vec<usize> = Vec::new();
        let mut fit = 0;
        for ask in spec.asks() {
            let rooms = self.rooms(job, ask, needed as usize);
            let whole = together(spec.layout, &rooms, |at| self.rack(at));
            let sum = whole.iter().copied().max().unwrap_or(0);
            if best.is_empty() || sum > fit {
                fit = sum;
                best = whole;
            }
        }
        let fit = u32::try_from(fit).unwrap_or(u32::MAX).min(needed);
        let fitting = |verdicts: &[Verdict]| -> Vec<usize> {
            let places = verdicts.iter().enumerate();
            places.filter(|(_, verdict)| **verdict == Verdict::Fits).map(|(at, _)| at).collect()
        };
        if matches!(spec.layout, Layout::SameHost | Layout::SameRack) {
            for at in fitting(verdicts) {
                if best.get(at).is_none_or(|room| *room < needed as usize) {
                    verdicts[at] = Verdict::Layout;
                }
            }
        }
        let full = |at: &usize| self.ground.sites[*at].used().ports.len() >= usize::from(GANG_PORT_BLOCKS);
        let open = fitting(verdicts);
        if open.iter().all(full) {
            open.into_iter().for_each(|at| verdicts[at] = Verdict::Ports);
        }
        Some((needed, fit))
    }

    fn rack(&self, at: usize) -> Option<&str> {
        self.ground.sites[at].row.host.facts.labels.get(fit::RACK_LABEL).map(String::as_str)
    }

    /// The first bound that each of its asks would break, with the devices that it would get where it fits.
    fn first_over(&self, job: &Arc<Job>, verdicts: &[Verdict]) -> Option<OverCeiling> {
        let (fewest, _) = job.start_range();
        let times = u64::from(fewest);
        let mut first = None;
        for ask in job.spec.asks() {
            if let Some(over) = self.shares.over(self.view, job, &at_least(ask).times(times)) {
                first = first.or(Some(over));
                continue;
            }
            let mut fits = (0..verdicts.len()).filter(|at| verdicts[*at] == Verdict::Fits);
            let real = |at: usize| {
                let devices = self.devices_on(at, job, Want::of(job, ask)).ok()?;
                let amounts = fit::amounts(&self.ground.sites[at].row.host, ask, &devices);
                Some(self.shares.over(self.view, job, &amounts.times(times)))
            };
            let mut nearest = None;
            let within = fits.any(|at| match real(at) {
                Some(Some(over)) => {
                    nearest = nearest.take().or(Some(over));
                    false
                }
                Some(None) => true,
                None => false,
            });
            match nearest {
                Some(over) if !within => first = first.or(Some(over)),
                _ => return None,
            }
        }
        first
    }

    fn expected(&self, job: &Arc<Job>) -> Option<Expected> {
        let (_, at_ms, slots) = self.earliest(job)?;
        let unlimited = |at: usize| {
            let mut live = self.ground.sites[at].row.attempts.iter();
            live.any(|attempt| attempt.limit_ms.is_none() && attempt.state != AttemptState::Ending)
        };
        let assumed = at_ms > self.now_ms && slots.iter().any(|(at, _)| unlimited(*at));
        Some(Expected { at_ms, slots: slots.into_iter().map(|(_, slot)| slot).collect(), assumed })
    }
}

/// Of each site: how many parts find room together if it takes one, as the layout wants them.
fn together<'r>(layout: Layout, rooms: &[usize], rack: impl Fn(usize) -> Option<&'r str>) -> Vec<usize> {
    match layout {
        Layout::SameHost => rooms.to_vec(),
        Layout::SameRack => {
            let mut racks: BTreeMap<&str, usize> = BTreeMap::new();
            for (at, room) in rooms.iter().enumerate() {
                if let Some(rack) = rack(at) {
                    *racks.entry(rack).or_default() += room;
                }
            }
            let sum = |at| rack(at).and_then(|rack| racks.get(rack)).copied().unwrap_or(0);
            (0..rooms.len()).map(sum).collect()
        }
        Layout::Any | Layout::Pack | Layout::Spread | Layout::SameIsland => {
            vec![rooms.iter().sum(); rooms.len()]
        }
    }
}

/// Of several asks the one that is nearest to fitting speaks.
fn rank(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Fits => 0,
        Verdict::Promised { .. }
        | Verdict::Reserved { .. }
        | Verdict::Layout
        | Verdict::Ports
        | Verdict::OthersTurn => 1,
        Verdict::BacksOff { .. } | Verdict::Silent | Verdict::Ahead(_) => 2,
        Verdict::Misfit(misfit) if !misfit.is_lasting() => 3,
        Verdict::Misfit(_) => 4,
    }
}
