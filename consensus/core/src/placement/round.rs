//! One round of planning. The phases are those of README.md: order, start (feasible, score, choose devices), gang,
//! evict, promise. Gangs are in `gang.rs`, evictions in `evict.rs`.

use super::PlanConfig;
use super::choose::choose;
use super::post;
use super::promise::{Guards, Placed};
use super::share::Shares;
use super::sites::Ground;
use super::turns::{Sorted, Turn, lines};
use super::view::View;
use crate::fit::{self, Want};
use crate::state::job::Job;
use crate::state::reservation::ReservedHosts;
use rota_protocol::ask::Ask;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::{Move, Part, Plan};
use rota_protocol::queue::Amounts;
use rota_protocol::work::Layout;
use rota_protocol::{DeviceUuid, JobId, Token};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

/// Bytes of moves after which a round stops: a plan must fit into one log entry.
const PLAN_BYTES_MAX: usize = 384 << 10;
/// What one move, and one device in it, come to at the most, in bytes.
const MOVE_BYTES: usize = 48;
/// See [`MOVE_BYTES`].
const DEVICE_BYTES: usize = 48;
/// Jobs of one class that are looked at after one of them was held back by a promise: others may end in time.
const HELD_BACK_MAX: usize = 256;

/// A round under way.
pub(super) struct Round<'p> {
    pub(super) view: &'p View,
    pub(super) config: &'p PlanConfig,
    pub(super) now_ms: u64,
    pub(super) ground: &'p mut Ground,
    pub(super) shares: Shares,
    pub(super) guards: Guards,
    pub(super) reserved: ReservedHosts<'p>,
    pub(super) moves: Vec<Move>,
    /// The first time at which something would be different although nothing happened.
    wake_ms: Cell<u64>,
    /// Attempts that the round asks to end.
    pub(super) victims: BTreeSet<Token>,
    /// Searches for victims so far.
    pub(super) searches: usize,
    /// Hosts on which the round started tasks of a job whose tasks must lie together.
    started: BTreeMap<JobId, Vec<usize>>,
    /// Tasks of each job that the round has started one by one.
    begun: BTreeMap<JobId, u32>,
    bytes: usize,
    next_token: u64,
    /// The job to be looked at, and what the round makes of it.
    pub(super) probe: Option<JobId>,
    pub(super) look: Option<super::look::Look>,
    /// What kinds of blocked jobs have a promise: one for each kind of hosts.
    pub(super) competing: BTreeSet<Competes<'p>>,
    /// The oldest blocked job of each kind.
    pub(super) oldest: BTreeMap<Competes<'p>, &'p Arc<Job>>,
    pub(super) promises: usize,
    /// Jobs whose promise is lost to work of higher standing.
    pub(super) outranked: BTreeSet<JobId>,
}

/// What a job competes for: hosts that differ in this are not in each other's way.
pub(super) type Competes<'p> = (&'p [String], &'p BTreeMap<String, String>, &'p BTreeMap<String, u32>, bool);

/// What came of trying to start a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    /// All that may run was started.
    Started,
    /// One task was started, others may follow in the account's next turn.
    Partly,
    /// It may not start yet: that says nothing about others.
    Waits,
    /// A ceiling of its account is reached: that holds for all that ask the same on the same account.
    OverCeiling,
    /// There is no room.
    NoRoom,
    /// There is room, but it is promised to others, reserved, or the job keeps away from it.
    HeldBack,
}

impl<'p> Round<'p> {
    pub(super) fn new(view: &'p View, config: &'p PlanConfig, ground: &'p mut Ground, now_ms: u64) -> Self {
        ground.sync(view, &config.avoid_hosts, config.policy, now_ms);
        debug_assert_eq!(post::ground(ground, view), Vec::<String>::new());
        Self {
            view,
            config,
            now_ms,
            ground,
            shares: Shares::new(view, now_ms),
            guards: Guards::new(now_ms, config.default_limit_ms, config.grace_ms),
            reserved: ReservedHosts::new(view.reservations.iter().map(|row| &**row)),
            moves: Vec::new(),
            wake_ms: Cell::new(u64::MAX),
            victims: BTreeSet::new(),
            searches: 0,
            started: BTreeMap::new(),
            begun: BTreeMap::new(),
            bytes: 0,
            next_token: 1,
            probe: None,
            look: None,
            competing: BTreeSet::new(),
            oldest: BTreeMap::new(),
            promises: 0,
            outranked: BTreeSet::new(),
        }
    }

