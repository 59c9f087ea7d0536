//! One round of planning. The phases are those of README.md: order, start (feasible, score, choose devices), gang,
//! evict, promise. Gangs are in `gang.rs`, evictions in `evict.rs`.

use super::PlanConfig;
use super::choose::choose;
use super::order::{OrderKey, Waiting, order_key, promised_start_ms};
use super::promise::{Guards, Placed, broken, located};
use super::share::{ShareKey, Shares};
use super::sites::Ground;
use super::view::View;
use crate::fit::{self, Want};
use crate::state::job::Job;
use crate::state::reservation::ReservedHosts;
use rota_protocol::ask::Ask;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::{Move, Part, Plan, PromiseBreak, Slot};
use rota_protocol::queue::{Amounts, QueueId};
use rota_protocol::work::Layout;
use rota_protocol::{DeviceUuid, JobId, Token};
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

/// How long a job of which nothing is known is taken to run when jobs are put in order, in ms.
const UNKNOWN_RUN_MS: u64 = 4 * 3_600 * 1_000;

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
    /// Attempts that the round asks to end.
    pub(super) victims: BTreeSet<Token>,
    /// Searches for victims so far.
    pub(super) searches: usize,
    /// Hosts on which the round started tasks of a job whose tasks must lie together.
    started: BTreeMap<JobId, Vec<usize>>,
    bytes: usize,
    next_token: u64,
    /// The job to be looked at, and what the round makes of it.
    pub(super) probe: Option<JobId>,
    pub(super) look: Option<super::look::Look>,
    /// What kinds of blocked jobs have a promise: one for each kind of hosts.
    competing: BTreeSet<Competes<'p>>,
    /// The oldest blocked job of each kind.
    oldest: BTreeMap<Competes<'p>, &'p Arc<Job>>,
    promises: usize,
}

/// What a job competes for: hosts that differ in this are not in each other's way.
type Competes<'p> = (&'p [String], &'p BTreeMap<String, String>, &'p BTreeMap<String, u32>, bool);

/// What came of trying to start a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    /// All that may run was started.
    Started,
    /// It may not start yet: that says nothing about others.
    Waits,
    /// A ceiling of its account is reached: that holds for all that ask the same on the same account.
    OverCeiling,
    /// There is no room.
    NoRoom,
    /// There is room, but it is promised to others, reserved, or the job keeps away from it.
    HeldBack,
}

/// The heads of one account's classes: the job's standing, its class, its place there.
struct Line {
    queue: QueueId,
    user: String,
    heads: BinaryHeap<Reverse<(Standing, usize, usize)>>,
}

/// Place of a job on its account: those that were evicted before those that never started, then by the order key.
type Standing = (Reverse<u16>, Reverse<bool>, OrderKey, JobId);

/// An account's place among all, and the job that it would be for.
type Turn = (Reverse<u16>, ShareKey, Standing, usize);

/// Ready jobs of one class in the order of the round.
type Sorted = Vec<(Standing, usize)>;

impl<'p> Round<'p> {
    pub(super) fn new(view: &'p View, config: &'p PlanConfig, ground: &'p mut Ground, now_ms: u64) -> Self {
        ground.sync(view, &config.avoid_hosts, config.policy, now_ms);
        Self {
            view,
            config,
            now_ms,
            ground,
            shares: Shares::new(view, now_ms),
            guards: Guards::new(now_ms, config.default_limit_ms, config.grace_ms),
            reserved: ReservedHosts::new(view.reservations.iter().map(|row| &**row)),
            moves: Vec::new(),
            victims: BTreeSet::new(),
            searches: 0,
            started: BTreeMap::new(),
            bytes: 0,
            next_token: 1,
            probe: None,
            look: None,
            competing: BTreeSet::new(),
            oldest: BTreeMap::new(),
            promises: 0,
        }
    }

    /// The whole round.
    pub(super) fn run(&mut self) {
        self.lapse();
        self.drain_and_trim();
        self.keep_promises();
        self.promise_to_the_patient();
        self.order();
        self.promise_to_the_oldest();
    }

    pub(super) fn plan(self) -> Plan {
        Plan { seen_index: self.view.index, moves: self.moves }
    }

    fn lapse(&mut self) {
        for job in &self.view.lapsed {
            self.emit(Move::Lapse { job: *job }, 0);
        }
    }

    /// Standing promises bind from the start. One that is broken binds nobody; its job gets a new one in its turn.
    fn keep_promises(&mut self) {
        for job in &self.view.promised {
            let Some(promise) = job.promise.as_ref() else {
                continue;
            };
            if broken(self.view, promise, self.now_ms).is_none() {
                let slots = located(self.view, &promise.slots);
                self.guards.bind(self.ground, job, promise.at_ms, promise.choice, &slots);
                self.competing.insert(competes(job));
                self.promises += 1;
            }
        }
    }

