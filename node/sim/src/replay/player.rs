//! Plays a history: submits jobs when they came, plays the hosts by the run times on record, and keeps what happened.

use super::ReplayError;
use super::figures::{Course, Scarce};
use super::history::{History, HistoryError, HistoryJob, SPAN_MS_MAX};
use super::stage::{queues, register};
use crate::cluster::{Cluster, ClusterError};
use rota_core::placement::PlanConfig;
use rota_core::placement::score::Policy;
use rota_protocol::command::{Command, Outcome};
use rota_protocol::job::{Actor, AttemptEnd, AttemptState, JobSpec, JobState, Role};
use rota_protocol::plan::Move;
use rota_protocol::work::Dependency;
use rota_protocol::{JobId, Token};
use std::collections::{BTreeMap, BTreeSet};

/// How long an attempt that is asked to end takes for it, in ms.
const ENDING_MS: u64 = 1_000;
/// How often is looked again for what time alone changes, while something waits, in ms.
const TICK_MS: u64 = 300_000;
/// Recorded times are moved on by this if they come before the clock of a new cluster: some are counted from zero.
const SHIFT_MS: u64 = 2_000_000_000;
/// Run time where the whole history has none, in ms.
const RUN_MS_DEFAULT: u64 = 3_600_000;

/// A history at work.
pub(super) struct Player<'h> {
    history: &'h History,
    scarce: Scarce,
    cluster: Cluster,
    /// Positions in the history by time of submission, and when that is.
    arrivals: Vec<(u64, usize)>,
    /// How many of them have come.
    arrived: usize,
    /// Positions in the history, by number here.
    jobs: BTreeMap<JobId, usize>,
    /// Numbers here, by number in the history.
    numbers: BTreeMap<JobId, JobId>,
    /// What ends when, ms.
    ends: BTreeSet<(u64, Token)>,
    /// When and how each live attempt ends.
    end_of: BTreeMap<Token, (u64, AttemptEnd)>,
    /// When something is due that no end or submission brings.
    wakes: BTreeSet<u64>,
    /// Jobs that were cancelled before they, or all tasks of them, started: when, and which.
    cancels: BTreeSet<(u64, JobId)>,
    tick_ms: u64,
    guess_ms: u64,
    guessed: u64,
    shift_ms: u64,
    started: BTreeSet<usize>,
    course: Course,
}

impl<'h> Player<'h> {
    /// An empty cluster of the history's hosts.
    pub(super) fn new(
        history: &'h History,
        submits_ms: &[u64],
        policy: Policy,
        scarce: Scarce,
    ) -> Result<Self, ReplayError> {
        let config = PlanConfig { policy, ..PlanConfig::default() };
        let mut cluster = Cluster::new(&[], config)?;
        for (at, host) in history.hosts.iter().enumerate() {
            register(&mut cluster, at, host).map_err(|error| refused("host", &host.name, error))?;
        }
        for queue in queues(history) {
            let name = queue.name.clone();
            let set = cluster.system(Command::SetQueue { queue });
            set.map_err(|error| refused("queue", &name, error))?;
        }
        let first_ms = submits_ms.iter().copied().min().unwrap_or(0);
        let shift_ms = if first_ms < SHIFT_MS { SHIFT_MS } else { 0 };
        let mut arrivals: Vec<(u64, usize)> =
            submits_ms.iter().enumerate().map(|(at, ms)| (ms + shift_ms, at)).collect();
        // Numbers grow with the order in which jobs came, so that whom a job waits for is there before it.
        arrivals.sort_by_key(|(ms, at)| (*ms, history.jobs[*at].job));
        let course = Course {
            jobs: history.jobs.len() as u64,
            from_ms: first_ms + shift_ms,
            evictions: Some(0),
            ..Course::default()
        };
        Ok(Self {
            history,
            scarce,
            cluster,
            arrivals,
            arrived: 0,
            jobs: BTreeMap::new(),
            numbers: BTreeMap::new(),
            ends: BTreeSet::new(),
            end_of: BTreeMap::new(),
            wakes: BTreeSet::new(),
            cancels: BTreeSet::new(),
            tick_ms: 0,
            guess_ms: median_run_ms(history),
            guessed: 0,
            shift_ms,
            started: BTreeSet::new(),
            course,
        })
    }

