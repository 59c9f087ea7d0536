//! Jobs and their tasks. A job's tasks are not rows: their ordinals live in interval sets, so that an array of a
//! million tasks is one small value until its tasks start to differ.

mod parts;
mod rest;
mod table;
mod toll;
mod waits;

pub use parts::{Avoid, ClassKey, GangOver, Promise};
pub use rest::{PAUSE_MS_MAX, PAUSE_MS_MIN, STEADY_MS};
pub(crate) use table::JobTable;
pub use toll::{HOST_DEATHS_MAX, Toll};
pub use waits::WaitCause;

use crate::state::attempt::EndedAttempt;
use crate::state::history::HistoryKey;
use crate::state::ordinals::Ordinals;
use crate::state::rare::Rare;
use crate::state::spec::Spec;
use rota_protocol::job::{Actor, JobSpec, JobState};
use rota_protocol::queue::QueueId;
use rota_protocol::view::TaskCounts;
use rota_protocol::{HostId, JobId, TaskId};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Ended attempts kept for one job; beyond it those that did not fail go first.
pub const ENDED_KEPT_MAX: usize = 64;
/// Terminal jobs kept; the oldest go first.
pub const TERMINAL_KEPT_MAX: usize = 100_000;
/// Hosts that one job remembers as failing; the one nearest to its end of back-off goes first.
pub const AVOIDED_HOSTS_MAX: usize = 64;
/// First back-off of a job from a host that could not launch it; each further failure doubles it.
pub const AVOID_MS_MIN: u64 = 30_000;
/// Doublings of the back-off: at most 16 minutes.
pub const AVOID_DOUBLINGS_MAX: u32 = 5;

/// Evictions of one task (or gang) within [`EVICTIONS_MS`], beyond which it is left alone.
pub const EVICTIONS_MAX: usize = 8;
/// Newest evictions that a job remembers, over all its tasks.
const EVICTIONS_KEPT_MAX: usize = 512;
/// The time over which evictions are counted, in ms.
pub const EVICTIONS_MS: u64 = 3_600_000;

/// What a job was when it was accepted, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number, never reused.
    pub id: JobId,
    /// Who pays.
    pub tenant: String,
    /// Who submitted it.
    pub user: String,
    /// What was submitted.
    pub spec: Spec,
    /// Where it stands.
    pub state: JobState,
    /// The whole job is being, or was, cancelled.
    pub cancel_asked: bool,
    /// Log time of acceptance.
    pub submitted_ms: u64,
    /// Log time of its first start.
    pub started_ms: Option<u64>,
    /// Log time of its terminal state.
    pub ended_ms: Option<u64>,
    /// Tasks that wait.
    pub pending: Ordinals,
    /// Tasks that ended well.
    pub succeeded: Ordinals,
    /// Tasks that failed for good.
    pub failed: Ordinals,
    /// Tasks that were cancelled.
    pub cancelled: Ordinals,
    /// Tasks with a live attempt.
    pub live: u32,
    /// Retries used, by ordinal; only tasks that used some and are not over.
    pub retries_used: Rare<BTreeMap<u32, u16>>,
    /// Ends that were a host's fault, by ordinal; only tasks that had some and are not over.
    pub host_faults: Rare<BTreeMap<u32, u16>>,
    /// Hosts that could not launch it.
    pub avoid: Rare<BTreeMap<HostId, Avoid>>,
    /// The newest ended attempts, oldest first.
    pub ended: Rare<VecDeque<EndedAttempt>>,
    /// Ended attempts no longer kept.
    pub ended_forgotten: u64,
    /// Shell status of the first task that failed for good.
    pub first_failure: Option<u8>,
    /// Card-milliseconds that its ended attempts held.
    pub gpu_ms: u64,
    /// The queue that it counts for.
    pub queue: QueueId,
    /// Its priority now.
    pub priority: u16,
    /// It waits until it is released.
    pub held: bool,
    /// Tasks that wait for other jobs.
    pub blocked: Ordinals,
    /// Tasks that started at least once and neither succeeded nor failed: they wait again, or were cancelled.
    pub stopped: Ordinals,
    /// The start that it was promised.
    pub promise: Option<Box<Promise>>,
    /// Log times of its newest evictions, each with the position of the task; those of a gang with position 0.
    pub evictions: Rare<VecDeque<(u64, u32)>>,
    /// How often it was evicted in all.
    pub evicted: u32,
    /// How often its tasks asked to be queued again, all together.
    pub requeues: u32,
    /// Its gang is being ended as a whole.
    pub gang_ending: bool,
    /// Its gang is to end for good when its last part is gone.
    pub gang_over: Option<GangOver>,
    /// The terminal state to be reached instead of what its tasks say: it never ran, or why it failed first.
    pub verdict: Option<JobState>,
    /// It waits until this log time before it starts again.
    pub pause_until_ms: u64,
    /// Pauses one after the other.
    pub pauses: u32,
    /// How long its tasks are expected to run, in ms.
    pub predicted_ms: Option<u64>,
    /// When it began to wait for something else than before: log time and cause, newest last. Without the first
    /// cause, see [`Self::waits`].
    pub(crate) turns: Rare<VecDeque<(u64, WaitCause)>>,
    /// Hosts that were lost under it.
    pub(crate) toll: Toll,
    /// How long its ended attempts ran on each GPU model, in ms; only of jobs that take turns. Of a gang the first part
    /// speaks.
    pub(crate) served: Rare<BTreeMap<String, u64>>,
    /// Its tasks that failed and are to be tried again; only of arrays.
    pub(crate) rests: Option<Box<rest::Rests>>,
}

