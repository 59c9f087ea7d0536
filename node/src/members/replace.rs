//! `rota join --replace`: what this machine was to a cluster is set aside, so that it can join as a new host. Nothing is
//! removed: the old identity and log lie in a folder of their own until somebody looks.

use std::io;
use std::path::{Path, PathBuf};

/// What belongs to an identity; attempts and their output stay, and end by their lease.
const FILES: [&str; 8] =
    ["identity", "raft", "raft.voted", "life", "machine", "peers", "removed", "turned-away"];

/// What was set aside, to be put back if the join fails.
#[derive(Debug)]
pub struct SetAside {
    data_dir: PathBuf,
    folder: PathBuf,
    moved: Vec<&'static str>,
}

impl SetAside {
    /// Where it lies; none if there was nothing.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        (!self.moved.is_empty()).then_some(self.folder.as_path())
    }

    /// Puts all back.
    ///
    /// # Errors
    /// The disk refuses; the rest stays where it is.
    pub fn put_back(self) -> io::Result<()> {
        for name in self.moved {
            std::fs::rename(self.folder.join(name), self.data_dir.join(name))?;
        }
        std::fs::remove_dir(&self.folder)
    }
}

/// Moves what belongs to the identity into a folder named after the time. No agent may run on it.
///
/// # Errors
/// The disk refuses.
pub fn set_aside(data_dir: &Path, now_ms: u64) -> io::Result<SetAside> {
    let folder = data_dir.join(format!("set-aside-{now_ms}"));
    let mut aside = SetAside { data_dir: data_dir.to_owned(), folder, moved: Vec::new() };
    for name in FILES {
        let from = data_dir.join(name);
        if from.symlink_metadata().is_err() {
            continue;
        }
        std::fs::create_dir_all(&aside.folder)?;
        std::fs::rename(&from, aside.folder.join(name))?;
        aside.moved.push(name);
    }
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_set_aside_whole_and_can_be_put_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(set_aside(dir.path(), 1).unwrap().folder(), None);
        std::fs::create_dir(dir.path().join("raft")).unwrap();
        for name in ["raft/1.seg", "raft.voted", "life", "lock"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let aside = set_aside(dir.path(), 2).unwrap();
        assert_eq!(aside.folder(), Some(dir.path().join("set-aside-2").as_path()));
        assert!(!dir.path().join("raft").exists() && dir.path().join("lock").exists());
        aside.put_back().unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("raft/1.seg")).unwrap(), "raft/1.seg");
        assert!(!dir.path().join("set-aside-2").exists());
    }
}
