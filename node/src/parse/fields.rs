//! Spec files (TOML) and JSON bodies: a flat list of keys in the order written. Double and unknown keys and wrong
//! types are refused with the key's path; nesting deeper than one table is no job and is refused by shape.

use super::amount::quoted;
use super::draft::JobDraft;
use super::key::{Key, Scalar, Value};
use rota_protocol::limits::SPEC_BYTES_MAX;
use rota_protocol::{ErrorCode, PublicError};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Longest spec text, in bytes: escapes may double what is stored.
pub const SPEC_TEXT_BYTES_MAX: usize = 2 * SPEC_BYTES_MAX;
/// Under this key the TOML reader delivers dates and times of day.
const TOML_DATETIME: &str = "$__toml_private_datetime";

/// The draft that a spec file says: `gpus = 2`, `mem = "16G"`, `command = ["python", "train.py"]`, `[env]`.
///
/// # Errors
/// Not TOML, or anything that [`JobDraft::set`] refuses.
pub fn draft_from_toml(text: &[u8]) -> Result<JobDraft, PublicError> {
    let text = spec_text(text)?;
    let fields: Fields = toml::from_str(text).map_err(|error| toml_error(text, &error))?;
    fields.draft()
}

/// The draft that a JSON body says: the same keys as a spec file.
///
/// # Errors
/// Not JSON, or anything that [`JobDraft::set`] refuses.
pub fn draft_from_json(text: &[u8]) -> Result<JobDraft, PublicError> {
    let fields: Fields = serde_json::from_str(spec_text(text)?)
        .map_err(|error| malformed(format!("not a job in JSON: {error}")))?;
    fields.draft()
}

fn spec_text(text: &[u8]) -> Result<&str, PublicError> {
    if text.len() > SPEC_TEXT_BYTES_MAX {
        return Err(PublicError::new(
            ErrorCode::TooLarge,
            format!("a spec of {} bytes exceeds the limit of {SPEC_TEXT_BYTES_MAX}", text.len()),
        ));
    }
    let text = std::str::from_utf8(text)
        .map_err(|error| malformed(format!("byte {} of the spec is not UTF-8", error.valid_up_to() + 1)))?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn malformed(message: String) -> PublicError {
    PublicError::invalid("spec", message, r#"command = ["python", "train.py"]"#)
}

/// What the TOML reader says, on one line, with the line's number and the key that stands there.
fn toml_error(text: &str, error: &toml::de::Error) -> PublicError {
    let what = error.message().replace('\n', ", ");
    let Some(span) = error.span() else {
        return malformed(what);
    };
    let start = span.start.min(text.len());
    let before = text.get(..start).unwrap_or("");
    let line = before.matches('\n').count() + 1;
    let line_text = text.lines().nth(line - 1).unwrap_or("");
    let key = line_text.split('=').next().unwrap_or("").trim();
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    PublicError {
        field: Some(if is_key { key.to_owned() } else { "spec".to_owned() }),
        ..malformed(format!("line {line}: {what}, at {}", quoted(line_text.trim())))
    }
}

/// Keys with values, in the order written.
struct Fields(Vec<(String, Value)>);

impl Fields {
    fn draft(&self) -> Result<JobDraft, PublicError> {
        let mut draft = JobDraft::default();
        for (name, value) in &self.0 {
            draft.set(Key::parse(name)?, value)?;
        }
        Ok(draft)
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Fields;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of a job's keys")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Fields(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyScalar)
    }
}

struct AnyScalar;

impl<'de> Visitor<'de> for AnyScalar {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a number")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Flag(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value.to_string()))
    }

    // What no 64 bits hold is out of every key's range, and the key says which that is.
    fn visit_i128<E: Error>(self, value: i128) -> Result<Scalar, E> {
        Ok(Scalar::Number(value.to_string()))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Scalar, E> {
        Ok(Scalar::Number(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.as_bytes().to_vec()))
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number, a list of them or a table of them")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        AnyScalar.visit_bool(value).map(Value::One)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        AnyScalar.visit_i64(value).map(Value::One)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        AnyScalar.visit_u64(value).map(Value::One)
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        AnyScalar.visit_i128(value).map(Value::One)
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        AnyScalar.visit_u128(value).map(Value::One)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        AnyScalar.visit_f64(value).map(Value::One)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        AnyScalar.visit_str(value).map(Value::One)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(scalar) = seq.next_element()? {
            list.push(scalar);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs: Vec<(String, Scalar)> = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, Scalar>()? {
            // `time = 01:30:00` without quotes is a time of day to TOML; it is meant as text.
            if key == TOML_DATETIME {
                return Ok(Value::One(value));
            }
            pairs.push((key, value));
        }
        Ok(Value::Map(pairs))
    }
}
