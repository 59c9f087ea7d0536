//! The files that say who this host is: there, private, valid for a while, and then as the agent itself would load them.

use super::{fail, pass, warn};
use crate::net::{Identity, validity_s};
use rota_protocol::view::DoctorRow;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const CHECK: &str = "identity";
/// Of a host's own certificate: less of its life than one part in so many is left. It renews itself at a third.
const LATE_ONE_IN: i64 = 4;
/// Largest file looked into, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Rest of an authority's life, in days, below which to act.
const DAYS_WARN: i64 = 90;
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
    let left_s = to_s - now_s;
    let left = match left_s.div_euclid(DAY_S) {
        0..=2 => format!("{} h {} min", left_s / 3_600, left_s / 60 % 60),
        days => format!("{days} days"),
    };
    let is_authority = name.starts_with("ca");
    if now_s < from_s {
        let found = format!("{name} is not valid yet by this host's clock");
        fail(CHECK, found, "check the clock: `timedatectl`, or `date` on this host and on another")
    } else if left_s < 0 {
        let next = match is_authority {
            true => "check the clock; if it is right, `rota cluster ca rotate`",
            false => "check the clock; if it is right, start the agent, which renews it",
        };
        fail(CHECK, format!("{name} ran out {} days ago", -left_s.div_euclid(DAY_S)), next)
    } else if is_authority && left_s < DAYS_WARN * DAY_S {
        warn(CHECK, format!("{name} is valid for {left}"), "`rota cluster ca rotate` makes the next one")
    } else if !is_authority && left_s < (to_s - from_s) / LATE_ONE_IN {
        let next = "it should have been renewed: see the agent's log, or start the agent";
        warn(CHECK, format!("{name} is valid for {left} only"), next)
    } else {
        pass(CHECK, format!("{name} is valid for {left}"))
    }
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
        assert_eq!(verdict(to - 92 * DAY_S), "pass");
        assert_eq!(verdict(to - 91 * DAY_S), "warn");
        assert_eq!(verdict(to + 1), "fail");
        let authority = |now| lifetime("ca.pem", from, to, now).verdict;
        assert_eq!((authority(to - 91 * DAY_S), authority(to - 89 * DAY_S)), ("pass".into(), "warn".into()));
        // A day's certificate is fine with nine hours left, and late with five.
        let hours =
            |left: i64| lifetime("host.pem", from, from + 25 * 3_600, from + (25 - left) * 3_600).verdict;
        assert_eq!((hours(9), hours(5)), ("pass".into(), "warn".into()));
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
