//! What can be said of a job: the keys that flags, spec files, headers and JSON bodies share, and the shapes that
//! their values come in.

use super::word;
use rota_protocol::PublicError;

/// One thing that can be said of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// For people.
    Name,
    /// Program and arguments (a list), or one text for `/bin/sh -c`.
    Command,
    /// GPUs of each task: whole cards, or a share of one.
    Gpus,
    /// Accepted GPU models.
    GpuModel,
    /// Least memory of each GPU, or memory held on the shared one.
    Vram,
    /// CPU cores of each task.
    Cpus,
    /// Memory of each task.
    Mem,
    /// Share of the cores of one card.
    GpuShare,
    /// GPU models in order of preference.
    Prefer,
    /// Least compute capability.
    ComputeCap,
    /// Other devices of each task by kind.
    Device,
    /// FPGAs of each task.
    Fpga,
    /// Host labels that must match.
    Label,
    /// Another ask that would do as well.
    Or,
    /// Array indices.
    Array,
    /// Parts that run together.
    Gang,
    /// Parts that run together, on as many hosts as can be.
    Nodes,
    /// How tasks lie to one another.
    Layout,
    /// Jobs that must be over first.
    After,
    /// The queue that it counts for.
    Queue,
    /// Not started before.
    Begin,
    /// Given up if not started by then.
    Deadline,
    /// Waits until it is released.
    Hold,
    /// Runs until it is stopped.
    Service,
    /// Longest run of an attempt.
    Time,
    /// Time between TERM and KILL.
    Grace,
    /// A signal before the end.
    Warn,
    /// 0 to 100.
    Priority,
    /// May be ended to make room.
    Preemptible,
    /// May not be ended to make room.
    NoPreempt,
    /// Waits again after it was ended to make room.
    Requeue,
    /// Is over when it was ended to make room.
    NoRequeue,
    /// Exit status by which a task asks to be queued again.
    RequeueStatus,
    /// How often a failed task may run again.
    Retries,
    /// Environment variables.
    Env,
    /// Working directory.
    Workdir,
    /// A file of the user's for standard output.
    Output,
    /// A file of the user's for standard error.
    Error,
    /// Bytes of each stream that are kept on the host.
    OutputMax,
    /// Whether such a file is gone on with or begun anew.
    OutputMode,
    /// A file that becomes standard input.
    Stdin,
    /// The image that it runs in.
    Image,
    /// Paths of the host that a container sees.
    Mount,
    /// Working directory in the container.
    ContainerWorkdir,
    /// The image's entry point is kept.
    Entrypoint,
    /// The container's own files cannot be written.
    ReadOnly,
    /// How a shared card is shared.
    ShareMode,
    /// What must be kept apart from others on a shared card.
    Isolate,
    /// Holding cards idle is intended until then.
    IdleUntil,
    /// Goes on where it stopped when it is started again.
    Resumes,
    /// How long it would run alone on its best model.
    Work,
    /// Its speed on GPU models.
    Speed,
    /// Data that it finds where it runs.
    Input,
}

/// Other names: short ones of our own, and those by which users of Slurm know the thing.
const OTHER_NAMES: [(&str, Key); 6] = [
    ("model", Key::GpuModel),
    ("partition", Key::Queue),
    ("dependency", Key::After),
    ("signal", Key::Warn),
    ("time-limit", Key::Time),
    ("open-mode", Key::OutputMode),
];

/// Flags of one letter.
const LETTERS: [(char, Key); 8] = [
    ('N', Key::Nodes),
    ('q', Key::Queue),
    ('p', Key::Queue),
    ('d', Key::After),
    ('H', Key::Hold),
    ('o', Key::Output),
    ('e', Key::Error),
    ('i', Key::Stdin),
];

impl Key {
    /// All of them, in the order in which they are listed to people.
    pub const ALL: [Self; 53] = [
        Self::Name,
        Self::Command,
        Self::Gpus,
        Self::GpuModel,
        Self::Vram,
        Self::Cpus,
        Self::Mem,
        Self::GpuShare,
        Self::Prefer,
        Self::ComputeCap,
        Self::Device,
        Self::Fpga,
        Self::Label,
        Self::Or,
        Self::Array,
        Self::Gang,
        Self::Nodes,
        Self::Layout,
        Self::After,
        Self::Queue,
        Self::Begin,
        Self::Deadline,
        Self::Hold,
        Self::Service,
        Self::Time,
        Self::Grace,
        Self::Warn,
        Self::Priority,
        Self::Preemptible,
        Self::NoPreempt,
        Self::Requeue,
        Self::NoRequeue,
        Self::RequeueStatus,
        Self::Retries,
        Self::Env,
        Self::Workdir,
        Self::Output,
        Self::Error,
        Self::OutputMax,
        Self::OutputMode,
        Self::Stdin,
        Self::Image,
        Self::Mount,
        Self::ContainerWorkdir,
        Self::Entrypoint,
        Self::ReadOnly,
        Self::ShareMode,
        Self::Isolate,
        Self::IdleUntil,
        Self::Resumes,
        Self::Work,
        Self::Speed,
        Self::Input,
    ];

