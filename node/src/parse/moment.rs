//! Points in time: `now+1h`, `10m` (from now), `2026-12-01T08:00`, `2026-12-01 08:00:30Z`, `2026-12-01T08:00+01:00`.
//! A point without an offset is in UTC, as all points are shown.
//!
//! A bare `08:00` is refused: elsewhere it is a time of day, here it would be a length.

use super::amount::quoted;
use super::time;
use rota_protocol::PublicError;
use rota_protocol::limits::TIME_LIMIT_MS_MAX;

const EXAMPLE: &str = "now+1h";
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
/// Furthest offset from UTC anywhere, in minutes.
const OFFSET_MINUTES_MAX: u64 = 14 * 60;

/// A point in time as written; what `now` is, is known only when the job is put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// So many ms from now.
    In(u64),
    /// Ms since the epoch.
    At(u64),
}

impl Moment {
    /// Ms since the epoch.
    #[must_use]
    pub fn at_ms(self, now_ms: u64) -> u64 {
        match self {
            Self::In(ms) => now_ms.saturating_add(ms),
            Self::At(ms) => ms,
        }
    }
}

/// A point in time as text.
///
/// # Errors
/// Another form, a date or time that no calendar has, or a length above ten years.
pub fn moment(field: &str, text: &str) -> Result<Moment, PublicError> {
    let trimmed = text.trim();
    let refuse = |why: &str| PublicError::invalid(field, format!("{} {why}", quoted(text)), EXAMPLE);
    if trimmed.get(..3).is_some_and(|head| head.eq_ignore_ascii_case("now")) {
        let rest = trimmed[3..].trim_start();
        return match rest.strip_prefix('+') {
            Some(length) => Ok(Moment::In(time::duration_or_zero_ms(field, length)?)),
            None if rest.is_empty() => Ok(Moment::In(0)),
            None => Err(refuse("is not now, or now and a length of time")),
        };
    }
    let is_date = trimmed.len() > 4
        && trimmed.as_bytes()[..4].iter().all(u8::is_ascii_digit)
        && trimmed.as_bytes()[4] == b'-';
    if is_date {
        return date(trimmed)
            .map(Moment::At)
            .ok_or_else(|| refuse("is no date and time such as 2026-12-01T08:00"));
    }
    if trimmed.contains(':') {
        return Err(refuse("is no point in time: give its date too, or a length such as 8h"));
    }
    Ok(Moment::In(
        time::duration_or_zero_ms(field, trimmed)
            .map_err(|error| PublicError { example: Some(EXAMPLE.to_owned()), ..error })?,
    ))
}

/// A point that something is not to lie beyond: ten years are a typing error.
///
/// # Errors
/// It lies further from now.
pub(super) fn within_reach(field: &str, at_ms: u64, now_ms: u64) -> Result<u64, PublicError> {
    if at_ms > now_ms.saturating_add(TIME_LIMIT_MS_MAX) {
        return Err(PublicError::invalid(field, "lies more than ten years ahead", EXAMPLE));
    }
    Ok(at_ms)
}

/// `YYYY-MM-DD`, then perhaps a time and an offset.
fn date(text: &str) -> Option<u64> {
    let (day, clock) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], text[at + 1..].trim()),
        None => (text, "00:00"),
    };
    let mut parts = day.split('-');
    let (year, month, date) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    if parts.next().is_some() || year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    if date == 0 || date > days_of(year, month) {
        return None;
    }
    let at = clock.find(['Z', 'z', '+', '-']).unwrap_or(clock.len());
    let (clock, offset) = clock.split_at(at);
    let of_day_ms = clock_ms(clock.trim_end())?;
    let local_ms = day_number(year, month, date).checked_mul(DAY_MS)?.checked_add(of_day_ms)?;
    match offset.as_bytes().first() {
        None => Some(local_ms),
        Some(b'Z' | b'z') if offset.len() == 1 => Some(local_ms),
        Some(b'+') => local_ms.checked_sub(offset_ms(&offset[1..])?),
        Some(b'-') => local_ms.checked_add(offset_ms(&offset[1..])?),
        Some(_) => None,
    }
}

