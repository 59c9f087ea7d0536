//! The table of jobs and its indexes: who is ready, who waits for whom, who was promised, whose deadline is near. A
//! job's state and all indexes follow from its row; nobody sets them.

use super::parts::Class;
use super::{ClassKey, Job, Place, TERMINAL_KEPT_MAX};
use crate::state::parted::Parted;
use crate::state::rare::Rare;
use crate::state::spec::Pool;
use rota_protocol::JobId;
use rota_protocol::job::JobState;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// All jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct JobTable {
    map: Parted<JobId, Arc<Job>>,
    /// Terminal jobs in the order in which they became so, without those in `awaited`.
    terminal: VecDeque<JobId>,
    /// Terminal jobs that would have been forgotten, were it not for open jobs that wait for them and for others: how
    /// they ended must be known until then.
    #[serde(skip)]
    awaited: BTreeSet<JobId>,
    /// Jobs that are ready, by class.
    #[serde(skip)]
    ready: BTreeMap<ClassKey, Parted<Place, ()>>,
    /// Open jobs by the jobs that they wait for.
    #[serde(skip)]
    children: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Jobs that were promised a start.
    #[serde(skip)]
    promised: BTreeSet<JobId>,
    /// Waiting jobs with a deadline, by it.
    #[serde(skip)]
    deadlines: BTreeSet<(u64, JobId)>,
    /// How many jobs are in each state, in the order of [`JobState::ALL`].
    #[serde(skip)]
    counts: [u64; JobState::ALL.len()],
    /// Jobs that take turns and run.
    #[serde(skip)]
    turning: BTreeSet<JobId>,
    /// What new jobs may share with older ones.
    #[serde(skip)]
    pool: Pool,
}

impl JobTable {
    /// A table of these rows, its indexes not rebuilt yet; `terminal` names those that are over, in that order.
    pub(crate) fn from_rows(map: Parted<JobId, Arc<Job>>, terminal: VecDeque<JobId>) -> Self {
        Self { map, terminal, ..Self::default() }
    }

    pub(crate) fn get(&self, id: JobId) -> Option<&Job> {
        self.map.get(&id).map(|j| &**j)
    }

    pub(crate) fn shared(&self, id: JobId) -> Option<&Arc<Job>> {
        self.map.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.map.values().map(|j| &**j)
    }

    pub(crate) fn after(&self, id: JobId) -> impl Iterator<Item = &Job> {
        self.map.after(id).map(|(_, j)| &**j)
    }

    /// Jobs that are not terminal.
    pub(crate) fn open(&self) -> usize {
        self.map.len().saturating_sub(self.terminal.len() + self.awaited.len())
    }

    /// Ready jobs by class.
    pub(crate) fn ready(&self) -> &BTreeMap<ClassKey, Parted<Place, ()>> {
        &self.ready
    }

    /// Open jobs that wait for `parent`.
    pub(crate) fn children_of(&self, parent: JobId) -> Vec<JobId> {
        self.children.get(&parent).into_iter().flatten().copied().collect()
    }

