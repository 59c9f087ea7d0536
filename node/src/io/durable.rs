//! Files that are whole or absent, whatever happens between.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Replaces `path` with `bytes`, durably: a reader, also one after a power cut, sees the old content or the new one.
/// The file gets `mode` (such as `0o600`).
///
/// # Errors
/// Whatever the file system says; the old file is untouched then.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let beside = beside(path)?;
    let written = write_beside(&beside, bytes, mode).and_then(|()| fs::rename(&beside, path));
    if let Err(error) = written {
        // Nothing refers to it; a leftover would only puzzle.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Makes names that were created, renamed or removed in a folder durable.
///
/// # Errors
/// Whatever the file system says.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}

fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.new", std::process::id()));
    Ok(path.with_file_name(hidden))
}

fn write_beside(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replaces_whole_files_and_leaves_nothing_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_atomic(&path, b"one", 0o600).unwrap();
        write_atomic(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x"), b"").unwrap();
        assert!(write_atomic(&path, b"one", 0o600).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
