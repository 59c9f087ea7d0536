//! A cluster that begins anew: from a backup on a new host, or from the files of one that survived the majority.
//!
//! Either way the cluster gets a new id, a new authority and the next epoch, so that nobody of the old one is let in.
//! What ran on lost hosts is treated as ever: their leases run out before anything runs elsewhere. Nothing here talks to
//! a network, and no agent may run on the data.

use crate::agent;
use crate::io::{clock, durable::sync_dir};
use crate::members::replace::set_aside;
use crate::net::{Identity, found_as};
use rota_consensus::offline::{self, Backup};
use rota_core::State;
use rota_core::state::members::Rebirth;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{ClusterId, HostId};
use rota_protocol::limits::SNAPSHOT_BYTES_MAX;
use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Where the new files are made before they take their places.
const STAGE: &str = "reborn.new";
/// What is made there.
const MADE: [&str; 3] = ["identity", "raft", "raft.voted"];

fn failed(what: impl Display) -> PublicError {
    PublicError::new(ErrorCode::Conflict, what.to_string())
}

/// What the files of a survivor hold, and what going on from them means.
#[derive(Debug)]
pub struct Survivor {
    data_dir: PathBuf,
    identity: Identity,
    found: offline::Found,
    _lock: std::fs::File,
}

impl Survivor {
    /// Reads the files of a host whose agent does not run.
    ///
    /// # Errors
    /// An agent runs, there is no identity, or the files are damaged: then another survivor has to be found.
    pub fn open(data_dir: &Path) -> Result<Self, PublicError> {
        let lock = agent::lock(data_dir).map_err(failed)?;
        let identity = Identity::load(data_dir).map_err(failed)?;
        let found = offline::read(&data_dir.join("raft"), identity.cluster, identity.host).map_err(failed)?;
        if found.state.cluster().is_none() {
            return Err(failed("this host has heard nothing of its cluster yet; recover from another one"));
        }
        Ok(Self { data_dir: data_dir.to_owned(), identity, found, _lock: lock })
    }

    /// The cluster's name, which a person must type.
    #[must_use]
    pub fn cluster_name(&self) -> &str {
        &self.identity.cluster_name
    }

    /// What is there, what is lost, one line each.
    #[must_use]
    pub fn tells(&self) -> Vec<String> {
        let state = &self.found.state;
        let others: Vec<String> = state
            .hosts()
            .filter(|host| host.id != self.identity.host && host.belonging.removed.is_none())
            .map(|host| host.name.clone())
            .collect();
        let voters: Vec<String> = self.found.voters.iter().map(ToString::to_string).collect();
        vec![
            format!(
                "host {} `{}` of the cluster `{}` knows entries up to {}, {} of them without knowing whether they were committed",
                self.identity.host,
                self.identity.host_name,
                self.identity.cluster_name,
                state.applied_index(),
                self.found.unconfirmed
            ),
            format!(
                "the voters were {}; whatever they accepted and this host never heard of is lost",
                voters.join(", ")
            ),
            format!("{} jobs are known here", state.jobs().count()),
            format!(
                "never do this while a majority of the voters can come back; these are out and join again as new hosts: {}",
                if others.is_empty() { "none".to_owned() } else { others.join(", ") }
            ),
        ]
    }

    /// Makes this host the first of the next epoch.
    ///
    /// # Errors
    /// The disk refuses; the old files are then where they were.
    pub async fn recover(self) -> Result<Vec<String>, PublicError> {
        let cluster = ClusterId(rand::random::<u128>().max(1));
        let rebirth = Rebirth {
            cluster,
            survivor: Some(self.identity.host),
            founder: None,
            at_ms: clock::wall_ms(),
            reason: "the majority was lost; this cluster went on from one host".into(),
        };
        let (state, host) = self.found.state.reborn(&rebirth);
        let stage = self.data_dir.join(STAGE);
        let names = (self.identity.cluster_name.as_str(), self.identity.host_name.as_str());
        make(&stage, names, (cluster, host), &state, self.found.term).await?;
        let aside = set_aside(&self.data_dir, clock::wall_ms()).map_err(failed)?;
        let folder = aside.folder().map(|folder| folder.display().to_string()).unwrap_or_default();
        if let Err(error) = take_places(&stage, &self.data_dir) {
            for name in MADE {
                let _ = std::fs::rename(self.data_dir.join(name), stage.join(name));
            }
            aside.put_back().map_err(failed)?;
            return Err(failed(error));
        }
        Ok(vec![
            format!(
                "epoch {} of the cluster `{}` begins here, as cluster {cluster}",
                state.members().epoch,
                names.0
            ),
            format!("the old identity and log are kept in {folder}"),
            "start the agent; on every other host: `rota join --replace` with a new join token".to_owned(),
            "tokens of users name the old authority: make new ones".to_owned(),
        ])
    }
}

