//! Attempts: live ones in a table with its indexes, ended ones as records that jobs keep.
//!
//! A live attempt moves along Granted -> Running -> Ending (steps may be skipped, never reversed); it leaves the
//! table when its end is applied, and its resources are released in that same step, once.

use rota_protocol::job::{AttemptEnd, AttemptState, EndReason};
use rota_protocol::{DeviceUuid, HostId, JobId, LeaseEpoch, TaskId, Token};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A run of a task that is not yet known to be over. It holds its devices, CPU and memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Fencing token: the log index of its grant and a position in it.
    pub token: Token,
    /// Which task.
    pub task: TaskId,
    /// Where.
    pub host: HostId,
    /// The lease epoch of the host at the grant.
    pub epoch: LeaseEpoch,
    /// Devices held.
    pub devices: Vec<DeviceUuid>,
    /// Whole GPUs among them.
    pub gpus: u32,
    /// CPU held, in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory held, in MiB.
    pub mem_mib: u64,
    /// Where it stands.
    pub state: AttemptState,
    /// Why it is to end, once asked.
    pub end_reason: Option<EndReason>,
    /// Process id on the host, once reported.
    pub pid: Option<u32>,
    /// Log time of the grant.
    pub granted_ms: u64,
    /// Log time of the report that its process runs.
    pub started_ms: Option<u64>,
}

impl Attempt {
    /// Moves along the declared graph; false (and no change) for any other step.
    pub(crate) fn step(&mut self, to: AttemptState) -> bool {
        let legal = may_step(self.state, to);
        if legal {
            self.state = to;
        }
        legal
    }
}

/// The graph of live states. Staying in place is not a step.
#[must_use]
pub fn may_step(from: AttemptState, to: AttemptState) -> bool {
    use AttemptState::{Ending, Granted, Running};
    matches!((from, to), (Granted, Running | Ending) | (Running, Ending))
}

/// What is kept of an attempt that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedAttempt {
    /// Its fencing token.
    pub token: Token,
    /// Array index of its task.
    pub index: u32,
    /// Where it ran.
    pub host: HostId,
    /// Devices it held.
    pub devices: Vec<DeviceUuid>,
    /// How it ended.
    pub end: AttemptEnd,
    /// Process id, if one was reported.
    pub pid: Option<u32>,
    /// Log time of the grant.
    pub granted_ms: u64,
    /// Log time of the start.
    pub started_ms: Option<u64>,
    /// Log time at which its end was applied.
    pub ended_ms: u64,
    /// How long it ran by the host's clock, if it said so, in ms.
    pub ran_ms: Option<u64>,
}

/// All live attempts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct AttemptTable {
    map: BTreeMap<Token, Arc<Attempt>>,
    #[serde(skip)]
    by_task: BTreeMap<TaskId, Token>,
    #[serde(skip)]
    by_host: BTreeSet<(HostId, Token)>,
}

impl AttemptTable {
    pub(crate) fn get(&self, token: Token) -> Option<&Attempt> {
        self.map.get(&token).map(|a| &**a)
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Attempt> {
        self.map.get_mut(&token).map(Arc::make_mut)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Attempt> {
        self.map.values().map(|a| &**a)
    }

    /// The live attempt of a task.
    pub(crate) fn of_task(&self, task: TaskId) -> Option<Token> {
        self.by_task.get(&task).copied()
    }

    /// Live attempts of a job, by index.
    pub(crate) fn of_job(&self, job: JobId) -> impl Iterator<Item = &Attempt> {
        self.by_task
            .range(TaskId { job, index: 0 }..=TaskId { job, index: u32::MAX })
            .filter_map(|(_, token)| self.get(*token))
    }

    /// Live attempts of a host, oldest first.
    pub(crate) fn on_host(&self, host: HostId) -> impl Iterator<Item = &Attempt> {
        self.by_host
            .range((host, Token(0))..=(host, Token(u64::MAX)))
            .filter_map(|(_, token)| self.get(*token))
    }

    pub(crate) fn insert(&mut self, attempt: Attempt) {
        self.by_task.insert(attempt.task, attempt.token);
        self.by_host.insert((attempt.host, attempt.token));
        self.map.insert(attempt.token, Arc::new(attempt));
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Attempt> {
        let attempt = self.map.remove(&token)?;
        self.by_task.remove(&attempt.task);
        self.by_host.remove(&(attempt.host, token));
        Some(Arc::unwrap_or_clone(attempt))
    }

    /// Rebuilds the indexes from the rows, after a snapshot was read.
    pub(crate) fn rebuild(&mut self) {
        self.by_task = self.map.values().map(|a| (a.task, a.token)).collect();
        self.by_host = self.map.values().map(|a| (a.host, a.token)).collect();
    }
}
