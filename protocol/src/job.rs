//! Jobs, tasks, attempts: what is submitted, what becomes of it, and how it may end.

pub use crate::attempt::{AttemptEnd, AttemptState, EndReason};

use crate::ask::{Ask, CARD_MILLI};
use crate::container::ContainerSpec;
use crate::data::Input;
use crate::limits::PRIORITY_DEFAULT;
use crate::output::OutputSpec;
use crate::pace::Pace;
use crate::session::SessionSpec;
use crate::work::{Dependency, GangSpec, Layout, Warning};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who acts. The edge that authenticated the caller fills it in; apply trusts it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Actor {
    /// Who pays. Matched exactly, never by prefix.
    pub tenant: String,
    /// The person or service.
    pub user: String,
    /// What the actor may do.
    pub role: Role,
}

impl Actor {
    /// Rota itself: plans, reports, expiries.
    #[must_use]
    pub fn system() -> Self {
        Self { tenant: "system".into(), user: "rota".into(), role: Role::Admin }
    }
}

/// Rights, each including those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Looks only, at its own tenant.
    Viewer,
    /// Submits, and ends its own jobs.
    Submitter,
    /// Ends any job, drains hosts.
    Operator,
    /// Everything: tokens, membership.
    Admin,
}

/// Indices `start, start + step, ..` up to and including `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArraySpec {
    /// First index.
    pub start: u32,
    /// Last index that may occur.
    pub end: u32,
    /// Distance between indices, at least 1.
    pub step: u32,
    /// Most tasks at once; 0 for no cap.
    pub parallel_max: u32,
}

impl ArraySpec {
    /// How many indices there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        (self.end.saturating_sub(self.start) / self.step.max(1)).saturating_add(1)
    }

    /// The index at position `ordinal`.
    #[must_use]
    pub fn index(&self, ordinal: u32) -> u32 {
        self.start.saturating_add(ordinal.saturating_mul(self.step.max(1)))
    }

    /// The position of `index`, if it is one of the array's.
    #[must_use]
    pub fn ordinal(&self, index: u32) -> Option<u32> {
        let offset = index.checked_sub(self.start)?;
        (index <= self.end && offset % self.step.max(1) == 0).then(|| offset / self.step.max(1))
    }
}

/// What a user submits, normalised by the edge.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobSpec {
    /// For people; need not be unique.
    pub name: String,
    /// Program and arguments, byte for byte.
    #[serde(with = "crate::bytes::list")]
    pub argv: Vec<Vec<u8>>,
    /// Environment, byte for byte, without Rota's own variables.
    #[serde(with = "crate::bytes::pairs")]
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory on the host that runs it; it must exist there.
    #[serde(with = "crate::bytes")]
    pub workdir: Vec<u8>,
    /// What each task needs.
    pub ask: Ask,
    /// Array indices; none for a plain job.
    pub array: Option<ArraySpec>,
    /// 0 (last) to 100 (first).
    pub priority: u16,
    /// Longest run of one attempt, in ms; none for no limit.
    pub time_limit_ms: Option<u64>,
    /// Time between TERM and KILL when a task is ended, in ms; none for the host's default.
    pub grace_ms: Option<u32>,
    /// How often a failed task may run again on the user's account.
    pub retries: u16,
    /// Numeric user and group to run as; none for the agent's own (a host that runs as root refuses none).
    pub uid_gid: Option<(u32, u32)>,
    /// Further asks that would do as well, tried in order where `ask` does not fit.
    pub alternatives: Vec<Ask>,
    /// Parts that run together; not with `array`.
    pub gang: Option<GangSpec>,
    /// Where tasks lie to one another.
    pub layout: Layout,
    /// Jobs that must be over first.
    pub after: Vec<Dependency>,
    /// The queue's path; empty for the tenant's own.
    pub queue: String,
    /// Not started before, ms since the epoch.
    pub begin_ms: Option<u64>,
    /// Given up if it has not started by then, ms since the epoch.
    pub deadline_ms: Option<u64>,
    /// Accepted, but waits until it is released.
    pub hold: bool,
    /// Runs until it is stopped: an end of its process, good or bad, starts it again, on no one's account.
    pub service: bool,
    /// May be ended to make room. Priority says who comes first, this says who may be ended for it.
    pub preemptible: bool,
    /// Waits again after it was ended to make room; otherwise that end is final.
    pub requeue: bool,
    /// A signal before an end that Rota brings about.
    pub warning: Option<Warning>,
    /// Exit status by which a task asks to be queued again, on no one's account.
    pub requeue_status: Option<u8>,
    /// What is said of its output and input, which few jobs do; see [`Self::output`].
    pub output: Option<Box<OutputSpec>>,
    /// The task gets a terminal, for a person; not with `array`, `gang` or `service`.
    pub session: Option<Box<SessionSpec>>,
    /// The image that it runs in; none for the host's own files. Boxed: few jobs have one.
    pub container: Option<Box<ContainerSpec>>,
    /// Holding its cards idle is intended until then, ms since the epoch.
    pub idle_until_ms: Option<u64>,
    /// What its user knows of its pace; boxed: few jobs say it.
    pub pace: Option<Box<Pace>>,
    /// Blobs that each task finds where it runs.
    pub inputs: Box<[Input]>,
}