    /// The whole round.
    pub(super) fn run(&mut self) {
        self.note_times();
        self.lapse();
        self.drain_and_trim();
        self.keep_promises();
        self.promise_to_the_patient();
        debug_assert_eq!(post::promises(&self.guards, self.ground), Vec::<String>::new());
        self.order();
        debug_assert_eq!(post::placements(self), Vec::<String>::new());
        debug_assert_eq!(post::evictions(self), Vec::<String>::new());
        self.promise_to_the_oldest();
        debug_assert_eq!(post::promises(&self.guards, self.ground), Vec::<String>::new());
    }

    /// The plan, and the first time at which a round over the same view would differ.
    pub(super) fn plan(self) -> (Plan, u64) {
        (Plan { seen_index: self.view.index, moves: self.moves }, self.wake_ms.get())
    }

    /// From `at_ms` on something is different, if that lies ahead.
    pub(super) fn wake_at(&self, at_ms: u64) {
        if at_ms > self.now_ms {
            self.wake_ms.set(self.wake_ms.get().min(at_ms));
        }
    }

    /// What is known to change with time alone, beside what the phases come across.
    fn note_times(&self) {
        for row in &self.view.hosts {
            let host = &row.host;
            for at_ms in host.evict_at_ms.iter().chain(host.launches.suspended_until_ms().iter()) {
                self.wake_at(*at_ms);
            }
        }
        for row in &self.view.reservations {
            self.wake_at(row.start_ms);
            self.wake_at(row.end_ms);
        }
        for promise in self.view.promised.iter().filter_map(|job| job.promise.as_ref()) {
            self.wake_at(promise.at_ms);
            self.wake_at(promise.at_ms.saturating_add(1));
        }
    }

    fn lapse(&mut self) {
        for job in &self.view.lapsed {
            self.emit(Move::Lapse { job: *job }, 0);
        }
    }

    /// Order: always the first job of the account whose turn it is. A class without room is out of the round: its
    /// other jobs ask the same.
    fn order(&mut self) {
        let view = self.view;
        let sorted: Vec<Sorted> = view.classes.iter().map(|jobs| self.sorted(jobs)).collect();
        let mut lines = lines(view, &sorted);
        let mut turns: BinaryHeap<Reverse<Turn>> = BinaryHeap::new();
        for (at, line) in lines.iter().enumerate() {
            turns.extend(self.turn(line, at).map(Reverse));
        }
        let mut held_back: BTreeMap<usize, usize> = BTreeMap::new();
        // With nobody to share with there is no need to take turns.
        let alone = lines.len() == 1;
        while let Some(Reverse(turn)) = turns.pop() {
            if self.is_full() {
                return;
            }
            let line_at = turn.3;
            let now = self.turn(&lines[line_at], line_at);
            if now.is_some_and(|now| now != turn) {
                turns.extend(now.map(Reverse));
                continue;
            }
            let Some(Reverse((_, class, at))) = lines[line_at].heads.pop() else {
                continue;
            };
            let job = &view.classes[class][sorted[class][at].1];
            let goes_on = match self.consider(job, alone) {
                Tried::Partly => {
                    let standing = sorted[class][at].0;
                    lines[line_at].heads.push(Reverse((standing, class, at)));
                    false
                }
                Tried::Started | Tried::Waits => true,
                Tried::OverCeiling => false,
                // A job that keeps away from hosts speaks for itself only.
                Tried::NoRoom => job.avoided(self.now_ms).next().is_some(),
                Tried::HeldBack => {
                    let count = held_back.entry(class).or_default();
                    *count += 1;
                    *count < HELD_BACK_MAX
                }
            };
            if goes_on && let Some((next, _)) = sorted[class].get(at + 1) {
                lines[line_at].heads.push(Reverse((*next, class, at + 1)));
            }
            turns.extend(self.turn(&lines[line_at], line_at).map(Reverse));
        }
    }

    /// Starts a job, or sees to it that it can start later.
    fn consider(&mut self, job: &'p Arc<Job>, alone: bool) -> Tried {
        self.wake_at(job.earliest_ms());
        self.wake_at(job.spec.deadline_ms.unwrap_or(0));
        if self.now_ms < job.earliest_ms() || self.is_late(job) {
            return Tried::Waits;
        }
        if self.probe == Some(job.id) {
            self.look_at(job);
        }
        let tried = self.start(job, alone);
        if self.probe == Some(job.id)
            && let Some(look) = &mut self.look
        {
            look.starts |= matches!(tried, Tried::Started | Tried::Partly);
        }
        match tried {
            Tried::NoRoom | Tried::HeldBack => {
                // Its own room is being made: others of its kind may still find some.
                if self.is_waiting_for_victims(job) || self.evict_for(job) || self.move_for(job) {
                    return Tried::Waits;
                }
                self.blocked(job);
            }
            Tried::Started | Tried::Partly | Tried::Waits | Tried::OverCeiling => {}
        }
        tried
    }

