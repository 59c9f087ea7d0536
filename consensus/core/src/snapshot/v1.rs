//! Snapshots of format 1: the tables as they were, and how they become today's.
//!
//! What this is not: it writes nothing, and it judges nothing; the laws are checked on what comes out, as for every
//! snapshot. Rows and tables that have not grown since (`Meta`, `DedupTable`, `Ordinals`, ...) are read as they are;
//! whoever changes one of them freezes it here first, and `tests/golden/snapshot_1.hex` sees it if he forgets.

use crate::fit;
use crate::state::State;
use crate::state::attempt;
use crate::state::dedup::DedupTable;
use crate::state::history::{Basis, History};
use crate::state::host::{self, DeviceUse, Holder, HostLife, LaunchRecord};
use crate::state::job::{self, Avoid, JobTable};
use crate::state::meta::Meta;
use crate::state::ordinals::Ordinals;
use crate::state::queue::Spent;
use crate::state::token::TokenTable;
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::codec::{self, DecodeError};
use rota_protocol::job::{Actor, AttemptEnd, AttemptState, EndReason, JobState, Role};
use rota_protocol::limits::SNAPSHOT_BYTES_MAX;
use rota_protocol::queue::{QueueId, QueueSpec};
use rota_protocol::{BootId, DeviceUuid, HostId, JobId, LeaseEpoch, TaskId, Token, v1};
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The state of a body of format 1, its indexes not rebuilt yet.
pub(super) fn decode(body: &[u8]) -> Result<State, DecodeError> {
    let body: Body = codec::decode(body, SNAPSHOT_BYTES_MAX)?;
    let mut state = State { meta: body.meta, dedup: body.dedup, tokens: body.tokens, ..State::default() };
    let tenants = tenants(&body.jobs, &body.attempts);
    for (_, row) in body.hosts.map {
        state.hosts.insert(row.into_host(&tenants));
    }
    state.jobs = jobs(&mut state, body.jobs);
    for (_, row) in body.attempts.map {
        let attempt = row.into_attempt(&state);
        state.queues.hold(&attempt);
        state.attempts.insert(attempt);
    }
    Ok(state)
}

#[derive(Deserialize)]
struct Body {
    meta: Meta,
    hosts: Hosts,
    jobs: Jobs,
    attempts: Attempts,
    dedup: DedupTable,
    tokens: TokenTable,
}

#[derive(Deserialize)]
struct Hosts {
    map: BTreeMap<HostId, Host>,
}

#[derive(Deserialize)]
struct Host {
    id: HostId,
    name: String,
    addr: String,
    epoch: LeaseEpoch,
    boot: BootId,
    facts: v1::HostFacts,
    gone: Vec<v1::DeviceFacts>,
    life: HostLife,
    drain: Option<String>,
    launches: LaunchRecord,
    used: Used,
    gpu_ms: u64,
}

#[derive(Deserialize)]
struct Used {
    cpus_milli: u64,
    mem_mib: u64,
    devices: BTreeMap<DeviceUuid, Token>,
    launching: u32,
}

#[derive(Deserialize)]
struct Jobs {
    map: BTreeMap<JobId, Job>,
    terminal: VecDeque<JobId>,
}

#[derive(Deserialize)]
struct Job {
    id: JobId,
    tenant: String,
    user: String,
    spec: v1::JobSpec,
    state: JobState,
    cancel_asked: bool,
    submitted_ms: u64,
    started_ms: Option<u64>,
    ended_ms: Option<u64>,
    pending: Ordinals,
    succeeded: Ordinals,
    failed: Ordinals,
    cancelled: Ordinals,
    live: u32,
    retries_used: BTreeMap<u32, u16>,
    host_faults: BTreeMap<u32, u16>,
    avoid: BTreeMap<HostId, Avoid>,
    ended: VecDeque<EndedAttempt>,
    ended_forgotten: u64,
    first_failure: Option<u8>,
    gpu_ms: u64,
}

