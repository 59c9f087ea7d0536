//! Jobs and their tasks. A job's tasks are not rows: their ordinals live in interval sets, so that an array of a
//! million tasks is one small value until its tasks start to differ.

use crate::state::attempt::EndedAttempt;
use crate::state::ordinals::Ordinals;
use rota_protocol::ask::Ask;
use rota_protocol::job::{Actor, JobSpec, JobState};
use rota_protocol::view::TaskCounts;
use rota_protocol::{HostId, JobId, TaskId};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

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

/// A job's back-off from one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Avoid {
    /// Not placed there before this log time.
    pub until_ms: u64,
    /// How often it backed off from there.
    pub failures: u32,
}

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
    pub spec: Arc<JobSpec>,
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
    pub retries_used: BTreeMap<u32, u16>,
    /// Ends that were a host's fault, by ordinal; only tasks that had some and are not over.
    pub host_faults: BTreeMap<u32, u16>,
    /// Hosts that could not launch it.
    pub avoid: BTreeMap<HostId, Avoid>,
    /// The newest ended attempts, oldest first.
    pub ended: VecDeque<EndedAttempt>,
    /// Ended attempts no longer kept.
    pub ended_forgotten: u64,
    /// Shell status of the first task that failed for good.
    pub first_failure: Option<u8>,
    /// Card-milliseconds that its ended attempts held.
    pub gpu_ms: u64,
}

impl Job {
    pub(crate) fn new(id: JobId, owner: &Actor, spec: JobSpec, now_ms: u64) -> Self {
        let tasks = spec.array.map_or(1, |array| array.count());
        Self {
            id,
            tenant: owner.tenant.clone(),
            user: owner.user.clone(),
            spec: Arc::new(spec),
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
            retries_used: BTreeMap::new(),
            host_faults: BTreeMap::new(),
            avoid: BTreeMap::new(),
            ended: VecDeque::new(),
            ended_forgotten: 0,
            first_failure: None,
            gpu_ms: 0,
        }
    }

    /// How many tasks it has.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.spec.array.map_or(1, |array| array.count())
    }

    /// The task at a position.
    #[must_use]
    pub fn task(&self, ordinal: u32) -> TaskId {
        TaskId { job: self.id, index: self.spec.array.map_or(0, |array| array.index(ordinal)) }
    }

    /// The position of an index, if it is one of the job's. A plain job has the index 0.
    #[must_use]
    pub fn ordinal(&self, index: u32) -> Option<u32> {
        match self.spec.array {
            Some(array) => array.ordinal(index),
            None => (index == 0).then_some(0),
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
        !self.pending.is_empty() && !self.cancel_asked && self.parallel_room() > 0
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
            pending: self.pending.len(),
            live: self.live,
            succeeded: self.succeeded.len(),
            failed: self.failed.len(),
            cancelled: self.cancelled.len(),
        }
    }

    /// The state that follows from its tasks.
    ///
    /// A job that was cancelled as a whole ends as cancelled. Otherwise cancelled indices do not matter as long as
    /// others are left: it fails if one failed, succeeds if one succeeded, and is cancelled if all were.
    #[must_use]
    pub fn state_of_tasks(&self) -> JobState {
        match (self.cancel_asked, self.live, self.pending.len()) {
            (true, 0, _) => JobState::Cancelled,
            (true, _, _) => JobState::Ending,
            (false, 0, 0) if !self.failed.is_empty() => JobState::Failed,
            (false, 0, 0) if !self.succeeded.is_empty() => JobState::Succeeded,
            (false, 0, 0) => JobState::Cancelled,
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

/// Place in the order: highest priority first, then the order of submission.
pub(crate) type Place = (Reverse<u16>, JobId);

/// All jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct JobTable {
    map: BTreeMap<JobId, Arc<Job>>,
    /// Terminal jobs in the order in which they became so.
    terminal: VecDeque<JobId>,
    /// Jobs that are ready, by what they ask: equal asks are one class for the planner.
    #[serde(skip)]
    ready: BTreeMap<Ask, BTreeSet<Place>>,
}

impl JobTable {
    pub(crate) fn get(&self, id: JobId) -> Option<&Job> {
        self.map.get(&id).map(|j| &**j)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.map.values().map(|j| &**j)
    }

    pub(crate) fn after(&self, id: JobId) -> impl Iterator<Item = &Job> {
        self.map.range((std::ops::Bound::Excluded(id), std::ops::Bound::Unbounded)).map(|(_, j)| &**j)
    }

    /// Jobs that are not terminal.
    pub(crate) fn open(&self) -> usize {
        self.map.len().saturating_sub(self.terminal.len())
    }

    /// Ready jobs by class.
    pub(crate) fn ready(&self) -> &BTreeMap<Ask, BTreeSet<Place>> {
        &self.ready
    }

    pub(crate) fn insert(&mut self, job: Job) {
        let job = Arc::new(job);
        if job.is_ready() {
            enter(&mut self.ready, &job);
        }
        self.map.insert(job.id, job);
    }

    /// Changes a job, then brings its state and the index in line. Returns what `change` returned and whether the
    /// job became terminal by it.
    pub(crate) fn update<R>(
        &mut self,
        id: JobId,
        now_ms: u64,
        change: impl FnOnce(&mut Job) -> R,
    ) -> Option<(R, bool)> {
        let shared = self.map.get_mut(&id)?;
        let was_ready = shared.is_ready();
        let job = Arc::make_mut(shared);
        let result = change(job);
        let was_terminal = job.state.is_terminal();
        if !was_terminal {
            job.state = job.state_of_tasks();
        }
        let ended = !was_terminal && job.state.is_terminal();
        if ended {
            job.ended_ms = Some(now_ms);
            job.retries_used = BTreeMap::new();
            job.host_faults = BTreeMap::new();
            job.avoid = BTreeMap::new();
        }
        match (was_ready, job.is_ready()) {
            (false, true) => enter(&mut self.ready, job),
            (true, false) => leave(&mut self.ready, job),
            _ => {}
        }
        if ended {
            self.terminal.push_back(id);
            if self.terminal.len() > TERMINAL_KEPT_MAX
                && let Some(oldest) = self.terminal.pop_front()
            {
                self.map.remove(&oldest);
            }
        }
        Some((result, ended))
    }

    /// Rebuilds the index from the rows, after a snapshot was read.
    pub(crate) fn rebuild(&mut self) {
        self.ready = BTreeMap::new();
        for job in self.map.values().filter(|j| j.is_ready()) {
            enter(&mut self.ready, job);
        }
    }

    /// The list of terminal jobs names exactly those.
    pub(crate) fn terminal_is_sound(&self) -> bool {
        let listed: BTreeSet<JobId> = self.terminal.iter().copied().collect();
        let real = self.iter().filter(|j| j.state.is_terminal()).map(|j| j.id);
        listed.len() == self.terminal.len() && listed.iter().copied().eq(real)
    }
}

fn place(job: &Job) -> Place {
    (Reverse(job.spec.priority), job.id)
}

fn enter(ready: &mut BTreeMap<Ask, BTreeSet<Place>>, job: &Job) {
    match ready.get_mut(&job.spec.ask) {
        Some(class) => {
            class.insert(place(job));
        }
        None => {
            ready.insert(job.spec.ask.clone(), BTreeSet::from([place(job)]));
        }
    }
}

fn leave(ready: &mut BTreeMap<Ask, BTreeSet<Place>>, job: &Job) {
    if let Some(class) = ready.get_mut(&job.spec.ask) {
        class.remove(&place(job));
        if class.is_empty() {
            ready.remove(&job.spec.ask);
        }
    }
}
