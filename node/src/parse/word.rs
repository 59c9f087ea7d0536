//! Words and small texts: arrays, signals, states, labels, job numbers, names; and the nearest known spelling of a
//! word that is none of them.

use super::amount::quoted;
use rota_core::spec::twice;
use rota_protocol::api::OutputStream;
use rota_protocol::job::{ArraySpec, JobState};
use rota_protocol::limits::{ARRAY_TASKS_MAX, NAME_BYTES_MAX};
use rota_protocol::queue::is_queue_name;
use rota_protocol::{JobId, PublicError};

/// Array indices as text: `0-9`, `0-9:2`, `1-1000%50`, `7`.
///
/// # Errors
/// Another form, a reversed range, a step or cap of 0, or more than [`ARRAY_TASKS_MAX`] tasks.
pub fn array(field: &str, text: &str) -> Result<ArraySpec, PublicError> {
    const EXAMPLE: &str = "1-100%10";
    let refuse = |why: &str| PublicError::invalid(field, format!("{} {why}", quoted(text)), EXAMPLE);
    let trimmed = text.trim();
    if trimmed.contains(',') {
        return Err(refuse("is a list; only one range is possible"));
    }
    let too_many = |tasks: &str| {
        let message = format!(
            "{} has {tasks} tasks, the limit is {ARRAY_TASKS_MAX}; submit fewer, and cap how many run at once with %",
            quoted(text)
        );
        PublicError::invalid(field, message, "0-9999999%50")
    };
    let (range, cap) = split_off(trimmed, '%');
    let (range, step) = split_off(range, ':');
    let (start, end) = split_off(range, '-');
    let number = |part: &str| -> Result<Option<u32>, PublicError> {
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return Err(refuse("is not first-last, first-last:step or first-last%most"));
        }
        // What is no number of 32 bits is refused by what it was to be.
        Ok(part.parse().ok())
    };
    let within =
        |what: &str, read: Option<u32>| read.ok_or_else(|| refuse(&format!("has {what} above {}", u32::MAX)));
    let start = within("an index", number(start)?)?;
    let end = match end.map(number).transpose()? {
        Some(read) => read.ok_or_else(|| too_many("more than 4294967295"))?,
        None => start,
    };
    let step = step.map_or(Ok(Some(1)), number)?;
    let cap_read = cap.map_or(Ok(Some(0)), number)?;
    let array = ArraySpec {
        start,
        end,
        step: within("a step", step)?,
        parallel_max: within("a cap on tasks at once", cap_read)?,
    };
    if array.end < array.start {
        return Err(refuse("ends before it starts"));
    }
    if array.step == 0 {
        return Err(refuse("has a step of 0"));
    }
    if cap.is_some() && array.parallel_max == 0 {
        return Err(refuse("lets 0 tasks run at once"));
    }
    if array.count() > ARRAY_TASKS_MAX {
        return Err(too_many(&array.count().to_string()));
    }
    Ok(array)
}

/// An array as text that [`array`] reads back to the same value.
#[must_use]
pub fn array_text(array: &ArraySpec) -> String {
    let mut text = format!("{}-{}", array.start, array.end);
    if array.step != 1 {
        text.push_str(&format!(":{}", array.step));
    }
    if array.parallel_max != 0 {
        text.push_str(&format!("%{}", array.parallel_max));
    }
    text
}

fn split_off(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(front, back)| (front, Some(back)))
}

/// Signals by name; the numbers are those of Linux on every machine that Rota runs on.
const SIGNALS: [(&str, u8); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];

/// A signal's name, or its number if it has none.
#[must_use]
pub fn signal_text(number: u8) -> String {
    let named = SIGNALS.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// A signal by name (`USR1`, `sigusr1`) or number (1 to 64).
///
/// # Errors
/// No such signal.
pub fn signal(field: &str, text: &str) -> Result<u8, PublicError> {
    let upper = text.trim().to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some((_, number)) = SIGNALS.iter().find(|(known, _)| *known == name) {
        return Ok(*number);
    }
    match name.parse::<u8>() {
        Ok(number @ 1..=64) => Ok(number),
        _ => Err(unknown(field, "signal", text, SIGNALS.iter().map(|(n, _)| *n))),
    }
}

/// Job states by name or two letters, with commas between them.
///
/// # Errors
/// No such state.
pub fn states(field: &str, text: &str) -> Result<Vec<JobState>, PublicError> {
    text.split(',')
        .map(|word| {
            // `time-limit` and `time_limit` are easier to type than a name with a blank.
            let wanted = &word.trim().replace(['-', '_'], " ");
            JobState::ALL
                .into_iter()
                .find(|state| {
                    state.code().eq_ignore_ascii_case(wanted)
                        || state.to_string().eq_ignore_ascii_case(wanted)
                })
                .ok_or_else(|| {
                    let names: Vec<String> = JobState::ALL.iter().map(ToString::to_string).collect();
                    unknown(field, "state", word, names.iter().map(String::as_str))
                })
        })
        .collect()
}

/// `stdout` or `stderr`.
///
/// # Errors
/// Another word.
pub fn output_stream(field: &str, text: &str) -> Result<OutputStream, PublicError> {
    match text.trim() {
        "stdout" | "out" => Ok(OutputStream::Stdout),
        "stderr" | "err" => Ok(OutputStream::Stderr),
        _ => Err(unknown(field, "stream", text, ["stdout", "stderr"].into_iter())),
    }
}

/// A job as a user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRef {
    /// `123`, or one task of it: `123_4`.
    Number {
        /// The job.
        job: JobId,
        /// One index only.
        index: Option<u32>,
    },
    /// `last`: the caller's newest, or one task of it: `last_4`.
    Last {
        /// One index only.
        index: Option<u32>,
    },
}