impl Job {
    pub(crate) fn new(id: JobId, owner: &Actor, queue: QueueId, spec: JobSpec, now_ms: u64) -> Self {
        let tasks = spec.tasks();
        let (priority, held) = (spec.priority, spec.hold);
        Self {
            id,
            tenant: owner.tenant.clone(),
            user: owner.user.clone(),
            spec: spec.into(),
            state: JobState::Pending,
            cancel_asked: false,
            submitted_ms: now_ms,
            started_ms: None,
            ended_ms: None,
            pending: Ordinals::full(tasks),
            succeeded: Ordinals::default(),
            failed: Ordinals::default(),
            cancelled: Ordinals::default(),
            live: 0,
            retries_used: Rare::default(),
            host_faults: Rare::default(),
            avoid: Rare::default(),
            ended: Rare::default(),
            ended_forgotten: 0,
            first_failure: None,
            gpu_ms: 0,
            queue,
            priority,
            held,
            blocked: Ordinals::default(),
            stopped: Ordinals::default(),
            promise: None,
            evictions: Rare::default(),
            evicted: 0,
            requeues: 0,
            gang_ending: false,
            gang_over: None,
            verdict: None,
            pause_until_ms: 0,
            pauses: 0,
            predicted_ms: None,
            turns: Rare::default(),
            toll: Toll::default(),
            served: Rare::default(),
            rests: None,
        }
    }

