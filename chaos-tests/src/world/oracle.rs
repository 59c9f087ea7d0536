//! The witness: it stands outside, sees every process in true time and every committed entry, and believes nobody.
//! One law per variant; the numbers are those of the catalogue of faults.

use super::sim::World;
use super::witness::Gangs;
use rota_core::{Applied, Event, invariant};
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::command::{Command, Entry, Outcome};
use rota_protocol::job::{AttemptEnd, AttemptState, JobState};
use rota_protocol::{DeviceUuid, HostId, JobId, LeaseEpoch, RequestId, TaskId, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Which law was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Law {
    /// No task has two live processes, and none starts whose attempt is over.
    I1,
    /// No device is used for two attempts.
    I2,
    /// Every acknowledged job is there.
    I3,
    /// The same request id gets the same answer.
    I4,
    /// One terminal state for each attempt and each job.
    I5,
    /// Resources are released only when the processes are gone.
    I6,
    /// A gang runs as a whole or not at all, and all its hosts agree on who is in it.
    I7,
    /// Replicas at one index are equal.
    I8,
    /// Epochs only grow.
    I11,
    /// A restart of the control plane ends no task.
    I12,
    /// What was put out, or asked for it, runs again.
    I18,
    /// When faults stop, everything comes to its end.
    I20,
    /// The core's own laws.
    Core,
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One law broken.
#[derive(Debug, Clone)]
pub struct Violation {
    /// True time, in ms.
    pub at_ms: u64,
    /// Which law.
    pub law: Law,
    /// How.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ms: {}", self.law, self.at_ms, self.what)
    }
}

/// What it has seen.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Broken laws; a run ends with the first.
    pub violations: Vec<Violation>,
    live: BTreeMap<Token, (TaskId, HostId, Vec<DeviceUuid>)>,
    tasks: BTreeMap<TaskId, Token>,
    devices: BTreeMap<DeviceUuid, BTreeMap<Token, u32>>,
    ended: BTreeSet<Token>,
    terminal: BTreeMap<JobId, JobState>,
    answers: BTreeMap<RequestId, Outcome>,
    epochs: BTreeMap<HostId, LeaseEpoch>,
    /// Jobs that a client was told of.
    pub acked: BTreeSet<JobId>,
    pub(super) gangs: Gangs,
}

impl Oracle {
    /// Notes a broken law.
    pub fn broken(&mut self, at_ms: u64, law: Law, what: String) {
        self.violations.push(Violation { at_ms, law, what });
    }

    /// Processes that live.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Attempts of a job with living processes.
    pub(super) fn live_of(&self, job: JobId) -> Vec<Token> {
        self.live.iter().filter(|(_, (task, ..))| task.job == job).map(|(token, _)| *token).collect()
    }
}

impl World {
    /// A process has started.
    pub(super) fn oracle_started(
        &mut self,
        host: HostId,
        token: Token,
        task: TaskId,
        devices: &[DeviceUuid],
    ) {
        self.note(|| format!("host {host}: attempt {token} of task {task} runs"));
        let now = self.now;
        if self.log.head.attempt(token).is_none() {
            self.oracle.broken(
                now,
                Law::I1,
                format!(
                    "attempt {token} of task {task} starts on host {host} although the log is done with it"
                ),
            );
        }
        if let Some(other) = self.oracle.tasks.insert(task, token) {
            self.oracle.broken(now, Law::I1, format!("task {task} runs as {other} and as {token}"));
        }
        self.oracle_part_started(token, task.job);
        self.share_or_break(token, task, devices);
        self.oracle.live.insert(token, (task, host, devices.to_vec()));
    }

    /// The last process of an attempt is gone.
    pub(super) fn oracle_gone(&mut self, token: Token) {
        let Some((task, _, devices)) = self.oracle.live.remove(&token) else { return };
        if self.oracle.tasks.get(&task) == Some(&token) {
            self.oracle.tasks.remove(&task);
        }
        for device in devices {
            if let Some(users) = self.oracle.devices.get_mut(&device) {
                users.remove(&token);
            }
        }
    }

    /// Each device has at most one whole's worth of users.
    fn share_or_break(&mut self, token: Token, task: TaskId, devices: &[DeviceUuid]) {
        let ask = self.log.head.job(task.job).map(|job| job.spec.ask.card_milli());
        let milli = ask.unwrap_or(CARD_MILLI);
        for device in devices {
            let users = self.oracle.devices.entry(device.clone()).or_default();
            users.insert(token, milli);
            if users.len() > 1 {
                self.reach.hit("card shared");
            }
            if users.values().sum::<u32>() > CARD_MILLI {
                let what = format!("{device} is used by {:?}, each with its thousandths", users);
                self.oracle.broken(self.now, Law::I2, what);
            }
        }
    }

