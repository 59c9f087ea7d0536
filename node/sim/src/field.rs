//! Values of files: each is read within stated bounds, and one that is wrong is told with its place, its name, what
//! stands there and what would do. Beyond the bounds a value is a typing error, and no sum of times comes near the
//! largest number.

use rota_protocol::limits::TIME_LIMIT_MS_MAX;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use thiserror::Error;

/// Longest run of one job of a trace, and the latest arrival of one that counts from its start, in s: ten years.
pub const RUN_S_MAX: u64 = TIME_LIMIT_MS_MAX / 1_000;

/// Steps a second that a program can have been measured at: below, not one step is done in a round of an experiment.
pub const SPEED: RangeInclusive<f64> = 0.01..=1e6;

/// A value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {field} is {text}, want {want}, such as {example}")]
pub struct FieldError {
    /// The file, and the line in it where there are lines.
    pub place: String,
    /// Which value.
    pub field: String,
    /// What stands there, in quotes if it is text.
    pub text: String,
    /// What would do.
    pub want: String,
    /// A value that would.
    pub example: &'static str,
}

/// A number of a text within bounds.
///
/// # Errors
/// It is none, or beyond them.
pub fn number<T: FromStr + PartialOrd + Display>(
    place: impl Fn() -> String,
    field: &str,
    text: &str,
    bounds: &RangeInclusive<T>,
    example: &'static str,
) -> Result<T, FieldError> {
    // A number that is none lies in no range.
    text.parse().ok().filter(|number| bounds.contains(number)).ok_or_else(|| FieldError {
        place: place(),
        field: field.to_owned(),
        text: format!("{text:?}"),
        want: format!("{} to {}", bounds.start(), bounds.end()),
        example,
    })
}

/// A measured speed: 0 where a program cannot run, or within [`SPEED`].
///
/// # Errors
/// Anything else.
pub fn speed(
    place: impl Fn() -> String,
    field: impl Fn() -> String,
    steps_s: f64,
) -> Result<f64, FieldError> {
    if steps_s == 0.0 || SPEED.contains(&steps_s) {
        return Ok(steps_s);
    }
    let want = format!("{} to {} steps a second, or 0 where it cannot run", SPEED.start(), SPEED.end());
    Err(FieldError { place: place(), field: field(), text: format!("{steps_s:?}"), want, example: "12.5" })
}

/// The first of these figures that came out as no number.
#[must_use]
pub fn no_number(figures: &[(&'static str, f64)]) -> Option<&'static str> {
    figures.iter().find(|(_, figure)| !figure.is_finite()).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_bounds_and_what_is_none_is_told() {
        let read = |text: &str| number(|| "t:3".into(), "steps", text, &(1.0..=10.0), "5");
        assert_eq!(read("10"), Ok(10.0));
        for wrong in ["", "x", "0.5", "10.1", "-1", "nan", "inf", "1e300", "99999999999999999999"] {
            let said = read(wrong).unwrap_err().to_string();
            assert_eq!(said, format!("t:3: steps is {wrong:?}, want 1 to 10, such as 5"));
        }
    }

    #[test]
    fn a_speed_is_none_or_a_real_one() {
        let read = |steps_s: f64| speed(|| "t".into(), || "v100.A".into(), steps_s);
        assert_eq!((read(0.0), read(0.35), read(700.0)), (Ok(0.0), Ok(0.35), Ok(700.0)));
        for wrong in [-1.0, -1e-300, 1e-300, 1e308, f64::NAN, f64::INFINITY] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(
                said.starts_with(&format!("t: v100.A is {wrong:?}, want 0.01 to 1000000 steps")),
                "{said}"
            );
        }
    }
}
