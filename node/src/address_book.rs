//! Where the other hosts were last: a file beside the log, so that a cluster whose hosts all restart finds itself
//! again before anybody can tell anything. Hints only: who answers at an address is decided by its certificate.
//!
//! `<data>/peers`: one `<host> <address>` a line.

use crate::io::durable::write_atomic;
use rota_protocol::ids::HostId;
use std::io;
use std::path::{Path, PathBuf};

/// Largest file that is read: 10,000 hosts with long names.
const BYTES_MAX: usize = 4 << 20;

fn file(data_dir: &Path) -> PathBuf {
    data_dir.join("peers")
}

/// What was known last; nothing when there is no file or it cannot be read.
#[must_use]
pub fn load(data_dir: &Path) -> Vec<(HostId, String)> {
    let text = std::fs::read(file(data_dir)).unwrap_or_default();
    if text.len() > BYTES_MAX {
        return Vec::new();
    }
    String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| {
            let (host, addr) = line.split_once(' ')?;
            Some((HostId(host.parse().ok()?), addr.to_owned()))
        })
        .collect()
}

/// Replaces what is known.
///
/// # Errors
/// The disk refuses; the old file stays.
pub fn save(data_dir: &Path, peers: &[(HostId, String)]) -> io::Result<()> {
    let text: String = peers.iter().map(|(host, addr)| format!("{host} {addr}\n")).collect();
    write_atomic(&file(data_dir), text.as_bytes(), 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_loaded_and_rubbish_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()), []);
        let peers = vec![(HostId(2), "10.0.0.2:7420".to_owned()), (HostId(3), "[::1]:7420".to_owned())];
        save(dir.path(), &peers).unwrap();
        assert_eq!(load(dir.path()), peers);
        std::fs::write(file(dir.path()), b"\xff\n7\nx y\n4 host:1\n").unwrap();
        assert_eq!(load(dir.path()), [(HostId(4), "host:1".to_owned())]);
    }
}