    /// As it is written: the flag without its dashes, and the path in an error.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Command => "command",
            Self::Gpus => "gpus",
            Self::GpuModel => "gpu-model",
            Self::Vram => "vram",
            Self::Cpus => "cpus",
            Self::Mem => "mem",
            Self::GpuShare => "gpu-share",
            Self::Prefer => "prefer",
            Self::ComputeCap => "compute-cap",
            Self::Device => "device",
            Self::Fpga => "fpga",
            Self::Label => "label",
            Self::Or => "or",
            Self::Array => "array",
            Self::Gang => "gang",
            Self::Nodes => "nodes",
            Self::Layout => "layout",
            Self::After => "after",
            Self::Queue => "queue",
            Self::Begin => "begin",
            Self::Deadline => "deadline",
            Self::Hold => "hold",
            Self::Service => "service",
            Self::Time => "time",
            Self::Grace => "grace",
            Self::Warn => "warn",
            Self::Priority => "priority",
            Self::Preemptible => "preemptible",
            Self::NoPreempt => "no-preempt",
            Self::Requeue => "requeue",
            Self::NoRequeue => "no-requeue",
            Self::RequeueStatus => "requeue-status",
            Self::Retries => "retries",
            Self::Env => "env",
            Self::Workdir => "workdir",
            Self::Output => "output",
            Self::Error => "error",
            Self::OutputMax => "output-max",
            Self::OutputMode => "output-mode",
            Self::Stdin => "stdin",
            Self::Image => "image",
            Self::Mount => "mount",
            Self::ContainerWorkdir => "container-workdir",
            Self::Entrypoint => "entrypoint",
            Self::ReadOnly => "read-only",
            Self::ShareMode => "share-mode",
            Self::Isolate => "isolate",
            Self::IdleUntil => "idle-until",
            Self::Resumes => "resumes",
            Self::Work => "work",
            Self::Speed => "speed",
            Self::Input => "input",
        }
    }

    /// Whether it is true by being named: `--hold`, which is `--hold=yes`.
    #[must_use]
    pub fn is_switch(self) -> bool {
        matches!(
            self,
            Self::Hold
                | Self::Service
                | Self::NoPreempt
                | Self::Requeue
                | Self::NoRequeue
                | Self::Entrypoint
                | Self::ReadOnly
        )
    }

    /// The key of this name; `_` stands for `-`.
    ///
    /// # Errors
    /// No such key: names the nearest and lists all.
    pub fn parse(text: &str) -> Result<Self, PublicError> {
        let wanted = text.replace('_', "-");
        let other = OTHER_NAMES.iter().find(|(name, _)| *name == wanted).map(|(_, key)| *key);
        Self::ALL
            .into_iter()
            .find(|key| key.name() == wanted)
            .or(other)
            .ok_or_else(|| word::unknown(text, "key", text, Self::ALL.into_iter().map(Self::name)))
    }

    /// The key of a flag of one letter.
    #[must_use]
    pub fn of_letter(letter: char) -> Option<Self> {
        LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, key)| *key)
    }
}

/// A value as an entry delivers it, before its key gives it a meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalar {
    /// Text; bytes, because arguments and paths need not be UTF-8.
    Text(Vec<u8>),
    /// A number, as written.
    Number(String),
    /// `true` or `false`, which only switches take.
    Flag(bool),
}

/// One value, a list, or a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// One value.
    One(Scalar),
    /// A list.
    List(Vec<Scalar>),
    /// A table, in the order written, double keys included.
    Map(Vec<(String, Scalar)>),
}

impl Scalar {
    /// What it is, for messages.
    fn noun(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Number(_) => "a number",
            Self::Flag(_) => "a boolean",
        }
    }

    /// The bytes of a text.
    pub(super) fn bytes(&self, key: &str) -> Result<&[u8], PublicError> {
        match self {
            Self::Text(bytes) => Ok(bytes),
            other => Err(wrong_type(key, "text", other.noun())),
        }
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<&str, PublicError> {
        utf8(key, self.bytes(key)?)
    }
}

impl Value {
    /// A text value.
    pub fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::One(Scalar::Text(text.into()))
    }

    fn noun(&self) -> &'static str {
        match self {
            Self::One(scalar) => scalar.noun(),
            Self::List(_) => "a list",
            Self::Map(_) => "a table",
        }
    }

    /// The one value of a key that takes one.
    pub(super) fn one(&self, key: Key) -> Result<&Scalar, PublicError> {
        match self {
            Self::One(scalar) => Ok(scalar),
            other => Err(wrong_type(key.name(), "one value", other.noun())),
        }
    }

    /// Yes or no, in whatever words.
    pub(super) fn yes(&self, key: Key) -> Result<bool, PublicError> {
        match self.one(key)? {
            Scalar::Flag(yes) => Ok(*yes),
            Scalar::Text(bytes) => {
                let text = utf8(key.name(), bytes)?;
                match text.trim().to_ascii_lowercase().as_str() {
                    "yes" | "true" | "on" => Ok(true),
                    "no" | "false" | "off" => Ok(false),
                    _ => Err(word::unknown(key.name(), "answer", text, ["yes", "no"].into_iter())),
                }
            }
            other @ Scalar::Number(_) => Err(wrong_type(key.name(), "yes or no", other.noun())),
        }
    }

    /// A number or an amount with its unit, as written.
    pub(super) fn amount(&self, key: Key) -> Result<&str, PublicError> {
        match self.one(key)? {
            Scalar::Text(bytes) => utf8(key.name(), bytes),
            Scalar::Number(text) => Ok(text),
            other @ Scalar::Flag(_) => Err(wrong_type(key.name(), "a number or an amount", other.noun())),
        }
    }
}

fn utf8<'a>(key: &str, bytes: &'a [u8]) -> Result<&'a str, PublicError> {
    std::str::from_utf8(bytes).map_err(|_| {
        PublicError::invalid(key, format!("{:?} is not UTF-8", String::from_utf8_lossy(bytes)), "text")
    })
}

pub(super) fn wrong_type(key: &str, wanted: &str, got: &str) -> PublicError {
    PublicError { example: None, ..PublicError::invalid(key, format!("takes {wanted}, not {got}"), "") }
}
