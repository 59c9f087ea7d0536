//! The files between Rota and a running task: where it reads why it is to end and who its gang is, and where it
//! asks to be queued again. Not its output or its record: those are the agent's alone.
//!
//! They lie side by side in one folder, `<data>/tasks`, into which every user may put files and nobody but the agent
//! may look. Their names carry a number that only the task is told, so that tasks of different users cannot reach each
//! other's. A folder for each task would be simpler, but removing one costs more than starting a task does (ms on ext4).
//!
//! Nothing there is followed or read: files are made under a fresh name and moved into place, which replaces a link
//! instead of writing through it, and of the task's answer only the presence counts.

use super::host::ShimHost;
use rota_protocol::Token;
use rota_protocol::around::{AROUND_NAMES, Around};
use rota_protocol::spool::{GANG_NAME, LaunchOrder, NOTICE_NAME, REQUEUE_NAME};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the folder, below the data directory.
const TASKS: &str = "tasks";
/// Everybody may make files, only their owners may remove them, only the agent may list them.
const TASKS_MODE: u32 = 0o1733;

impl ShimHost {
    /// Where the files of a new attempt are to lie: the beginning of their paths. Another one at every call.
    #[must_use]
    pub fn draw_notes_base(&self, token: Token) -> Vec<u8> {
        let name = format!("{token}-{:016x}", rand::random::<u64>());
        self.inner().tasks.join(name).into_os_string().into_vec()
    }

    /// Tells a running task who the present parts of its gang are.
    ///
    /// False if that is what it was told last.
    ///
    /// # Errors
    /// Its shim has not started it yet, it is over, it is no part of a gang, or the disk refuses.
    pub async fn tell_gang(&self, token: Token, text: String) -> io::Result<bool> {
        let tasks = self.inner().tasks.clone();
        // The disk may stall; the runtime must not.
        tokio::task::spawn_blocking(move || {
            let gang = find_gang(&tasks, token)?.ok_or(io::ErrorKind::NotFound)?;
            if std::fs::read(&gang).is_ok_and(|told| told == text.as_bytes()) {
                return Ok(false);
            }
            replace(&gang, text.as_bytes()).map(|()| true)
        })
        .await
        .map_err(io::Error::other)?
    }
}

/// The files of one attempt, as its shim keeps them.
#[derive(Debug)]
pub(super) struct Notes {
    base: OsString,
    /// There may be more than what a task with nothing around it can have.
    around: bool,
}

impl Notes {
    /// Those of an order, with the first list of its gang.
    pub(super) fn begin(order: &LaunchOrder) -> io::Result<Self> {
        let around = !order.gang.is_empty() || order.around != Around::default();
        let notes = Self { base: OsStr::from_bytes(&order.notes_base).to_owned(), around };
        if !order.gang.is_empty() {
            replace(&notes.path(GANG_NAME), &order.gang)?;
        }
        for file in &order.around.files {
            match file.private {
                true => make_private(&notes.path(&file.name), &file.bytes, order.uid_gid)?,
                false => replace(&notes.path(&file.name), &file.bytes)?,
            }
        }
        Ok(notes)
    }

    /// Says why and by when the task is to end.
    pub(super) fn notice(&self, text: &str) -> io::Result<()> {
        replace(&self.path(NOTICE_NAME), text.as_bytes())
    }

    /// The task asks to be queued again.
    pub(super) fn asks_again(&self) -> bool {
        self.path(REQUEUE_NAME).symlink_metadata().is_ok()
    }

