//! Whether the data directory can speak for its host: removed, copied, wiped, mixed up or damaged data, each with what
//! it means and the next step. Reads only, and only while no agent writes there.

use super::{fail, pass};
use crate::members::{door, life, removed_path};
use crate::net::Identity;
use rota_consensus::{LogError, SnapshotFault, StartError, offline};
use rota_protocol::view::DoctorRow;
use std::path::Path;

const CHECK: &str = "membership";
const LOG: &str = "log";
const REPLACE: &str = "`rota join --replace HOST:PORT` with a new join token: this machine becomes a new host, its data is set aside";

/// Rows of a host that belongs to a cluster; none otherwise.
pub(super) fn rows(data_dir: &Path, agent: bool) -> Vec<DoctorRow> {
    let note = |path: &Path| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
    if let Ok(why) = note(&removed_path(data_dir)) {
        return vec![fail(CHECK, why, REPLACE)];
    }
    let Ok(identity) = Identity::load(data_dir) else {
        // The identity's own rows say why.
        return Vec::new();
    };
    if agent {
        return vec![pass(CHECK, "an agent speaks for this host")];
    }
    let mut rows = Vec::new();
    if let Ok(why) = note(&door::note_path(data_dir)) {
        let next = format!("stop the other if this is the true one, and start it again; else {REPLACE}");
        rows.push(fail(CHECK, format!("the other hosts did not let the last agent in: {why}"), next));
    }
    match life::load(data_dir, &identity) {
        Ok(None) => return rows,
        Ok(Some(known)) if rows.is_empty() => {
            rows.push(pass(
                CHECK,
                format!("host {}, started {} times on this data", identity.host, known.starts),
            ));
        }
        Ok(Some(_)) => {}
        Err(error) => rows.push(fail(CHECK, error.to_string(), REPLACE)),
    }
    rows.push(match offline::read(&data_dir.join("raft"), identity.cluster, identity.host) {
        Ok(found) => pass(LOG, format!("sound up to entry {}", found.state.applied_index())),
        Err(error) => explain(&error),
    });
    rows
}

/// What an error of the log means.
fn explain(error: &StartError) -> DoctorRow {
    let found = error.to_string();
    match error {
        StartError::Log(LogError::Damaged { .. }) | StartError::Snapshot(SnapshotFault::Damaged(_)) => {
            let next = format!(
                "the disk lost or changed what was durable, so this host must not vote any more: check the disk, then {REPLACE}; \
                 if the majority is damaged, `rota cluster recover` on the host that is soundest"
            );
            fail(LOG, found, next)
        }
        StartError::Log(LogError::Wiped { .. }) => fail(LOG, found, REPLACE),
        StartError::Log(LogError::Foreign { .. }) | StartError::Snapshot(SnapshotFault::Foreign(_)) => {
            fail(LOG, found, format!("data of two hosts is mixed: put each where it belongs, or {REPLACE}"))
        }
        StartError::Log(LogError::Format { .. })
        | StartError::Snapshot(SnapshotFault::Format(_) | SnapshotFault::Newer { .. }) => {
            fail(LOG, found, "a newer version wrote it: install that version again")
        }
        StartError::Log(LogError::Io { .. }) | StartError::Snapshot(SnapshotFault::Io(_)) => {
            fail(LOG, found, "check the disk and the rights on the data directory")
        }
        StartError::Config(_) | StartError::Raft(_) => fail(LOG, found, REPLACE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::found_cluster;

    #[test]
    fn each_trouble_has_its_own_row_and_a_next_step() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(rows(dir.path(), false), []);
        let identity = found_cluster(dir.path(), "lab", "h1").unwrap();
        assert_eq!(rows(dir.path(), false), [], "an agent has never run");
        let start = life::next(dir.path(), &identity).unwrap();
        life::save(dir.path(), &identity, &start).unwrap();
        let wiped = rows(dir.path(), false);
        assert!(wiped[1].found.contains("is gone") && wiped[1].next.is_some(), "{wiped:?}");
        std::fs::write(door::note_path(dir.path()), "a copy was started since\n").unwrap();
        let copied = rows(dir.path(), false);
        assert!(copied[0].found.contains("a copy was started since"), "{copied:?}");
        std::fs::write(removed_path(dir.path()), "removed by root: burnt\n").unwrap();
        let removed = rows(dir.path(), false);
        assert_eq!((removed.len(), removed[0].verdict.as_str()), (1, "fail"));
    }
}
