//! What is said of a job's pace: that it resumes, how much work it is, how fast it is on which GPU model.

use super::amount::{self, quoted};
use super::draft::{once, scalars};
use super::key::{Key, Value};
use super::time;
use rota_protocol::PublicError;
use rota_protocol::job::JobSpec;
use rota_protocol::pace::{self, SPEED_PERMILLE_MAX, Turns};

const SPEED_EXAMPLE: &str = "H100=2.5,A100=1";

/// A pace of which some things have been said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Pace {
    resumes: Option<bool>,
    work_ms: Option<u64>,
    speeds: Option<Vec<(String, u32)>>,
}

impl Pace {
    /// Reads one value; false if the key is none of these.
    pub(super) fn set(&mut self, key: Key, value: &Value) -> Result<bool, PublicError> {
        let field = key.name();
        match key {
            Key::Resumes => once(key, &mut self.resumes, value.yes(key)?),
            Key::Work => once(key, &mut self.work_ms, time::duration_ms(field, value.amount(key)?)?),
            Key::Speed => {
                if let Value::Map(_) = value {
                    return value.one(key).map(|_| true);
                }
                for scalar in scalars(value) {
                    self.speeds.get_or_insert_default().extend(speeds(field, scalar.text(field)?)?);
                }
                Ok(())
            }
            _ => return Ok(false),
        }?;
        Ok(true)
    }

    /// Lays this over another.
    pub(super) fn over(self, base: Self) -> Self {
        Self {
            resumes: self.resumes.or(base.resumes),
            work_ms: self.work_ms.or(base.work_ms),
            speeds: self.speeds.or(base.speeds),
        }
    }

    /// Writes what was said into a spec.
    pub(super) fn fill(self, spec: &mut JobSpec) {
        let said = pace::Pace {
            resumes: self.resumes.unwrap_or(false),
            work_ms: self.work_ms,
            speeds: self.speeds.unwrap_or_default(),
        };
        spec.pace = (said != pace::Pace::default()).then(|| Box::new(said));
    }
}

/// `H100=2.5,A100=1`: how fast each is, against an ordinary card.
fn speeds(field: &str, text: &str) -> Result<Vec<(String, u32)>, PublicError> {
    let speed = |part: &str| {
        let Some((model, number)) = part.rsplit_once('=') else {
            return Err(PublicError::invalid(field, format!("{} has no =", quoted(part)), SPEED_EXAMPLE));
        };
        let (decimal, rest) =
            amount::decimal(number.trim()).map_err(|why| why.error(field, number, SPEED_EXAMPLE))?;
        let permille = decimal.times_ceil(1_000, 1).filter(|_| rest.is_empty());
        let permille = permille.and_then(|permille| u32::try_from(permille).ok());
        let within = permille.filter(|permille| (1..=SPEED_PERMILLE_MAX).contains(permille));
        let wrong = || {
            let message = format!("{} is not between 0.001 and 1000", quoted(number));
            PublicError::invalid(field, message, SPEED_EXAMPLE)
        };
        Ok((model.trim().to_owned(), within.ok_or_else(wrong)?))
    };
    text.split(',').map(speed).collect()
}

/// Speeds as they are written.
#[must_use]
pub fn speeds_text(speeds: &[(String, u32)]) -> String {
    let parts = speeds.iter().map(|(model, permille)| format!("{model}={}", amount::milli_text(*permille)));
    parts.collect::<Vec<_>>().join(",")
}

/// `auto`, `unlike` or `off`.
///
/// # Errors
/// Another word.
pub fn turns(field: &str, text: &str) -> Result<Turns, PublicError> {
    match text.trim() {
        "auto" => Ok(Turns::Auto),
        "unlike" => Ok(Turns::Unlike),
        "off" => Ok(Turns::Off),
        other => Err(super::word::unknown(field, "rule", other, ["auto", "unlike", "off"].into_iter())),
    }
}

/// The rule for jobs that take turns, for people.
#[must_use]
pub fn turns_text(turns: Turns) -> &'static str {
    match turns {
        Turns::Auto => "turns: auto",
        Turns::Unlike => "turns: only among unlike models",
        Turns::Off => "turns: off",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_models_and_numbers() {
        let read = speeds("speed", "H100=2.5, A100=1").unwrap();
        assert_eq!(read, [("H100".to_owned(), 2_500), ("A100".to_owned(), 1_000)]);
        assert_eq!(speeds_text(&read), "H100=2.5,A100=1");
        for wrong in ["", "H100", "H100=", "H100=0", "H100=-1", "H100=x", "H100=1001", "H100=2x"] {
            let error = speeds("speed", wrong).expect_err(wrong);
            assert!(speeds("speed", error.example.as_deref().expect("an example")).is_ok(), "{error}");
        }
        assert!(turns("turns", "unlike").is_ok() && turns("turns", "never").is_err());
    }
}
