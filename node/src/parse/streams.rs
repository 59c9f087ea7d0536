//! What is said of a job's output and input: files of the user's, how much is kept, what it reads.

use super::draft::once;
use super::key::{Key, Value};
use super::{amount, word};
use rota_protocol::PublicError;
use rota_protocol::limits::STDIN_BYTES_MAX;
use rota_protocol::output::OutputSpec;

/// Output and input of which something has been said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Streams {
    stdout: Option<Vec<u8>>,
    stderr: Option<Vec<u8>>,
    bytes_max: Option<u64>,
    replace: Option<bool>,
    stdin: Option<Input>,
}

/// Standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Input {
    /// A file where the job is put together; `-` for that program's own input.
    File(Vec<u8>),
    /// What was in it.
    Bytes(Vec<u8>),
}

impl Streams {
    /// Reads one value; false if the key is none of these.
    pub(super) fn set(&mut self, key: Key, value: &Value) -> Result<bool, PublicError> {
        let field = key.name();
        let path = || value.one(key).and_then(|one| one.bytes(field)).map(<[u8]>::to_vec);
        match key {
            Key::Output => once(key, &mut self.stdout, path()?),
            Key::Error => once(key, &mut self.stderr, path()?),
            Key::OutputMax => once(key, &mut self.bytes_max, amount::bytes(field, value.amount(key)?)?),
            Key::OutputMode => once(key, &mut self.replace, mode(field, value.one(key)?.text(field)?)?),
            Key::Stdin => once(key, &mut self.stdin, Input::File(path()?)),
            _ => return Ok(false),
        }?;
        Ok(true)
    }

    /// Lays these over others.
    pub(super) fn over(self, base: Self) -> Self {
        Self {
            stdout: self.stdout.or(base.stdout),
            stderr: self.stderr.or(base.stderr),
            bytes_max: self.bytes_max.or(base.bytes_max),
            replace: self.replace.or(base.replace),
            stdin: self.stdin.or(base.stdin),
        }
    }

    /// The file that is still to be read.
    pub(super) fn stdin_file(&self) -> Option<&[u8]> {
        match &self.stdin {
            Some(Input::File(path)) => Some(path),
            Some(Input::Bytes(_)) | None => None,
        }
    }

    /// What was in it.
    pub(super) fn give_stdin(&mut self, bytes: Vec<u8>) {
        self.stdin = Some(Input::Bytes(bytes));
    }

    /// As a spec says it.
    ///
    /// # Errors
    /// A file that nobody has read, or one that is too large.
    pub(super) fn build(self) -> Result<OutputSpec, PublicError> {
        let stdin = match self.stdin {
            Some(Input::File(path)) => {
                let path = amount::quoted(&String::from_utf8_lossy(&path));
                let message = format!("{path} is a file, which only the command line reads");
                return Err(PublicError::invalid("stdin", message, "rota submit --stdin data.txt"));
            }
            Some(Input::Bytes(bytes)) if bytes.len() > STDIN_BYTES_MAX => {
                let message = format!("more than {STDIN_BYTES_MAX} bytes, the most that is kept with a job");
                return Err(PublicError::invalid("stdin", message, "a file that the job opens itself"));
            }
            Some(Input::Bytes(bytes)) => Some(bytes).filter(|bytes| !bytes.is_empty()),
            None => None,
        };
        Ok(OutputSpec {
            bytes_max: self.bytes_max,
            stdout: self.stdout,
            stderr: self.stderr,
            replace: self.replace.unwrap_or(false),
            stdin,
        })
    }
}

/// Whether what a file held is thrown away.
fn mode(field: &str, text: &str) -> Result<bool, PublicError> {
    match text.trim() {
        "append" => Ok(false),
        "truncate" => Ok(true),
        _ => Err(word::unknown(field, "mode", text, ["append", "truncate"].into_iter())),
    }
}
