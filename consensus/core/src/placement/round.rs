//! One round of planning. The phases are those of README.md: order, start (feasible, score, choose devices), gang,
//! evict, promise. Gangs are in `gang.rs`, evictions in `evict.rs`.

use super::PlanConfig;
use super::pledge::Earliest;
use super::post;
use super::promise::Guards;
use super::share::Shares;
use super::sites::Ground;
use super::turns::{Sorted, Turn, lines};
use super::view::View;
use crate::state::job::Job;
use crate::state::reservation::ReservedHosts;
use rota_protocol::ask::Ask;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::{Move, Plan};
use rota_protocol::queue::Amounts;
use rota_protocol::{JobId, Token};
use std::cell::{Cell, OnceCell};
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
    /// The lowest priority of anything that may be ended, once somebody has asked.
    pub(super) lowest: OnceCell<Option<u16>>,
    /// Searches for victims so far.
    pub(super) searches: usize,
    /// Hosts on which the round started tasks of a job whose tasks must lie together.
    pub(super) started: BTreeMap<JobId, Vec<usize>>,
    /// Tasks of each job that the round has started one by one.
    pub(super) begun: BTreeMap<JobId, u32>,
    bytes: usize,
    pub(super) next_token: u64,
    /// The job to be looked at, and what the round makes of it.
    pub(super) probe: Option<JobId>,
    pub(super) look: Option<super::look::Look>,
    /// What kinds of blocked jobs have a promise: one for each kind of hosts.
    pub(super) competing: BTreeSet<Competes<'p>>,
    /// The oldest blocked job of each kind.
    pub(super) oldest: BTreeMap<Competes<'p>, &'p Arc<Job>>,
    pub(super) promises: usize,
    /// A standing promise that binds the round earlier than it stands.
    pub(super) drawn: Option<(&'p Arc<Job>, Earliest)>,
    /// Jobs whose promise is lost to work of higher standing.
    pub(super) outranked: BTreeSet<JobId>,
    /// Waiting jobs that take turns in this round, with the model on which one has its turn; none: not now.
    pub(super) turns: BTreeMap<JobId, Option<u16>>,
    /// Attempts whose turn may end for another job of their market.
    pub(super) leavers: BTreeSet<Token>,
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
            lowest: OnceCell::new(),
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
            drawn: None,
            outranked: BTreeSet::new(),
            turns: BTreeMap::new(),
            leavers: BTreeSet::new(),
        }
    }

    /// The whole round.
    pub(super) fn run(&mut self) {
        self.note_times();
        self.lapse();
        self.drain_and_trim();
        self.keep_promises();
        self.draw_promises_near();
        self.take_turns();
        self.promise_to_the_patient();
        debug_assert_eq!(post::promises(&self.guards, self.ground), Vec::<String>::new());
        self.order();
        debug_assert_eq!(post::placements(self), Vec::<String>::new());
        debug_assert_eq!(post::evictions(self), Vec::<String>::new());
        debug_assert_eq!(post::promises(&self.guards, self.ground), Vec::<String>::new());
        self.tell_drawn();
        self.promise_to_the_oldest();
        debug_assert_eq!(post::promises(&self.guards, self.ground), Vec::<String>::new());
    }

    /// The plan, and the first time at which a round over the same view would differ.
    pub(super) fn plan(self) -> (Plan, u64) {
        (Plan { seen_index: self.view.index, moves: self.moves }, self.wake_ms.get())
    }

    /// A move starts the job, or some of it.
    pub(super) fn has_started(&self, id: JobId) -> bool {
        self.moves.iter().any(|one| match one {
            Move::Place { task, .. } => task.job == id,
            Move::Start { job, .. } => *job == id,
            _ => false,
        })
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
            for at_ms in host.evict_at_ms.into_iter().chain(host.reopens_ms()) {
                self.wake_at(at_ms);
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
        let mut looks_on = |class: usize| {
            let count = held_back.entry(class).or_default();
            *count += 1;
            *count < HELD_BACK_MAX
        };
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
                // Of elastic gangs one that runs wants single parts, one that waits many at once.
                Tried::OverCeiling | Tried::NoRoom if job.spec.gang.is_some_and(|gang| gang.is_elastic()) => {
                    looks_on(class)
                }
                Tried::OverCeiling => false,
                // A job that keeps away from hosts speaks for itself only.
                Tried::NoRoom => {
                    job.avoided(self.now_ms).next().is_some() || job.spec.takes_turns() && looks_on(class)
                }
                Tried::HeldBack => looks_on(class),
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
        let tried = match self.turns.get(&job.id) {
            Some(None) => Tried::NoRoom,
            _ => self.start(job, alone),
        };
        if self.probe == Some(job.id)
            && let Some(look) = &mut self.look
        {
            look.starts |= matches!(tried, Tried::Started | Tried::Partly);
        }
        match tried {
            Tried::NoRoom | Tried::HeldBack => {
                // What takes turns neither holds others back nor is promised a start: its turn comes.
                if self.turns.contains_key(&job.id) {
                    self.evict_for(job);
                    return Tried::Waits;
                }
                // Its own room is being made: others of its kind may still find some.
                self.look_for_victims(job);
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