impl Default for JobSpec {
    /// A job of one task that asks nothing, by the rules that hold when a user says nothing.
    fn default() -> Self {
        Self {
            name: String::new(),
            argv: Vec::new(),
            env: Vec::new(),
            workdir: b"/".to_vec(),
            ask: Ask::default(),
            array: None,
            priority: PRIORITY_DEFAULT,
            time_limit_ms: None,
            grace_ms: None,
            retries: 0,
            uid_gid: None,
            alternatives: Vec::new(),
            gang: None,
            layout: Layout::Any,
            after: Vec::new(),
            queue: String::new(),
            begin_ms: None,
            deadline_ms: None,
            hold: false,
            service: false,
            preemptible: true,
            requeue: true,
            warning: None,
            requeue_status: None,
            output: None,
            session: None,
            container: None,
            idle_until_ms: None,
            pace: None,
            inputs: Box::default(),
        }
    }
}

impl JobSpec {
    /// What is said of its output and input.
    #[must_use]
    pub fn output(&self) -> &OutputSpec {
        self.output.as_deref().unwrap_or(&OutputSpec::SILENT)
    }

    /// It takes turns with others, and moves between GPU models: it says that it resumes, it may be ended and queued
    /// again, and it is one task or a rigid gang of whole cards that asks no particular hosts.
    #[must_use]
    pub fn takes_turns(&self) -> bool {
        let ask = &self.ask;
        self.pace.as_deref().is_some_and(|pace| pace.resumes)
            && self.preemptible
            && self.requeue
            && !self.service
            && self.session.is_none()
            && self.array.is_none()
            && self.alternatives.is_empty()
            && self.gang.is_none_or(|gang| !gang.is_elastic())
            && ask.gpu_milli >= CARD_MILLI
            && ask.gpu_milli.is_multiple_of(CARD_MILLI)
            && ask.gpu_models_preferred.is_empty()
            && ask.devices.is_empty()
            && ask.labels.is_empty()
            && matches!(self.layout, Layout::Any | Layout::Pack | Layout::Spread)
    }

    /// The ask and its alternatives, in the order in which they are tried.
    pub fn asks(&self) -> impl Iterator<Item = &Ask> {
        std::iter::once(&self.ask).chain(&self.alternatives)
    }

    /// The ask by its position in [`Self::asks`].
    #[must_use]
    pub fn ask_at(&self, choice: u8) -> Option<&Ask> {
        self.asks().nth(usize::from(choice))
    }

    /// How many tasks it has: array elements, or parts of the gang, or one.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        match (self.array, self.gang) {
            (Some(array), _) => array.count(),
            (None, Some(gang)) => gang.max,
            (None, None) => 1,
        }
    }
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum JobState {
    /// Nothing runs, something waits.
    Pending,
    /// At least one attempt is live.
    Running,
    /// Cancelled, but processes are not yet proven gone.
    Ending,
    /// Every task ended well.
    Succeeded,
    /// At least one task failed for good.
    Failed,
    /// Cancelled, and nothing of it is left.
    Cancelled,
    /// At least one task was ended by its time limit for good, and that was the first failure.
    TimedOut,
    /// Ended to make room, and not to be queued again.
    Preempted,
    /// Never started: a job that it waits for ended otherwise than asked.
    DependencyFailed,
    /// Never started: its deadline passed.
    DeadlineMissed,
    /// Failed because hosts were lost or could not start it, too often.
    HostLost,
}

impl JobState {
    /// Every state, in the order in which they are listed.
    pub const ALL: [Self; 11] = [
        Self::Pending,
        Self::Running,
        Self::Ending,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
        Self::Preempted,
        Self::DependencyFailed,
        Self::DeadlineMissed,
        Self::HostLost,
    ];

    /// No further change is possible.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Running | Self::Ending)
    }

    /// Two letters, as in Slurm.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Pending => "PD",
            Self::Running => "R",
            Self::Ending => "CG",
            Self::Succeeded => "CD",
            Self::Failed => "F",
            Self::Cancelled => "CA",
            Self::TimedOut => "TO",
            Self::Preempted => "PR",
            Self::DependencyFailed => "DF",
            Self::DeadlineMissed => "DL",
            Self::HostLost => "NF",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Ending => "ending",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "time limit",
            Self::Preempted => "preempted",
            Self::DependencyFailed => "dependency failed",
            Self::DeadlineMissed => "deadline missed",
            Self::HostLost => "host lost",
        })
    }
}