    pub(super) fn is_late(&self, job: &Job) -> bool {
        job.started_ms.is_none() && job.spec.deadline_ms.is_some_and(|at_ms| self.now_ms >= at_ms)
    }

    /// Starts all that fits of a job, with the first of its asks that does.
    fn start(&mut self, job: &Arc<Job>, alone: bool) -> Tried {
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
        let waiting = job.pending.first(room).into_iter().flat_map(|(start, end)| start..end);
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
                self.guards.unbind(job.id);
                return Tried::Partly;
            }
        }
        self.guards.unbind(job.id);
        Tried::Started
    }

    /// The best site and devices for one more task of a job.
    pub(super) fn find(
        &mut self,
        job: &Arc<Job>,
        ask: &Ask,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<(usize, Vec<DeviceUuid>), Tried> {
        let want = Want { ask, tenant: &job.tenant };
        if !self.ground.may_fit(ask) {
            return Err(Tried::NoRoom);
        }
        if let Some(found) = self.own_slot(job, ask) {
            return Ok(found);
        }
        self.ground.prepare(want);
        let mut held_back = false;
        let mut devices = Vec::new();
        let found = self.ground.pick(want, |at| {
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

    /// Devices for a job on a site that fits, unless something other than room is in the way.
    pub(super) fn devices_on(&self, at: usize, job: &Job, want: Want<'_>) -> Result<Vec<DeviceUuid>, Tried> {
        let ends_ms = self.guards.ends_ms(job);
        if self.keeps_away(at, job, ends_ms) {
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
    pub(super) fn keeps_away(&self, at: usize, job: &Job, ends_ms: u64) -> bool {
        let host = self.ground.sites[at].id();
        let backs_off = job.avoid.get(&host).is_some_and(|avoid| {
            self.wake_at(avoid.until_ms);
            self.now_ms < avoid.until_ms
        });
        let until_ms = job.spec.time_limit_ms.map(|_| ends_ms);
        backs_off
            || self.reserved.any(host)
                && self.reserved.in_the_way(host, self.now_ms, until_ms, |name| {
                    self.view.queue_path(job.queue).any(|queue| queue.spec.name == *name)
                })
    }

    /// The slot that is the job's own because attempts were ended for it, once it is free.
    fn own_slot(&self, job: &Job, ask: &Ask) -> Option<(usize, Vec<DeviceUuid>)> {
        let promise = job.promise.as_ref().filter(|promise| promise.evicting)?;
        if job.spec.ask_at(promise.choice) != Some(ask) {
            return None;
        }
        let want = Want { ask, tenant: &job.tenant };
        promise.slots.iter().find_map(|slot| {
            let at = self.view.host_at(slot.host)?;
            // Silent hosts and back-off come before what is its own.
            let ends_ms = self.guards.ends_ms(job);
            if self.config.avoid_hosts.contains(&slot.host) || self.keeps_away(at, job, ends_ms) {
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
        let want = Want { ask, tenant: &job.tenant };
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
            mem_mib: ask.mem_mib,
            devices: devices.to_vec(),
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

    pub(super) fn emit(&mut self, one: Move, devices: usize) {
        self.bytes += MOVE_BYTES + devices * DEVICE_BYTES;
        self.moves.push(one);
    }

    pub(super) fn is_full(&self) -> bool {
        self.moves.len() >= self.config.moves_max.min(PLAN_MOVES_MAX) || self.bytes >= PLAN_BYTES_MAX
    }
}

/// What a task of an ask holds whatever card it gets.
pub(super) fn at_least(ask: &Ask) -> Amounts {
    Amounts {
        gpu_milli: u64::from(ask.gpu_milli),
        cpus_milli: u64::from(ask.cpus_milli),
        mem_mib: ask.mem_mib,
        vram_mib: 0,
    }
}

pub(super) fn competes(job: &Job) -> Competes<'_> {
    let ask = &job.spec.ask;
    (&ask.gpu_models, &ask.labels, &ask.devices, ask.gpu_milli > 0)
}