    /// An entry was committed and applied to the head.
    pub(super) fn oracle_committed(&mut self, entry: &Entry, applied: &Applied) {
        let now = self.now;
        for broken in invariant::check(&self.log.head) {
            self.oracle.broken(now, Law::Core, broken.to_string());
        }
        for (proposal, outcome) in entry.proposals.iter().zip(&applied.outcomes) {
            if proposal.request != RequestId::NONE {
                self.same_answer(proposal.request, outcome);
            }
            match (&proposal.command, outcome) {
                (Command::CommitPlan { .. }, Outcome::Planned { refused }) if !refused.is_empty() => {
                    self.reach.hit("plan refused at commit");
                }
                _ => {}
            }
        }
        self.oracle_gangs();
        for event in &applied.events {
            match event {
                Event::AttemptEnded { host, token, job } => self.attempt_ended(*host, *token, *job),
                Event::JobChanged(job) => self.job_changed(*job),
                Event::HostChanged(host) => self.host_changed(*host),
                _ => {}
            }
        }
    }

    fn same_answer(&mut self, request: RequestId, outcome: &Outcome) {
        match self.oracle.answers.get(&request) {
            None => {
                self.oracle.answers.insert(request, outcome.clone());
            }
            Some(first) if first == outcome => self.reach.hit("same request id answered again"),
            Some(first) => {
                let what = format!("request {} was answered {first:?}, then {outcome:?}", request.0);
                self.oracle.broken(self.now, Law::I4, what);
            }
        }
    }

    fn attempt_ended(&mut self, host: HostId, token: Token, job: JobId) {
        let now = self.now;
        if !self.oracle.ended.insert(token) {
            self.oracle.broken(now, Law::I5, format!("attempt {token} ended twice"));
        }
        let end = self.log.head.job(job).and_then(|j| {
            let ended = j.ended.iter().find(|e| e.token == token)?;
            Some((ended.end.clone(), !j.state.is_terminal()))
        });
        if self.oracle.live.contains_key(&token) {
            let how = end.as_ref().map_or(String::new(), |(end, _)| end.to_string());
            let what =
                format!("attempt {token} is over in the log ({how}), its processes live on host {host}");
            self.oracle.broken(now, Law::I6, what);
        }
        let record = self.log.head.job(job).and_then(|j| j.ended.iter().find(|e| e.token == token).cloned());
        if let Some(record) = record {
            self.oracle_comes_back(job, &record);
        }
        let Some((end, open)) = end else { return };
        match &end {
            AttemptEnd::Lost if open => self.reach.hit("requeued after loss"),
            AttemptEnd::Fenced => self.reach.hit("fenced"),
            AttemptEnd::TimeLimit => self.reach.hit("time limit"),
            _ => {}
        }
        let restarts = matches!(end, AttemptEnd::Lost | AttemptEnd::Fenced);
        if restarts && self.params.profile == super::params::Profile::Quiet {
            let what =
                format!("attempt {token} on host {host}: {end}, although only control planes restarted");
            self.oracle.broken(now, Law::I12, what);
        }
    }

    fn job_changed(&mut self, id: JobId) {
        let Some(state) = self.log.head.job(id).map(|job| job.state) else { return };
        match self.oracle.terminal.get(&id) {
            Some(was) if *was != state => {
                let what = format!("job {id} was {was} and is {state}");
                self.oracle.broken(self.now, Law::I5, what);
            }
            None if state.is_terminal() => {
                self.oracle.terminal.insert(id, state);
                match state {
                    JobState::DependencyFailed => self.reach.hit("dependency not met"),
                    JobState::DeadlineMissed => self.reach.hit("deadline missed"),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn host_changed(&mut self, id: HostId) {
        let Some(epoch) = self.log.head.host(id).map(|host| host.epoch) else { return };
        let was = self.oracle.epochs.insert(id, epoch);
        if was.is_some_and(|was| was > epoch) {
            self.oracle.broken(self.now, Law::I11, format!("the epoch of host {id} went back to {epoch}"));
        }
    }

    /// A client heard an answer.
    pub(super) fn oracle_answered(&mut self, request: RequestId, outcome: &Outcome) {
        let now = self.now;
        match self.oracle.answers.get(&request) {
            Some(logged) if logged == outcome => {}
            logged => {
                let what = format!("request {} was answered {outcome:?}, the log says {logged:?}", request.0);
                self.oracle.broken(now, Law::I4, what);
            }
        }
        if let Outcome::Submitted { job } = outcome {
            self.oracle.acked.insert(*job);
        }
    }

    /// Every acknowledged job is there.
    pub(super) fn oracle_jobs(&mut self) {
        let gone: Vec<JobId> =
            self.oracle.acked.iter().copied().filter(|j| self.log.head.job(*j).is_none()).collect();
        for job in gone {
            self.oracle.broken(self.now, Law::I3, format!("job {job} was acknowledged and is not there"));
        }
    }

    /// In which state a cancel finds a job.
    pub(super) fn reach_cancel(&mut self, job: JobId) {
        let Some(found) = self.log.head.job(job) else { return };
        let state = self.log.head.attempts_of(job).map(|a| a.state).next();
        let what = match (found.state.is_terminal(), state) {
            (true, _) => "cancel after the end",
            (false, None) => "cancel while pending",
            (false, Some(AttemptState::Granted)) => "cancel while granted",
            (false, Some(AttemptState::Running)) => "cancel while running",
            (false, Some(AttemptState::Ending)) => "cancel while ending",
        };
        self.reach.hit(what);
    }
}