#[derive(Deserialize)]
struct EndedAttempt {
    token: Token,
    index: u32,
    host: HostId,
    devices: Vec<DeviceUuid>,
    end: AttemptEnd,
    pid: Option<u32>,
    granted_ms: u64,
    started_ms: Option<u64>,
    ended_ms: u64,
    ran_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Attempts {
    map: BTreeMap<Token, Attempt>,
}

#[derive(Deserialize)]
struct Attempt {
    token: Token,
    task: TaskId,
    host: HostId,
    epoch: LeaseEpoch,
    devices: Vec<DeviceUuid>,
    gpus: u32,
    cpus_milli: u32,
    mem_mib: u64,
    state: AttemptState,
    end_reason: Option<EndReason>,
    pid: Option<u32>,
    granted_ms: u64,
    started_ms: Option<u64>,
}

/// Who pays for each live attempt.
fn tenants(jobs: &Jobs, attempts: &Attempts) -> BTreeMap<Token, String> {
    let tenant = |attempt: &Attempt| jobs.map.get(&attempt.task.job).map(|job| job.tenant.clone());
    attempts.map.iter().filter_map(|(token, attempt)| Some((*token, tenant(attempt)?))).collect()
}

impl Host {
    /// A device was held as a whole, by one attempt.
    fn into_host(self, tenants: &BTreeMap<Token, String>) -> host::Host {
        let mut row = host::Host::new(self.id, self.name, self.addr);
        row.epoch = self.epoch;
        row.boot = self.boot;
        row.facts = Arc::new(self.facts.into());
        row.gone = self.gone.into_iter().map(Into::into).collect();
        row.life = self.life;
        row.drain = self.drain;
        row.launches = self.launches;
        row.gpu_ms = self.gpu_ms;
        let held = |token: Token| {
            DeviceUse {
                tenant: tenants.get(&token).cloned().unwrap_or_default(),
                // Of a whole device all memory is held, whatever it is.
                holders: vec![Holder { token, milli: CARD_MILLI, vram_mib: 0 }],
            }
        };
        let devices = self.used.devices.into_iter().map(|(uuid, token)| {
            let held = held(token);
            (uuid, held)
        });
        row.used = host::Used {
            devices: devices.collect(),
            cpus_milli: self.used.cpus_milli,
            mem_mib: self.used.mem_mib,
            launching: self.used.launching,
            ..host::Used::default()
        };
        row
    }
}

/// All jobs, each in a queue of its tenant's name; queues are numbered as they would have been at submission.
fn jobs(state: &mut State, old: Jobs) -> JobTable {
    let mut rows: Vec<job::Job> = Vec::with_capacity(old.map.len());
    for (_, row) in old.map {
        let queue = match state.queues.named(&row.tenant) {
            Some(own) => own.id,
            None => state.queues.set(QueueSpec::open(&row.tenant)),
        };
        let job = row.into_job(queue);
        if !job.state.is_terminal() {
            state.queues.count_job(queue, true);
        }
        state.demand.note(&job.spec.ask, job.tasks());
        rows.push(job);
    }
    let history = past(state, &rows);
    for job in rows.iter_mut().filter(|job| !job.state.is_terminal()) {
        let foreseen = history.predict(&job.history_key(), job.spec.time_limit_ms);
        job.predicted_ms = (foreseen.basis != Basis::None).then_some(foreseen.ms);
    }
    state.history = Arc::new(history);
    JobTable::from_rows(rows.into_iter().map(|job| (job.id, Arc::new(job))).collect(), old.terminal)
}

/// What the records still tell of the past: use counts for fair share as it was metered, from grant to release; runs
/// that ended by themselves say how long such jobs run.
fn past(state: &mut State, jobs: &[job::Job]) -> History {
    let mut history = History::default();
    let all = jobs.iter().flat_map(|job| job.ended.iter().map(move |ended| (job, ended)));
    let mut ended: Vec<(&job::Job, &attempt::EndedAttempt)> = all.collect();
    ended.sort_by_key(|(_, ended)| (ended.ended_ms, ended.token));
    for (job, ended) in ended {
        let held_ms = ended.ended_ms.saturating_sub(ended.granted_ms);
        let of = |milli: u32| held_ms.saturating_mul(u64::from(milli)) / 1_000;
        state.queues.spend(&Spent {
            queue: job.queue,
            user: &job.user,
            gpu_ms: of(job.spec.ask.gpu_milli),
            cpu_ms: of(job.spec.ask.cpus_milli),
            at_ms: ended.ended_ms,
        });
        // Whether its end was asked was not kept; if it was, the task is among the cancelled ones.
        let cancelled = job.ordinal(ended.index).is_none_or(|ordinal| job.cancelled.contains(ordinal));
        if let Some(ran_ms) = ended.ran_ms.filter(|_| ended.end.is_users() && !cancelled) {
            history.record(&job.history_key(), job.spec.time_limit_ms, ran_ms);
        }
    }
    history
}

impl Job {
    fn into_job(self, queue: QueueId) -> job::Job {
        let owner = Actor { tenant: self.tenant, user: self.user, role: Role::Submitter };
        let ended: VecDeque<attempt::EndedAttempt> = self.ended.into_iter().map(Into::into).collect();
        let mut row = job::Job {
            state: self.state,
            cancel_asked: self.cancel_asked,
            started_ms: self.started_ms,
            ended_ms: self.ended_ms,
            pending: self.pending,
            succeeded: self.succeeded,
            failed: self.failed,
            cancelled: self.cancelled,
            live: self.live,
            retries_used: self.retries_used.into(),
            host_faults: self.host_faults.into(),
            avoid: self.avoid.into(),
            ended: ended.into(),
            ended_forgotten: self.ended_forgotten,
            first_failure: self.first_failure,
            gpu_ms: self.gpu_ms,
            ..job::Job::new(self.id, &owner, queue, self.spec.into(), self.submitted_ms)
        };
        row.stopped = stopped(&row);
        // It was called failed, whatever its first failure was, and it is called so for ever.
        row.verdict = row.first_failure.map(|_| JobState::Failed);
        row
    }
}

/// Cancelled tasks that had started, as far as the records say: those whose last attempt ended as cancelled.
fn stopped(job: &job::Job) -> Ordinals {
    let last: BTreeMap<u32, &AttemptEnd> = job.ended.iter().map(|ended| (ended.index, &ended.end)).collect();
    let mut stopped = Ordinals::default();
    for (index, end) in last {
        if let Some(ordinal) = job.ordinal(index)
            && *end == AttemptEnd::Cancelled
            && job.cancelled.contains(ordinal)
        {
            stopped.insert(ordinal);
        }
    }
    stopped
}

impl From<EndedAttempt> for attempt::EndedAttempt {
    fn from(old: EndedAttempt) -> Self {
        Self {
            token: old.token,
            index: old.index,
            host: old.host,
            devices: old.devices,
            end: old.end,
            asked: None,
            pid: old.pid,
            granted_ms: old.granted_ms,
            started_ms: old.started_ms,
            ended_ms: old.ended_ms,
            ran_ms: old.ran_ms,
            used: rota_protocol::cage::Used::default(),
            care: None,
        }
    }
}

impl Attempt {
    /// With what its job and its host say of it. Without a job it stays nobody's, and the laws name it.
    fn into_attempt(self, state: &State) -> attempt::Attempt {
        let job = state.jobs.get(self.task.job);
        let held = job.zip(state.hosts.get(self.host));
        let held =
            held.map(|(job, host)| fit::amounts(host, &job.spec.ask, &self.devices)).unwrap_or_default();
        attempt::Attempt {
            token: self.token,
            task: self.task,
            host: self.host,
            epoch: self.epoch,
            choice: 0,
            // Slices of cards count by their part now, so they may come to more than the whole cards did.
            gpu_milli: u32::try_from(held.gpu_milli)
                .unwrap_or(u32::MAX)
                .max(self.gpus.saturating_mul(CARD_MILLI)),
            vram_mib: held.vram_mib,
            card_milli: job.map_or(0, |job| job.spec.ask.card_milli()),
            card_vram_mib: 0,
            devices: self.devices,
            cpus_milli: self.cpus_milli,
            mem_mib: self.mem_mib,
            state: self.state,
            end_reason: self.end_reason,
            pid: self.pid,
            granted_ms: self.granted_ms,
            started_ms: self.started_ms,
            tenant: job.map(|job| job.tenant.clone()).unwrap_or_default(),
            user: job.map(|job| job.user.clone()).unwrap_or_default(),
            queue: job.map(|job| job.queue).unwrap_or_default(),
            priority: job.map(|job| job.priority).unwrap_or_default(),
            limit_ms: job.and_then(|job| job.spec.time_limit_ms),
            grace_ms: job.and_then(|job| job.spec.grace_ms),
            predicted_ms: job.and_then(|job| job.predicted_ms),
            preemptible: job.is_some_and(|job| job.spec.preemptible),
            in_gang: false,
            spared_until_ms: 0,
            port: None,
            care: None,
        }
    }
}
