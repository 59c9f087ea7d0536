//! Logs in the Standard Workload Format (Feitelson, Parallel Workloads Archive): reading them, and the filter under
//! which published results were made. Knows nothing of policies.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Fields of a line.
const FIELDS: usize = 18;
/// Longest line taken, bytes: eighteen numbers need a tenth of it.
const LINE_BYTES_MAX: u64 = 4_096;
/// Most jobs taken: ten times the largest log of the archive.
const JOBS_MAX: usize = 5_000_000;

/// One job of a log, as far as scheduling is concerned. Times in whole seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogJob {
    /// Its number in the log.
    pub number: u64,
    /// When it was submitted, s since the start of the log.
    pub submit_s: u64,
    /// How long it runs, s; never above the limit.
    pub run_s: u64,
    /// How long its user asked for, s: it would be killed then.
    pub limit_s: u64,
    /// Processors it asks.
    pub processors: u32,
    /// Who submitted it.
    pub user: u64,
    /// Which program it runs, where the log says so.
    pub program: Option<u64>,
}

/// A log after the filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Jobs in order of submission.
    pub jobs: Vec<LogJob>,
    /// Processors of the machine.
    pub processors: u32,
    /// Jobs that the filter left out.
    pub left_out: u64,
}

/// Why a log could not be read.
#[derive(Debug, Error)]
pub enum LogError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line has not eighteen fields.
    #[error("line {line} has {found} fields, not {FIELDS}")]
    Fields {
        /// Its number, from 1.
        line: usize,
        /// How many it has.
        found: usize,
    },
    /// A field is no number.
    #[error("line {line}, field {field}: {text:?} is no number")]
    Number {
        /// The line's number, from 1.
        line: usize,
        /// The field's number, from 1.
        field: usize,
        /// What stands there.
        text: String,
    },
    /// A line is longer than any line of eighteen numbers.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    Long {
        /// Its number, from 1.
        line: usize,
    },
    /// More jobs than are taken.
    #[error("more than {JOBS_MAX} jobs")]
    Many,
    /// Neither the header nor the caller says how large the machine is.
    #[error("no `MaxProcs` or `MaxNodes` in the header: give the number of processors")]
    Size,
    /// Nothing is left after the filter.
    #[error("no job passes the filter")]
    Empty,
}

impl Log {
    /// Reads a file. `processors` overrides the size of the machine in the header.
    ///
    /// The usual filter: positive run time and limit, no more processors than the machine has, run time cut at the
    /// limit. Missing values (-1) of the processors asked are taken from those allocated.
    ///
    /// # Errors
    /// The file cannot be read, is no such log, or holds no usable job.
    pub fn read(path: &Path, processors: Option<u32>) -> Result<Self, LogError> {
        let io = |source| LogError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        Self::parse(BufReader::new(file), processors).map_err(|error| match error {
            Parse::Io(source) => io(source),
            Parse::Log(error) => error,
        })
    }

    /// Reads from memory, as [`Log::read`] does from a file.
    ///
    /// # Errors
    /// The text is no such log, or holds no usable job.
    pub fn of_text(text: &str, processors: Option<u32>) -> Result<Self, LogError> {
        Self::parse(text.as_bytes(), processors).map_err(|error| match error {
            Parse::Io(source) => LogError::Io { path: PathBuf::new(), source },
            Parse::Log(error) => error,
        })
    }

    fn parse(mut input: impl BufRead, processors: Option<u32>) -> Result<Self, Parse> {
        let (mut jobs, mut size, mut lines, mut bytes) = (Vec::new(), None, 0, Vec::new());
        loop {
            bytes.clear();
            lines += 1;
            if input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes).map_err(Parse::Io)? == 0
            {
                break;
            }
            if bytes.len() as u64 > LINE_BYTES_MAX {
                return Err(LogError::Long { line: lines }.into());
            }
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim();
            if let Some(comment) = line.strip_prefix(';') {
                size = size.max(machine_size(comment));
            } else if !line.is_empty() {
                jobs.push(fields(line, lines)?);
            }
            if jobs.len() > JOBS_MAX {
                return Err(LogError::Many.into());
            }
        }
        Ok(filtered(&jobs, processors.or(size).ok_or(LogError::Size)?)?)
    }

    /// Writes the log in the same format, fields that it does not keep as -1.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "; MaxProcs: {}", self.processors)?;
        for job in &self.jobs {
            let LogJob { number, submit_s, run_s, limit_s, processors, user, .. } = job;
            let program = job.program.map_or(-1, |program| program as i64);
            writeln!(
                out,
                "{number} {submit_s} -1 {run_s} {processors} -1 -1 {processors} {limit_s} -1 1 {user} -1 {program} -1 -1 -1 -1"
            )?;
        }
        Ok(())
    }

    /// The same log where every job runs as long as it asked for: all estimates hold.
    #[must_use]
    pub fn with_exact_limits(mut self) -> Self {
        for job in &mut self.jobs {
            job.run_s = job.limit_s;
        }
        self
    }
}