    /// Plays it to its end; gives what happened, and how many run times had to be guessed.
    pub(super) fn play(mut self) -> Result<(Course, u64), ReplayError> {
        while let Some(now_ms) = self.next_ms() {
            self.cluster.advance_to(now_ms);
            self.tick_ms = now_ms + TICK_MS;
            self.wakes.retain(|at_ms| *at_ms > now_ms);
            self.end_attempts(now_ms)?;
            self.cancel_jobs(now_ms)?;
            while let Some((at_ms, at)) = self.arrivals.get(self.arrived).copied()
                && at_ms <= now_ms
            {
                self.arrived += 1;
                self.submit(at)?;
            }
            // Moves may leave room, and the copy of the state may have been cut: as a leader does, look again.
            while self.round()? {}
        }
        Ok((self.course, self.guessed))
    }

    /// The next time at which something is due. Ticks alone keep nothing going.
    fn next_ms(&self) -> Option<u64> {
        let submit = self.arrivals.get(self.arrived).map(|(at_ms, _)| *at_ms);
        let end = self.ends.first().map(|(at_ms, _)| *at_ms);
        let cancel = self.cancels.first().map(|(at_ms, _)| *at_ms);
        let next = [submit, end, cancel, self.wakes.first().copied()].into_iter().flatten().min()?;
        let waits = self.arrived > 0 && self.cluster.state().wants_planning(self.tick_ms);
        Some(if waits { next.min(self.tick_ms) } else { next })
    }

    fn submit(&mut self, at: usize) -> Result<(), ReplayError> {
        let history = self.history;
        let job = &history.jobs[at];
        let spec = self.spec(job);
        // It was accepted once, whoever sent it: an operator may use queues that its tenant may not.
        let actor = Actor { tenant: job.tenant.clone(), user: job.user.clone(), role: Role::Operator };
        let id = match self.cluster.submit_by(actor, spec) {
            Ok(id) => id,
            Err(error) => return Err(refused("job", &job.job.to_string(), error)),
        };
        self.jobs.insert(id, at);
        self.numbers.insert(job.job, id);
        if job.ran_ms.is_empty() {
            self.guessed += 1;
        }
        let now_ms = self.cluster.now_ms();
        self.wakes.insert(now_ms + self.cluster.config.promise_after_ms);
        let shifted =
            [job.begin_ms, job.deadline_ms].into_iter().flatten().map(|ms| ms.saturating_add(self.shift_ms));
        // What is due after all else is over is not waited for.
        let until_ms = now_ms.saturating_add(SPAN_MS_MAX);
        self.wakes.extend(shifted.filter(|at_ms| (now_ms + 1..until_ms).contains(at_ms)));
        // What had started ran as long as it ran, but the rest of an array never came.
        let is_cut = job.started_ms.is_none() || job.array.is_some();
        if let (JobState::Cancelled, true, Some(ended_ms)) = (job.state, is_cut, job.ended_ms) {
            self.cancels.insert(((ended_ms + self.shift_ms).max(now_ms), id));
        }
        Ok(())
    }

    /// One round; whether it did anything.
    fn round(&mut self) -> Result<bool, ReplayError> {
        let moves = self.committed()?;
        for one in &moves {
            match one {
                Move::Place { task, .. } => {
                    let token = self.cluster.state().attempt_of(*task).map(|attempt| attempt.token);
                    self.start(task.job, token)?;
                }
                Move::Start { job, .. } => {
                    let granted = |state: &AttemptState| *state == AttemptState::Granted;
                    let attempts = self.cluster.state().attempts_of(*job);
                    let fresh: Vec<Token> =
                        attempts.filter(|attempt| granted(&attempt.state)).map(|a| a.token).collect();
                    self.start(*job, fresh)?;
                }
                Move::Promise { at_ms, .. } => {
                    self.wakes.insert(*at_ms);
                }
                Move::Evict { victims, .. } => self.evict(victims),
                Move::Lapse { .. } => {}
            }
        }
        Ok(!moves.is_empty())
    }

