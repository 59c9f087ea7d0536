//! The replicated state: one table per noun, one file per table. Tables hold rows and the indexes over them; what a
//! command means is in `apply`.
#![deny(clippy::float_arithmetic)]

pub(crate) mod arrivals;
pub mod attempt;
pub mod care;
pub(crate) mod dedup;
pub mod demand;
pub mod history;
pub mod host;
pub mod idle;
pub(crate) mod ids;
pub mod job;
pub mod members;
pub mod meta;
pub mod metered;
pub mod ordinals;
pub mod pace;
pub(crate) mod parted;
pub mod queue;
pub mod rare;
pub(crate) mod reservation;
pub(crate) mod runs;
pub mod spec;
pub mod speeds;
pub mod tally;
pub(crate) mod token;
mod trim;
pub mod trust;

use crate::placement::hetero::lengths::Lengths;
use attempt::{Attempt, AttemptTable};
use care::CareTable;
use dedup::DedupTable;
use demand::DemandTable;
use history::History;
use host::{Host, HostTable};
use idle::IdleTable;
use job::{Job, JobTable};
use members::MemberTable;
use meta::{ClusterMeta, Meta, Usage};
use metered::Metered;
use queue::QueueTable;
use reservation::ReservationTable;
use rota_protocol::command::{SecretHash, TokenUse};
use rota_protocol::job::Actor;
use rota_protocol::reservation::ReservationSpec;
use rota_protocol::{HostId, JobId, TaskId, Token};
use speeds::Speeds;
use std::sync::Arc;
use token::TokenTable;
use trust::TrustTable;

/// The whole replicated state. Rows are shared behind `Arc`, so a clone copies pointers, not jobs.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub(crate) meta: Meta,
    pub(crate) hosts: HostTable,
    pub(crate) jobs: JobTable,
    pub(crate) attempts: AttemptTable,
    pub(crate) dedup: DedupTable,
    pub(crate) tokens: TokenTable,
    pub(crate) queues: QueueTable,
    pub(crate) reservations: ReservationTable,
    pub(crate) demand: DemandTable,
    pub(crate) care: CareTable,
    /// Past run times; shared, because a copy of the state is not to copy them.
    pub(crate) history: Arc<History>,
    /// Past run times by GPU model; shared for the same reason.
    pub(crate) speeds: Arc<Speeds>,
    /// Card time held idle.
    pub(crate) idle: IdleTable,
    /// Whom the cluster trusts.
    pub(crate) trust: TrustTable,
    /// How much work jobs that take turns turned out to be; shared like the others.
    pub(crate) lengths: Arc<Lengths>,
    /// What became of the membership.
    pub(crate) members: MemberTable,
    /// What users held, for whoever bills it.
    pub(crate) metered: Metered,
    pub(crate) faults: Faults,
}

/// Defects planted on purpose, to prove that the tests outside can see them. Never part of a snapshot or a hash.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Forget every request id.
    pub skip_dedup: bool,
    /// Give devices back when a cancel is asked, before the process is proven gone.
    pub free_on_cancel: bool,
}

impl State {
    /// An empty state, before the first entry of a cluster.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same state with planted defects.
    #[doc(hidden)]
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// The last log index that was applied or skipped.
    #[must_use]
    pub fn applied_index(&self) -> u64 {
        self.meta.applied_index
    }

    /// Log time: the largest `at_ms` of any entry, ms since the epoch.
    #[must_use]
    pub fn clock_ms(&self) -> u64 {
        self.meta.clock_ms
    }

    /// Chain over every index, outcome and event so far: equal on all replicas at one index.
    #[must_use]
    pub fn rolling_hash(&self) -> u64 {
        self.meta.rolling_hash
    }

    /// Hash of the whole state. Costs a full encoding.
    #[must_use]
    pub fn full_hash(&self) -> u64 {
        crate::snapshot::full_hash(self)
    }

    /// The cluster, once created.
    #[must_use]
    pub fn cluster(&self) -> Option<&ClusterMeta> {
        self.meta.cluster.as_ref()
    }

    /// A host.
    #[must_use]
    pub fn host(&self, id: HostId) -> Option<&Host> {
        self.hosts.get(id)
    }

