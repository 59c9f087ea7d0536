//! The machine of a replay: equal processors, whole seconds, jobs that wait and jobs that run. It moves the clock and
//! keeps the books; who starts when is a [`Policy`]'s business. The simple engine beside the production scheduler.

use super::foresight::Foresight;
use super::log::Log;
use super::outcome::Outcome;
use rota_core::state::history::Prediction;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Who starts jobs.
pub(super) trait Policy {
    /// Starts what may start now. Called after each second in which something ended, came, or was to be woken for.
    fn round(&mut self, machine: &mut Machine<'_>);
}

/// A job that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queued {
    /// Its position in the log.
    pub job: usize,
    /// Processors it asks.
    pub width: u32,
    /// Its limit, s.
    pub limit_s: u64,
    /// How long it is expected to run.
    pub foreseen: Prediction,
}

/// A job that runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    /// Its position in the log.
    pub job: usize,
    /// Processors it holds.
    pub width: u32,
    /// When it started, s.
    pub start_s: u64,
    /// When it would be killed, s.
    pub limit_end_s: u64,
    /// How long it was expected to run when it started.
    pub foreseen: Prediction,
}

/// The machine at one second.
pub(super) struct Machine<'a> {
    /// What is replayed.
    pub log: &'a Log,
    /// The clock, s.
    pub now_s: u64,
    /// Processors that nobody holds.
    pub free: u32,
    /// Jobs that wait, in order of submission.
    pub waiting: Vec<Queued>,
    /// Jobs that run, in no order.
    pub running: Vec<Running>,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    wakes: BTreeSet<u64>,
    outcome: Outcome,
}

/// Replays a log to its end.
pub(super) fn replay(log: &Log, policy: &mut impl Policy, mut foresight: Foresight) -> Outcome {
    let mut machine = Machine {
        log,
        now_s: 0,
        free: log.processors,
        waiting: Vec::new(),
        running: Vec::new(),
        ends: BinaryHeap::new(),
        wakes: BTreeSet::new(),
        outcome: Outcome::new(log.jobs.len()),
    };
    let mut submitted = 0;
    while let Some(now_s) = machine.next_s(submitted) {
        machine.now_s = now_s;
        machine.wakes.retain(|wake_s| *wake_s > now_s);
        machine.end_jobs(&mut foresight);
        while let Some(job) = log.jobs.get(submitted).filter(|job| job.submit_s <= now_s) {
            let foreseen = foresight.of(job);
            machine.waiting.push(Queued {
                job: submitted,
                width: job.processors,
                limit_s: job.limit_s,
                foreseen,
            });
            submitted += 1;
        }
        if !machine.waiting.is_empty() {
            policy.round(&mut machine);
        }
    }
    machine.outcome
}

impl Machine<'_> {
    /// Starts the job at a position of the queue; it must fit.
    pub(super) fn start(&mut self, at: usize) {
        let Queued { job, width, limit_s, foreseen } = self.waiting.remove(at);
        self.free -= width;
        let start_s = self.now_s;
        self.ends.push(Reverse((start_s + self.log.jobs[job].run_s, job)));
        self.running.push(Running { job, width, start_s, limit_end_s: start_s + limit_s, foreseen });
        self.outcome.start_s[job] = start_s;
    }

    /// Notes that a job was told when it starts at the latest. Only the first promise counts.
    pub(super) fn promise(&mut self, job: usize, start_s: u64) {
        self.outcome.promised_s[job].get_or_insert(start_s);
    }

    /// Asks for a round at a later second.
    pub(super) fn wake(&mut self, at_s: u64) {
        if at_s > self.now_s {
            self.wakes.insert(at_s);
        }
    }

    /// The next second at which something is due.
    fn next_s(&self, submitted: usize) -> Option<u64> {
        let submit = self.log.jobs.get(submitted).map(|job| job.submit_s);
        let end = self.ends.peek().map(|Reverse((end_s, _))| *end_s);
        let wake = self.wakes.first().copied().filter(|_| !self.waiting.is_empty());
        [submit, end, wake].into_iter().flatten().min()
    }

    fn end_jobs(&mut self, foresight: &mut Foresight) {
        let mut users = BTreeSet::new();
        while let Some(Reverse((end_s, job))) = self.ends.peek().copied()
            && end_s <= self.now_s
        {
            self.ends.pop();
            if let Some(at) = self.running.iter().position(|running| running.job == job) {
                let ended = self.running.swap_remove(at);
                self.free += ended.width;
                self.outcome.accuracy.count(ended.foreseen, self.log.jobs[job].run_s * 1_000);
            }
            foresight.learn(&self.log.jobs[job]);
            users.insert(self.log.jobs[job].user);
        }
        if foresight.looks_again() {
            for queued in &mut self.waiting {
                let job = &self.log.jobs[queued.job];
                if users.contains(&job.user) {
                    queued.foreseen = foresight.of(job);
                }
            }
        }
    }
}