    /// The moves of a plan that were accepted. One that apply refuses is tried again with the next plan, as a leader
    /// does; a plan of which nothing is accepted ends the rounds of this moment.
    fn committed(&mut self) -> Result<Vec<Move>, ClusterError> {
        let plan = self.cluster.plan();
        if plan.moves.is_empty() {
            return Ok(Vec::new());
        }
        let moves = plan.moves.clone();
        let refused = match self.cluster.system(Command::CommitPlan { plan })? {
            Outcome::Planned { refused } => refused,
            other => return Err(ClusterError::Answer(Box::new(other))),
        };
        let refused: BTreeSet<usize> = refused.iter().map(|(at, _)| *at as usize).collect();
        let accepted = moves.into_iter().enumerate().filter(|(at, _)| !refused.contains(at));
        Ok(accepted.map(|(_, one)| one).collect())
    }

    fn start(&mut self, id: JobId, tokens: impl IntoIterator<Item = Token>) -> Result<(), ReplayError> {
        let Some(at) = self.jobs.get(&id).copied() else {
            return Ok(());
        };
        let now_ms = self.cluster.now_ms();
        for token in tokens {
            self.cluster.started(token)?;
            let job = &self.history.jobs[at];
            let ordinal = self.cluster.state().attempt(token).and_then(|attempt| {
                self.cluster.state().job(id).and_then(|job| job.ordinal(attempt.task.index))
            });
            let ordinal = ordinal.unwrap_or(0) as usize;
            let run_ms = self.run_ms(job, ordinal);
            let end = AttemptEnd::Exited { code: u8::from(fails(job, ordinal)) };
            self.end_at(token, now_ms + run_ms, end);
        }
        if self.started.insert(at) {
            let submitted_ms = self.cluster.state().job(id).map_or(now_ms, |job| job.submitted_ms);
            self.course.waits_ms.push((at, now_ms - submitted_ms));
        }
        Ok(())
    }

    /// Those that were asked to end do so soon.
    fn evict(&mut self, victims: &[Token]) {
        let now_ms = self.cluster.now_ms();
        let jobs: BTreeSet<JobId> = victims
            .iter()
            .filter_map(|token| self.cluster.state().attempt(*token).map(|attempt| attempt.task.job))
            .collect();
        for job in jobs {
            self.see_ending(job, now_ms);
        }
    }

    fn end_attempts(&mut self, now_ms: u64) -> Result<(), ReplayError> {
        while let Some((at_ms, token)) = self.ends.first().copied()
            && at_ms <= now_ms
        {
            self.ends.pop_first();
            let Some((_, end)) = self.end_of.remove(&token) else {
                continue;
            };
            let Some(attempt) = self.cluster.state().attempt(token) else {
                continue;
            };
            let job = attempt.task.job;
            let ran_ms = at_ms - attempt.started_ms.unwrap_or(attempt.granted_ms);
            let held_milli = self.scarce.held_milli(attempt.gpu_milli, attempt.cpus_milli);
            self.course.held += u128::from(held_milli) * u128::from(ran_ms);
            self.course.to_ms = self.course.to_ms.max(at_ms);
            if end == AttemptEnd::Preempted {
                self.course.evictions = self.course.evictions.map(|count| count + 1);
            }
            self.cluster.end(token, end, ran_ms)?;
            // Parts of a gang end with the one that was lost.
            self.see_ending(job, now_ms);
        }
        Ok(())
    }

