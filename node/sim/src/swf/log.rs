//! Logs in the Standard Workload Format (Feitelson, Parallel Workloads Archive): reading them, and the filter under
//! which published results were made. Knows nothing of policies.

use crate::field::RUN_S_MAX;
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
/// Latest submission, s: some logs count from 1970, and none lasts a hundred years.
const SUBMIT_S_MAX: u64 = 10 * RUN_S_MAX;
/// Most processors of a machine.
pub const PROCESSORS_MAX: u32 = 10_000_000;
/// Most of all limits of a log together, s: a hundred times the largest log of the archive. A machine of one
/// processor would be busy so long, and in ms it is far below the largest number.
const LIMITS_S_MAX: u64 = 2_000_000_000_000;
/// What a log looks like, for those who gave another file.
const FORM: &str = "the Standard Workload Format has 18 numbers a line, such as \"1 0 -1 100 4 -1 -1 4 200 -1 1 7 -1 -1 -1 -1 -1 -1\"";

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
    #[error("line {line} has {found} fields, not {FIELDS}: {FORM}")]
    Fields {
        /// Its number, from 1.
        line: usize,
        /// How many it has.
        found: usize,
    },
    /// A field is no number.
    #[error("line {line}, field {field}: {text:?} is no number: {FORM}")]
    Number {
        /// The line's number, from 1.
        line: usize,
        /// The field's number, from 1.
        field: usize,
        /// What stands there.
        text: String,
    },
    /// A number is beyond what any log has.
    #[error("line {line}, field {number} ({field}): {value} is above {most}, want seconds such as {example}")]
    Bound {
        /// The line's number, from 1.
        line: usize,
        /// The field's number, from 1.
        number: usize,
        /// What it is.
        field: &'static str,
        /// What stands there.
        value: u64,
        /// The most there can be.
        most: u64,
        /// A value that would do.
        example: &'static str,
    },
    /// The header says a size that no machine has.
    #[error(
        "line {line}: {field} is {text:?}, want 1 to {PROCESSORS_MAX}, such as 128; or give --processors 128"
    )]
    Machine {
        /// The line's number, from 1.
        line: usize,
        /// `MaxProcs` or `MaxNodes`.
        field: String,
        /// What it says.
        text: String,
    },
    /// All limits together are longer than any log.
    #[error("the limits (field 9) of all jobs are {0} s together, above {LIMITS_S_MAX}")]
    Sum(u64),
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
    #[error(
        "no `MaxProcs` or `MaxNodes` in the header: give the number of processors, such as --processors 128"
    )]
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
        let mut unsized_by = None;
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
                match machine_size(comment, lines) {
                    Some(Ok(found)) => size = size.max(Some(found)),
                    Some(Err(error)) => unsized_by = Some(error),
                    None => {}
                }
            } else if !line.is_empty() {
                jobs.push((lines, fields(line, lines)?));
            }
            if jobs.len() > JOBS_MAX {
                return Err(LogError::Many.into());
            }
        }
        let size = processors.or(size).ok_or_else(|| unsized_by.unwrap_or(LogError::Size))?;
        Ok(filtered(&jobs, size)?)
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
fn machine_size(comment: &str, line: usize) -> Option<Result<u32, LogError>> {
    let (field, text) = comment.split_once(':').map(|(field, text)| (field.trim(), text.trim()))?;
    matches!(field, "MaxProcs" | "MaxNodes").then(|| {
        let size = text.parse().ok().filter(|size| (1..=PROCESSORS_MAX).contains(size));
        size.ok_or_else(|| LogError::Machine { line, field: field.to_owned(), text: text.to_owned() })
    })
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

fn filtered(rows: &[(usize, [i64; FIELDS])], processors: u32) -> Result<Log, LogError> {
    let (mut jobs, mut limits_s) = (Vec::new(), 0_u64);
    for (line, row) in rows {
        let Some(job) = job(row, processors) else { continue };
        check(&job, *line)?;
        limits_s += job.limit_s;
        jobs.push(job);
    }
    if jobs.is_empty() {
        return Err(LogError::Empty);
    }
    if limits_s > LIMITS_S_MAX {
        return Err(LogError::Sum(limits_s));
    }
    // Stable: jobs of one second stay in the order of the log.
    jobs.sort_by_key(|job: &LogJob| job.submit_s);
    let left_out = (rows.len() - jobs.len()) as u64;
    Ok(Log { jobs, processors, left_out })
}

/// Times of what is replayed are those of a machine that people wait for.
fn check(job: &LogJob, line: usize) -> Result<(), LogError> {
    let times = [
        (2, "time of submission", job.submit_s, SUBMIT_S_MAX, "86400"),
        (9, "time asked", job.limit_s, RUN_S_MAX, "3600"),
    ];
    match times.into_iter().find(|(_, _, value, most, _)| value > most) {
        Some((number, field, value, most, example)) => {
            Err(LogError::Bound { line, number, field, value, most, example })
        }
        None => Ok(()),
    }
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
        assert!(error("1 2 3\n").starts_with("line 1 has 3 fields, not 18: the Standard Workload Format"));
        let said = error(";\n1 10 5 x 4 -1 -1 4 200 -1 1 7 7 3 -1 -1 -1 -1\n");
        assert!(said.starts_with("line 2, field 4: \"x\" is no number: "), "{said}");
        assert_eq!(error("; nothing\n"), "no job passes the filter");
        assert_eq!(error(&"1".repeat(5_000)), "line 1 is longer than 4096 bytes");
        assert!(matches!(Log::of_text(";\n", None), Err(LogError::Size)));
        assert!(matches!(Log::read(Path::new("/nowhere"), None), Err(LogError::Io { .. })));
    }

    /// A log of one job: submitted, ran, asked.
    fn one(submit: &str, run: &str, limit: &str) -> String {
        format!("; MaxProcs: 8\n1 {submit} -1 {run} 1 -1 -1 1 {limit} -1 1 1 1 1 1 -1 -1 -1\n")
    }

    #[test]
    fn times_that_no_machine_sees_are_refused_with_their_line() {
        let said = |text: &str| Log::of_text(text, None).map(|_| ()).map_err(|error| error.to_string());
        let most = RUN_S_MAX.to_string();
        for (submit, run, limit, field) in [
            ("0", "10", "18446744073709552", "9 (time asked)"),
            ("0", "9223372036854775807", "9223372036854775807", "9 (time asked)"),
            ("9223372036854775807", "10", "20", "2 (time of submission)"),
            ("9000000000000000000", "10", "20", "2 (time of submission)"),
            ("0", "10", "316224001", "9 (time asked)"),
        ] {
            let error = said(&one(submit, run, limit)).unwrap_err();
            assert!(error.starts_with(&format!("line 2, field {field}: ")), "{error}");
            assert!(error.contains(" is above ") && error.contains("such as "), "{error}");
        }
        // Run times are cut at the limit, however long.
        assert_eq!(said(&one("3162240000", "9223372036854775807", &most)), Ok(()));
        // What the filter leaves out may be anything.
        let left_out = one("9000000000000000000", "0", "9000000000000000000");
        assert_eq!(said(&(left_out + &one("0", "10", "20"))), Ok(()));
        let many = one("0", "10", &most).repeat(7_000);
        assert!(said(&many).unwrap_err().starts_with("the limits (field 9) of all jobs are "));
    }

    #[test]
    fn a_size_that_no_machine_has_is_refused_with_its_line() {
        let log = |size: &str| one("0", "10", "20").replace("MaxProcs: 8", size);
        for size in ["99999999999", "0", "-1", "10000001", "many"] {
            let text = format!(";\n{}", log(&format!("MaxProcs: {size}")));
            let said = Log::of_text(&text, None).unwrap_err().to_string();
            let want = format!("line 2: MaxProcs is {size:?}, want 1 to 10000000, such as 128");
            assert!(said.starts_with(&want), "{said}");
            assert_eq!(Log::of_text(&text, Some(4)).unwrap().processors, 4, "the caller's word goes before");
        }
        assert_eq!(Log::of_text(&log("MaxNodes: 10000000"), None).unwrap().processors, 10_000_000);
    }
}
