//! One log entry applied to the state. Here are only the frame (clock, request ids, roles, hash chain) and the
//! `match`; what a command does is in the file of its name.
#![deny(clippy::float_arithmetic)]

mod adjust;
mod admit_host;
mod audit;
mod blame;
mod cancel;
mod care;
mod commit_plan;
mod create_cluster;
pub(crate) mod depend;
mod drain;
mod end;
mod evict;
mod expire;
mod health;
mod lapse;
mod members;
mod mint_token;
mod priority;
mod promise;
mod raise_version;
mod register_host;
mod report;
mod reserve;
mod set_queue;
mod settle;
mod start;
mod submit;
mod tend;
mod trust;
mod undrain;
mod unstartable;

pub use evict::{EVICTED_PER_GAINED_MAX, PREEMPT_GAP, RUN_MS_MIN};
pub use priority::check_at_edge as check_priority_at_edge;
pub(crate) use trust::token_id;
pub(crate) use unstartable::HOSTS_TRIED_MAX;

use crate::hash::Digest;
use crate::state::State;
use crate::state::job::Job;
use rota_protocol::command::{Command, Entry, Outcome, Proposal, least_role};
use rota_protocol::job::{Actor, Role};
use rota_protocol::limits::REASON_BYTES_MAX;
use rota_protocol::{ErrorCode, HostId, JobId, PublicError, RequestId, Token, codec, version};
use serde::Serialize;

/// What one entry did: one outcome for each proposal, in order, and what watchers want to know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// One for each proposal.
    pub outcomes: Vec<Outcome>,
    /// In the order in which things happened.
    pub events: Vec<Event>,
}

/// Something changed that a watcher may act on. Events are hints: whoever missed some reads the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Event {
    /// A host is to start an attempt.
    Granted {
        /// Which host.
        host: HostId,
        /// The attempt.
        token: Token,
    },
    /// A host is to end an attempt; why is in the attempt.
    EndAsked {
        /// Which host.
        host: HostId,
        /// The attempt.
        token: Token,
    },
    /// An attempt's end is in the log: whoever keeps its record may let go.
    AttemptEnded {
        /// Its host.
        host: HostId,
        /// The attempt.
        token: Token,
        /// Its job.
        job: JobId,
    },
    /// A job's row is not what it was.
    JobChanged(JobId),
    /// A host's row is not what it was.
    HostChanged(HostId),
    /// Capacity or the queue changed: planning may find something now. At most once for each entry, and last.
    PlanNeeded,
    /// Whom the cluster trusts, or its version, is not what it was.
    TrustChanged,
}

/// What a command sees besides the state, and where it notes what happened.
pub(crate) struct Step {
    index: u64,
    now_ms: u64,
    /// Grants made by this entry so far: the ordinal of the next token.
    grants: u32,
    events: Vec<Event>,
    plan_needed: bool,
}

impl Step {
    fn note(&mut self, event: Event) {
        if self.events.last() != Some(&event) {
            self.events.push(event);
        }
    }
}

/// A command's result: its outcome, or why nothing changed.
type Answer = Result<Outcome, PublicError>;

impl State {
    /// Applies one log entry. Total: it never panics and gives exactly one outcome for each proposal.
    ///
    /// An entry of a newer format than this build reads, or at an index that was applied already, is refused whole
    /// and changes nothing: the caller must check the format before and stop rather than come here.
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Applied {
        self.take(index, entry.clone())
    }

    /// As [`State::apply`], for whoever needs the entry no more: what a job asks is moved into the state, not copied.
    pub fn take(&mut self, index: u64, entry: Entry) -> Applied {
        if let Some(refusal) = self.refuse_entry(index, &entry) {
            return Applied {
                outcomes: vec![Outcome::Refused(refusal); entry.proposals.len()],
                events: Vec::new(),
            };
        }
        self.meta.applied_index = index;
        self.meta.clock_ms = self.meta.clock_ms.max(entry.at_ms);
        let mut step =
            Step { index, now_ms: self.meta.clock_ms, grants: 0, events: Vec::new(), plan_needed: false };
        let mut outcomes = Vec::with_capacity(entry.proposals.len());
        for proposal in entry.proposals {
            outcomes.push(propose(self, &mut step, proposal));
        }
        if step.plan_needed {
            step.events.push(Event::PlanNeeded);
        }
        self.chain(&outcomes, &step.events);
        Applied { outcomes, events: step.events }
    }

    /// Notes a log entry without proposals (blank, membership).
    pub fn skip(&mut self, index: u64) {
        if index > self.meta.applied_index {
            self.meta.applied_index = index;
            self.chain(&[], &[]);
        }
    }

    fn refuse_entry(&self, index: u64, entry: &Entry) -> Option<PublicError> {
        if entry.format > version::NEWEST {
            let message = format!("log format {} is newer than {}", entry.format, version::NEWEST);
            return Some(PublicError::new(ErrorCode::Version, message));
        }
        if index <= self.meta.applied_index {
            let message = format!("index {index} was applied before");
            return Some(PublicError::new(ErrorCode::Internal, message));
        }
        None
    }

    /// Extends the rolling hash: previous value, index, clock, outcomes, events.
    fn chain(&mut self, outcomes: &[Outcome], events: &[Event]) {
        let mut digest = Digest::new(self.meta.rolling_hash);
        digest.write_u64(self.meta.applied_index);
        digest.write_u64(self.meta.clock_ms);
        // Encoding cannot fail for these types; if it ever did, all replicas would mix in the same empty bytes.
        digest.write(&codec::encode(&outcomes).unwrap_or_default());
        digest.write(&codec::encode(&events).unwrap_or_default());
        self.meta.rolling_hash = digest.finish();
    }
}

