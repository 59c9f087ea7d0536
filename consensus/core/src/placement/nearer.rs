//! What would have to change for a job to start right now: fewer parts, a smaller ask, a shorter limit. Every answer
//! was put to the round's own filters, and then to a round of its own in which the job asks for no more: its turn may be
//! another one, with other jobs before it. Nothing is estimated.

use super::look::Verdict;
use super::promise::Placed;
use super::round::{Round, at_least};
use crate::fit::{self, Misfit, Want};
use crate::state::job::Job;
use crate::state::ordinals::Ordinals;
use crate::state::queue::OverCeiling;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::DeviceKind;
use rota_protocol::work::Layout;
use rota_protocol::{HostId, Token};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steps by which an ask is made smaller on one host before it is given up.
const STEPS_MAX: usize = 8;
/// Shorter limits are not worth telling, in ms.
const LIMIT_MS_MIN: u64 = 10_000;
/// Tokens of tasks that are only tried: above all that a round gives out, below all real ones.
const TRIED_TOKEN: u64 = 1 << 18;

/// An ask that the round would start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Smaller {
    /// What a task asks.
    pub ask: Ask,
    /// Parts of the gang; none for other jobs.
    pub parts: Option<u32>,
    /// Where the task, or the first part, finds room.
    pub host: Option<HostId>,
}

impl<'p> Round<'p> {
    /// How many tasks of an ask each site takes, up to `most`. Where layouts allow it the count stops as soon as all
    /// sites together have room for `most`.
    pub(super) fn rooms(&mut self, job: &Arc<Job>, ask: &Ask, most: usize) -> Vec<usize> {
        let want = Want::of(job, ask);
        let apart = matches!(job.spec.layout, Layout::SameHost | Layout::SameRack);
        let mut rooms = vec![0; self.ground.sites.len()];
        let mut left = most;
        for (at, room) in rooms.iter_mut().enumerate() {
            if left == 0 {
                break;
            }
            *room = self.room_on(at, job, want, left);
            if !apart {
                left -= *room;
            }
        }
        rooms
    }

    fn room_on(&mut self, at: usize, job: &Arc<Job>, want: Want<'_>, most: usize) -> usize {
        let before = self.ground.taken(at);
        let ends_ms = self.guards.ends_ms(job);
        let mut room = 0;
        while room < most
            && let Ok(devices) = self.devices_on(at, job, want)
        {
            let token = Token(TRIED_TOKEN + room as u64);
            let host = &self.ground.sites[at].row.host;
            let (cpus_milli, mem_mib) = (want.ask.cpus_milli, fit::mem_held_mib(host, want.ask, &devices));
            let placed =
                Placed { token, ends_ms, cpus_milli, mem_mib, devices: devices.clone(), over: Vec::new() };
            self.guards.place(self.ground, at, job, want, placed);
            self.ground.take(at, want, &devices, token);
            room += 1;
        }
        for _ in 0..room {
            self.guards.unplace(at);
        }
        if room > 0 {
            self.ground.restore(at, before);
        }
        room
    }

    /// The ask nearest to the job's own that starts now: the fewest parts of it changed, then the most cards, the most
    /// of their memory, CPU, memory.
    pub(super) fn smaller(&self, job: &Arc<Job>, parts: Option<u32>) -> Option<Smaller> {
        let ask = &job.spec.ask;
        if let Some(fit) = parts {
            let (needed, _) = job.start_range();
            let within = |parts: &u32| {
                self.shares.over(self.view, job, &at_least(ask).times(u64::from(*parts))).is_none()
            };
            let most = (1..=fit.min(needed.saturating_sub(1))).rev().find(within)?;
            return Some(Smaller { ask: ask.clone(), parts: Some(most), host: None });
        }
        let sites = 0..self.ground.sites.len();
        let asks = sites.filter_map(|at| Some((self.reduced(at, job, ask)?, at)));
        let nearest = asks.min_by_key(|(other, at)| {
            let figures = (other.gpu_milli, other.vram_mib, other.cpus_milli, other.mem_mib);
            (changes(ask, other), Reverse(figures), *at)
        });
        let (ask, at) = nearest?;
        Some(Smaller { ask, parts: None, host: Some(self.ground.sites[at].id()) })
    }

    /// The ask cut down to what a site gives, step by step, by what the filters say is there.
    fn reduced(&self, at: usize, job: &Arc<Job>, ask: &Ask) -> Option<Ask> {
        let mut ask = ask.clone();
        for _ in 0..STEPS_MAX {
            if let Some(over) = self.shares.over(self.view, job, &at_least(&ask)) {
                ask = under(ask, &over)?;
                continue;
            }
            ask = match self.verdict(at, job, &ask) {
                Verdict::Fits => {
                    let want = Want::of(job, &ask);
                    let devices = self.devices_on(at, job, want).ok()?;
                    let amounts = fit::amounts(&self.ground.sites[at].row.host, &ask, &devices);
                    match self.shares.over(self.view, job, &amounts) {
                        None => return Some(ask),
                        Some(over) => under(ask, &over)?,
                    }
                }
                Verdict::Misfit(misfit) | Verdict::Ahead(misfit) => self.less(at, ask, &misfit)?,
                _ => return None,
            };
        }
        None
    }