enum Parse {
    Io(std::io::Error),
    Log(LogError),
}

impl From<LogError> for Parse {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

/// The size of the machine, if a comment gives it.
fn machine_size(comment: &str) -> Option<u32> {
    let (name, value) = comment.split_once(':')?;
    matches!(name.trim(), "MaxProcs" | "MaxNodes").then(|| value.trim().parse().ok()).flatten()
}

fn fields(line: &str, number: usize) -> Result<[i64; FIELDS], LogError> {
    let mut row = [0; FIELDS];
    let found = line.split_ascii_whitespace().count();
    if found != FIELDS {
        return Err(LogError::Fields { line: number, found });
    }
    for (at, text) in line.split_ascii_whitespace().enumerate() {
        row[at] = whole(text).ok_or_else(|| LogError::Number {
            line: number,
            field: at + 1,
            text: text.to_owned(),
        })?;
    }
    Ok(row)
}

/// Whole part of a decimal number: some logs give fractions of a second in fields that are not used here.
fn whole(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    fraction.bytes().all(|byte| byte.is_ascii_digit()).then(|| whole.parse().ok()).flatten()
}

fn filtered(rows: &[[i64; FIELDS]], processors: u32) -> Result<Log, LogError> {
    let mut jobs: Vec<LogJob> = rows.iter().filter_map(|row| job(row, processors)).collect();
    if jobs.is_empty() {
        return Err(LogError::Empty);
    }
    // Stable: jobs of one second stay in the order of the log.
    jobs.sort_by_key(|job| job.submit_s);
    let left_out = (rows.len() - jobs.len()) as u64;
    Ok(Log { jobs, processors, left_out })
}

fn job(row: &[i64; FIELDS], machine: u32) -> Option<LogJob> {
    let positive = |at: usize| u64::try_from(row[at]).ok().filter(|value| *value > 0);
    let limit_s = positive(8)?;
    let processors = positive(7).or_else(|| positive(4)).and_then(|asked| u32::try_from(asked).ok())?;
    (processors <= machine).then_some(LogJob {
        number: positive(0).unwrap_or_default(),
        submit_s: u64::try_from(row[1]).ok()?,
        run_s: positive(3)?.min(limit_s),
        limit_s,
        processors,
        user: positive(11).unwrap_or_default(),
        program: positive(13),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "; MaxNodes: 8\n; Note: made up\n\
        1 10 5 100 4 -1 -1 4 200 -1 1 7 7 3 -1 -1 -1 -1\n\
        2 5 5 300 -1 -1 -1 2 200 -1 1 7 7 -1 -1 -1 -1 -1\n\
        3 6 5 0 2 -1 -1 2 200 -1 1 7 7 -1 -1 -1 -1 -1\n\
        4 7 5 10 9 -1 -1 9 200 -1 1 7 7 -1 -1 -1 -1 -1\n\
        5 8 5 10.9 3 0.5 -1 -1 200 -1 1 7 7 -1 -1 -1 -1 -1\n";

    #[test]
    fn filter_sorts_cuts_and_leaves_out() {
        let log = Log::of_text(TEXT, None).unwrap();
        assert_eq!((log.processors, log.left_out), (8, 2));
        let seen: Vec<_> = log.jobs.iter().map(|job| (job.number, job.run_s, job.processors)).collect();
        assert_eq!(seen, [(2, 200, 2), (5, 10, 3), (1, 100, 4)]);
        assert_eq!(log.jobs[2].program, Some(3));
        assert_eq!(Log::of_text(TEXT, Some(3)).unwrap().jobs.len(), 2);
    }

    #[test]
    fn a_written_log_reads_the_same() {
        let log = Log::of_text(TEXT, None).unwrap();
        let mut out = Vec::new();
        log.write(&mut out).unwrap();
        let again = Log::of_text(std::str::from_utf8(&out).unwrap(), None).unwrap();
        assert_eq!(again, Log { left_out: 0, ..log });
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| Log::of_text(text, Some(8)).unwrap_err().to_string();
        assert_eq!(error("1 2 3\n"), "line 1 has 3 fields, not 18");
        assert_eq!(
            error(";\n1 10 5 x 4 -1 -1 4 200 -1 1 7 7 3 -1 -1 -1 -1\n"),
            "line 2, field 4: \"x\" is no number"
        );
        assert_eq!(error("; nothing\n"), "no job passes the filter");
        assert_eq!(error(&"1".repeat(5_000)), "line 1 is longer than 4096 bytes");
        assert!(matches!(Log::of_text(";\n", None), Err(LogError::Size)));
        assert!(matches!(Log::read(Path::new("/nowhere"), None), Err(LogError::Io { .. })));
    }
}
