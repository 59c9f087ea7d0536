//! The history of a cluster as `rota history --json` writes it: its hosts, its queues, and what every job asked, when
//! it came, started and ended. No commands, no environments, no output: it can be handed to others.

use crate::input::{InputError, read_text};
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::job::{ArraySpec, JobState};
use rota_protocol::limits::PRIORITY_DEFAULT;
use rota_protocol::queue::QueueSpec;
use rota_protocol::work::{Dependency, GangSpec, Layout};
use rota_protocol::{JobId, PublicError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What the first field of a history says.
pub const FORMAT: &str = "rota-history";
/// The newest version that is read, and the one that is written.
pub const VERSION: u32 = 1;

/// Hosts, queues and jobs at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// [`FORMAT`].
    pub format: String,
    /// At most [`VERSION`].
    pub version: u32,
    /// When it was written, ms since the epoch.
    pub exported_ms: u64,
    /// Hosts that have registered, in whatever state they were then.
    pub hosts: Vec<HistoryHost>,
    /// Rules of queues, parents first; a queue that is not listed is open.
    #[serde(default)]
    pub queues: Vec<QueueSpec>,
    /// Jobs by number.
    pub jobs: Vec<HistoryJob>,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryHost {
    /// Its name.
    pub name: String,
    /// CPU in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Devices.
    #[serde(default)]
    pub devices: Vec<DeviceFacts>,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryJob {
    /// Its number.
    pub job: JobId,
    /// Its name: run times are foretold by it.
    #[serde(default)]
    pub name: String,
    /// Who pays.
    pub tenant: String,
    /// Who submitted it.
    pub user: String,
    /// The queue that it named; empty for the tenant's own.
    #[serde(default)]
    pub queue: String,
    /// 0 to 100.
    #[serde(default = "priority_default")]
    pub priority: u16,
    /// Where it stood.
    pub state: JobState,
    /// When it was accepted, ms since the epoch.
    pub submitted_ms: u64,
    /// When its first task started.
    pub started_ms: Option<u64>,
    /// When it was over.
    pub ended_ms: Option<u64>,
    /// What each task needs.
    pub ask: Ask,
    /// What would do as well.
    #[serde(default)]
    pub alternatives: Vec<Ask>,
    /// Array indices.
    #[serde(default)]
    pub array: Option<ArraySpec>,
    /// Parts that run together.
    #[serde(default)]
    pub gang: Option<GangSpec>,
    /// How tasks lie to one another.
    #[serde(default)]
    pub layout: Layout,
    /// Longest run of one task, in ms.
    #[serde(default)]
    pub time_limit_ms: Option<u64>,
    /// Jobs that must be over first.
    #[serde(default)]
    pub after: Vec<Dependency>,
    /// Not started before, ms since the epoch.
    #[serde(default)]
    pub begin_ms: Option<u64>,
    /// Given up if not started by then, ms since the epoch.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
    /// Submitted as held, and released by hand at a time that is not known.
    #[serde(default)]
    pub hold: bool,
    /// May be ended to make room.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// Waits again after that.
    #[serde(default = "yes")]
    pub requeue: bool,
    /// How long its tasks ran in their last attempts, in ms, in the order of their indices, as far as the cluster still
    /// knew.
    #[serde(default)]
    pub ran_ms: Vec<u64>,
}

fn priority_default() -> u16 {
    PRIORITY_DEFAULT
}

fn yes() -> bool {
    true
}

/// Why a history cannot be replayed.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The file is no input.
    #[error(transparent)]
    Input(#[from] InputError),
    /// It is not the JSON that was expected.
    #[error("{}: {source}", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// It is something else, or too new.
    #[error("format is {format:?} {version}, want {FORMAT:?} up to {VERSION}")]
    Format {
        /// What it says it is.
        format: String,
        /// In which version.
        version: u32,
    },
    /// Nothing to replay, or nowhere.
    #[error("the history has no {0}")]
    Empty(&'static str),
    /// A host's name or a job's number stands there twice.
    #[error("{what} {name} is listed twice")]
    Twice {
        /// Host or job.
        what: &'static str,
        /// Which.
        name: String,
    },
    /// Times of a job run backwards.
    #[error("job {job}: {field} is {at_ms}, before {before} at {before_ms}")]
    Backwards {
        /// Which job.
        job: JobId,
        /// The later time.
        field: &'static str,
        /// Its value.
        at_ms: u64,
        /// The earlier time.
        before: &'static str,
        /// Its value.
        before_ms: u64,
    },
    /// The scheduler does not take a host, a queue or a job.
    #[error("{what} {name}: {error}")]
    Refused {
        /// Host, queue or job.
        what: &'static str,
        /// Which.
        name: String,
        /// Why.
        error: Box<PublicError>,
    },
}

impl History {
    /// Reads a file.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn read(path: &Path) -> Result<Self, HistoryError> {
        let text = read_text(path)?;
        let json = |source| HistoryError::Json { path: path.to_owned(), source };
        let history: Self = serde_json::from_str(&text).map_err(json)?;
        history.check()?;
        Ok(history)
    }

    /// As text that [`Self::read`] takes: JSON, one host, queue and job a line.
    ///
    /// # Errors
    /// None that is known: all of it can be written as JSON.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        fn lines<T: Serialize>(items: &[T]) -> Result<String, serde_json::Error> {
            let lines = items.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
            Ok(lines.join(",\n"))
        }
        let format = serde_json::to_string(&self.format)?;
        let (hosts, queues, jobs) = (lines(&self.hosts)?, lines(&self.queues)?, lines(&self.jobs)?);
        Ok(format!(
            "{{\"format\":{format},\"version\":{},\"exported_ms\":{},\n\"hosts\":[\n{hosts}\n],\n\"queues\":[\n{queues}\n],\n\"jobs\":[\n{jobs}\n]}}\n",
            self.version, self.exported_ms
        ))
    }

    /// Whether it can be replayed, as far as its own fields tell.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), HistoryError> {
        if self.format != FORMAT || self.version > VERSION {
            return Err(HistoryError::Format { format: self.format.clone(), version: self.version });
        }
        if self.hosts.is_empty() {
            return Err(HistoryError::Empty("hosts"));
        }
        if self.jobs.is_empty() {
            return Err(HistoryError::Empty("jobs"));
        }
        let mut names = BTreeSet::new();
        if let Some(host) = self.hosts.iter().find(|host| !names.insert(&host.name)) {
            return Err(HistoryError::Twice { what: "host", name: host.name.clone() });
        }
        let mut numbers = BTreeSet::new();
        if let Some(job) = self.jobs.iter().find(|job| !numbers.insert(job.job)) {
            return Err(HistoryError::Twice { what: "job", name: job.job.to_string() });
        }
        self.jobs.iter().try_for_each(HistoryJob::check)
    }
}

