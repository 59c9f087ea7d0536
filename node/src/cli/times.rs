//! Points in time and ages as people read them. All points are shown in UTC, so that they agree on every host.

use std::time::{SystemTime, UNIX_EPOCH};

/// This machine's wall clock, in ms since the epoch: for ages on a screen, never for a decision.
#[must_use]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `2026-11-30 12:04:09Z`
#[must_use]
pub fn stamp(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// `4:09`, `1:04:09`, `2-01:04:09`
#[must_use]
pub fn age(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{rest:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{rest:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{rest:02}"),
    }
}

/// The date of a day since the epoch, in the Gregorian calendar: eras of 400 years, years that begin in March, so
/// that the leap day is the last (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(day: u64) -> (u64, u64, u64) {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let date = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + u64::from(month <= 2), month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_in_time_are_right_over_leap_days_and_centuries() {
        for (ms, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399_999, "2000-02-28 23:59:59Z"),
            (951_782_400_000, "2000-02-29 00:00:00Z"),
            (1_709_164_800_000, "2024-02-29 00:00:00Z"),
            (1_798_761_599_000, "2026-12-31 23:59:59Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(stamp(ms), text);
        }
    }

    #[test]
    fn ages_grow_their_parts() {
        for (ms, text) in
            [(999, "0:00"), (249_000, "4:09"), (3_849_000, "1:04:09"), (176_649_000, "2-01:04:09")]
        {
            assert_eq!(age(ms), text);
        }
    }
}
