//! A cluster of the production scheduler in virtual time: a `State` that applies entries one after the other, the
//! planner beside it, and a clock that the replay moves. What a replay sees is what a leader does, less the network.

use rota_core::State;
use rota_core::placement::{PlanConfig, Planner, View};
use rota_protocol::command::{Command, Entry, LOG_FORMAT, Outcome, Proposal, TokenUse};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts, HostRegistration};
use rota_protocol::job::{Actor, AttemptEnd, JobSpec, Role};
use rota_protocol::limits;
use rota_protocol::plan::{Move, Plan, Refusal};
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::{BootId, ClusterId, DeviceUuid, HostId, JobId, PublicError, RequestId, Token};
use std::collections::BTreeMap;
use thiserror::Error;

/// Most hosts of a replay: those of a cluster less its founder, that has no part in it.
pub const HOSTS_MAX: usize = limits::HOSTS_MAX - 1;

/// The hash of every join token of a replay.
const JOIN_TOKEN: [u8; 32] = [1; 32];

/// The scheduler refused what a replay must be able to do.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// A command was refused.
    #[error("refused: {0}")]
    Refused(PublicError),
    /// A move of the planner's was refused: it and the state machine do not agree.
    #[error("a planned move was refused ({why:?}): {one:?}")]
    Move {
        /// By which rule.
        why: Refusal,
        /// The first of them.
        one: Box<Move>,
    },
    /// An answer of another kind than the command's.
    #[error("an answer that does not belong to its command: {0:?}")]
    Answer(Box<Outcome>),
}

/// One host of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostKind {
    /// CPU in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// Cards.
    pub cards: u32,
    /// Their model.
    pub model: String,
    /// Their memory in MiB, if it matters.
    pub vram_mib: Option<u64>,
}

/// State, planner and clock.
#[derive(Debug)]
pub struct Cluster {
    state: State,
    planner: Planner,
    /// How rounds are planned.
    pub config: PlanConfig,
    now_ms: u64,
    /// What was applied and not yet taken, if that is recorded.
    recorded: Option<Vec<Recorded>>,
}

/// An entry with its index, and the hash of the state after it.
pub type Recorded = (u64, Entry, u64);

impl Cluster {
    /// A cluster of such hosts, all up, host `n` of the list with number `n + 2`.
    ///
    /// # Errors
    /// A host that the scheduler does not take.
    pub fn new(hosts: &[HostKind], config: PlanConfig) -> Result<Self, ClusterError> {
        Self::founded(hosts, config, None)
    }

    /// The same, with every entry kept until it is taken.
    ///
    /// # Errors
    /// A host that the scheduler does not take.
    pub fn recording(hosts: &[HostKind], config: PlanConfig) -> Result<Self, ClusterError> {
        Self::founded(hosts, config, Some(Vec::new()))
    }

    fn founded(
        hosts: &[HostKind],
        config: PlanConfig,
        recorded: Option<Vec<Recorded>>,
    ) -> Result<Self, ClusterError> {
        let (state, planner) = (State::new(), Planner::default());
        let mut cluster = Self { state, planner, config, now_ms: 1_000_000_000, recorded };
        cluster.system(Command::CreateCluster {
            cluster: ClusterId(1),
            name: "replay".into(),
            host_name: "founder".into(),
            addr: "10.0.0.1:4600".into(),
        })?;
        for (at, kind) in hosts.iter().enumerate() {
            cluster.add_host(at, kind)?;
        }
        Ok(cluster)
    }

    /// One more host.
    ///
    /// # Errors
    /// The scheduler does not take it.
    pub fn add_host(&mut self, at: usize, kind: &HostKind) -> Result<HostId, ClusterError> {
        let name = format!("h{at}");
        let addr = format!("10.{}.{}.{}:4600", at >> 16 & 255, at >> 8 & 255, at & 255);
        let usage = TokenUse::Join { host_name: None };
        let expires_at_ms = self.now_ms + 1_000;
        self.system(Command::MintToken { token: JOIN_TOKEN, usage, expires_at_ms })?;
        let admit = Command::AdmitHost { token: JOIN_TOKEN, host_name: name.clone(), addr: addr.clone() };
        let host = match self.system(admit)? {
            Outcome::HostAdmitted { host } => host,
            other => return Err(ClusterError::Answer(Box::new(other))),
        };
        let registration = HostRegistration { boot: BootId(1), addr, facts: facts(host, kind) };
        self.system(Command::RegisterHost { host, registration })?;
        Ok(host)
    }