/// Reads a backup file whole.
///
/// # Errors
/// It cannot be read, is too large, damaged, or of a newer format.
pub fn open_backup(file: &Path) -> Result<Backup, PublicError> {
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(|error| failed(format!("{}: {error}", file.display())))?;
    opened
        .take(SNAPSHOT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(format!("{}: {error}", file.display())))?;
    if bytes.len() > SNAPSHOT_BYTES_MAX {
        return Err(failed(format!("{} is larger than any backup", file.display())));
    }
    offline::read_backup(&bytes).map_err(|fault| failed(format!("{}: {fault}", file.display())))
}

/// Begins a new cluster on this host from a backup. The data directory must not belong to a cluster.
///
/// # Errors
/// It belongs to one, a name cannot be taken, or the disk refuses; nothing is left then.
pub async fn restore(
    backup: &Backup,
    data_dir: &Path,
    host_name: &str,
    addr: &str,
) -> Result<Vec<String>, PublicError> {
    let lock = agent::lock(data_dir).map_err(failed)?;
    let Some(meta) = backup.state.cluster() else {
        return Err(failed("the backup is of a cluster that was never created"));
    };
    if MADE.iter().any(|name| data_dir.join(name).exists()) {
        return Err(failed(format!(
            "{} belongs to a cluster already; name an empty --data-dir",
            data_dir.display()
        )));
    }
    let cluster = ClusterId(rand::random::<u128>().max(1));
    let rebirth = Rebirth {
        cluster,
        survivor: None,
        founder: Some((host_name.to_owned(), addr.to_owned())),
        at_ms: clock::wall_ms(),
        reason: format!("restored from a backup of entry {}", backup.state.applied_index()),
    };
    let (state, host) = backup.state.reborn(&rebirth);
    let stage = data_dir.join(STAGE);
    make(&stage, (&meta.name, host_name), (cluster, host), &state, backup.term).await?;
    take_places(&stage, data_dir).map_err(failed)?;
    drop(lock);
    Ok(vec![
        format!("epoch {} of the cluster `{}` begins here as cluster {cluster}", state.members().epoch, meta.name),
        format!("{} jobs as of entry {}", state.jobs().count(), state.applied_index()),
        format!("this host is {host} `{host_name}`; its certificates are new: hosts join again, users get new tokens"),
        "if agents of the old cluster still run, stop them: what they run is placed here again once their leases are over"
            .to_owned(),
    ])
}

/// Makes identity and log beside their places.
async fn make(
    stage: &Path,
    (cluster_name, host_name): (&str, &str),
    (cluster, host): (ClusterId, HostId),
    state: &State,
    term: u64,
) -> Result<(), PublicError> {
    match std::fs::remove_dir_all(stage) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    found_as(stage, cluster_name, host_name, (cluster, host)).map_err(failed)?;
    offline::begin(&stage.join("raft"), cluster, host, state, term).await.map_err(failed)
}

fn take_places(stage: &Path, data_dir: &Path) -> std::io::Result<()> {
    for name in MADE {
        std::fs::rename(stage.join(name), data_dir.join(name))?;
    }
    std::fs::remove_dir(stage)?;
    sync_dir(data_dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::found_cluster;

    #[tokio::test]
    async fn what_is_no_backup_is_refused_and_what_is_none_of_a_cluster_too() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert!(open_backup(&file).unwrap_err().message.contains("file"));
        std::fs::write(&file, b"RTASNAP1 and so on, but no more than that, which is short").unwrap();
        let why = open_backup(&file).unwrap_err().message;
        assert!(why.contains("damaged"), "{why}");
        let empty = Backup { cluster: ClusterId(1), state: State::new(), term: 1 };
        assert!(restore(&empty, dir.path(), "n1", "127.0.0.1:1").await.is_err());
    }

    #[test]
    fn a_host_without_a_log_is_no_survivor() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Survivor::open(dir.path()).is_err());
        found_cluster(dir.path(), "lab", "n1").unwrap();
        assert!(Survivor::open(dir.path()).is_err());
        assert!(dir.path().join("identity").exists());
    }
}