    /// Removes them. What cannot be removed is left to the agent's next start.
    pub(super) fn clear(&self) {
        let more = [GANG_NAME].into_iter().chain(AROUND_NAMES).filter(|_| self.around);
        for name in [NOTICE_NAME, REQUEUE_NAME].into_iter().chain(more) {
            let _ = std::fs::remove_file(self.path(name));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        let mut path = self.base.clone();
        path.push(".");
        path.push(name);
        path.into()
    }
}

/// Makes the folder.
pub(super) fn make_folder(data_dir: &Path) -> io::Result<PathBuf> {
    let path = data_dir.join(TASKS);
    std::fs::create_dir_all(&path)?;
    // Whatever the agent's own mask says.
    std::fs::set_permissions(&path, Permissions::from_mode(TASKS_MODE))?;
    path.canonicalize()
}

/// Removes the files of all tasks but these, and what was put there by others.
pub(super) fn sweep(tasks: &Path, living: &BTreeSet<Token>) -> io::Result<()> {
    for entry in std::fs::read_dir(tasks)? {
        let entry = entry?;
        if !token_of(&entry.file_name()).is_some_and(|token| living.contains(&token)) {
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

/// The same for one task whose shim is gone.
pub(super) fn clear(tasks: &Path, token: Token) {
    let Ok(entries) = std::fs::read_dir(tasks) else { return };
    for entry in entries.flatten().filter(|entry| token_of(&entry.file_name()) == Some(token)) {
        let _ = std::fs::remove_file(entry.path());
    }
}

fn token_of(name: &OsStr) -> Option<Token> {
    name.to_str()?.split_once('-')?.0.parse().ok().map(Token)
}

/// The list that the shim made. A file of another owner is somebody's joke.
fn find_gang(tasks: &Path, token: Token) -> io::Result<Option<PathBuf>> {
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(tasks)? {
        let entry = entry?;
        let path = entry.path();
        let is_list = path.extension() == Some(OsStr::new(GANG_NAME));
        if is_list && token_of(&entry.file_name()) == Some(token) && entry.metadata()?.uid() == own {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Gives a file a new content at once: whoever reads it sees the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Each file has one writer at a time.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Fails on anything that is there already, links included.
    let mut file = OpenOptions::new().write(true).create_new(true).open(&fresh)?;
    readable(&file)?;
    file.write_all(bytes)?;
    std::fs::rename(&fresh, path)
}

/// A file that only the task's user may read. Its name was drawn a moment ago, so whatever is there is a stranger's.
fn make_private(path: &Path, bytes: &[u8], uid_gid: Option<(u32, u32)>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if let Some((uid, gid)) = uid_gid.filter(|_| rustix::process::geteuid().is_root()) {
        std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
    }
    file.write_all(bytes)
}

fn readable(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_left_by_the_task_is_replaced_not_written_through() {
        let data = tempfile::tempdir().unwrap();
        let tasks = make_folder(data.path()).unwrap();
        let notice = tasks.join("5-abc.notice");
        let victim = data.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        for name in ["5-abc.notice", "5-abc.notice.new"] {
            std::os::unix::fs::symlink(&victim, tasks.join(name)).unwrap();
        }
        replace(&notice, b"reason=drain\n").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(std::fs::read_to_string(&notice).unwrap(), "reason=drain\n");
        assert!(notice.symlink_metadata().unwrap().is_file());
        assert_eq!(notice.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        std::fs::create_dir(tasks.join("5-abc.notice.new")).unwrap();
        assert!(replace(&notice, b"x").is_err(), "what cannot be replaced is no harm");
    }

    #[test]
    fn everybody_may_put_files_there_and_nobody_may_look() {
        let data = tempfile::tempdir().unwrap();
        make_folder(data.path()).unwrap();
        let tasks = make_folder(data.path()).unwrap();
        assert_eq!(tasks.metadata().unwrap().permissions().mode() & 0o7777, TASKS_MODE);
    }

    #[test]
    fn files_of_tasks_that_are_gone_are_swept() {
        let data = tempfile::tempdir().unwrap();
        let tasks = make_folder(data.path()).unwrap();
        for name in ["1-a.gang", "2-b.gang", "2-c.notice", "21-d.requeue", "rubbish"] {
            std::fs::write(tasks.join(name), "x").unwrap();
        }
        std::fs::create_dir(tasks.join("3-e.requeue")).unwrap();
        assert_eq!(find_gang(&tasks, Token(2)).unwrap(), Some(tasks.join("2-b.gang")));
        assert_eq!(find_gang(&tasks, Token(21)).unwrap(), None);
        sweep(&tasks, &BTreeSet::from([Token(2), Token(21)])).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&tasks).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["2-b.gang", "2-c.notice", "21-d.requeue"]);
        clear(&tasks, Token(2));
        assert_eq!(std::fs::read_dir(&tasks).unwrap().count(), 1);
    }
}
