//! Start: feasible, score, choose devices, for one task after the other.

use super::choose::choose;
use super::pace::Pace;
use super::promise::Placed;
use super::round::{Round, Tried, at_least};
use crate::fit::{self, Want};
use crate::state::job::Job;
use rota_protocol::ask::Ask;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::{Move, Part};
use rota_protocol::queue::Amounts;
use rota_protocol::work::Layout;
use rota_protocol::{DeviceUuid, Token};
use std::sync::Arc;

impl Round<'_> {
    /// Starts all that fits of a job, with the first of its asks that does.
    pub(super) fn start(&mut self, job: &Arc<Job>, alone: bool) -> Tried {
        let mut worst = Tried::NoRoom;
        for (choice, ask) in (0_u8..).zip(job.spec.asks()) {
            let tried = if job.spec.gang.is_some() && job.live == 0 {
                self.start_gang(job, choice, ask)
            } else {
                self.start_tasks(job, choice, ask, alone)
            };
            match tried {
                Tried::Started | Tried::Partly => return tried,
                Tried::NoRoom => {}
                other => worst = other,
            }
        }
        worst
    }

    /// Task by task: one, or as many as may run and fit.
    fn start_tasks(&mut self, job: &Arc<Job>, choice: u8, ask: &Ask, alone: bool) -> Tried {
        let room = job.parallel_room().min(PLAN_MOVES_MAX as u32);
        let begun = self.begun.get(&job.id).copied().unwrap_or(0);
        if !self.shares.admits(self.view, job, &at_least(ask)) {
            return Tried::OverCeiling;
        }
        let waiting = job.rested(self.now_ms).take(room as usize);
        let mut left = waiting.skip(begun as usize).peekable();
        while let Some(ordinal) = left.peek().copied() {
            if self.is_full() {
                return Tried::Started;
            }
            let (at, devices) = match self.find(job, ask, &|_| true) {
                Ok(found) => found,
                Err(tried) => return tried,
            };
            if !self.hold(job, ask, at, &devices) {
                return Tried::OverCeiling;
            }
            // It has begun: what it was promised is not kept for it a second time.
            self.guards.unbind(job.id);
            left.next();
            let task = job.task(ordinal);
            let (host, epoch) = (self.ground.sites[at].id(), self.ground.sites[at].row.host.epoch);
            let count = devices.len();
            let one = if choice == 0 {
                Move::Place { task, host, epoch, devices }
            } else {
                let part = Part { index: task.index, host, epoch, devices };
                Move::Start { job: job.id, choice, parts: vec![part] }
            };
            self.emit(one, count);
            *self.begun.entry(job.id).or_default() += 1;
            if !alone && left.peek().is_some() {
                return Tried::Partly;
            }
        }
        Tried::Started
    }

    /// The best site and devices for one more task of a job.
    pub(super) fn find(
        &mut self,
        job: &Arc<Job>,
        ask: &Ask,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<(usize, Vec<DeviceUuid>), Tried> {
        let want = Want::of(job, ask);
        if !self.ground.may_fit(ask) {
            return Err(Tried::NoRoom);
        }
        if let Some(found) = self.own_slot(job, ask) {
            return Ok(found);
        }
        let pace = self.pace(job, ask);
        self.ground.prepare(want, &pace);
        let mut held_back = false;
        let mut devices = Vec::new();
        let found = self.ground.pick(want, &pace, |at| {
            if !wanted(at) || !self.lies_right(job, at) {
                return false;
            }
            match self.devices_on(at, job, want) {
                Ok(chosen) => {
                    devices = chosen;
                    true
                }
                Err(tried) => {
                    held_back |= tried == Tried::HeldBack;
                    false
                }
            }
        });
        found.map(|at| (at, devices)).ok_or(if held_back { Tried::HeldBack } else { Tried::NoRoom })
    }

    /// How fast a job runs where, as far as is known.
    pub(super) fn pace(&self, job: &Job, ask: &Ask) -> Pace {
        Pace::of(&self.ground.models, &self.view.speeds, job, ask)
    }

    /// Devices for a job on a site that fits, unless something other than room is in the way.
    pub(super) fn devices_on(&self, at: usize, job: &Job, want: Want<'_>) -> Result<Vec<DeviceUuid>, Tried> {
        let ends_ms = self.guards.ends_ms(job);
        if self.keeps_away(at, job) || !self.is_its_turn_on(at, job) {
            return Err(Tried::HeldBack);
        }
        let eligible = self.ground.eligible(at, want).ok_or(Tried::NoRoom)?;
        let promised = self.guards.is_promised(at);
        if promised && self.guards.in_the_way(self.ground, at, job, want, ends_ms) {
            return Err(Tried::HeldBack);
        }
        let eligible = if promised {
            self.guards.spared(self.ground, at, job, want, ends_ms, eligible)
        } else {
            eligible
        };
        let chosen = choose(self.ground, at, want, job.spec.layout, &eligible);
        chosen.ok_or(if promised { Tried::HeldBack } else { Tried::NoRoom })
    }

    /// Back-off, or hosts reserved for others.
    pub(super) fn keeps_away(&self, at: usize, job: &Job) -> bool {
        let host = self.ground.sites[at].id();
        let backs_off = job.avoid.get(&host).is_some_and(|avoid| {
            self.wake_at(avoid.until_ms);
            self.now_ms < avoid.until_ms
        });
        backs_off || self.reserved_until(host, job, self.now_ms) != Some(self.now_ms)
    }

    /// The slot that is the job's own because attempts were ended for it, once it is free.
    fn own_slot(&self, job: &Job, ask: &Ask) -> Option<(usize, Vec<DeviceUuid>)> {
        let promise = job.promise.as_ref().filter(|_| self.guards.owns(job.id))?;
        if job.spec.ask_at(promise.choice) != Some(ask) {
            return None;
        }
        let want = Want::of(job, ask);
        promise.slots.iter().find_map(|slot| {
            let at = self.view.host_at(slot.host)?;
            // Silent hosts and back-off come before what is its own.
            if self.config.avoid_hosts.contains(&slot.host) || self.keeps_away(at, job) {
                return None;
            }
            let site = &self.ground.sites[at];
            let free = fit::takes(&site.row.host, site.used(), want, &slot.devices, self.now_ms).is_ok();
            free.then(|| (at, slot.devices.clone()))
        })
    }

    /// Tasks that must lie together lie where the first ones do.
    pub(super) fn lies_right(&self, job: &Job, at: usize) -> bool {
        let same_host = match job.spec.layout {
            Layout::SameHost => true,
            Layout::SameRack => false,
            _ => return true,
        };
        let Some(first) = self.first_host(job) else {
            return true;
        };
        let rack = |at: usize| self.ground.sites[at].row.host.facts.labels.get(fit::RACK_LABEL);
        // Hosts that say nothing of their rack share none.
        first == at || !same_host && rack(first).is_some() && rack(first) == rack(at)
    }

    /// A host where a task of the job lives, or was started in this round.
    fn first_host(&self, job: &Job) -> Option<usize> {
        let in_round = self.started.get(&job.id).and_then(|sites| sites.first().copied());
        in_round.or_else(|| {
            if job.live == 0 {
                return None;
            }
            let lives = |row: &super::view::HostView| row.attempts.iter().any(|a| a.task.job == job.id);
            self.view.hosts.iter().position(lives)
        })
    }

    /// Takes room for one task; false if a ceiling forbids it.
    pub(super) fn hold(&mut self, job: &Arc<Job>, ask: &Ask, at: usize, devices: &[DeviceUuid]) -> bool {
        let want = Want::of(job, ask);
        let amounts = fit::amounts(&self.ground.sites[at].row.host, ask, devices);
        if !self.shares.admits(self.view, job, &amounts) {
            return false;
        }
        self.shares.place(self.view, job, &amounts, false);
        let token = Token(self.next_token);
        self.next_token += 1;
        let placed = Placed {
            token,
            ends_ms: self.guards.ends_ms(job),
            cpus_milli: ask.cpus_milli,
            mem_mib: amounts.mem_mib,
            devices: devices.to_vec(),
            over: Vec::new(),
        };
        self.guards.place(self.ground, at, job, want, placed);
        self.ground.take(at, want, devices, token);
        if matches!(job.spec.layout, Layout::SameHost | Layout::SameRack) {
            self.started.entry(job.id).or_default().push(at);
        }
        true
    }

    /// Gives the newest task's room on a site back.
    pub(super) fn release(&mut self, job: &Arc<Job>, ask: &Ask, at: usize, devices: &[DeviceUuid]) {
        let amounts: Amounts = fit::amounts(&self.ground.sites[at].row.host, ask, devices);
        self.shares.place(self.view, job, &amounts, true);
        self.guards.unplace(at);
        self.started.remove(&job.id);
    }
}