/// `HH:MM` or `HH:MM:SS`, perhaps with parts of a second (which are dropped).
fn clock_ms(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let (hours, minutes) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let seconds = match parts.next() {
        Some(seconds) => {
            let (whole, part) = seconds.split_once('.').unwrap_or((seconds, "0"));
            number(part, part.len().min(9)).and_then(|_| number(whole, 2))?
        }
        None => 0,
    };
    let fair = parts.next().is_none() && hours < 24 && minutes < 60 && seconds < 60;
    fair.then_some(((hours * 60 + minutes) * 60 + seconds) * 1_000)
}

/// `02:00` or `0200` or `02`.
fn offset_ms(text: &str) -> Option<u64> {
    let (hours, minutes) = match text.split_once(':') {
        Some((hours, minutes)) => (number(hours, 2)?, number(minutes, 2)?),
        None if text.len() == 4 && text.is_ascii() => (number(&text[..2], 2)?, number(&text[2..], 2)?),
        None => (number(text, 2)?, 0),
    };
    let total = hours * 60 + minutes;
    (minutes < 60 && total <= OFFSET_MINUTES_MAX).then_some(total * MINUTE_MS)
}

/// A number of exactly so many digits.
fn number(text: &str, digits: usize) -> Option<u64> {
    let fair = !text.is_empty() && text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
    if fair { text.parse().ok() } else { None }
}

fn days_of(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from the epoch to a date of the Gregorian calendar, by years that begin in March (Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms").
fn day_number(year: u64, month: u64, date: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + date - 1;
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::times::stamp;
    use proptest::prelude::*;

    #[test]
    fn points_are_read_as_they_are_meant() {
        for (text, wanted) in [
            ("now", Moment::In(0)),
            ("now+1h", Moment::In(3_600_000)),
            ("NOW + 90", Moment::In(90_000)),
            ("10m", Moment::In(600_000)),
            ("1h30m", Moment::In(5_400_000)),
            ("1970-01-01", Moment::At(0)),
            ("2000-02-29T00:00", Moment::At(951_782_400_000)),
            ("2026-12-31T23:59:59Z", Moment::At(1_798_761_599_000)),
            ("2026-12-31 23:59:59.25Z", Moment::At(1_798_761_599_000)),
            ("2027-01-01T00:59:59+01:00", Moment::At(1_798_761_599_000)),
            ("2026-12-31T18:29:59-0530", Moment::At(1_798_761_599_000)),
        ] {
            assert_eq!(moment("begin", text), Ok(wanted), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_point_is_refused_with_an_example_that_is_one() {
        for text in [
            "",
            "tomorrow",
            "noon",
            "08:00",
            "now-1h",
            "now1h",
            "nowadays",
            "-5m",
            "2026-13-01",
            "2026-02-29",
            "2026-00-10",
            "2026-1-1",
            "2026-12-01T24:00",
            "2026-12-01T08:60",
            "2026-12-01T8:00",
            "2026-12-01T08",
            "2026-12-01T08:00+15:00",
            "2026-12-01T08:00ZZ",
            "1969-12-31",
            "2026-12-01T08:00:00:00",
            "NaN",
            "1e9",
            "99999999999d",
            "2026-12-0١",
        ] {
            let error = moment("begin", text).expect_err(text);
            assert_eq!(error.field.as_deref(), Some("begin"));
            assert!(
                moment("begin", error.example.as_deref().expect("an example")).is_ok(),
                "{text}: {error}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_point_as_it_is_shown_reads_back(seconds in 0_u64..200_000_000_000) {
            // Up to the year 8307.
            let ms = seconds * 1_000;
            prop_assert_eq!(moment("begin", &stamp(ms)), Ok(Moment::At(ms)));
        }
    }
}
