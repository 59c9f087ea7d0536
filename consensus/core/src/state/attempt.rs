//! Attempts: live ones in a table with its indexes, ended ones as records that jobs keep.
//!
//! A live attempt moves along Granted -> Running -> Ending (steps may be skipped, never reversed); it leaves the
//! table when its end is applied, and its resources are released in that same step, once.

use crate::state::host::Holder;
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::cage::Used;
use rota_protocol::care::Care;
use rota_protocol::job::{AttemptEnd, AttemptState, EndReason};
use rota_protocol::queue::{Amounts, QueueId};
use rota_protocol::{DeviceUuid, HostId, JobId, LeaseEpoch, TaskId, Token};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// Devices held; a card that is shared comes first.
    pub devices: Vec<DeviceUuid>,
    /// Which of the job's asks it was granted for.
    pub choice: u8,
    /// GPUs among them, in thousandths: a multiple of 1,000, or the share of one card.
    pub gpu_milli: u32,
    /// GPU memory held on all cards together, in MiB.
    pub vram_mib: u64,
    /// What it holds of each card, in thousandths.
    pub card_milli: u32,
    /// Memory that it holds on a card that it shares, in MiB.
    pub card_vram_mib: u64,
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
    /// Who pays.
    pub tenant: String,
    /// Who submitted the job.
    pub user: String,
    /// The queue that it counts for.
    pub queue: QueueId,
    /// The job's priority.
    pub priority: u16,
    /// Longest run, in ms.
    pub limit_ms: Option<u64>,
    /// Time between TERM and KILL that ending it may take, in ms; none for the host's default.
    pub grace_ms: Option<u32>,
    /// How long it was expected to run when it was granted, in ms; never above the limit.
    pub predicted_ms: Option<u64>,
    /// May be ended to make room.
    pub preemptible: bool,
    /// Part of a gang.
    pub in_gang: bool,
    /// Not ended to make room before this log time: its job was evicted often enough, or its queue lets it run so long.
    pub spared_until_ms: u64,
    /// The first of [`PORTS_OF_A_GANG`] ports on this host at which its gang meets; only one part has them: the one of
    /// lowest index of those that started first, or of the first that came when that one was gone.
    pub port: Option<u16>,
    /// What its host told of it beside start and end.
    pub care: Option<Box<Care>>,
}

/// Ports of one block: enough for the launchers of the usual frameworks.
pub const PORTS_OF_A_GANG: u16 = 16;
/// The first port of the first block: below the kernel's ephemeral range, above what services use.
pub const GANG_PORT_FIRST: u16 = 24_000;
/// Blocks of one host.
pub const GANG_PORT_BLOCKS: u16 = 256;

impl Attempt {
    /// When it is over by its limit, in log time; none if it has no limit. The limit counts from the start; until
    /// that is reported, from the grant.
    #[must_use]
    pub fn ends_by_ms(&self) -> Option<u64> {
        Some(self.started_ms.unwrap_or(self.granted_ms).saturating_add(self.limit_ms?))
    }

    /// What it holds, for ceilings and shares.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        Amounts {
            gpu_milli: u64::from(self.gpu_milli),
            cpus_milli: u64::from(self.cpus_milli),
            mem_mib: self.mem_mib,
            vram_mib: self.vram_mib,
        }
    }

    /// It holds part of a card: the first of its devices.
    #[must_use]
    pub fn shares_card(&self) -> bool {
        (1..CARD_MILLI).contains(&self.card_milli)
    }

    /// Its devices with what it holds of each. That follows from the grant alone: what a host says of a device later
    /// changes nothing of it. Of a whole device all memory is held, whatever it is.
    pub(crate) fn holdings(&self) -> Vec<(DeviceUuid, Holder)> {
        let share = Holder { token: self.token, milli: self.card_milli, vram_mib: self.card_vram_mib };
        let whole = Holder { token: self.token, milli: CARD_MILLI, vram_mib: 0 };
        let of = |at: usize| if at == 0 && self.shares_card() { share } else { whole };
        self.devices.iter().enumerate().map(|(at, uuid)| (uuid.clone(), of(at))).collect()
    }

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
    /// Why its end was asked, if it was.
    pub asked: Option<EndReason>,
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
    /// What its host counted.
    pub used: Used,
    /// What its host told of it beside start and end.
    pub care: Option<Box<Care>>,
}

/// All live attempts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct AttemptTable {
    map: BTreeMap<Token, Arc<Attempt>>,
    #[serde(skip)]
    by_task: BTreeMap<TaskId, Token>,
    /// Live attempts of each host by token, shared as a whole: the planner takes them without a walk and sees by the
    /// pointer whether anything changed.
    #[serde(skip)]
    by_host: BTreeMap<HostId, Arc<Vec<Arc<Attempt>>>>,
}

impl AttemptTable {
    pub(crate) fn get(&self, token: Token) -> Option<&Attempt> {
        self.map.get(&token).map(|a| &**a)
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

    /// The same, shared.
    pub(crate) fn shared_of_job(&self, job: JobId) -> impl Iterator<Item = &Arc<Attempt>> {
        self.by_task
            .range(TaskId { job, index: 0 }..=TaskId { job, index: u32::MAX })
            .filter_map(|(_, token)| self.map.get(token))
    }

    /// Live attempts of a host, oldest first.
    pub(crate) fn on_host(&self, host: HostId) -> impl Iterator<Item = &Attempt> {
        self.by_host.get(&host).into_iter().flat_map(|row| row.iter()).map(|a| &**a)
    }

    /// Rows of hosts that have any, by host, shared.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (HostId, &Arc<Vec<Arc<Attempt>>>)> {
        self.by_host.iter().map(|(host, row)| (*host, row))
    }

    pub(crate) fn insert(&mut self, attempt: Attempt) {
        let attempt = Arc::new(attempt);
        self.enter(&attempt);
        self.map.insert(attempt.token, attempt);
    }

    /// Changes an attempt, in the table and in its host's row.
    pub(crate) fn change<R>(&mut self, token: Token, change: impl FnOnce(&mut Attempt) -> R) -> Option<R> {
        let shared = self.map.get_mut(&token)?;
        let result = change(Arc::make_mut(shared));
        let shared = Arc::clone(shared);
        let row = Arc::make_mut(self.by_host.entry(shared.host).or_default());
        if let Ok(at) = row.binary_search_by_key(&token, |a| a.token) {
            row[at] = shared;
        }
        Some(result)
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Attempt> {
        let attempt = self.map.remove(&token)?;
        self.by_task.remove(&attempt.task);
        let row = Arc::make_mut(self.by_host.entry(attempt.host).or_default());
        if let Ok(at) = row.binary_search_by_key(&token, |a| a.token) {
            row.remove(at);
        }
        if row.is_empty() {
            self.by_host.remove(&attempt.host);
        }
        Some(Arc::unwrap_or_clone(attempt))
    }

    /// Rebuilds the indexes from the rows, after a snapshot was read.
    pub(crate) fn rebuild(&mut self) {
        self.by_task = BTreeMap::new();
        self.by_host = BTreeMap::new();
        for attempt in self.map.values().cloned().collect::<Vec<_>>() {
            self.enter(&attempt);
        }
    }

    fn enter(&mut self, attempt: &Arc<Attempt>) {
        self.by_task.insert(attempt.task, attempt.token);
        let row = Arc::make_mut(self.by_host.entry(attempt.host).or_default());
        let at = row.partition_point(|other| other.token < attempt.token);
        row.insert(at, Arc::clone(attempt));
    }
}