/// A job's name as text: `123`, `123_4`, `last`, `last_4`.
///
/// # Errors
/// Another form.
pub fn job_ref(field: &str, text: &str) -> Result<JobRef, PublicError> {
    let (job, index) = split_off(text.trim(), '_');
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let index = match index {
        Some(index) if digits(index) => index.parse().ok().map(Some),
        Some(_) => None,
        None => Some(None),
    };
    let parsed = match (job, index) {
        ("last", Some(index)) => Some(JobRef::Last { index }),
        (job, Some(index)) if digits(job) => {
            job.parse().ok().map(|job| JobRef::Number { job: JobId(job), index })
        }
        _ => None,
    };
    parsed.ok_or_else(|| {
        PublicError::invalid(field, format!("{} is not a job number", quoted(text)), "123, 123_4 or last")
    })
}

/// A name of a job, host, user or model: 1 to [`NAME_BYTES_MAX`] bytes without control characters.
///
/// # Errors
/// Empty, too long, or with a control character.
pub fn name(field: &str, text: &str) -> Result<String, PublicError> {
    let trimmed = text.trim();
    let why = if trimmed.is_empty() {
        "is empty"
    } else if trimmed.len() > NAME_BYTES_MAX {
        "is longer than 128 bytes"
    } else if trimmed.chars().any(char::is_control) {
        "has a control character"
    } else {
        return Ok(trimmed.to_owned());
    };
    Err(PublicError::invalid(field, format!("{} {why}", quoted(text)), "train-7"))
}

/// A queue's path: `research/vision`.
///
/// # Errors
/// Empty elements, other characters than letters, digits, `-`, `_`, `.`, `@`, or too long or deep.
pub fn queue(field: &str, text: &str) -> Result<String, PublicError> {
    let trimmed = text.trim();
    if !is_queue_name(trimmed) {
        let message = format!("{} is no queue's path", quoted(text));
        return Err(PublicError::invalid(field, message, "research/vision"));
    }
    Ok(trimmed.to_owned())
}

/// A label as text: `pool=a`.
///
/// # Errors
/// No `=`, an empty key, or a part that is no name.
pub fn label(field: &str, text: &str) -> Result<(String, String), PublicError> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(PublicError::invalid(field, format!("{} has no =", quoted(text)), "pool=a"));
    };
    Ok((name(field, key)?, name(field, value)?))
}

/// A list in which nothing is named twice.
///
/// # Errors
/// Something is.
pub fn once_each(field: &str, all: Vec<String>) -> Result<Vec<String>, PublicError> {
    match twice(&all) {
        Some(name) => {
            let message = format!("{} is given twice", quoted(name));
            Err(PublicError::invalid(field, message, name))
        }
        None => Ok(all),
    }
}

/// A refusal of a word that is none of the known ones: names the nearest and lists all.
pub(crate) fn unknown<'a>(
    field: &str,
    what: &str,
    word: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> PublicError {
    let nearest = nearest(word, known.clone());
    let list: Vec<&str> = known.collect();
    let meant = nearest.map_or(String::new(), |n| format!(", did you mean {n}?"));
    PublicError::invalid(
        field,
        format!("{} is not a known {what}{meant}; known are {}", quoted(word), list.join(", ")),
        nearest.or(list.first().copied()).unwrap_or(""),
    )
}

/// The known word that a typing error is nearest to, if any is near.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer words are not compared: the cost is a product of lengths.
    const COMPARED_BYTES_MAX: usize = 64;
    if word.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let lower = word.to_lowercase();
    known
        .map(|candidate| (edits(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(edits, candidate)| *edits <= 1 + candidate.len() / 4)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, delete, change or swap with their neighbour (optimal string alignment distance).
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}
