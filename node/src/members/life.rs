//! Which data directory this is, and how often an agent was started on it: a file beside the log. Fellow peers compare
//! it with what the log knows, so that a copy, an old backup or a wiped directory is not taken for the host itself.
//!
//! `<data>/life`: one line, `host H of cluster C: data D, start N`.

use crate::io::durable::write_atomic;
use crate::net::Identity;
use rota_protocol::members::DataLife;
use std::io;
use std::path::{Path, PathBuf};

/// Why a data directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum LifeError {
    /// The disk.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not what an agent wrote.
    #[error("{} is damaged: the data directory cannot say what it is; `rota join --replace` makes this machine a new host", .0.display())]
    Damaged(PathBuf),
    /// Another host's, or another cluster's.
    #[error("{} says `{found}`, but the identity is that of {wanted}: data of two hosts is mixed; put back what belongs together, or `rota join --replace`", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// Who this host is.
        wanted: String,
    },
    /// An agent ran here before, and its log is gone.
    #[error("an agent ran on this data before, and its log in {} is gone: the host must not vote under its old id; `rota join --replace` makes this machine a new host", .0.display())]
    LogGone(PathBuf),
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("life")
}

fn owner(identity: &Identity) -> String {
    format!("host {} of cluster {}", identity.host, identity.cluster)
}

/// What the file says; none if there is no file.
///
/// # Errors
/// It cannot be read, is damaged, or is another host's.
pub fn load(data_dir: &Path, identity: &Identity) -> Result<Option<DataLife>, LifeError> {
    let path = path(data_dir);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(LifeError::Io { path, source }),
    };
    let Some((found, rest)) = text.trim().split_once(": data ") else {
        return Err(LifeError::Damaged(path));
    };
    let numbers = rest.split_once(", start ");
    let numbers = numbers
        .and_then(|(data, starts)| Some((u128::from_str_radix(data, 16).ok()?, starts.parse::<u64>().ok()?)));
    let Some((data, starts)) = numbers else {
        return Err(LifeError::Damaged(path));
    };
    let wanted = owner(identity);
    if found != wanted {
        return Err(LifeError::Foreign { path, found: found.to_owned(), wanted });
    }
    Ok(Some(DataLife { data, starts, session: 0 }))
}

/// The next start on this data. It is to be kept by [`save`] once the log is open.
///
/// # Errors
/// The file is another host's or damaged, or the log that belongs to it is gone.
pub fn next(data_dir: &Path, identity: &Identity) -> Result<DataLife, LifeError> {
    let known = load(data_dir, identity)?;
    let raft = data_dir.join("raft");
    let has_log = std::fs::read_dir(&raft).is_ok_and(|mut entries| entries.next().is_some());
    if known.is_some() && !has_log {
        return Err(LifeError::LogGone(raft));
    }
    let drawn = || rand::random::<u128>().max(1);
    let (data, starts) = known.map_or_else(|| (drawn(), 1), |life| (life.data, life.starts + 1));
    Ok(DataLife { data, starts, session: drawn() })
}

/// Keeps a start: from here on, no earlier one speaks for this host.
///
/// # Errors
/// The disk refuses.
pub fn save(data_dir: &Path, identity: &Identity, life: &DataLife) -> Result<(), LifeError> {
    let path = path(data_dir);
    let text = format!("{}: data {:032x}, start {}\n", owner(identity), life.data, life.starts);
    write_atomic(&path, text.as_bytes(), 0o644).map_err(|source| LifeError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::found_cluster;

    /// Faults D12, D13, R077: a directory whose log is gone, or whose file is another host's, is not used.
    #[test]
    fn starts_are_counted_and_what_does_not_belong_together_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let identity = found_cluster(dir.path(), "lab", "h1").unwrap();
        let first = next(dir.path(), &identity).unwrap();
        assert_eq!((first.starts, load(dir.path(), &identity).unwrap()), (1, None));
        std::fs::create_dir(dir.path().join("raft")).unwrap();
        std::fs::write(dir.path().join("raft/1.seg"), b"x").unwrap();
        save(dir.path(), &identity, &first).unwrap();
        let second = next(dir.path(), &identity).unwrap();
        assert_eq!((second.data, second.starts), (first.data, 2));
        assert_ne!(second.session, first.session);
        let other = tempfile::tempdir().unwrap();
        let stranger = found_cluster(other.path(), "lab", "h1").unwrap();
        assert!(matches!(next(dir.path(), &stranger), Err(LifeError::Foreign { .. })));
        std::fs::remove_file(dir.path().join("raft/1.seg")).unwrap();
        assert!(matches!(next(dir.path(), &identity), Err(LifeError::LogGone(_))));
        std::fs::write(path(dir.path()), "rubbish").unwrap();
        assert!(matches!(load(dir.path(), &identity), Err(LifeError::Damaged(_))));
    }
}
