//! Shims and the processes that they keep: what lives on a machine whatever becomes of its agent. The decisions are
//! `logic::life`, the decider of the real shim; processes are modelled: some ignore TERM, some leave children behind,
//! and all need time to die.

use super::plant::Plant;
use super::queue::{Ev, Machine, Note, Own};
use super::sim::World;
use rota_core::Attempt;
use rota_node::logic::life::{Do, Life, LifeParams};
use rota_node::logic::reconcile::{Local, LocalState};
use rota_protocol::job::{AttemptEnd, EndReason, JobSpec};
use rota_protocol::spool::ExitRecord;
use rota_protocol::{DeviceUuid, HostId, LeaseEpoch, TaskId, Token};
use std::collections::BTreeMap;

/// From an order to a running process, at most.
const START_MS_MAX: u64 = 60;
/// Starts that take long, per mille, and how long: a busy host may come to them after its lease.
const SLOW_START_PERMILLE: u64 = 30;
const SLOW_START_MS_MAX: u64 = 6_000;
/// From TERM to the exit of a task that heeds it, at most.
const TERM_MS_MAX: u64 = 250;
/// From KILL to the last process's end, at most: less than half of the kill budget, which the lease rule allows.
const KILL_MS_MAX: u64 = 200;
/// A shim's alarm may come late by this much.
const ALARM_MS_MAX: u64 = 20;
/// From a shim's word to the agent's ear, at most.
const NOTE_MS_MAX: u64 = 10;
/// Tasks that run longer than any lease, per mille, and how long.
const LONG_PERMILLE: u64 = 250;
const LONG_MS: (u64, u64) = (10_000, 20_000);
/// Tasks that leave the file by which they ask to be queued again, per mille.
const ASKS_AGAIN_PERMILLE: u64 = 20;
/// The status by which the users' programs ask to be queued again.
pub(super) const REQUEUE_STATUS: u8 = 75;
const SIGTERM: u8 = 15;
const SIGKILL: u8 = 9;

/// What an attempt left on a machine.
#[derive(Debug)]
pub struct Shim {
    /// The task.
    pub task: TaskId,
    epoch: LeaseEpoch,
    devices: Vec<DeviceUuid>,
    params: LifeParams,
    state: ShimState,
    alarm: u64,
    pid: u32,
}

#[derive(Debug)]
enum ShimState {
    /// Ordered, nothing started yet.
    Unborn,
    Live(Task),
    /// Everything is gone, the record is written.
    Dead(ExitRecord),
}

/// A task's processes.
#[derive(Debug)]
struct Task {
    life: Life,
    main_gone: bool,
    heeds_term: bool,
    heeds_warning: bool,
    /// Makes the file by which it asks to be queued again.
    asks_again: bool,
    leaves_children: bool,
    termed: bool,
    dying: bool,
}

impl Shim {
    /// A process of it may be there.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.state, ShimState::Live(_))
    }
}

impl World {
    /// Orders an attempt. False when its token was used here before: nothing is started.
    pub(super) fn order(&mut self, id: HostId, attempt: &Attempt, spec: &JobSpec) -> bool {
        let kill_budget_ms = self.params.lease.kill_budget_ms;
        let slow = self.rng.chance(SLOW_START_PERMILLE) && !self.healed;
        let after = self.rng.range(1, if slow { SLOW_START_MS_MAX } else { START_MS_MAX });
        let forgets = self.params.plant == Some(Plant::ForgetTokens);
        let host = self.host_mut(id);
        if !host.used.insert(attempt.token) && !forgets {
            self.reach.hit("used token refused");
            return false;
        }
        let shim = Shim {
            task: attempt.task,
            epoch: attempt.epoch,
            devices: attempt.devices.clone(),
            params: LifeParams {
                time_limit_ms: spec.time_limit_ms,
                grace_ms: spec.grace_ms.map_or(kill_budget_ms, u64::from),
                kill_budget_ms,
                warning: spec.warning,
                requeue_status: spec.requeue_status,
            },
            state: ShimState::Unborn,
            alarm: 0,
            pid: u32::try_from(attempt.token.0 & 0xffff).unwrap_or(0) + 2,
        };
        host.shims.insert(attempt.token, shim);
        self.machine_after(id, after, Machine::Start(attempt.token));
        true
    }

