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
    /// Environment variables.
    Env,
    /// Working directory.
    Workdir,
    /// Whole GPUs of each task.
    Gpus,
    /// Accepted GPU models.
    GpuModel,
    /// Least memory of each GPU.
    Vram,
    /// CPU cores of each task.
    Cpus,
    /// Memory of each task.
    Mem,
    /// FPGAs of each task.
    Fpga,
    /// Host labels that must match.
    Label,
    /// Array indices.
    Array,
    /// 0 to 100.
    Priority,
    /// Longest run of an attempt.
    Time,
    /// Time between TERM and KILL.
    Grace,
    /// How often a failed task may run again.
    Retries,
}

impl Key {
    /// All of them, in the order in which they are listed to people.
    pub const ALL: [Self; 16] = [
        Self::Name,
        Self::Command,
        Self::Gpus,
        Self::GpuModel,
        Self::Vram,
        Self::Cpus,
        Self::Mem,
        Self::Fpga,
        Self::Label,
        Self::Array,
        Self::Time,
        Self::Grace,
        Self::Priority,
        Self::Retries,
        Self::Env,
        Self::Workdir,
    ];

    /// As it is written: the flag without its dashes, and the path in an error.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Command => "command",
            Self::Env => "env",
            Self::Workdir => "workdir",
            Self::Gpus => "gpus",
            Self::GpuModel => "gpu-model",
            Self::Vram => "vram",
            Self::Cpus => "cpus",
            Self::Mem => "mem",
            Self::Fpga => "fpga",
            Self::Label => "label",
            Self::Array => "array",
            Self::Priority => "priority",
            Self::Time => "time",
            Self::Grace => "grace",
            Self::Retries => "retries",
        }
    }

    /// The key of this name; `_` stands for `-`.
    ///
    /// # Errors
    /// No such key: names the nearest and lists all.
    pub fn parse(text: &str) -> Result<Self, PublicError> {
        let wanted = text.replace('_', "-");
        Self::ALL
            .into_iter()
            .find(|key| key.name() == wanted)
            .ok_or_else(|| word::unknown(text, "key", text, Self::ALL.into_iter().map(Self::name)))
    }
}

/// A value as an entry delivers it, before its key gives it a meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalar {
    /// Text; bytes, because arguments and paths need not be UTF-8.
    Text(Vec<u8>),
    /// A number, as written.
    Number(String),
    /// `true` or `false`, which no key takes.
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
