//! The folder that is a task's own while it runs: where it reads why it is to end and who its gang is, and where it
//! asks to be queued again. Not where its output or its record lie: those are the agent's.
//!
//! The task's user owns the folder and may put anything there. So nothing in it is followed or read: files are made
//! under a fresh name and moved into place, which replaces a link instead of writing through it, and of the task's
//! answer only the presence counts. The folder above is the agent's, so the folder itself cannot be swapped.

use super::host::ShimHost;
use rota_protocol::Token;
use rota_protocol::spool::{GANG_NAME, LaunchOrder, NOTICE_NAME, REQUEUE_NAME};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// Name of the folder above, below the data directory.
const TASKS: &str = "tasks";

impl ShimHost {
    /// The folder that is a task's own while it runs.
    #[must_use]
    pub fn own_dir(&self, token: Token) -> PathBuf {
        path_of(&self.inner().tasks, token)
    }

    /// Tells a task who the present parts of its gang are.
    ///
    /// # Errors
    /// It has no folder yet or any more, or the disk refuses.
    pub async fn tell_gang(&self, token: Token, text: String) -> io::Result<()> {
        let tasks = self.inner().tasks.clone();
        // The disk may stall; the runtime must not.
        tokio::task::spawn_blocking(move || write_gang(&tasks, token, &text))
            .await
            .map_err(io::Error::other)?
    }
}

/// A task's folder, made by its shim.
#[derive(Debug)]
pub(super) struct OwnDir {
    path: PathBuf,
}

impl OwnDir {
    /// Makes it, for the order's user, with the first list of its gang.
    pub(super) fn make(order: &LaunchOrder) -> io::Result<Self> {
        let path = PathBuf::from(OsStr::from_bytes(&order.own_dir));
        let mut maker = DirBuilder::new();
        maker.mode(0o700);
        if let Err(error) = maker.create(&path) {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            // A token is used once: whatever is here was left by an agent that died while it cleared.
            std::fs::remove_dir_all(&path)?;
            maker.create(&path)?;
        }
        if let Some((uid, gid)) = order.uid_gid {
            chown(&path, Some(uid), Some(gid))?;
        }
        if !order.gang.is_empty() {
            match create(&path.join(GANG_NAME)) {
                Ok(mut file) => file.write_all(&order.gang)?,
                // The agent was here already, with a newer list.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { path })
    }

    /// Says why and by when the task is to end.
    pub(super) fn notice(&self, text: &str) -> io::Result<()> {
        replace(&self.path, NOTICE_NAME, text.as_bytes())
    }

    /// The task asks to be queued again.
    pub(super) fn asks_again(&self) -> bool {
        self.path.join(REQUEUE_NAME).symlink_metadata().is_ok()
    }

    /// Removes it with all that the task left there. What cannot be removed is left to the agent's next start.
    pub(super) fn clear(&self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Makes the folder above the tasks' own: to be passed through by everybody, to be listed by nobody.
pub(super) fn make_parent(data_dir: &Path) -> io::Result<PathBuf> {
    let path = data_dir.join(TASKS);
    DirBuilder::new().recursive(true).create(&path)?;
    // Whatever the agent's own mask says.
    std::fs::set_permissions(&path, Permissions::from_mode(0o711))?;
    path.canonicalize()
}

/// A task's folder by its token.
pub(super) fn path_of(tasks: &Path, token: Token) -> PathBuf {
    tasks.join(token.to_string())
}

/// Removes the folders of all tasks but these.
pub(super) fn sweep(tasks: &Path, living: &BTreeSet<Token>) -> io::Result<()> {
    for entry in std::fs::read_dir(tasks)? {
        let entry = entry?;
        let token = entry.file_name().to_str().and_then(|name| name.parse().ok()).map(Token);
        if token.is_some_and(|token| !living.contains(&token)) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Replaces the list of the task's gang.
pub(super) fn write_gang(tasks: &Path, token: Token, text: &str) -> io::Result<()> {
    replace(&path_of(tasks, token), GANG_NAME, text.as_bytes())
}

/// Gives a file a new content at once: whoever reads it sees the old one or the new one.
fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    // Of each file there is one writer: the shim of notices, the attempt's actor of lists.
    let fresh = dir.join(format!(".{name}.new"));
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    create(&fresh)?.write_all(bytes)?;
    std::fs::rename(&fresh, dir.join(name))
}

/// A new file that the task may read. Fails on anything that is there already, links included.
fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_left_by_the_task_is_replaced_not_written_through() {
        let data = tempfile::tempdir().unwrap();
        let tasks = make_parent(data.path()).unwrap();
        let own = path_of(&tasks, Token(5));
        std::fs::create_dir(&own).unwrap();
        let victim = data.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        for name in ["gang", ".gang.new"] {
            std::os::unix::fs::symlink(&victim, own.join(name)).unwrap();
        }
        write_gang(&tasks, Token(5), "size=1\n").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(std::fs::read_to_string(own.join("gang")).unwrap(), "size=1\n");
        assert!(own.join("gang").symlink_metadata().unwrap().is_file());
        std::fs::create_dir(own.join(".gang.new")).unwrap();
        assert!(write_gang(&tasks, Token(5), "size=2\n").is_err(), "what cannot be replaced is no harm");
    }

    #[test]
    fn folders_of_tasks_that_are_gone_are_swept() {
        let data = tempfile::tempdir().unwrap();
        let tasks = make_parent(data.path()).unwrap();
        for token in [1, 2, 3] {
            std::fs::create_dir(path_of(&tasks, Token(token))).unwrap();
        }
        std::fs::write(path_of(&tasks, Token(1)).join("left"), "x").unwrap();
        std::fs::create_dir(tasks.join("lost+found")).unwrap();
        sweep(&tasks, &BTreeSet::from([Token(2)])).unwrap();
        assert!(!path_of(&tasks, Token(1)).exists() && !path_of(&tasks, Token(3)).exists());
        assert!(path_of(&tasks, Token(2)).exists() && tasks.join("lost+found").exists());
    }
}
