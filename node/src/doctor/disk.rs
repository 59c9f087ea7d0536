//! The data directory and the disk under it: rights, room, and how long a durable write takes. Every accepted job
//! waits for one such write on a majority of hosts.

use super::{fail, pass, warn};
use rota_protocol::view::DoctorRow;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Writes in one measurement: enough for a median, short enough for a slow disk.
const WRITES: usize = 20;
/// Bytes of each, as a small log entry has.
const WRITE_BYTES: usize = 4_096;
/// A disk slower than this holds submissions up.
const SYNC_SLOW: Duration = Duration::from_millis(10);
/// A disk slower than this may cost leaderships: a heartbeat is 50 ms.
const SYNC_TOO_SLOW: Duration = Duration::from_millis(50);
/// Free room below which the log may soon not grow, in MiB.
const FREE_MIB_FAIL: u64 = 256;
/// Free room below which outputs of tasks may soon fill the disk, in MiB.
const FREE_MIB_WARN: u64 = 4 << 10;

/// Rows about the data directory; room and speed only where it exists.
pub(super) fn rows(data_dir: &Path) -> Vec<DoctorRow> {
    let first = directory(data_dir);
    let usable = first.verdict != "fail" && data_dir.is_dir();
    let mut rows = vec![first];
    if usable {
        rows.push(room(data_dir));
        rows.push(speed(data_dir));
    }
    rows
}

fn directory(data_dir: &Path) -> DoctorRow {
    const CHECK: &str = "data directory";
    let shown = data_dir.display();
    let meta = match fs::metadata(data_dir) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return warn(CHECK, format!("{shown} does not exist"), "`rota init` or `rota join` makes it");
        }
        Err(error) => {
            return fail(
                CHECK,
                format!("{shown}: {error}"),
                "run as the user that owns it, or correct `data_dir`",
            );
        }
    };
    if !meta.is_dir() {
        return fail(CHECK, format!("{shown} is not a directory"), "correct `data_dir`");
    }
    if meta.mode() & 0o022 != 0 {
        let found = format!("others may write to {shown} (mode {:o})", meta.mode() & 0o777);
        return fail(CHECK, found, format!("chmod go-w {shown}"));
    }
    if rustix::fs::access(data_dir, rustix::fs::Access::WRITE_OK).is_err() {
        let found = format!("{shown} belongs to user {} and cannot be written", meta.uid());
        return fail(CHECK, found, "run as that user, or `chown` the directory");
    }
    pass(CHECK, format!("{shown} is this user's to write"))
}

fn room(data_dir: &Path) -> DoctorRow {
    const CHECK: &str = "disk room";
    match rustix::fs::statvfs(data_dir) {
        Err(error) => fail(CHECK, error.to_string(), "check the file system"),
        Ok(stat) => {
            let free_mib = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
            let found = format!("{free_mib} MiB are free");
            let next = "free some, or put `data_dir` on a larger disk";
            if free_mib < FREE_MIB_FAIL {
                fail(CHECK, found, next)
            } else if free_mib < FREE_MIB_WARN {
                warn(CHECK, found, next)
            } else {
                pass(CHECK, found)
            }
        }
    }
}

fn speed(data_dir: &Path) -> DoctorRow {
    const CHECK: &str = "disk sync";
    match measure(data_dir) {
        Err(error) => fail(CHECK, format!("a durable write failed: {error}"), "check the disk and `dmesg`"),
        Ok((median, worst)) => judge(median, worst),
    }
}

fn judge(median: Duration, worst: Duration) -> DoctorRow {
    const CHECK: &str = "disk sync";
    let millis = |time: Duration| time.as_secs_f64() * 1_000.0;
    let found =
        format!("{WRITES} durable writes: median {:.2} ms, slowest {:.2} ms", millis(median), millis(worst));
    let next = "put `data_dir` on a local SSD that no task writes to";
    if median > SYNC_TOO_SLOW {
        fail(CHECK, found, next)
    } else if median > SYNC_SLOW {
        warn(CHECK, found, next)
    } else {
        pass(CHECK, found)
    }
}

/// Median and slowest of some durable writes to a scratch file, which is gone afterwards.
fn measure(data_dir: &Path) -> io::Result<(Duration, Duration)> {
    let path = data_dir.join(format!(".doctor.{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    // Unlinked at once: nothing stays behind, however this ends.
    fs::remove_file(&path)?;
    let block = [0u8; WRITE_BYTES];
    let mut times = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let from = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(from.elapsed());
    }
    times.sort_unstable();
    Ok((times[WRITES / 2], times[WRITES - 1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_usable_directory_is_measured_and_left_clean() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let checks: Vec<String> = rows(dir.path()).into_iter().map(|row| row.check).collect();
        assert_eq!(checks, ["data directory", "disk room", "disk sync"]);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_directory_that_others_may_write_fails() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("own directory");
        let rows = rows(dir.path());
        assert_eq!((rows.len(), rows[0].verdict.as_str()), (1, "fail"));
        let file = dir.path().join("file");
        fs::write(&file, "").expect("writable");
        assert_eq!(directory(&file).verdict, "fail");
    }

    #[test]
    fn slow_disks_are_named() {
        let millis = Duration::from_millis;
        assert_eq!(judge(millis(1), millis(500)).verdict, "pass", "one slow write is no slow disk");
        assert_eq!(judge(millis(11), millis(12)).verdict, "warn");
        assert_eq!(judge(millis(51), millis(60)).verdict, "fail");
    }
}