impl HistoryHost {
    /// Its GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = &DeviceFacts> {
        self.devices.iter().filter(|device| device.kind == DeviceKind::Gpu)
    }
}

impl HistoryJob {
    /// How many tasks it has.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        match (self.array, self.gang) {
            (Some(array), _) => array.count(),
            (None, Some(gang)) => gang.max,
            (None, None) => 1,
        }
    }

    /// Run time of all its tasks, those that are not on record like the others, in ms.
    #[must_use]
    pub fn ran_ms_all(&self) -> u128 {
        let known: u128 = self.ran_ms.iter().map(|ms| u128::from(*ms)).sum();
        known * u128::from(self.tasks()) / self.ran_ms.len().max(1) as u128
    }

    /// Time for which its tasks held GPUs, in hours of one GPU.
    #[must_use]
    pub fn gpu_hours(&self) -> f64 {
        let milli = f64::from(self.ask.gpu_milli) / f64::from(CARD_MILLI);
        self.ran_ms_all() as f64 / 3_600_000.0 * milli
    }

    fn check(&self) -> Result<(), HistoryError> {
        let ordered = |field, at: Option<u64>, before, before_ms| match at {
            Some(at_ms) if at_ms < before_ms => {
                Err(HistoryError::Backwards { job: self.job, field, at_ms, before, before_ms })
            }
            _ => Ok(()),
        };
        ordered("started_ms", self.started_ms, "submitted_ms", self.submitted_ms)?;
        match self.started_ms {
            Some(started_ms) => ordered("ended_ms", self.ended_ms, "started_ms", started_ms),
            None => ordered("ended_ms", self.ended_ms, "submitted_ms", self.submitted_ms),
        }
    }
}
