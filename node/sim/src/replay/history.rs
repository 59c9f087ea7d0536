//! The history of a cluster as `rota history --json` writes it: its hosts, its queues, and what every job asked, when
//! it came, started and ended. No commands, no environments, no output: it can be handed to others.

use crate::cluster::HOSTS_MAX;
use crate::field::FieldError;
use crate::input::{InputError, read_text};
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::job::{ArraySpec, JobState};
use rota_protocol::limits::{PRIORITY_DEFAULT, TIME_LIMIT_MS_MAX};
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

/// Longest time between the first submission and the last end, and longest run, in ms: ten years.
pub(super) const SPAN_MS_MAX: u64 = TIME_LIMIT_MS_MAX;
/// Latest first submission, ms since the epoch: in the year 2286.
const FIRST_MS_MAX: u64 = 10_000_000_000_000;

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
    /// What all its attempts held; none where that is not known, as in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
}

/// What the attempts of a job held until the history was written, those that failed or were cut short among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// From grant to end, all attempts together, in ms.
    pub ms: u64,
    /// The same in ms of one GPU: shares and slices by their part.
    pub gpu_ms: u64,
    /// Attempts that were ended to make room.
    pub evictions: u64,
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
    #[error("{}: this is no history of a cluster, as `rota history --json` writes it: {source}", path.display())]
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
    /// More hosts than a cluster has.
    #[error("hosts are {0}, want at most {HOSTS_MAX}")]
    Hosts(usize),
    /// A time that no cluster sees.
    #[error(transparent)]
    Field(#[from] FieldError),
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
        if self.hosts.len() > HOSTS_MAX {
            return Err(HistoryError::Hosts(self.hosts.len()));
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
        let first_ms = self.jobs.iter().map(|job| job.submitted_ms).min().unwrap_or(0);
        self.jobs.iter().try_for_each(|job| job.check(first_ms))
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

    /// The queue that it counts for.
    #[must_use]
    pub fn queue_name(&self) -> &str {
        if self.queue.is_empty() { &self.tenant } else { &self.queue }
    }

    /// Time for which its attempts held GPUs, in hours of one GPU; as far as run times tell where nothing else does.
    #[must_use]
    pub fn gpu_hours(&self) -> f64 {
        if let Some(held) = self.held {
            return held.gpu_ms as f64 / 3_600_000.0;
        }
        let milli = f64::from(self.ask.gpu_milli) / f64::from(CARD_MILLI);
        self.ran_ms_all() as f64 / 3_600_000.0 * milli
    }

    /// Times within a span that can be played, and in order.
    fn check(&self, first_ms: u64) -> Result<(), HistoryError> {
        let wrong = |field: &str, value: u64, least: u64, most: u64, example| FieldError {
            place: format!("job {}", self.job),
            field: field.to_owned(),
            text: value.to_string(),
            want: format!("{least} to {most} ms"),
            example,
        };
        if first_ms > FIRST_MS_MAX {
            return Err(wrong("submitted_ms", self.submitted_ms, 0, FIRST_MS_MAX, "1796099691417").into());
        }
        let last_ms = first_ms + SPAN_MS_MAX;
        let times = [
            ("submitted_ms", Some(self.submitted_ms)),
            ("started_ms", self.started_ms),
            ("ended_ms", self.ended_ms),
        ];
        for (field, at_ms) in times {
            if let Some(at_ms) = at_ms.filter(|at_ms| *at_ms > last_ms) {
                return Err(wrong(field, at_ms, first_ms, last_ms, "1796099691417").into());
            }
        }
        if let Some(ran_ms) = self.ran_ms.iter().find(|ran_ms| **ran_ms > SPAN_MS_MAX) {
            return Err(wrong("ran_ms", *ran_ms, 0, SPAN_MS_MAX, "60000").into());
        }
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
