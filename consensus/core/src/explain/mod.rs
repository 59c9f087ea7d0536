//! Why does it wait, and when will it start? Answered by the planner's own filters over one consistent copy, never by
//! a second opinion.
//!
//! Each host is counted once, under the first obstacle that a round of the planner meets at the job's turn, so the
//! numbers add up to the number of hosts.

mod account;
mod ahead;
mod capacity;
mod cause;
mod ends;
mod lack;
mod rivals;
mod short;
mod tally;
mod text;
mod times;
mod turn;

pub(crate) use short::short;
pub(crate) use text::span;
pub(crate) use turn::TOLD;

use crate::apply::depend::{self, Standing};
use crate::placement::{Look, PlanConfig, Planner, View};
use crate::state::State;
use crate::state::job::Job;
use crate::state::queue::OverCeiling;
use crate::view::ask_text;
use cause::{Cause, settled_sentence};
use lack::{Lack, lack};
use rivals::Wanted;
use rota_protocol::job::{JobSpec, JobState};
use rota_protocol::why::{DEPENDENCIES_SHOWN_MAX, WhyDependency, WhyParts, WhyStart, WhyView};
use rota_protocol::why_more::WhyMore;
use rota_protocol::{JobId, PublicError};
use tally::{Tally, settled, tally};

/// Whether a job can start, and if not, why. None for an unknown job.
#[must_use]
pub fn why(state: &State, id: JobId, now_ms: u64) -> Option<WhyView> {
    why_with(state, id, now_ms, &PlanConfig::default())
}

/// The same with what else the planner is told, such as which hosts are silent just now.
#[must_use]
pub fn why_with(state: &State, id: JobId, now_ms: u64, config: &PlanConfig) -> Option<WhyView> {
    let job = state.jobs.shared(id)?;
    if !waits(job) {
        let mut answer = answer(state, job, now_ms);
        answer.verdict = settled_sentence(job) + &ends::culprit(state, job) + &turn::told(state, job);
        answer.by_reason = settled(state, job).into_rows();
        return Some(answer);
    }
    let view = View::of(state, now_ms);
    let look = Planner::default().look(&view, config, now_ms, job);
    let wanted = Wanted::new(state, job, &look);
    let before = ahead::ahead(state, &view, &wanted, job, now_ms);
    let case = Case::new(state, job, now_ms, config.grace_ms, look, before);
    let cause = Cause::of(&case);
    let mut answer = case.into_answer(cause);
    if let Cause::Hosts(_) | Cause::Victims = cause {
        (answer.more.holders, answer.more.more_holders) = wanted.holders(state, now_ms, config.grace_ms);
    }
    Some(answer)
}

/// Could the hosts ever run this job, even if they were empty, undrained and up, and would its account let them? Yes
/// while no host has registered: nothing is known yet.
///
/// # Errors
/// Names the field that no host meets and the largest offer, the fields that no host meets together, or the ceiling.
pub fn feasible(state: &State, tenant: &str, spec: &JobSpec) -> Result<(), PublicError> {
    if let Some(lack) = lack(state, spec) {
        let message = format!("cannot run on this cluster: {}", lack.message);
        return Err(PublicError::invalid(lack.field, message, &lack.example));
    }
    let queue = account::queue_of(state, tenant, spec);
    if let Some(over) = queue.and_then(|queue| account::too_large(state, spec, queue)) {
        let lack = account::lack_of_ceiling(state, spec, &over);
        let message = format!("cannot run on its account: {}", lack.message);
        return Err(PublicError::invalid(lack.field, message, &lack.example));
    }
    Ok(())
}

/// All that is known of a job that waits.
struct Case<'s> {
    state: &'s State,
    job: &'s Job,
    now_ms: u64,
    /// Time that an attempt without a grace of its own may take to end.
    grace_ms: u64,
    look: Look,
    tally: Tally,
    /// What no host, or no ceiling, will ever give.
    lack: Option<Lack>,
    /// The ceiling that the job alone would break.
    too_large: Option<OverCeiling>,
    /// Tasks before it, and the GPUs they ask.
    ahead: (u64, u64),
    /// Parents that are not over.
    open: Vec<WhyDependency>,
    /// Attempts that are being ended for it.
    victims: u32,
    expected: Option<WhyStart>,
}