    /// Attempts of a job that are to end now do so soon, unless they end before by themselves.
    fn see_ending(&mut self, job: JobId, now_ms: u64) {
        let ending = self.cluster.state().attempts_of(job).filter_map(|attempt| {
            let reason = attempt.end_reason.filter(|_| attempt.state == AttemptState::Ending)?;
            Some((attempt.token, reason.end()))
        });
        let ending: Vec<(Token, AttemptEnd)> = ending.collect();
        for (token, end) in ending {
            let by_itself = self.end_of.get(&token).is_some_and(|(at_ms, _)| *at_ms <= now_ms + ENDING_MS);
            if !by_itself {
                self.end_at(token, now_ms + ENDING_MS, end);
            }
        }
    }

    fn end_at(&mut self, token: Token, at_ms: u64, end: AttemptEnd) {
        if let Some((was_ms, _)) = self.end_of.insert(token, (at_ms, end)) {
            self.ends.remove(&(was_ms, token));
        }
        self.ends.insert((at_ms, token));
    }

    /// Jobs that nobody wanted any more when they had not started, or not all of them.
    fn cancel_jobs(&mut self, now_ms: u64) -> Result<(), ReplayError> {
        while let Some((at_ms, id)) = self.cancels.first().copied()
            && at_ms <= now_ms
        {
            self.cancels.pop_first();
            if self.cluster.state().job(id).is_some_and(|job| !job.state.is_terminal()) {
                self.cluster.cancel(id)?;
                self.see_ending(id, now_ms);
            }
        }
        Ok(())
    }

    fn run_ms(&self, job: &HistoryJob, ordinal: usize) -> u64 {
        let guess_ms = job.time_limit_ms.map_or(self.guess_ms, |limit_ms| limit_ms.min(self.guess_ms));
        let known = job.ran_ms.get(ordinal % job.ran_ms.len().max(1)).copied();
        // What took no time at all still takes a round.
        known.unwrap_or(guess_ms).max(1)
    }

    fn spec(&self, job: &HistoryJob) -> JobSpec {
        let parent = |parent: &Dependency| {
            // One that the cluster had forgotten is over since long.
            self.numbers.get(&parent.job).map(|id| Dependency { job: *id, ..*parent })
        };
        JobSpec {
            name: job.name.clone(),
            argv: vec![b"replay".to_vec()],
            ask: job.ask.clone(),
            array: job.array,
            priority: job.priority,
            time_limit_ms: job.time_limit_ms,
            alternatives: job.alternatives.clone(),
            gang: job.gang,
            layout: job.layout,
            after: job.after.iter().filter_map(parent).collect(),
            queue: job.queue.clone(),
            begin_ms: job.begin_ms.map(|ms| ms.saturating_add(self.shift_ms)),
            // Submissions may be moved past it: what was accepted is given up, not refused.
            deadline_ms: job
                .deadline_ms
                .map(|ms| ms.saturating_add(self.shift_ms).max(self.cluster.now_ms() + 1)),
            preemptible: job.preemptible,
            requeue: job.requeue,
            ..JobSpec::default()
        }
    }
}

/// Whether this task is the one by which a job failed: the one that ran longest, so that no part of a gang is cut short
/// by it.
fn fails(job: &HistoryJob, ordinal: usize) -> bool {
    let failed = matches!(job.state, JobState::Failed | JobState::TimedOut | JobState::HostLost);
    let longest = job.ran_ms.iter().enumerate().max_by_key(|(at, ms)| (**ms, std::cmp::Reverse(*at)));
    failed && ordinal == longest.map_or(0, |(at, _)| at)
}

fn median_run_ms(history: &History) -> u64 {
    let mut runs_ms: Vec<u64> = history.jobs.iter().flat_map(|job| &job.ran_ms).copied().collect();
    runs_ms.sort_unstable();
    runs_ms.get(runs_ms.len() / 2).copied().unwrap_or(RUN_MS_DEFAULT)
}

/// Says what of the history was refused, if it was refused and not broken.
fn refused(what: &'static str, name: &str, error: ClusterError) -> ReplayError {
    match error {
        ClusterError::Refused(error) => ReplayError::History(HistoryError::Refused {
            what,
            name: name.to_owned(),
            error: Box::new(error),
        }),
        broken => ReplayError::Cluster(broken),
    }
}
