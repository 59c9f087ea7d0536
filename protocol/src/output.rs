//! What a job says of its output and input, and how output is asked for and told of.
//!
//! A stream's bytes are addressed by their true position: of one that was cut in its middle the offsets go on counting,
//! and a reader sees a piece that begins later than asked, which is the gap.

use crate::api::OutputStream;
use crate::ids::{JobId, Token};
use serde::{Deserialize, Serialize};

/// Letters that may follow `%` in the name of a file for output: `j` and `A` job, `a` array element, `t` attempt, `h`
/// and `N` host, `r` rank, `x` name of the job, `u` user, `%` itself.
pub const PATTERN_LETTERS: &[u8] = b"jAathNrxu%";

/// What a user says of a job's output and input; nothing for the rules of the host that runs it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct OutputSpec {
    /// Bytes of each stream that are kept on the host: its head and its tail.
    pub bytes_max: Option<u64>,
    /// A file of the user's own for standard output as well, with letters after `%`.
    pub stdout: Option<Vec<u8>>,
    /// The same for standard error; where only standard output has one, both go there.
    pub stderr: Option<Vec<u8>>,
    /// What such a file held before is thrown away when an attempt starts.
    pub replace: bool,
    /// Standard input, byte for byte; none for an empty one.
    pub stdin: Option<Vec<u8>>,
}

/// The same for one attempt, with nothing left to choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputOrder {
    /// Bytes of each stream that are kept.
    pub bytes_max: u64,
    /// Bytes of each stream that are kept in a second; more is thrown away and counted.
    pub rate_bytes: u64,
    /// A file of the user's for standard output; empty for none.
    pub stdout: Vec<u8>,
    /// A file of the user's for standard error; empty for none.
    pub stderr: Vec<u8>,
    /// What such a file held before is thrown away.
    pub replace: bool,
    /// The line that stands between what such a file held and what this attempt writes.
    pub separator: Vec<u8>,
    /// Standard input.
    pub stdin: Vec<u8>,
}

impl OutputSpec {
    /// Nothing is said.
    pub const SILENT: Self =
        Self { bytes_max: None, stdout: None, stderr: None, replace: false, stdin: None };

    /// As a job holds it.
    #[must_use]
    pub fn held(self) -> Option<Box<Self>> {
        (self != Self::SILENT).then(|| Box::new(self))
    }
}

/// Bytes of each stream that are kept where nobody says otherwise: more is a flood.
pub const KEPT_BYTES_DEFAULT: u64 = 1 << 30;
/// Bytes of each stream that are kept in a second where nobody says otherwise: more than a disk takes.
pub const RATE_BYTES_DEFAULT: u64 = 4 << 30;

impl Default for OutputOrder {
    fn default() -> Self {
        Self {
            bytes_max: KEPT_BYTES_DEFAULT,
            rate_bytes: RATE_BYTES_DEFAULT,
            stdout: Vec::new(),
            stderr: Vec::new(),
            replace: false,
            separator: Vec::new(),
            stdin: Vec::new(),
        }
    }
}

/// Which attempt of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptName {
    /// By its fencing token.
    Token(Token),
    /// The first, the second, ...
    Number(u32),
}

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogStart {
    /// At this byte of the stream.
    Offset(u64),
    /// This many lines before the end of what there is.
    Lines(u32),
}

/// Which output is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAsk {
    /// The job.
    pub job: JobId,
    /// The task: array index or rank; 0 for a plain job.
    pub index: u32,
    /// The attempt; the newest when absent.
    pub attempt: Option<AttemptName>,
    /// Where none is named: the first one after this.
    pub after: Option<Token>,
    /// Which output.
    pub stream: OutputStream,
    /// Where to begin, in the first attempt that is read.
    pub start: LogStart,
    /// Go on until the task has ended for good; over later attempts, if none is named.
    pub follow: bool,
}

/// A piece of one attempt's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    /// Whose.
    pub attempt: Token,
    /// Where it starts; later than asked if what lies between was not kept.
    pub offset: u64,
    /// The bytes.
    #[serde(with = "crate::bytes")]
    pub bytes: Vec<u8>,
    /// The attempt has ended and this is its last piece.
    pub last: bool,
}

/// What a reader is told beside the bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogNote {
    /// Of which attempt.
    pub attempt: Token,
    /// Its number, from 1.
    pub number: u32,
    /// What of it.
    pub what: LogNews,
}

/// See [`LogNote`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogNews {
    /// Its output follows.
    Begins {
        /// The name of the host that has it.
        host: String,
        /// Why the attempt before it ended; none for the first.
        because: Option<String>,
    },
    /// The host that has the rest of its output does not answer.
    Unreachable {
        /// The name of that host.
        host: String,
        /// The first byte that is missing.
        offset: u64,
    },
}