impl<'s> Case<'s> {
    fn new(
        state: &'s State,
        job: &'s Job,
        now_ms: u64,
        grace_ms: u64,
        look: Look,
        ahead: (u64, u64),
    ) -> Self {
        let tally = tally(state, job, &look, now_ms);
        let of_hosts = lack(state, &job.spec);
        let too_large =
            if of_hosts.is_some() { None } else { account::too_large(state, &job.spec, job.queue) };
        let of_ceiling = too_large.as_ref().map(|over| account::lack_of_ceiling(state, &job.spec, over));
        let mut case = Self {
            state,
            job,
            now_ms,
            grace_ms,
            look,
            tally,
            lack: of_hosts.or(of_ceiling),
            too_large,
            ahead,
            open: open_parents(state, job),
            victims: times::victims(state, job),
            expected: None,
        };
        case.expected = times::expected(&case, Cause::of(&case));
        case
    }

    fn into_answer(self, cause: Cause) -> WhyView {
        let (state, job, now_ms) = (self.state, self.job, self.now_ms);
        let mut answer = answer(state, job, now_ms);
        answer.verdict = cause.sentence(&self);
        answer.hint = cause.hint(&self);
        answer.cause = cause.name().to_owned();
        answer.impossible = self.lack.is_some();
        (answer.ahead_tasks, answer.ahead_gpus) = self.ahead;
        let full = self.too_large.as_ref().or(self.look.over.as_ref());
        let part = full.map_or_else(|| account::main_part(&job.spec.ask), |over| over.part);
        answer.account = account::rows(state, job, part, full);
        answer.more.shares = ahead::shares(state, job, part);
        answer.more.reservation = times::reservation(&self);
        answer.victims = self.victims;
        answer.promise = job.promise.as_ref().map(|one| times::promised(&self, one));
        answer.held = job.held;
        answer.begin_ms = job.spec.begin_ms.filter(|at_ms| now_ms < *at_ms);
        answer.deadline_ms = job.spec.deadline_ms.filter(|_| job.started_ms.is_none());
        answer.paused_until_ms = Some(job.pauses_until_ms()).filter(|at_ms| now_ms < *at_ms);
        answer.parallel_max = job.spec.array.map(|array| array.parallel_max).filter(|most| *most > 0);
        answer.parts = self.look.parts.map(|(needed, fit)| WhyParts { needed, fit });
        answer.smaller_ask = if answer.impossible { None } else { self.smaller_text() };
        answer.shorter_limit_ms = self.look.shorter_limit_ms;
        answer.by_reason = self.tally.into_rows();
        answer.dependencies = self.open;
        answer.expected = self.expected;
        answer.largest_offer = self.lack.and_then(|lack| lack.offer);
        answer
    }
}

/// Something of it waits for something.
fn waits(job: &Job) -> bool {
    matches!(job.state, JobState::Pending | JobState::Running)
        && !(job.pending.is_empty() && job.blocked.is_empty())
}

/// What is said of every job.
fn answer(state: &State, job: &Job, now_ms: u64) -> WhyView {
    let mut ask = ask_text(&job.spec.ask);
    for other in &job.spec.alternatives {
        ask.push_str(&format!(" or {}", ask_text(other)));
    }
    if let Some(gang) = job.spec.gang {
        let parts =
            if gang.is_elastic() { format!("{} to {}", gang.min, gang.max) } else { gang.max.to_string() };
        ask = format!("{parts} parts of {ask}");
    }
    WhyView {
        index: state.applied_index(),
        job: job.id,
        state: job.state,
        verdict: String::new(),
        impossible: false,
        ask,
        hosts: u32::try_from(state.hosts.len()).unwrap_or(u32::MAX),
        by_reason: Vec::new(),
        ahead_tasks: 0,
        ahead_gpus: 0,
        largest_offer: None,
        hint: None,
        waited_ms: times::waited_ms(job, now_ms),
        cause: "none".into(),
        expected: None,
        promise: None,
        victims: 0,
        account: Vec::new(),
        dependencies: Vec::new(),
        held: false,
        begin_ms: None,
        deadline_ms: None,
        paused_until_ms: None,
        parallel_max: None,
        parts: None,
        smaller_ask: None,
        shorter_limit_ms: None,
        waits: times::waits(job, now_ms),
        more: WhyMore { evicted: turn::evicted(job), partly: times::is_partly(job), ..WhyMore::default() },
    }
}

fn open_parents(state: &State, job: &Job) -> Vec<WhyDependency> {
    if job.blocked.is_empty() {
        return Vec::new();
    }
    let open = job.spec.after.iter().filter(|dep| depend::of_job(state, dep) == Standing::Open);
    let rows = open.filter_map(|dep| {
        let state = state.job(dep.job)?.state;
        Some(WhyDependency { job: dep.job, relation: dep.relation, each: dep.each, state })
    });
    rows.take(DEPENDENCIES_SHOWN_MAX).collect()
}