    /// The shim is there: it starts its task if the lease leaves time for it.
    pub(super) fn shim_start(&mut self, id: HostId, token: Token) {
        let now_local = self.local_ms(id);
        let fails = self.rng.chance(self.params.launch_fails_permille) && !self.healed;
        let Some(shim) = self.host(id).shims.get(&token).filter(|s| matches!(s.state, ShimState::Unborn))
        else {
            return;
        };
        let (epoch, params) = (shim.epoch, shim.params);
        let deadline = self.host(id).leases.get(&epoch).copied().unwrap_or(0);
        if fails {
            self.reach.hit("launch failed");
            let reason = "no such file: /bin/train".to_owned();
            self.record(id, token, AttemptEnd::LaunchFailed { reason }, 0);
            return;
        }
        if !Life::may_start(params.kill_budget_ms, now_local, deadline) {
            self.reach.hit("late start refused");
            self.record(id, token, AttemptEnd::Fenced, 0);
            return;
        }
        self.run_task(id, token, Life::new(params, now_local, deadline));
    }

    fn run_task(&mut self, id: HostId, token: Token, life: Life) {
        let long = self.rng.chance(LONG_PERMILLE);
        let runs_ms = if long {
            self.rng.range(LONG_MS.0, LONG_MS.1)
        } else {
            self.rng.range(20, self.params.run_ms_max)
        };
        let how = match self.rng.below(20) {
            0..=15 => AttemptEnd::Exited { code: 0 },
            16 | 17 => AttemptEnd::Exited { code: 1 },
            18 => AttemptEnd::Signalled { signal: 11 },
            19 if self.rng.chance(500) => AttemptEnd::Exited { code: REQUEUE_STATUS },
            _ => AttemptEnd::Exited { code: 137 },
        };
        let task = Task {
            life,
            main_gone: false,
            heeds_term: !self.rng.chance(250),
            heeds_warning: self.rng.chance(500),
            asks_again: self.rng.chance(ASKS_AGAIN_PERMILLE),
            leaves_children: self.rng.chance(150),
            termed: false,
            dying: false,
        };
        let Some(shim) = self.host_mut(id).shims.get_mut(&token) else { return };
        shim.state = ShimState::Live(task);
        let (what, devices, pid) = (shim.task, shim.devices.clone(), shim.pid);
        self.oracle_started(id, token, what, &devices);
        self.machine_after(id, runs_ms, Machine::Exit(token, how));
        self.set_alarm(id, token);
        self.tell_agent(id, Note::Started(token, pid));
    }

    /// The shim's alarm.
    pub(super) fn shim_wake(&mut self, id: HostId, token: Token, alarm: u64) {
        let now_local = self.local_ms(id);
        let host = self.host_mut(id);
        let Some(shim) = host.shims.get_mut(&token).filter(|shim| shim.alarm == alarm) else { return };
        let deadline = host.leases.get(&shim.epoch).copied().unwrap_or(0);
        let ShimState::Live(task) = &mut shim.state else { return };
        let what = task.life.on_time(now_local, || deadline);
        self.carry(id, token, what);
    }

    /// The agent asks the shim to end its attempt.
    pub(super) fn end_shim(&mut self, id: HostId, token: Token, reason: EndReason) {
        let now_local = self.local_ms(id);
        let Some(shim) = self.host_mut(id).shims.get_mut(&token) else { return };
        match &mut shim.state {
            ShimState::Unborn => {
                self.record(id, token, reason.end(), 0);
            }
            ShimState::Live(task) => {
                let what = task.life.end(reason, now_local);
                self.carry(id, token, what);
            }
            ShimState::Dead(_) => {}
        }
    }

    /// The task's first process ends, by itself or by TERM.
    pub(super) fn main_exits(&mut self, id: HostId, token: Token, how: AttemptEnd) {
        let Some(shim) = self.host_mut(id).shims.get_mut(&token) else { return };
        let ShimState::Live(task) = &mut shim.state else { return };
        if std::mem::replace(&mut task.main_gone, true) {
            return;
        }
        let left = task.leaves_children;
        let what = task.life.main_ended(how, left, task.asks_again);
        if left {
            self.reach.hit("children left behind");
            self.carry(id, token, what);
        } else {
            self.all_gone(id, token);
        }
    }

    fn carry(&mut self, id: HostId, token: Token, what: Do) {
        let (term_ms, kill_ms) = (self.rng.range(1, TERM_MS_MAX), self.rng.range(1, KILL_MS_MAX));
        let Some(shim) = self.host_mut(id).shims.get_mut(&token) else { return };
        let ShimState::Live(task) = &mut shim.state else { return };
        match what {
            Do::Nothing => {}
            Do::Warn if task.heeds_warning && !std::mem::replace(&mut task.termed, true) => {
                let saved = AttemptEnd::Exited { code: REQUEUE_STATUS };
                self.machine_after(id, term_ms, Machine::Exit(token, saved));
                self.reach.hit("warning heeded");
            }
            Do::Warn => {}
            Do::Term if task.heeds_term && !std::mem::replace(&mut task.termed, true) => {
                self.machine_after(
                    id,
                    term_ms,
                    Machine::Exit(token, AttemptEnd::Signalled { signal: SIGTERM }),
                );
            }
            Do::Term => {}
            Do::Kill if !std::mem::replace(&mut task.dying, true) => {
                self.machine_after(id, kill_ms, Machine::Gone(token));
            }
            Do::Kill => {}
        }
        self.set_alarm(id, token);
    }