    /// All hosts by number.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter()
    }

    /// A host by number, or by name: of several with one name the newest.
    #[must_use]
    pub fn host_by_name_or_id(&self, text: &str) -> Option<&Host> {
        let by_id = || text.parse().ok().and_then(|n| self.host(HostId(n)));
        let named = self.hosts().filter(|h| h.name == text);
        named.last().or_else(by_id)
    }

    /// A job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(id)
    }

    /// All jobs by number, terminal ones included.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter()
    }

    /// A live attempt.
    #[must_use]
    pub fn attempt(&self, token: Token) -> Option<&Attempt> {
        self.attempts.get(token)
    }

    /// All live attempts, oldest first.
    pub fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter()
    }

    /// Live attempts of a host, oldest first.
    pub fn attempts_on(&self, host: HostId) -> impl Iterator<Item = &Attempt> {
        self.attempts.on_host(host)
    }

    /// Live attempts of a job, by index.
    pub fn attempts_of(&self, job: JobId) -> impl Iterator<Item = &Attempt> {
        self.attempts.of_job(job)
    }

    /// The live attempt of a task.
    #[must_use]
    pub fn attempt_of(&self, task: TaskId) -> Option<&Attempt> {
        self.attempts.get(self.attempts.of_task(task)?)
    }

    /// Whether a join token is there and has not expired at `now_ms`.
    #[must_use]
    pub fn invites(&self, hash: &SecretHash, now_ms: u64) -> bool {
        let token = self.tokens.live(hash, now_ms);
        token.is_some_and(|token| matches!(token.usage, TokenUse::Join { .. }))
    }

    /// Whom a user token stands for, unless it has expired at `now_ms`.
    #[must_use]
    pub fn user_token(&self, hash: &SecretHash, now_ms: u64) -> Option<&Actor> {
        self.tokens.user(hash, now_ms)
    }

    /// All queues.
    #[must_use]
    pub fn queues(&self) -> &QueueTable {
        &self.queues
    }

    /// Jobs that were promised a start, by number.
    pub fn promised(&self) -> impl Iterator<Item = &Job> {
        self.jobs.promised().filter_map(|id| self.jobs.get(id))
    }

    /// Advance reservations by name.
    pub fn reservations(&self) -> impl Iterator<Item = &ReservationSpec> {
        self.reservations.iter()
    }

    /// For replays: what the cluster will be asked for, known beforehand.
    #[doc(hidden)]
    pub fn expect_demand(&mut self, counts: impl IntoIterator<Item = (demand::AskShape, u64)>) {
        self.demand.expect(counts);
        self.demand.publish(self.hosts.free_by_model());
    }

    /// What is held against devices, and the breaker.
    #[must_use]
    pub fn care(&self) -> &CareTable {
        &self.care
    }

    /// What the cluster is asked for.
    #[must_use]
    pub fn demand(&self) -> &DemandTable {
        &self.demand
    }

    /// Past run times and how well they foretold.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Past run times by GPU model.
    #[must_use]
    pub fn speeds(&self) -> &Speeds {
        &self.speeds
    }

    /// How much work jobs that take turns turned out to be.
    #[must_use]
    pub fn lengths(&self) -> &Lengths {
        &self.lengths
    }

    /// There may be something to plan at `now_ms`: jobs that wait or take turns, a deadline that has passed, a host to be emptied,
    /// a queue above its ceiling.
    #[must_use]
    pub fn wants_planning(&self, now_ms: u64) -> bool {
        let emptying = |host: &Host| host.drain.is_some() && host.evict_at_ms.is_some_and(|at| now_ms >= at);
        let trimmed = |queue: &queue::Queue| queue.to_trim().next().is_some();
        !self.jobs.ready().is_empty()
            || self.jobs.turning().next().is_some()
            || self.jobs.lapsed(now_ms).next().is_some()
            || self.hosts().any(emptying)
            || self.queues.iter().any(trimmed)
    }

    /// What each tenant has held so far; attempts that still live are not counted yet.
    pub fn usage(&self) -> impl Iterator<Item = (&str, Usage)> {
        self.meta.usage.iter().map(|(name, usage)| (name.as_str(), *usage))
    }

    /// Card time that users held and did not use.
    #[must_use]
    pub fn idle(&self) -> &IdleTable {
        &self.idle
    }

    /// What users held since the cluster began, but for what still runs.
    #[must_use]
    pub fn metered(&self) -> &Metered {
        &self.metered
    }

    /// What became of the membership.
    #[must_use]
    pub fn members(&self) -> &MemberTable {
        &self.members
    }

    /// Rebuilds every index from the rows.
    pub(crate) fn rebuild(&mut self) {
        self.hosts.rebuild();
        self.jobs.rebuild();
        self.attempts.rebuild();
        self.queues.rebuild();
    }
}
