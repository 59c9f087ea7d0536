//! Small private files: read with a size limit and a check of who else may read them, written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest file that is read, in bytes: a certificate has 700, and a longer file is a mistake.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Rights of others on a private file: none.
const OTHERS: u32 = 0o077;
/// Rights of others to change a file: none on any.
const OTHERS_WRITE: u32 = 0o022;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is not there.
    #[error("{} is missing: restore it from a backup, or move the data directory away and join again", .0.display())]
    Missing(PathBuf),
    /// A directory, a symbolic link, a pipe.
    #[error("{} is not a regular file: put the file itself there", .0.display())]
    NotAFile(PathBuf),
    /// No bytes.
    #[error("{} is empty: restore it from a backup, or move the data directory away and join again", .0.display())]
    Empty(PathBuf),
    /// More bytes than any of these files has.
    #[error("{} has {bytes} bytes, more than the {FILE_BYTES_MAX} that are read: this is not the right file", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// How many.
        bytes: u64,
    },
    /// Others may read a secret, or write anything.
    #[error("{} has mode {mode:04o}, so that others can use it: run `chmod 600 {}`, and make a new key if somebody may have read it", path.display(), path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Bytes that are not text.
    #[error("{} is not text: restore it from a backup", .0.display())]
    NotText(PathBuf),
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Reads a text that nobody else may change.
pub(super) fn read_text(path: &Path) -> Result<String, FileError> {
    read(path, OTHERS_WRITE)
}

/// Reads a secret that nobody else may read.
pub(super) fn read_private(path: &Path) -> Result<String, FileError> {
    read(path, OTHERS)
}

fn read(path: &Path, forbidden: u32) -> Result<String, FileError> {
    // The checks are made on the open file, so that nothing can be swapped between check and use.
    let mut file =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).map_err(
            |e| match e.kind() {
                io::ErrorKind::NotFound => FileError::Missing(path.to_owned()),
                _ if e.raw_os_error() == Some(libc::ELOOP) => FileError::NotAFile(path.to_owned()),
                _ => io_error(path, e),
            },
        )?;
    let meta = file.metadata().map_err(|e| io_error(path, e))?;
    if !meta.is_file() {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    let mode = meta.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(FileError::Open { path: path.to_owned(), mode });
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(FileError::TooLarge { path: path.to_owned(), bytes: meta.len() });
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|e| io_error(path, e))?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(FileError::Empty(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| FileError::NotText(path.to_owned()))
}

/// Writes a directory (0700) of files (0600): beside its place, synced, then renamed into it.
pub(super) fn write_private_dir(dir: &Path, files: &[(&str, String)]) -> Result<(), FileError> {
    put(dir, files, |staging| fs::rename(staging, dir))
}

/// The same in the place of a directory that is there: the two change places in one step, then the old one goes.
pub(super) fn replace_private_dir(dir: &Path, files: &[(&str, String)]) -> Result<(), FileError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    put(dir, files, |staging| {
        renameat_with(CWD, staging, CWD, dir, RenameFlags::EXCHANGE)?;
        Ok(())
    })?;
    // What a crash leaves is removed by the next write.
    let _ = fs::remove_dir_all(dir.with_extension("new"));
    Ok(())
}

fn put(
    dir: &Path,
    files: &[(&str, String)],
    place: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), FileError> {
    let parent = dir.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|e| io_error(parent, e))?;
    let staging = dir.with_extension("new");
    let result = fill(&staging, files).and_then(|()| {
        place(&staging).map_err(|e| io_error(dir, e))?;
        sync_dir(parent)
    });
    if result.is_err() {
        // What a crash leaves is removed by the next try; this is only tidiness.
        let _ = fs::remove_dir_all(&staging);
    }
    result
}

fn fill(staging: &Path, files: &[(&str, String)]) -> Result<(), FileError> {
    match fs::remove_dir_all(staging) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io_error(staging, e)),
        _ => {}
    }
    fs::DirBuilder::new().mode(0o700).create(staging).map_err(|e| io_error(staging, e))?;
    for (name, text) in files {
        let path = staging.join(name);
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(|e| io_error(&path, e))?;
    }
    sync_dir(staging)
}

fn sync_dir(dir: &Path) -> Result<(), FileError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| io_error(dir, e))
}

fn io_error(path: &Path, source: io::Error) -> FileError {
    FileError::Io { path: path.to_owned(), source }
}