    /// The ask with the part that failed as it is there; none if nothing of it is.
    fn less(&self, at: usize, mut ask: Ask, misfit: &Misfit) -> Option<Ask> {
        let before = ask.clone();
        match misfit {
            Misfit::GpuModel { has: 0, .. } => {
                let devices = &self.ground.sites[at].row.host.facts.devices;
                let other = devices.iter().find(|d| d.kind == DeviceKind::Gpu && !d.model.is_empty())?;
                ask.gpu_models = vec![other.model.clone()];
            }
            Misfit::GpuCount { has, .. }
            | Misfit::GpuModel { has, .. }
            | Misfit::GpusUnhealthy { has, .. }
            | Misfit::GpusDegraded { has, .. }
            | Misfit::GpusBusy { has, .. }
                if *has > 0 =>
            {
                ask.gpu_milli = has.saturating_mul(CARD_MILLI);
            }
            Misfit::ShareBusy { has, .. } if *has > 0 => ask.gpu_milli = *has,
            Misfit::ShareVram => ask.vram_mib /= 2,
            Misfit::Vram { has, .. } if *has > 0 => ask.vram_mib = *has,
            Misfit::ComputeCap { has, .. } if *has > 0 => ask.compute_cap_min = *has,
            Misfit::DeviceCount { kind, has, .. } | Misfit::DevicesBusy { kind, has, .. } if *has > 0 => {
                ask.devices.insert(kind.clone(), *has);
            }
            Misfit::Cpus { has, .. } | Misfit::CpusBusy { has, .. } if *has > 0 => {
                ask.cpus_milli = u32::try_from(*has).ok()?;
            }
            Misfit::Mem { has, .. } | Misfit::MemBusy { has, .. } if *has > 0 => ask.mem_mib = *has,
            _ => return None,
        }
        (ask != before).then_some(ask)
    }

    /// The longest limit with which the job is over before what keeps it off some host begins.
    pub(super) fn shorter_limit_ms(&self, job: &Arc<Job>, verdicts: &[Verdict]) -> Option<u64> {
        let (fewest, _) = job.start_range();
        if fewest > 1 {
            return None;
        }
        let grace_ms = job.spec.grace_ms.map_or(self.config.grace_ms, u64::from);
        let room_ms = |verdict: &Verdict| match verdict {
            Verdict::Promised { at_ms, .. } => Some(at_ms.saturating_sub(self.now_ms + grace_ms)),
            Verdict::Reserved { start_ms, .. } => Some(start_ms.saturating_sub(self.now_ms + grace_ms)),
            _ => None,
        };
        let mut shortened: BTreeMap<u64, Arc<Job>> = BTreeMap::new();
        let mut best: Option<u64> = None;
        for (at, verdict) in verdicts.iter().enumerate() {
            let mut limit_ms = room_ms(verdict);
            for _ in 0..STEPS_MAX {
                let wanted = limit_ms.filter(|ms| *ms >= LIMIT_MS_MIN && best.is_none_or(|best| *ms > best));
                let Some(ms) = wanted else {
                    break;
                };
                let other = shortened.entry(ms).or_insert_with(|| with_limit(job, ms));
                match self.best_verdict(at, other) {
                    Verdict::Fits => {
                        best = Some(ms);
                        break;
                    }
                    nearer => limit_ms = room_ms(&nearer).filter(|other| *other < ms),
                }
            }
        }
        best
    }
}

/// The job as one that asks for so much instead.
pub(super) fn with_ask(job: &Job, smaller: &Smaller) -> Arc<Job> {
    let mut other = Job { promise: None, ..job.clone() };
    other.spec.ask_only(smaller.ask.clone(), smaller.parts);
    if smaller.parts.is_some() {
        other.pending = Ordinals::full(other.spec.tasks());
    }
    Arc::new(other)
}

/// The job as one with another time limit.
pub(super) fn with_limit(job: &Job, limit_ms: u64) -> Arc<Job> {
    let mut other = Job { promise: None, ..job.clone() };
    other.spec.limit(limit_ms);
    Arc::new(other)
}

/// Fields in which two asks differ.
fn changes(a: &Ask, b: &Ask) -> usize {
    let differs = [
        a.gpu_milli != b.gpu_milli,
        a.gpu_models != b.gpu_models,
        a.vram_mib != b.vram_mib,
        a.compute_cap_min != b.compute_cap_min,
        a.cpus_milli != b.cpus_milli,
        a.mem_mib != b.mem_mib,
        a.devices != b.devices,
    ];
    differs.into_iter().filter(|differs| *differs).count()
}

/// The ask with so much less that it keeps a bound; none if nothing of the part is left.
fn under(mut ask: Ask, over: &OverCeiling) -> Option<Ask> {
    let excess = u32::try_from(over.would.saturating_sub(over.most)).ok()?;
    let cut = |asked: u32| asked.checked_sub(excess).filter(|left| *left > 0);
    match over.part {
        "gpus" if ask.share_milli().is_some() => ask.gpu_milli = cut(ask.gpu_milli)?,
        "gpus" => ask.gpu_milli = cut(ask.gpu_milli)? / CARD_MILLI * CARD_MILLI,
        "cpus" => ask.cpus_milli = cut(ask.cpus_milli)?,
        "mem" => ask.mem_mib = ask.mem_mib.checked_sub(u64::from(excess)).filter(|left| *left > 0)?,
        // Memory of whole cards is counted by the card.
        _ => ask.gpu_milli = ask.gpu_milli.checked_sub(CARD_MILLI)?,
    }
    (ask.gpu_milli > 0 || over.part != "gpus" && over.part != "vram").then_some(ask)
}
