//! From when until when a certificate is valid: just so much of X.509. Whether it is genuine is not asked here.

/// Seconds of a day.
const DAY_S: i64 = 24 * 3_600;

/// Start and end of a certificate's validity, in seconds since the epoch. Reads just so much of X.509 (RFC 5280, 4.1):
/// `Certificate { tbs { [0] version, serial, algorithm, issuer, validity { notBefore, notAfter } ...`.
#[must_use]
pub fn validity_s(der: &[u8]) -> Option<(i64, i64)> {
    let (certificate, _) = element(der, 0x30)?;
    let (mut tbs, _) = element(certificate, 0x30)?;
    if tbs.first() == Some(&0xa0) {
        tbs = element(tbs, 0xa0)?.1;
    }
    let tbs = element(tbs, 0x02)?.1;
    let tbs = element(tbs, 0x30)?.1;
    let tbs = element(tbs, 0x30)?.1;
    let (validity, _) = element(tbs, 0x30)?;
    let (from_s, rest) = time_s(validity)?;
    let (to_s, _) = time_s(rest)?;
    Some((from_s, to_s))
}

/// The content of the DER element of this tag at the front, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    if *found != tag {
        return None;
    }
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        // No element of a file this small needs more than four bytes of length.
        long @ 0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (digits.iter().fold(0usize, |sum, digit| (sum << 8) | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// `UTCTime` (two digits of the year, 1950 to 2049) or `GeneralizedTime` (four), both with seconds and `Z`.
fn time_s(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (text, rest, century) = match element(bytes, 0x17) {
        Some((text, rest)) => (text, rest, None),
        None => {
            let (text, rest) = element(bytes, 0x18)?;
            (text.get(2..)?, rest, Some(pair(text, 0)?))
        }
    };
    if text.len() != 13 || text.last() != Some(&b'Z') {
        return None;
    }
    let year = pair(text, 0)?;
    let century = century.unwrap_or(if year < 50 { 20 } else { 19 });
    let (month, day) = (pair(text, 2)?, pair(text, 4)?);
    let (hour, minute, second) = (pair(text, 6)?, pair(text, 8)?, pair(text, 10)?);
    if !(1..=12).contains(&month) {
        return None;
    }
    let days = days_from_civil(century * 100 + year, month, day);
    Some((days * DAY_S + hour * 3_600 + minute * 60 + second, rest))
}

fn pair(text: &[u8], at: usize) -> Option<i64> {
    let digits = text.get(at..at + 2)?;
    digits.iter().try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))
}

/// Days since 1970-01-01 of a date in the Gregorian calendar (Hinnant, "chrono-compatible low-level date algorithms").
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// A time in UTC, for messages.
#[must_use]
pub fn stamp(time_s: i64) -> String {
    let (days, second) = (time_s.div_euclid(DAY_S), time_s.rem_euclid(DAY_S));
    // The inverse of `days_from_civil`, by the same author.
    let day = days + 719_468;
    let era = day.div_euclid(146_097);
    let day_of_era = day.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * shifted + 2) / 5 + 1, (shifted + 2) % 12 + 1);
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_dates() {
        for (time_s, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59:59 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(stamp(time_s), text);
        }
        for day in (-200_000..200_000).step_by(37) {
            let text = stamp(day * DAY_S);
            let part = |at: usize, len: usize| text[at..at + len].parse::<i64>().unwrap();
            assert_eq!(days_from_civil(part(0, 4), part(5, 2), part(8, 2)), day, "{text}");
        }
    }
}
