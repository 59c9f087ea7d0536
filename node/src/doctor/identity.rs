//! The files that say who this host is: there, private, valid for a while, and then as the agent itself would load them.

use super::{fail, pass, warn};
use crate::net::Identity;
use rota_protocol::view::DoctorRow;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const CHECK: &str = "identity";
/// Largest file looked into, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Rest of a certificate's life, in days, below which to act.
const DAYS_WARN: i64 = 30;
const DAY_S: i64 = 24 * 3_600;

/// One row per file, or one for all when there is none.
pub(super) fn rows(data_dir: &Path) -> Vec<DoctorRow> {
    let dir = data_dir.join("identity");
    let mut files: Vec<PathBuf> = match fs::read_dir(&dir) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let found = format!("this host belongs to no cluster ({} is not there)", dir.display());
            return vec![warn(CHECK, found, "`rota init` on the first host, `rota join` on every other")];
        }
        Err(error) => {
            let found = format!("{}: {error}", dir.display());
            return vec![fail(CHECK, found, "run as the user that owns the data directory")];
        }
    };
    if files.is_empty() {
        let found = format!("{} is empty", dir.display());
        return vec![fail(CHECK, found, "restore it from a backup, or remove it and join again")];
    }
    files.sort();
    let now_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    let mut rows: Vec<DoctorRow> = files.iter().filter_map(|path| file_row(path, now_s)).collect();
    if rows.iter().all(|row| row.verdict != "fail") {
        rows.insert(0, whole(data_dir));
    }
    rows
}

/// What the agent says when it loads all of it; its errors name the file and the next step.
fn whole(data_dir: &Path) -> DoctorRow {
    match Identity::load(data_dir) {
        Ok(own) => {
            let names = (&own.host_name, &own.cluster_name);
            pass(CHECK, format!("host {} `{}` of the cluster `{}`", own.host, names.0, names.1))
        }
        Err(error) => fail(CHECK, error.to_string(), "as it says; nothing else is wrong with the files"),
    }
}

/// A row for a key or a certificate; others are of no concern here.
fn file_row(path: &Path, now_s: i64) -> Option<DoctorRow> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let broken = |found: String| {
        Some(fail(CHECK, format!("{name}: {found}"), "restore it from a backup, or join again"))
    };
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) => return broken(error.to_string()),
    };
    if meta.len() > FILE_BYTES_MAX {
        return broken(format!("{} bytes are too many", meta.len()));
    }
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return broken(error.to_string()),
    };
    if text.contains("PRIVATE KEY-----") {
        let mode = meta.mode() & 0o777;
        return Some(if mode & 0o077 == 0 {
            pass(CHECK, format!("{name} is private"))
        } else {
            let next = format!("chmod 600 {}; make a new one if somebody may have read it", path.display());
            fail(CHECK, format!("{name} has mode {mode:o}: others can use the key"), next)
        });
    }
    if !text.contains("-----BEGIN CERTIFICATE") {
        return (text.trim().is_empty()).then(|| broken("empty".to_owned())).flatten();
    }
    let valid =
        CertificateDer::from_pem_slice(text.as_bytes()).ok().and_then(|certificate| validity_s(&certificate));
    match valid {
        None => broken("it holds no certificate that can be read".to_owned()),
        Some((from_s, to_s)) => Some(lifetime(&name, from_s, to_s, now_s)),
    }
}

fn lifetime(name: &str, from_s: i64, to_s: i64, now_s: i64) -> DoctorRow {
    let days = (to_s - now_s).div_euclid(DAY_S);
    if now_s < from_s {
        fail(CHECK, format!("{name} is not valid yet by this host's clock"), "check the clock")
    } else if to_s < now_s {
        fail(
            CHECK,
            format!("{name} ran out {} days ago", -days),
            "check the clock; if it is right, join again",
        )
    } else if days < DAYS_WARN {
        warn(CHECK, format!("{name} is valid for {days} days"), "renew it before then: join again")
    } else {
        pass(CHECK, format!("{name} is valid for {days} days"))
    }
}

/// Start and end of a certificate's validity, in seconds since the epoch. Reads just so much of X.509 (RFC 5280, 4.1):
/// `Certificate { tbs { [0] version, serial, algorithm, issuer, validity { notBefore, notAfter } ...`.
fn validity_s(der: &[u8]) -> Option<(i64, i64)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const YEAR_2000_S: i64 = 946_684_800;

    fn certificate(from_year: i32, to_year: i32) -> String {
        let mut params = rcgen::CertificateParams::new(vec!["h1".to_owned()]).expect("a fair name");
        params.not_before = rcgen::date_time_ymd(from_year, 1, 1);
        params.not_after = rcgen::date_time_ymd(to_year, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("signed").pem()
    }

    #[test]
    fn validity_is_read_in_both_forms_of_time() {
        let pem = certificate(2000, 2100);
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("just made");
        assert_eq!(validity_s(&der), Some((YEAR_2000_S, 4_102_444_800)));
        for cut in 0..der.len().min(200) {
            // Must not panic, whatever is missing.
            let _ = validity_s(&der[..cut]);
        }
    }

    #[test]
    fn a_certificate_is_judged_by_the_rest_of_its_life() {
        let (from, to) = (YEAR_2000_S, YEAR_2000_S + 365 * DAY_S);
        let verdict = |now| lifetime("host.pem", from, to, now).verdict;
        assert_eq!(verdict(from - 1), "fail");
        assert_eq!(verdict(from), "pass");
        assert_eq!(verdict(to - 29 * DAY_S), "warn");
        assert_eq!(verdict(to + 1), "fail");
    }

    #[test]
    fn a_founder_passes_and_is_named() {
        let data = tempfile::tempdir().expect("a temporary directory");
        crate::net::found_cluster(data.path(), "lab", "h1").expect("a new cluster");
        let rows = rows(data.path());
        assert!(rows.iter().all(|row| row.verdict == "pass"), "{rows:?}");
        assert_eq!(rows[0].found, "host 1 `h1` of the cluster `lab`");
        assert_eq!(rows.iter().filter(|row| row.found.ends_with("is private")).count(), 2, "{rows:?}");
    }

    #[test]
    fn files_are_looked_into() {
        let data = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(rows(data.path())[0].verdict, "warn", "no cluster yet");
        let dir = data.path().join("identity");
        fs::create_dir(&dir).expect("creatable");
        assert_eq!(rows(data.path())[0].verdict, "fail", "an empty directory");
        let put = |name: &str, text: &str, mode| {
            fs::write(dir.join(name), text).expect("writable");
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).expect("own file");
        };
        put("a.pem", &certificate(2000, 2100), 0o644);
        let incomplete = rows(data.path());
        assert_eq!(
            (incomplete.len(), incomplete[0].verdict.as_str()),
            (2, "fail"),
            "one file is no identity"
        );
        put("b-key.pem", "-----BEGIN PRIVATE KEY-----\n", 0o600);
        put("c-key.pem", "-----BEGIN PRIVATE KEY-----\n", 0o640);
        put("d.pem", &certificate(2000, 2001), 0o644);
        put("e.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0o644);
        put("f.pem", "", 0o644);
        put("g.toml", "format = 1", 0o644);
        let verdicts: Vec<String> = rows(data.path()).into_iter().map(|row| row.verdict).collect();
        assert_eq!(verdicts, ["pass", "pass", "fail", "fail", "fail", "fail"]);
    }
}