    /// Jobs that were promised a start, by number.
    pub(crate) fn promised(&self) -> impl Iterator<Item = JobId> + '_ {
        self.promised.iter().copied()
    }

    /// Waiting jobs whose deadline lies at or before `now_ms`.
    pub(crate) fn lapsed(&self, now_ms: u64) -> impl Iterator<Item = JobId> + '_ {
        self.deadlines.range(..=(now_ms, JobId(u64::MAX))).map(|(_, job)| *job)
    }

    /// How many jobs are in each state.
    pub(crate) fn by_state(&self) -> impl Iterator<Item = (JobState, u64)> {
        JobState::ALL.into_iter().zip(self.counts)
    }

    /// Jobs that take turns and run, by number.
    pub(crate) fn turning(&self) -> impl Iterator<Item = JobId> + '_ {
        self.turning.iter().copied()
    }

    pub(crate) fn insert(&mut self, mut job: Job) {
        self.pool.share(&mut job.spec);
        let job = Arc::new(job);
        self.enter(&job);
        self.counts[place_of(job.state)] += 1;
        self.map.insert(job.id, job);
    }

    /// Changes a job, then brings its state and the indexes in line. Returns what `change` returned and whether the
    /// job became terminal by it.
    pub(crate) fn update<R>(
        &mut self,
        id: JobId,
        now_ms: u64,
        change: impl FnOnce(&mut Job) -> R,
    ) -> Option<(R, bool)> {
        let shared = self.map.get_mut(&id)?;
        let (before, state_before) = (Standing::of(shared), shared.state);
        let job = Arc::make_mut(shared);
        let result = change(job);
        let was_terminal = job.state.is_terminal();
        if !was_terminal {
            job.state = job.state_of_tasks();
        }
        let ended = !was_terminal && job.state.is_terminal();
        if ended {
            close(job, now_ms);
        }
        job.note_cause(now_ms);
        if job.state != state_before {
            self.counts[place_of(state_before)] -= 1;
            self.counts[place_of(job.state)] += 1;
        }
        if before != Standing::of(job) {
            let job = Arc::clone(shared);
            self.leave(id, &before, &job);
            self.enter(&job);
        }
        if ended {
            self.terminal.push_back(id);
            self.forget_oldest();
        }
        Some((result, ended))
    }

    /// Lets jobs share what they have in common, after a snapshot was read: there each stands with all of it.
    pub(crate) fn share(&mut self) {
        for job in self.map.values_mut() {
            self.pool.share(&mut Arc::make_mut(job).spec);
        }
    }

    /// Rebuilds the indexes from the rows, after a snapshot was read.
    pub(crate) fn rebuild(&mut self) {
        self.ready = BTreeMap::new();
        self.children = BTreeMap::new();
        self.promised = BTreeSet::new();
        self.deadlines = BTreeSet::new();
        self.turning = BTreeSet::new();
        let listed: BTreeSet<JobId> = self.terminal.iter().copied().collect();
        let terminal = self.map.values().filter(|job| job.state.is_terminal()).map(|job| job.id);
        self.awaited = terminal.filter(|id| !listed.contains(id)).collect();
        self.counts = Default::default();
        for job in self.map.values().cloned().collect::<Vec<_>>() {
            self.enter(&job);
            self.counts[place_of(job.state)] += 1;
        }
    }

    /// The list of terminal jobs and the set of awaited ones name exactly those, and the awaited ones are.
    pub(crate) fn terminal_is_sound(&self) -> bool {
        let mut listed: BTreeSet<JobId> = self.terminal.iter().copied().collect();
        let apart = listed.len() == self.terminal.len() && listed.is_disjoint(&self.awaited);
        listed.extend(&self.awaited);
        let real = self.iter().filter(|j| j.state.is_terminal()).map(|j| j.id);
        let awaited = self.awaited.iter().all(|id| self.children.contains_key(id));
        apart && awaited && self.terminal.len() <= TERMINAL_KEPT_MAX && listed.iter().copied().eq(real)
    }

    /// Forgets the oldest terminal jobs beyond what is kept.
    fn forget_oldest(&mut self) {
        while self.terminal.len() > TERMINAL_KEPT_MAX {
            let Some(oldest) = self.terminal.pop_front() else {
                return;
            };
            if self.children.contains_key(&oldest) {
                self.awaited.insert(oldest);
            } else {
                self.forget(oldest);
            }
        }
    }

    fn forget(&mut self, id: JobId) {
        if let Some(job) = self.map.remove(&id) {
            self.counts[place_of(job.state)] -= 1;
        }
    }

    fn enter(&mut self, job: &Job) {
        let standing = Standing::of(job);
        if let Some(place) = standing.ready {
            match self.ready.get_mut(job as &dyn Class) {
                Some(class) => class.insert(place, ()),
                None => self.ready.entry(job.class()).or_default().insert(place, ()),
            };
        }
        if standing.waits_for_jobs {
            for parent in &job.spec.after {
                self.children.entry(parent.job).or_default().insert(job.id);
            }
        }
        if standing.promised {
            self.promised.insert(job.id);
        }
        if let Some(at_ms) = standing.deadline_ms {
            self.deadlines.insert((at_ms, job.id));
        }
        if standing.turning {
            self.turning.insert(job.id);
        }
    }

    fn leave(&mut self, id: JobId, standing: &Standing, job: &Job) {
        if let Some(place) = standing.ready {
            let key: &dyn Class = job;
            if let Some(class) = self.ready.get_mut(key) {
                class.remove(&place);
                if class.is_empty() {
                    self.ready.remove(key);
                }
            }
        }
        if standing.waits_for_jobs {
            for parent in &job.spec.after {
                if let Some(children) = self.children.get_mut(&parent.job) {
                    children.remove(&id);
                    if children.is_empty() {
                        self.children.remove(&parent.job);
                        if self.awaited.remove(&parent.job) {
                            self.forget(parent.job);
                        }
                    }
                }
            }
        }
        if standing.promised {
            self.promised.remove(&id);
        }
        if let Some(at_ms) = standing.deadline_ms {
            self.deadlines.remove(&(at_ms, id));
        }
        if standing.turning {
            self.turning.remove(&id);
        }
    }
}

/// Where a state stands in [`JobState::ALL`].
fn place_of(state: JobState) -> usize {
    // Every state is in the list; were one not, it would be counted with the first.
    JobState::ALL.iter().position(|other| *other == state).unwrap_or(0)
}

/// What the indexes know of a job. Class and parents follow from the spec, which never changes.
#[derive(PartialEq, Eq)]
struct Standing {
    ready: Option<Place>,
    waits_for_jobs: bool,
    promised: bool,
    deadline_ms: Option<u64>,
    turning: bool,
}

impl Standing {
    fn of(job: &Job) -> Self {
        Self {
            ready: job.is_ready().then(|| job.place()),
            waits_for_jobs: !job.blocked.is_empty(),
            promised: job.promise.is_some(),
            deadline_ms: job
                .spec
                .deadline_ms
                .filter(|_| job.started_ms.is_none() && !job.state.is_terminal()),
            turning: job.live > 0 && job.spec.takes_turns(),
        }
    }
}

/// What a job that is over needs no more.
fn close(job: &mut Job, now_ms: u64) {
    job.ended_ms = Some(now_ms);
    job.retries_used = Rare::default();
    job.host_faults = Rare::default();
    job.avoid = Rare::default();
    job.evictions = Rare::default();
    job.promise = None;
    job.end_rests();
}