    /// How many tasks it has.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.spec.tasks()
    }

    /// The task at a position. A part of a gang has its rank as index.
    #[must_use]
    pub fn task(&self, ordinal: u32) -> TaskId {
        TaskId { job: self.id, index: self.spec.array.map_or(ordinal, |array| array.index(ordinal)) }
    }

    /// The position of an index, if it is one of the job's. A plain job has the index 0.
    #[must_use]
    pub fn ordinal(&self, index: u32) -> Option<u32> {
        match self.spec.array {
            Some(array) => array.ordinal(index),
            None => (index < self.tasks()).then_some(index),
        }
    }

    /// The class that it waits in.
    #[must_use]
    pub fn class(&self) -> ClassKey {
        ClassKey {
            queue: self.queue,
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            ask: self.spec.ask.clone(),
            alternatives: self.spec.alternatives.clone(),
            gang: self.spec.gang,
            layout: self.spec.layout,
            turns: self.spec.takes_turns(),
        }
    }

    /// What is known of it before it runs.
    #[must_use]
    pub fn history_key(&self) -> HistoryKey<'_> {
        let parts = self.spec.gang.map_or(1, |gang| gang.max);
        HistoryKey {
            tenant: &self.tenant,
            user: &self.user,
            name: &self.spec.name,
            gpus: self.spec.ask.gpus().saturating_mul(parts),
        }
    }

    /// Its place in the order: highest priority first, then those that were evicted, then the order of submission.
    #[must_use]
    pub fn place(&self) -> Place {
        (Reverse(self.priority), Reverse(self.evicted > 0), self.id)
    }

    /// The earliest log time at which it may start.
    #[must_use]
    pub fn earliest_ms(&self) -> u64 {
        self.spec.begin_ms.unwrap_or(0).max(self.pauses_until_ms())
    }

    /// Evictions of a task within the hour before `now_ms`, oldest first.
    fn recent_evictions(&self, ordinal: u32, now_ms: u64) -> impl Iterator<Item = u64> + '_ {
        let ordinal = if self.spec.gang.is_some() { 0 } else { ordinal };
        let own = self.evictions.iter().filter(move |(_, of)| *of == ordinal).map(|(at, _)| *at);
        own.filter(move |at| at.saturating_add(EVICTIONS_MS) > now_ms)
    }

    /// Notes that a task is evicted.
    pub(crate) fn note_eviction(&mut self, ordinal: u32, now_ms: u64) {
        let ordinal = if self.spec.gang.is_some() { 0 } else { ordinal };
        if self.evictions.back() == Some(&(now_ms, ordinal)) && self.spec.gang.is_some() {
            return;
        }
        self.evicted = self.evicted.saturating_add(1);
        self.evictions.push_back((now_ms, ordinal));
        if self.evictions.len() > EVICTIONS_KEPT_MAX {
            self.evictions.pop_front();
        }
    }

    /// Until when a task is left alone because it was evicted often enough within the hour; 0 if it is not.
    #[must_use]
    pub fn spared_until_ms(&self, ordinal: u32, now_ms: u64) -> u64 {
        let count = self.recent_evictions(ordinal, now_ms).count();
        let Some(beyond) = count.checked_sub(EVICTIONS_MAX) else {
            return 0;
        };
        // Once this one has left the hour there are few enough.
        let decides = self.recent_evictions(ordinal, now_ms).nth(beyond);
        decides.map_or(0, |at| at.saturating_add(EVICTIONS_MS))
    }

    /// Fewest and most tasks that a `Start` may hold for it now.
    #[must_use]
    pub fn start_range(&self) -> (u32, u32) {
        let most = self.pending.len().min(self.parallel_room());
        match self.spec.gang {
            Some(gang) if self.live == 0 => (gang.min.saturating_sub(self.succeeded.len()).max(1), most),
            _ => (1, most),
        }
    }

    /// How many more attempts its cap on parallel tasks allows.
    #[must_use]
    pub fn parallel_room(&self) -> u32 {
        match self.spec.array.map_or(0, |array| array.parallel_max) {
            0 => u32::MAX,
            cap => cap.saturating_sub(self.live),
        }
    }

    /// Something of it may be placed, as far as the job itself is concerned.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.pending.is_empty()
            && !self.cancel_asked
            && !self.held
            && !self.gang_ending
            && self.parallel_room() > 0
    }

    /// Hosts it keeps away from at `now_ms`.
    pub fn avoided(&self, now_ms: u64) -> impl Iterator<Item = (HostId, Avoid)> + '_ {
        self.avoid
            .iter()
            .filter(move |(_, avoid)| now_ms < avoid.until_ms)
            .map(|(host, avoid)| (*host, *avoid))
    }

    /// How many of its tasks are where.
    #[must_use]
    pub fn counts(&self) -> TaskCounts {
        TaskCounts {
            pending: self.pending.len() + self.blocked.len(),
            live: self.live,
            succeeded: self.succeeded.len(),
            failed: self.failed.len(),
            cancelled: self.cancelled.len(),
        }
    }

    /// The state that follows from its tasks.
    ///
    /// A job that was cancelled as a whole ends as cancelled. Otherwise indices that were cancelled on request do not
    /// matter as long as others are left: it fails if one failed, succeeds if one succeeded, and is cancelled if all
    /// were.
    #[must_use]
    pub fn state_of_tasks(&self) -> JobState {
        match (self.cancel_asked, self.live, self.pending.len() + self.blocked.len()) {
            (true, 0, _) => JobState::Cancelled,
            (true, _, _) => JobState::Ending,
            (false, 0, 0) if !self.failed.is_empty() => self.verdict.unwrap_or(JobState::Failed),
            (false, 0, 0) if !self.succeeded.is_empty() => match self.verdict {
                // Elements that could never start are no success, whatever became of the others.
                Some(JobState::DependencyFailed) => JobState::DependencyFailed,
                _ => JobState::Succeeded,
            },
            (false, 0, 0) => self.verdict.unwrap_or(JobState::Cancelled),
            (false, 0, _) => JobState::Pending,
            (false, _, _) => JobState::Running,
        }
    }

    /// Keeps the record of an ended attempt.
    pub(crate) fn keep_ended(&mut self, attempt: EndedAttempt) {
        self.ended.push_back(attempt);
        if self.ended.len() > ENDED_KEPT_MAX {
            let dull = |a: &EndedAttempt| a.end.is_success();
            let at = self.ended.iter().position(dull).unwrap_or(0);
            self.ended.remove(at);
            self.ended_forgotten += 1;
        }
    }

    /// Backs off from a host that could not launch it. Launches that were under way together and fail together
    /// count once.
    pub(crate) fn avoid_host(&mut self, host: HostId, now_ms: u64) {
        let known = self.avoid.get(&host).copied();
        if known.is_some_and(|a| now_ms < a.until_ms) {
            return;
        }
        let failures = known.map_or(0, |a| a.failures);
        let for_ms = AVOID_MS_MIN << failures.min(AVOID_DOUBLINGS_MAX);
        let avoid = Avoid { until_ms: now_ms.saturating_add(for_ms), failures: failures.saturating_add(1) };
        self.avoid.insert(host, avoid);
        if self.avoid.len() > AVOIDED_HOSTS_MAX {
            let first = self.avoid.iter().min_by_key(|(_, a)| a.until_ms);
            if let Some(first) = first.map(|(host, _)| *host) {
                self.avoid.remove(&first);
            }
        }
    }
}

/// Place in the order: highest priority first, then those that were evicted, then the order of submission.
pub type Place = (Reverse<u16>, Reverse<bool>, JobId);
