//! Single values of a draft: each is read, checked by itself, and refused with its field.

use super::amount;
use super::draft::scalars;
use super::key::{Key, Value, wrong_type};
use super::{time, word};
use rota_protocol::limits::{ARG_BYTES_MAX, ARGS_MAX, GRACE_MS_MAX, NAME_BYTES_MAX};
use rota_protocol::{ErrorCode, PublicError};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Variables that only Rota sets.
const OWN_ENV_PREFIX: &[u8] = b"ROTA_";

pub(super) fn grace_ms(text: &str) -> Result<u32, PublicError> {
    let field = Key::Grace.name();
    let ms = time::duration_or_zero_ms(field, text)?;
    u32::try_from(ms).ok().filter(|ms| *ms <= GRACE_MS_MAX).ok_or_else(|| {
        PublicError::invalid(field, format!("{} is longer than an hour", amount::quoted(text)), "30s")
    })
}

pub(super) fn command(value: &Value) -> Result<Vec<Vec<u8>>, PublicError> {
    let field = Key::Command.name();
    match value {
        Value::One(text) => Ok(vec![b"/bin/sh".to_vec(), b"-c".to_vec(), text.bytes(field)?.to_vec()]),
        Value::List(words) => words.iter().map(|word| word.bytes(field).map(<[u8]>::to_vec)).collect(),
        Value::Map(_) => Err(wrong_type(field, "a list of texts or one text", "a table")),
    }
}

pub(super) fn check_argv(argv: &[Vec<u8>]) -> Result<(), PublicError> {
    const EXAMPLE: &str = "python train.py";
    let field = Key::Command.name();
    if argv.first().is_none_or(Vec::is_empty) {
        return Err(PublicError::invalid(field, "names no program", EXAMPLE));
    }
    if argv.len() > ARGS_MAX {
        return Err(too_large(field, format!("{} arguments", argv.len()), ARGS_MAX));
    }
    for word in argv {
        if word.len() > ARG_BYTES_MAX {
            return Err(too_large(field, format!("an argument of {} bytes", word.len()), ARG_BYTES_MAX));
        }
        if word.contains(&0) {
            return Err(PublicError::invalid(field, "has a NUL byte", EXAMPLE));
        }
    }
    Ok(())
}

pub(super) fn workdir(bytes: &[u8]) -> Result<PathBuf, PublicError> {
    let field = Key::Workdir.name();
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(PublicError::invalid(field, "is empty or has a NUL byte", "/data/run"));
    }
    Ok(PathBuf::from(OsStr::from_bytes(bytes)))
}

/// Models in the order given.
pub(super) fn models(key: Key, value: &Value) -> Result<Vec<String>, PublicError> {
    let field = key.name();
    let mut models = Vec::new();
    if let Value::Map(_) = value {
        return Err(wrong_type(field, "a text or a list of texts", "a table"));
    }
    for scalar in scalars(value) {
        for model in scalar.text(field)?.split(',') {
            let model = word::name(field, model);
            models.push(model.map_err(|error| PublicError { example: Some("H100,A100".into()), ..error })?);
        }
    }
    Ok(models)
}

/// Why a variable cannot be passed on, if it cannot.
pub(super) fn env_fault(name: &[u8], value: &[u8]) -> Option<&'static str> {
    if name.is_empty() {
        Some("has an empty name")
    } else if name.contains(&b'=') || name.contains(&0) || value.contains(&0) {
        Some("has = in its name, or a NUL byte")
    } else if name.starts_with(OWN_ENV_PREFIX) {
        Some("begins with ROTA_, which only Rota sets")
    } else if name.len() + value.len() > ARG_BYTES_MAX {
        Some("is longer than 131072 bytes")
    } else {
        None
    }
}

pub(super) fn too_large(field: &str, what: String, most: usize) -> PublicError {
    PublicError {
        field: Some(field.to_owned()),
        ..PublicError::new(ErrorCode::TooLarge, format!("{what} exceeds the limit of {most}"))
    }
}

/// A job without a name is called after its program.
pub(super) fn name_of(argv: &[Vec<u8>]) -> String {
    let program = argv.first().map_or(&b""[..], Vec::as_slice);
    let file = Path::new(OsStr::from_bytes(program)).file_name();
    let clean: String =
        file.unwrap_or_default().to_string_lossy().chars().filter(|c| !c.is_control()).collect();
    let mut end = clean.len().min(NAME_BYTES_MAX);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    match clean[..end].trim() {
        "" => "job".to_owned(),
        name => name.to_owned(),
    }
}
