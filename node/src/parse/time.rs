//! Lengths of time: `90` (seconds), `500ms`, `29s`, `1m`, `1h30m`, `1.5d`, and Slurm's `MM:SS`, `HH:MM:SS`, `D-HH`,
//! `D-HH:MM`, `D-HH:MM:SS`. Stored in ms; a positive time never becomes 0, that is, never "no limit".

use super::amount::{decimal, quoted};
use rota_protocol::PublicError;
use rota_protocol::limits::TIME_LIMIT_MS_MAX;

const EXAMPLE: &str = "1h30m";
const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Units in falling order; each may stand once in one text.
const UNITS: [(&str, u64); 5] =
    [("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS), ("ms", 1)];

/// A positive length of time as text to ms, rounded up.
///
/// # Errors
/// Empty, zero, negative, of no known form, or longer than ten years.
pub fn duration_ms(field: &str, text: &str) -> Result<u64, PublicError> {
    match duration_or_zero_ms(field, text)? {
        0 => Err(PublicError::invalid(
            field,
            format!("{} is zero; leave the field out for no limit", quoted(text)),
            EXAMPLE,
        )),
        ms => Ok(ms),
    }
}

/// Like [`duration_ms`], but zero is a value too.
///
/// # Errors
/// Empty, negative, of no known form, or longer than ten years.
pub fn duration_or_zero_ms(field: &str, text: &str) -> Result<u64, PublicError> {
    let trimmed = text.trim();
    if trimmed.starts_with('-') {
        return Err(PublicError::invalid(field, format!("{} is negative", quoted(text)), EXAMPLE));
    }
    let parsed = if trimmed.contains([':', '-']) { clock_form(trimmed) } else { unit_form(trimmed) };
    match parsed {
        Ok(ms) if ms <= TIME_LIMIT_MS_MAX => Ok(ms),
        Ok(_) | Err(Malformed::TooLong) => {
            Err(PublicError::invalid(field, format!("{} is longer than ten years", quoted(text)), EXAMPLE))
        }
        Err(Malformed::Form) => Err(PublicError::invalid(
            field,
            format!(
                "{} is not a length of time; known are ms, s, m, h, d and [days-]hours:minutes:seconds, a bare number is seconds",
                quoted(text)
            ),
            EXAMPLE,
        )),
        Err(Malformed::Part(part, most)) => Err(PublicError::invalid(
            field,
            format!("{} has {part} where at most {most} can stand", quoted(text)),
            EXAMPLE,
        )),
    }
}

enum Malformed {
    Form,
    TooLong,
    Part(u64, u64),
}

/// `1h30m`, `90`, `1.5d`: numbers with units in falling order.
fn unit_form(text: &str) -> Result<u64, Malformed> {
    let mut rest = text;
    let mut units_left = UNITS.as_slice();
    let mut total_ms = 0_u64;
    if rest.is_empty() {
        return Err(Malformed::Form);
    }
    while !rest.is_empty() {
        let (number, after) = decimal(rest).map_err(|_| Malformed::Form)?;
        let after = after.trim_start();
        let letters = after.bytes().position(|b| !b.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        // A bare number is seconds, but only alone: `1h30` would be a guess.
        let unit = match unit.to_ascii_lowercase() {
            unit if unit.is_empty() && rest == text && after.is_empty() => "s".to_owned(),
            unit => unit,
        };
        let position = units_left.iter().position(|(name, _)| *name == unit).ok_or(Malformed::Form)?;
        let unit_ms = units_left[position].1;
        units_left = &units_left[position + 1..];
        let part_ms = number.times_ceil(unit_ms, 1).ok_or(Malformed::TooLong)?;
        total_ms = total_ms.checked_add(part_ms).ok_or(Malformed::TooLong)?;
        rest = after.trim_start();
    }
    Ok(total_ms)
}

/// `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`.
fn clock_form(text: &str) -> Result<u64, Malformed> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(whole(days)?), clock),
        None => (None, text),
    };
    let parts: Vec<u64> = clock.split(':').map(whole).collect::<Result<_, _>>()?;
    let (hours, minutes, seconds) = match (days.is_some(), parts.as_slice()) {
        (false, [minutes, seconds]) => (0, *minutes, *seconds),
        (true, [hours]) => (*hours, 0, 0),
        (true, [hours, minutes]) => (*hours, *minutes, 0),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return Err(Malformed::Form),
    };
    // The largest part may be any number, those below it wrap where a clock does.
    at_most(seconds, 59)?;
    if days.is_some() || parts.len() == 3 {
        at_most(minutes, 59)?;
    }
    if days.is_some() {
        at_most(hours, 23)?;
    }
    [(days.unwrap_or(0), DAY_MS), (hours, HOUR_MS), (minutes, MINUTE_MS), (seconds, SECOND_MS)]
        .into_iter()
        .try_fold(0_u64, |total, (number, unit_ms)| total.checked_add(number.checked_mul(unit_ms)?))
        .ok_or(Malformed::TooLong)
}

fn whole(text: &str) -> Result<u64, Malformed> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Malformed::Form);
    }
    text.parse().map_err(|_| Malformed::TooLong)
}

fn at_most(part: u64, most: u64) -> Result<(), Malformed> {
    if part > most {
        return Err(Malformed::Part(part, most));
    }
    Ok(())
}

/// Milliseconds as text that [`duration_or_zero_ms`] reads back to the same value: `1h30m`.
#[must_use]
pub fn duration_text(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut left = ms;
    let mut text = String::new();
    for (name, unit_ms) in UNITS {
        if left >= unit_ms {
            text.push_str(&format!("{}{name}", left / unit_ms));
            left %= unit_ms;
        }
    }
    text
}
