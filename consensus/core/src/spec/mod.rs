//! Is a job's spec acceptable at all? The same check at the edge and in `apply`. It looks at the spec alone, never
//! at the cluster (`explain::feasible` does), and normalises nothing: the edge stored what it showed.

mod ask;
mod container;
mod inputs;
mod output;
mod pace;
mod shape;

use rota_protocol::PublicError;
use rota_protocol::job::{ArraySpec, JobSpec};
use rota_protocol::limits::{
    ARG_BYTES_MAX, ARGS_MAX, ARRAY_TASKS_MAX, GRACE_MS_MAX, NAME_BYTES_MAX, PRIORITY_MAX, RETRIES_MAX,
    SPEC_BYTES_MAX, TIME_LIMIT_MS_MAX,
};
use std::collections::BTreeSet;

/// Checks a spec.
///
/// # Errors
/// The first field at fault, with the value and an example that would be accepted.
pub fn validate(spec: &JobSpec) -> Result<(), PublicError> {
    check_name("name", &spec.name)?;
    check_command(spec)?;
    ask::check(&spec.ask)?;
    shape::check(spec)?;
    output::check(spec.output())?;
    container::check(spec)?;
    pace::check(spec)?;
    inputs::check(&spec.inputs)?;
    for (at, alternative) in (1..).zip(&spec.alternatives) {
        ask::check(alternative).map_err(|error| of_alternative(error, at))?;
    }
    if let Some(array) = spec.array {
        check_array(array)?;
    }
    if spec.priority > PRIORITY_MAX {
        let message = format!("{} is above {PRIORITY_MAX}", spec.priority);
        return Err(PublicError::invalid("priority", message, "50"));
    }
    match spec.time_limit_ms {
        Some(0) => {
            return Err(PublicError::invalid("time_limit", "must be longer than zero", "10m"));
        }
        Some(ms) if ms > TIME_LIMIT_MS_MAX => {
            return Err(PublicError::invalid("time_limit", format!("{ms} ms is above ten years"), "10m"));
        }
        _ => {}
    }
    if let Some(ms) = spec.grace_ms.filter(|ms| *ms > GRACE_MS_MAX) {
        return Err(PublicError::invalid("grace", format!("{ms} ms is above one hour"), "30s"));
    }
    if spec.retries > RETRIES_MAX {
        let message = format!("{} is above {RETRIES_MAX}", spec.retries);
        return Err(PublicError::invalid("retries", message, "3"));
    }
    Ok(())
}

/// Says of which alternative the field at fault is, counted from 1.
fn of_alternative(error: PublicError, at: u32) -> PublicError {
    let field = error.field.as_deref().map(|field| field.replacen("ask.", &format!("alternatives.{at}."), 1));
    PublicError { field, ..error }
}

/// A text that is shown and kept: bounded, without control characters.
pub(crate) fn check_name(field: &str, text: &str) -> Result<(), PublicError> {
    if text.len() > NAME_BYTES_MAX {
        let message = format!("{} bytes are above {NAME_BYTES_MAX}", text.len());
        return Err(PublicError::invalid(field, message, "train-7"));
    }
    if text.chars().any(char::is_control) {
        return Err(PublicError::invalid(field, "contains a control character", "train-7"));
    }
    Ok(())
}

/// The first that is named a second time.
#[must_use]
pub fn twice<T: Ord>(all: &[T]) -> Option<&T> {
    let mut seen = BTreeSet::new();
    all.iter().find(|one| !seen.insert(*one))
}

fn check_command(spec: &JobSpec) -> Result<(), PublicError> {
    if spec.argv.first().is_none_or(Vec::is_empty) {
        return Err(PublicError::invalid("argv", "names no program", "python train.py"));
    }
    if spec.argv.len() > ARGS_MAX || spec.env.len() > ARGS_MAX {
        let (field, n) =
            if spec.argv.len() > ARGS_MAX { ("argv", spec.argv.len()) } else { ("env", spec.env.len()) };
        return Err(PublicError::invalid(field, format!("{n} entries are above {ARGS_MAX}"), "64 entries"));
    }
    for arg in &spec.argv {
        check_bytes("argv", arg)?;
    }
    for (key, value) in &spec.env {
        check_bytes("env", key)?;
        check_bytes("env", value)?;
        if key.is_empty() || key.contains(&b'=') {
            let message = format!("'{}' is no variable's name", String::from_utf8_lossy(key));
            return Err(PublicError::invalid("env", message, "SEED=1"));
        }
    }
    check_bytes("workdir", &spec.workdir)?;
    if !spec.workdir.starts_with(b"/") {
        let message = format!("'{}' is not absolute", String::from_utf8_lossy(&spec.workdir));
        return Err(PublicError::invalid("workdir", message, "/home/me/run"));
    }
    let bytes = spec.argv.iter().map(Vec::len).sum::<usize>()
        + spec.env.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>()
        + spec.workdir.len()
        + spec.output().stdin.as_ref().map_or(0, Vec::len);
    if bytes > SPEC_BYTES_MAX {
        let message = format!("{bytes} bytes of arguments, environment and input are above {SPEC_BYTES_MAX}");
        return Err(PublicError::invalid("argv", message, "a path to a script"));
    }
    Ok(())
}

fn check_bytes(field: &str, bytes: &[u8]) -> Result<(), PublicError> {
    if bytes.len() > ARG_BYTES_MAX {
        let message = format!("one entry of {} bytes is above {ARG_BYTES_MAX}", bytes.len());
        return Err(PublicError::invalid(field, message, "a path to a file"));
    }
    if bytes.contains(&0) {
        return Err(PublicError::invalid(field, "contains a zero byte", "plain text"));
    }
    Ok(())
}

fn check_array(array: ArraySpec) -> Result<(), PublicError> {
    if array.step == 0 {
        return Err(PublicError::invalid("array", "a step of 0 never ends", "0-99:1"));
    }
    if array.end < array.start {
        let message = format!("{}-{} runs backwards", array.start, array.end);
        return Err(PublicError::invalid("array", message, "0-99"));
    }
    if array.count() > ARRAY_TASKS_MAX {
        let message = format!("{} tasks are above {ARRAY_TASKS_MAX}", array.count());
        return Err(PublicError::invalid("array", message, "0-999"));
    }
    Ok(())
}
