//! Whose a process is, by its group, and what is left of attempts whose shims are gone. A program may leave its session,
//! its parents and its environment behind, but not its group.

use super::group::{Groups, pids_in};
use super::place::{BARE, Place};
use super::pool::remove_spares;
use rota_protocol::Token;
use rota_protocol::cage::{Cage, Controller, Group};
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

impl Place {
    /// The groups of an attempt, as far as they are there.
    #[must_use]
    pub fn groups_of(&self, token: Token) -> Groups {
        let name = token.to_string();
        let there = self.folders().filter(|(_, folder)| folder.join(&name).is_dir());
        Groups::found(there.map(|(controller, folder)| (controller, folder.join(&name))).collect())
    }

    /// Every process of an attempt.
    #[must_use]
    pub fn pids(&self, token: Token) -> Vec<i32> {
        self.groups_of(token).pids()
    }

    /// The attempt of this agent that a process belongs to, whatever namespace it is in; none for others, and for one that
    /// is gone.
    #[must_use]
    pub fn token_of(&self, pid: i32) -> Option<Token> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        token_in(&text, &self.name)
    }

    /// The attempts that have groups here.
    #[must_use]
    pub fn tokens(&self) -> BTreeSet<Token> {
        let names = self.folders().filter_map(|(_, folder)| std::fs::read_dir(folder).ok()).flatten();
        names.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Token)).collect()
    }

    /// Kills what is in the groups of an attempt and removes them. How many processes are left.
    #[must_use]
    pub fn end(&self, token: Token) -> usize {
        let mut groups = self.groups_of(token);
        if groups.remove() {
            return 0;
        }
        groups.kill();
        if groups.remove() { 0 } else { groups.pids().len().max(1) }
    }

    /// The folder of this agent's groups in each hierarchy.
    pub(in crate::shim) fn folders_of_agent(&self) -> impl Iterator<Item = &Path> {
        self.bases.values().map(PathBuf::as_path)
    }

    /// The folders in which groups of attempts lie.
    fn folders(&self) -> impl Iterator<Item = (Controller, PathBuf)> {
        self.bases.iter().flat_map(|(controller, base)| {
            let bare = (*controller == Controller::Devices).then(|| (*controller, base.join(BARE)));
            bare.into_iter().chain([(*controller, base.clone())])
        })
    }

    /// Processes by attempt, for whoever looks at many.
    #[must_use]
    pub fn all_pids(&self) -> BTreeMap<i32, Token> {
        let mut found = BTreeMap::new();
        for token in self.tokens() {
            let groups = self.groups_of(token);
            found.extend(groups.paths().flat_map(|(_, path)| pids_in(path)).map(|pid| (pid, token)));
        }
        found
    }
}

/// The agent's lock, as seen from the attempts folder.
const AGENT_LOCK: &str = "../lock";

/// Removes the folders of an agent that is gone, as far as nothing is left in them: they would stay until the host is
/// started anew. To be called in the attempts folder, by the fork server and by each shim as the last thing: one of them is
/// the last. An agent that lives, or has come back, holds its lock;
/// a folder that was deleted serves nobody. `has_lock` is false where the caller knows that.
pub(in crate::shim) fn tidy(bases: &[PathBuf], has_lock: bool) {
    let lock = std::fs::OpenOptions::new().write(true).open(AGENT_LOCK);
    let free = match lock.as_ref().ok().filter(|_| has_lock) {
        Some(lock) => flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        None => !has_lock || std::fs::metadata(".").is_ok_and(|here| here.nlink() == 0),
    };
    if free {
        for base in bases {
            remove_spares(base);
            let _ = std::fs::remove_dir(base.join(BARE));
            let _ = std::fs::remove_dir(base);
        }
    }
}

/// The folders of the agent's groups, from those of one of its attempts.
pub(in crate::shim) fn bases_of(cage: &Cage) -> Vec<PathBuf> {
    let base = |group: &Group| {
        let folder = Path::new(OsStr::from_bytes(&group.path)).parent()?;
        if folder.file_name() == Some(OsStr::new(BARE)) { folder.parent() } else { Some(folder) }
            .map(Path::to_owned)
    };
    cage.groups.iter().filter_map(base).collect()
}

/// The token behind an agent's folder in `/proc/<pid>/cgroup`.
fn token_in(text: &str, name: &str) -> Option<Token> {
    text.lines().find_map(|line| {
        let mut parts = line.rsplit('/');
        let token = parts.next()?.parse().ok().map(Token)?;
        let folder = parts.next()?;
        let folder = if folder == BARE { parts.next()? } else { folder };
        (folder == name).then_some(token)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_by_the_folder_of_its_agent_and_its_token() {
        let text = "9:name=systemd:/\n5:devices:/x/rota-fe-2/bare/77\n4:memory:/rota-fe-3/78\n0::/\n";
        assert_eq!(token_in(text, "rota-fe-2"), Some(Token(77)));
        assert_eq!(token_in(text, "rota-fe-3"), Some(Token(78)));
        assert_eq!(token_in(text, "rota-fe"), None);
        assert_eq!(token_in("0::/rota-fe-3/agent\n", "rota-fe-3"), None);
        assert_eq!(token_in("0::/77\n", "77"), None);
    }
}