    /// Who has waited long enough and does not fit is promised a start before anybody else's turn: in the round in
    /// which the promise is made it binds already.
    fn promise_to_the_patient(&mut self) {
        let view = self.view;
        let (now_ms, after_ms) = (self.now_ms, self.config.promise_after_ms);
        let patient = view.classes.iter().filter_map(|jobs| jobs.first()).filter(|job| {
            let since_ms = job.submitted_ms.max(job.earliest_ms());
            now_ms >= since_ms && now_ms - since_ms >= after_ms
        });
        for job in patient {
            self.blocked(job);
        }
        let mut oldest: Vec<&'p Arc<Job>> = std::mem::take(&mut self.oldest).into_values().collect();
        oldest.sort_by_key(|job| (Reverse(job.priority), job.submitted_ms, job.id));
        oldest.truncate(self.config.promises_max);
        for job in oldest {
            let waits = job.promise.is_none() && !self.is_late(job) && !self.would_start(job);
            if waits && self.shares.admits(view, job, &at_least(&job.spec.ask)) {
                self.promise(job);
            }
        }
    }

    /// One task of a job, or the whole gang, would find room now.
    fn would_start(&mut self, job: &Arc<Job>) -> bool {
        let (fewest, _) = job.start_range();
        job.spec.asks().any(|ask| {
            let want = Want { ask, tenant: &job.tenant };
            if fewest == 1 {
                return self.find(job, ask, &|_| true).is_ok();
            }
            let opening = self.guards.opening(self.ground, self.view, job, want, fewest as usize);
            opening.is_some_and(|opening| opening.at_ms <= self.now_ms)
        })
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
            let goes_on = match self.consider(job) {
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

    fn turn(&self, line: &Line, at: usize) -> Option<Turn> {
        let Reverse((standing, _, _)) = line.heads.peek()?;
        let key = self.shares.key(self.view, line.queue, &line.user);
        Some((standing.0, key, *standing, at))
    }

    fn sorted(&self, jobs: &[Arc<Job>]) -> Sorted {
        let mut sorted: Sorted = jobs.iter().enumerate().map(|(at, job)| (self.standing(job), at)).collect();
        sorted.sort_unstable();
        sorted
    }

    fn standing(&self, job: &Job) -> Standing {
        let waiting = Waiting {
            priority: job.priority,
            submitted_ms: job.submitted_ms.max(job.earliest_ms()),
            predicted_ms: job.predicted_ms.unwrap_or(UNKNOWN_RUN_MS),
            limit_ms: job.spec.time_limit_ms,
            width: width(job),
        };
        (Reverse(job.priority), Reverse(job.evicted > 0), order_key(&waiting, self.now_ms), job.id)
    }

    /// Starts a job, or sees to it that it can start later.
    fn consider(&mut self, job: &'p Arc<Job>) -> Tried {
        if self.now_ms < job.earliest_ms() || self.is_late(job) {
            return Tried::Waits;
        }
        if self.probe == Some(job.id) {
            self.look_at(job);
        }
        let tried = self.start(job);
        if self.probe == Some(job.id)
            && let Some(look) = &mut self.look
        {
            look.starts = tried == Tried::Started;
        }
        match tried {
            Tried::NoRoom | Tried::HeldBack => {
                if !self.evict_for(job) {
                    self.blocked(job);
                }
            }
            Tried::Started | Tried::Waits | Tried::OverCeiling => {}
        }
        tried
    }

    fn is_late(&self, job: &Job) -> bool {
        job.started_ms.is_none() && job.spec.deadline_ms.is_some_and(|at_ms| self.now_ms >= at_ms)
    }

    /// Starts all that fits of a job, with the first of its asks that does.
    fn start(&mut self, job: &Arc<Job>) -> Tried {
        let mut worst = Tried::NoRoom;
        for (choice, ask) in (0_u8..).zip(job.spec.asks()) {
            let tried = if job.spec.gang.is_some() && job.live == 0 {
                self.start_gang(job, choice, ask)
            } else {
                self.start_tasks(job, choice, ask)
            };
            match tried {
                Tried::Started => return Tried::Started,
                Tried::NoRoom => {}
                other => worst = other,
            }
        }
        worst
    }

    /// Task by task, as many as may run and fit.
    fn start_tasks(&mut self, job: &Arc<Job>, choice: u8, ask: &Ask) -> Tried {
        let room = job.parallel_room().min(PLAN_MOVES_MAX as u32);
        if !self.shares.admits(self.view, job, &at_least(ask)) {
            return Tried::OverCeiling;
        }
        let mut left = job.pending.first(room).into_iter().flat_map(|(start, end)| start..end).peekable();
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
        let backs_off = job.avoid.get(&host).is_some_and(|avoid| self.now_ms < avoid.until_ms);
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
        if same_host { first == at } else { rack(first) == rack(at) }
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
        self.guards.place(self.ground, at, want, placed);
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

    /// Of the blocked jobs of each kind the oldest gets a promise, not the one whose turn came first: short jobs may
    /// go first, but not for ever.
    fn blocked(&mut self, job: &'p Arc<Job>) {
        // A job that runs already, if not as wide as it would like, has begun.
        if job.live > 0 {
            return;
        }
        let age = |job: &Job| (Reverse(job.priority), job.submitted_ms, job.id);
        let oldest = self.oldest.entry(competes(job)).or_insert(job);
        if age(job) < age(oldest) {
            *oldest = job;
        }
    }

    /// Promise: who has waited longest is told when and where it starts at the latest.
    fn promise_to_the_oldest(&mut self) {
        let mut oldest: Vec<&'p Arc<Job>> = std::mem::take(&mut self.oldest).into_values().collect();
        oldest.sort_by_key(|job| (Reverse(job.priority), job.submitted_ms, job.id));
        for job in oldest {
            if self.is_full() {
                return;
            }
            self.promise(job);
        }
    }

    fn promise(&mut self, job: &'p Arc<Job>) {
        let standing = job.promise.as_ref();
        let why_broken = standing.and_then(|promise| broken(self.view, promise, self.now_ms));
        let holds = standing.filter(|_| why_broken.is_none());
        if holds.is_some_and(|promise| promise.evicting) {
            return;
        }
        let key = competes(job);
        if holds.is_none() && (self.promises >= self.config.promises_max || self.competing.contains(&key)) {
            return;
        }
        if holds.is_some() {
            return;
        }
        if let Some((choice, at_ms, slots)) = self.earliest(job) {
            self.guards.bind(self.ground, job, at_ms, choice, &slots);
            self.tell(job, at_ms, choice, slots, why_broken);
            self.competing.insert(key);
            self.promises += 1;
        }
    }

    /// The earliest opening over all asks of a job, within its ceilings.
    pub(super) fn earliest(&self, job: &Arc<Job>) -> Option<(u8, u64, Vec<(usize, Slot)>)> {
        let (fewest, _) = job.start_range();
        let mut best: Option<(u8, u64, Vec<(usize, Slot)>)> = None;
        for (choice, ask) in (0_u8..).zip(job.spec.asks()) {
            let want = Want { ask, tenant: &job.tenant };
            let opening = self.guards.opening(self.ground, self.view, job, want, fewest as usize);
            if let Some(opening) = opening
                && best.as_ref().is_none_or(|(_, at_ms, _)| opening.at_ms < *at_ms)
            {
                best = Some((choice, opening.at_ms, opening.slots));
            }
        }
        let slack_limits = self.config.promise_slack_limits;
        if let Some((_, at_ms, _)) = &mut best {
            *at_ms = promised_start_ms(*at_ms, job.submitted_ms, job.spec.time_limit_ms, slack_limits);
        }
        best
    }

    /// Writes a promise down, if the job has waited long enough to want one and it is worth a log entry.
    fn tell(
        &mut self,
        job: &Job,
        at_ms: u64,
        choice: u8,
        slots: Vec<(usize, Slot)>,
        why_broken: Option<PromiseBreak>,
    ) {
        let waited_ms = self.now_ms.saturating_sub(job.submitted_ms.max(job.earliest_ms()));
        if waited_ms < self.config.promise_after_ms {
            return;
        }
        let slots: Vec<Slot> = slots.into_iter().map(|(_, slot)| slot).collect();
        let devices = slots.iter().map(|slot| slot.devices.len() + 1).sum();
        self.emit(Move::Promise { job: job.id, at_ms, slots, choice, broken_by: why_broken }, devices);
    }

    pub(super) fn emit(&mut self, one: Move, devices: usize) {
        self.bytes += MOVE_BYTES + devices * DEVICE_BYTES;
        self.moves.push(one);
    }

    pub(super) fn is_full(&self) -> bool {
        self.moves.len() >= self.config.moves_max.min(PLAN_MOVES_MAX) || self.bytes >= PLAN_BYTES_MAX
    }
}

/// One line for each account that waits.
fn lines(view: &View, sorted: &[Sorted]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut known: BTreeMap<(QueueId, &str), usize> = BTreeMap::new();
    for (class, jobs) in view.classes.iter().enumerate() {
        let Some(head) = jobs.first() else {
            continue;
        };
        let line = *known.entry((head.queue, &head.user)).or_insert_with(|| {
            lines.push(Line { queue: head.queue, user: head.user.clone(), heads: BinaryHeap::new() });
            lines.len() - 1
        });
        lines[line].heads.extend(sorted[class].first().map(|(first, _)| Reverse((*first, class, 0))));
    }
    lines
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

/// Cards, or hosts' worth of CPU, that a job asks in all.
fn width(job: &Job) -> u32 {
    let parts = job.spec.gang.map_or(1, |gang| gang.min);
    job.spec.ask.gpus().max(1).saturating_mul(parts)
}

fn competes(job: &Job) -> Competes<'_> {
    let ask = &job.spec.ask;
    (&ask.gpu_models, &ask.labels, &ask.devices, ask.gpu_milli > 0)
}