    /// The last process is gone.
    pub(super) fn all_gone(&mut self, id: HostId, token: Token) {
        let now_local = self.local_ms(id);
        let Some(shim) = self.host_mut(id).shims.get_mut(&token) else { return };
        let ShimState::Live(task) = &mut shim.state else { return };
        if !std::mem::replace(&mut task.main_gone, true) {
            task.life.main_ended(AttemptEnd::Signalled { signal: SIGKILL }, false, task.asks_again);
        }
        let (end, started) = (task.life.clone().ended(), task.life.started_ms());
        self.oracle_gone(token);
        self.record(id, token, end, now_local.saturating_sub(started));
    }

    fn record(&mut self, id: HostId, token: Token, end: AttemptEnd, ran_ms: u64) {
        let record = ExitRecord { ran_ms, ..ExitRecord::never_ran(token, end) };
        self.note(|| format!("host {id}: attempt {token} is over: {}", record.end));
        if let Some(shim) = self.host_mut(id).shims.get_mut(&token) {
            shim.state = ShimState::Dead(record.clone());
            self.tell_agent(id, Note::Ended(record));
        }
    }

    fn tell_agent(&mut self, id: HostId, note: Note) {
        let after = self.rng.range(0, NOTE_MS_MAX);
        if self.host(id).agent.is_some() {
            self.own_after(id, after, Own::Note(note));
        }
    }

    fn set_alarm(&mut self, id: HostId, token: Token) {
        let late = self.rng.range(0, ALARM_MS_MAX);
        let now = self.now;
        let host = self.host_mut(id);
        let Some(shim) = host.shims.get_mut(&token) else { return };
        let ShimState::Live(task) = &shim.state else { return };
        let Some(next_ms) = task.life.next_ms() else { return };
        shim.alarm += 1;
        let wake = Machine::Wake(token, shim.alarm);
        let at = host.clock.true_at(next_ms).max(now) + late;
        let boots = host.boots;
        self.queue.push(at, Ev::Machine(id, boots, wake));
    }

    pub(super) fn machine_after(&mut self, id: HostId, after_ms: u64, what: Machine) {
        let boots = self.host(id).boots;
        self.queue.push(self.now + after_ms, Ev::Machine(id, boots, what));
    }

    /// The fork server dies with the agent: orders that were not carried out may never be.
    pub(super) fn lose_unborn_shims(&mut self, id: HostId) {
        let unborn =
            |(token, shim): (&Token, &Shim)| matches!(shim.state, ShimState::Unborn).then_some(*token);
        let tokens: Vec<Token> = self.host(id).shims.iter().filter_map(unborn).collect();
        for token in tokens {
            if self.rng.chance(500) {
                let reason = "the host has no record of its end".to_owned();
                self.record(id, token, AttemptEnd::Vanished { reason }, 0);
            }
        }
    }

    /// What a new agent finds.
    pub(super) fn adopt(&mut self, id: HostId) -> BTreeMap<Token, Local> {
        let mut found = BTreeMap::new();
        let mut live = 0;
        for (token, shim) in &self.host(id).shims {
            let state = match &shim.state {
                ShimState::Unborn => LocalState::Launching,
                ShimState::Live(_) => {
                    live += 1;
                    LocalState::Running { pid: shim.pid }
                }
                ShimState::Dead(record) => LocalState::Ended(record.clone()),
            };
            found.insert(*token, Local { state, end_asked: None });
        }
        if live > 0 {
            self.reach.hit("attempt adopted");
        }
        found
    }

    /// The machine goes down: every process is gone at once, lease files too, records stay.
    pub(super) fn power_off(&mut self, id: HostId) {
        self.kill_agent(id);
        let host = self.host_mut(id);
        host.up = false;
        host.leases.clear();
        let mut gone = Vec::new();
        for (token, shim) in &mut host.shims {
            if matches!(shim.state, ShimState::Dead(_)) {
                continue;
            }
            gone.push(*token);
            let end = AttemptEnd::Vanished { reason: "the host was restarted under it".to_owned() };
            shim.state = ShimState::Dead(ExitRecord::never_ran(*token, end));
        }
        for token in gone {
            self.oracle_gone(token);
        }
        self.note(|| format!("host {id} goes down"));
    }
}