    /// The replicated state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state, to be prepared before a replay begins.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// What was applied since the last time, if it is recorded.
    pub fn take_recorded(&mut self) -> Vec<Recorded> {
        self.recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The clock, ms.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Moves the clock on; it never goes back.
    pub fn advance_to(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// A command of Rota itself.
    ///
    /// # Errors
    /// It was refused.
    pub fn system(&mut self, command: Command) -> Result<Outcome, ClusterError> {
        self.propose(Actor::system(), command)
    }

    /// Submits a job for a tenant's user.
    ///
    /// # Errors
    /// It was refused.
    pub fn submit(&mut self, tenant: &str, user: &str, spec: JobSpec) -> Result<JobId, ClusterError> {
        self.submit_by(Actor { tenant: tenant.into(), user: user.into(), role: Role::Submitter }, spec)
    }

    /// Submits a job for whoever may do so.
    ///
    /// # Errors
    /// It was refused.
    pub fn submit_by(&mut self, actor: Actor, spec: JobSpec) -> Result<JobId, ClusterError> {
        match self.propose(actor, Command::Submit { spec })? {
            Outcome::Submitted { job } => Ok(job),
            other => Err(ClusterError::Answer(Box::new(other))),
        }
    }

    /// Cancels what is left of a job.
    ///
    /// # Errors
    /// It was refused.
    pub fn cancel(&mut self, job: JobId) -> Result<(), ClusterError> {
        self.system(Command::Cancel { job, index: None }).map(|_| ())
    }

    /// An attempt is over.
    ///
    /// # Errors
    /// It was refused.
    pub fn end(&mut self, token: Token, end: AttemptEnd, ran_ms: u64) -> Result<(), ClusterError> {
        let Some(host) = self.state.attempt(token).map(|attempt| attempt.host) else {
            return Ok(());
        };
        let reports = vec![AttemptReport { token, fact: AttemptFact::Ended { end, ran_ms } }];
        self.system(Command::Report { host, reports }).map(|_| ())
    }

    /// The process of an attempt runs.
    ///
    /// # Errors
    /// It was refused.
    pub fn started(&mut self, token: Token) -> Result<(), ClusterError> {
        let Some(host) = self.state.attempt(token).map(|attempt| attempt.host) else {
            return Ok(());
        };
        let reports = vec![AttemptReport { token, fact: AttemptFact::Started { pid: 1 } }];
        self.system(Command::Report { host, reports }).map(|_| ())
    }

    /// What the planner would do now.
    pub fn plan(&mut self) -> Plan {
        let view = View::of(&self.state, self.now_ms);
        self.planner.plan(&view, &self.config, self.now_ms)
    }

    /// Plans and commits; gives the moves. A refused move is an error: a replay has one planner and no races.
    ///
    /// # Errors
    /// The plan, or a move of it, was refused.
    pub fn round(&mut self) -> Result<Vec<Move>, ClusterError> {
        let plan = self.plan();
        if plan.moves.is_empty() {
            return Ok(Vec::new());
        }
        self.commit(plan)
    }

    /// Commits a plan as it is; gives its moves.
    ///
    /// # Errors
    /// The plan, or a move of it, was refused.
    pub fn commit(&mut self, plan: Plan) -> Result<Vec<Move>, ClusterError> {
        let moves = plan.moves.clone();
        match self.system(Command::CommitPlan { plan })? {
            Outcome::Planned { refused } => {
                let first =
                    refused.first().and_then(|(at, why)| Some((*why, moves.get(*at as usize)?.clone())));
                first.map_or(Ok(moves), |(why, one)| Err(ClusterError::Move { why, one: Box::new(one) }))
            }
            other => Err(ClusterError::Answer(Box::new(other))),
        }
    }

    fn propose(&mut self, actor: Actor, command: Command) -> Result<Outcome, ClusterError> {
        let proposals = vec![Proposal { request: RequestId::NONE, actor, command }];
        let entry = Entry { format: LOG_FORMAT, at_ms: self.now_ms, proposals };
        let applied = self.state.apply(self.state.applied_index() + 1, &entry);
        if let Some(recorded) = &mut self.recorded {
            recorded.push((self.state.applied_index(), entry, self.state.rolling_hash()));
        }
        match applied.outcomes.into_iter().next() {
            Some(Outcome::Refused(error)) => Err(ClusterError::Refused(error)),
            Some(outcome) => Ok(outcome),
            None => Ok(Outcome::Done),
        }
    }
}

fn facts(host: HostId, kind: &HostKind) -> HostFacts {
    let device = |index: u32| DeviceFacts {
        uuid: DeviceUuid(format!("GPU-{}-{index}", host.0)),
        kind: DeviceKind::Gpu,
        model: kind.model.clone(),
        vram_mib: kind.vram_mib,
        bus: None,
        index: Some(index),
        numa: None,
        compute_cap: None,
        island: None,
        health: DeviceHealth::Healthy,
        detail: Default::default(),
    };
    HostFacts {
        cpus_milli: kind.cpus_milli,
        mem_mib: kind.mem_mib,
        devices: (0..kind.cards).map(device).collect(),
        labels: BTreeMap::new(),
        version: String::new(),
        notes: Default::default(),
    }
}