/// One proposal: known request ids first, then the command, then remembering the answer.
fn propose(state: &mut State, step: &mut Step, proposal: Proposal) -> Outcome {
    let Proposal { request, actor, command: asked } = proposal;
    let named = request != RequestId::NONE && !state.faults.skip_dedup;
    state.dedup.sweep(step.now_ms);
    state.reservations.sweep(step.now_ms);
    if named {
        if let Some(outcome) = state.dedup.answer(request, &actor) {
            return outcome;
        }
        if state.dedup.is_full() {
            let busy = PublicError::new(ErrorCode::Busy, "too many requests within a day");
            return Outcome::Refused(busy.retry_after(60_000));
        }
    }
    let line = audit::line(state, &actor, &asked);
    let result = command(state, step, &actor, asked);
    audit::note(state, step, &actor, line, &result);
    let outcome = result.unwrap_or_else(Outcome::Refused);
    if named {
        state.dedup.remember(request, &actor, &outcome, step.now_ms);
    }
    outcome
}

/// Rights, then the `match`.
fn command(state: &mut State, step: &mut Step, actor: &Actor, command: Command) -> Answer {
    let least = least_role(&command);
    if actor.role < least {
        let message = format!("needs the role {}, yours is {}", role_name(least), role_name(actor.role));
        return Err(PublicError::new(ErrorCode::Forbidden, message));
    }
    if state.cluster().is_none() && !matches!(command, Command::CreateCluster { .. }) {
        return Err(PublicError::new(ErrorCode::Conflict, "the cluster is not created yet"));
    }
    let (needed, now) = (version::needs(&command), state.version());
    if needed > now {
        let message = format!(
            "this needs version {needed} of the cluster, which is at {now}: `rota cluster version --raise` when all hosts \
             are upgraded"
        );
        return Err(PublicError::new(ErrorCode::Version, message));
    }
    match command {
        Command::CreateCluster { cluster, name, host_name, addr } => {
            create_cluster::apply(state, step, cluster, &name, &host_name, &addr)
        }
        Command::AdmitHost { token, host_name, addr } => {
            admit_host::apply(state, step, &token, &host_name, &addr)
        }
        Command::RegisterHost { host, registration } => {
            register_host::apply(state, step, host, &registration)
        }
        Command::DrainHost { host, reason } => drain::apply(state, step, host, &reason, None),
        Command::DrainWith { host, reason, evict_at_ms } => {
            drain::apply(state, step, host, &reason, evict_at_ms)
        }
        Command::UndrainHost { host } => undrain::apply(state, step, host),
        Command::MintToken { token, usage, expires_at_ms } => {
            mint_token::apply(state, step, actor, &token, &usage, expires_at_ms)
        }
        Command::Submit { spec } => submit::apply(state, step, actor, spec),
        Command::Cancel { job, index } => cancel::apply(state, step, actor, job, index),
        Command::CommitPlan { plan } => commit_plan::apply(state, step, &plan),
        Command::Report { host, reports } => report::apply(state, step, host, &reports),
        Command::EndOwn { host, ends } => care::end_own(state, step, host, &ends),
        Command::Expire { host, epoch } => expire::apply(state, step, host, epoch),
        Command::SetQueue { queue } => set_queue::apply(state, step, &queue),
        Command::RemoveQueue { name } => set_queue::remove(state, step, &name),
        Command::Adjust { job, change } => adjust::apply(state, step, actor, job, change),
        Command::Reserve { reservation } => reserve::apply(state, step, &reservation),
        Command::Unreserve { name } => reserve::remove(state, step, &name),
        Command::Health { host, report } => health::apply(state, step, host, &report),
        Command::Tend { tending } => tend::apply(state, step, actor, &tending),
        Command::RaiseVersion { to } => raise_version::apply(state, step, to),
        Command::Trust { change } => trust::apply(state, step, actor, &change),
        Command::Members(change) => members::apply(state, step, actor, &change),
    }
}

/// Changes a job. If it is over by that, its queue counts it no more; whoever waits for it must still be told.
fn change_job<R>(
    state: &mut State,
    id: JobId,
    now_ms: u64,
    change: impl FnOnce(&mut Job) -> R,
) -> Option<(R, bool)> {
    let changed = state.jobs.update(id, now_ms, change)?;
    if changed.1
        && let Some(queue) = state.job(id).map(|job| job.queue)
    {
        state.queues.count_job(queue, false);
    }
    Some(changed)
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Viewer => "viewer",
        Role::Submitter => "submitter",
        Role::Operator => "operator",
        Role::Admin => "admin",
    }
}

fn no_host(host: HostId) -> PublicError {
    PublicError::new(ErrorCode::NotFound, format!("no host {host}"))
}

fn no_job(job: JobId) -> PublicError {
    PublicError::new(ErrorCode::NotFound, format!("no job {job}"))
}

/// Cuts a text to what state keeps, at a character's border.
fn cut(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Checks an address hint: bounded, not empty.
fn check_addr(addr: &str) -> Result<(), PublicError> {
    crate::spec::check_name("addr", addr)?;
    if addr.is_empty() {
        return Err(PublicError::invalid("addr", "is empty", "10.0.0.7:4600"));
    }
    Ok(())
}

/// Checks a host's name: bounded, not empty.
fn check_host_name(name: &str) -> Result<(), PublicError> {
    crate::spec::check_name("host_name", name)?;
    if name.is_empty() {
        return Err(PublicError::invalid("host_name", "is empty", "gpu-7"));
    }
    Ok(())
}
