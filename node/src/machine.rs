//! Which machine a data directory belongs to: written at the first start, compared at every other. Machines that were
//! started from one image, or a folder that was copied, must not both be one host (report R082).
//!
//! What this is not: proof. Two machines with one `/etc/machine-id` are not told apart here.

use crate::io::durable;
use ring::digest;
use std::io;
use std::path::{Path, PathBuf};

/// The record in the data directory: a hash of the machine's id, and its name for people.
const FILE: &str = "machine";
/// The id of an installation, kept by systemd and others; it is not to be shown to anybody.
const MACHINE_ID: &str = "/etc/machine-id";

/// Why an agent does not start here.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The folder was made elsewhere.
    #[error(
        "{} was made on the machine {then}, and this is {now}: two machines must not be one host. If it was copied, move it away \
         and run `rota join` here; if the host moved here for good and {then} stays off, run `rm {}`",
        dir.display(), dir.join(FILE).display()
    )]
    Elsewhere {
        /// The data directory.
        dir: PathBuf,
        /// The name of the machine then.
        then: String,
        /// The name of this one.
        now: String,
    },
    /// The record cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Checks a data directory, or marks it as this machine's if it has no mark yet. Machines without an id are not checked.
///
/// # Errors
/// It was made on another machine, or the disk refuses.
pub fn check(data: &Path) -> Result<(), MachineError> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match std::fs::read_to_string(MACHINE_ID) {
        Ok(id) if !id.trim().is_empty() => check_as(data, id.trim(), &name),
        _ => Ok(()),
    }
}

fn check_as(data: &Path, id: &str, name: &str) -> Result<(), MachineError> {
    let path = data.join(FILE);
    let hash = digest::digest(&digest::SHA256, format!("rota machine\0{id}").as_bytes());
    let hash: String = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let failed = |source| MachineError::Io { path: path.clone(), source };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let (then_hash, then) = text.trim().split_once(' ').unwrap_or((text.trim(), "another"));
            if then_hash == hash {
                return Ok(());
            }
            let (dir, then, now) = (data.to_owned(), then.to_owned(), name.to_owned());
            Err(MachineError::Elsewhere { dir, then, now })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            durable::write_atomic(&path, format!("{hash} {name}\n").as_bytes(), 0o600).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r082_a_folder_serves_one_machine_until_somebody_says_otherwise() {
        let data = tempfile::tempdir().unwrap();
        check_as(data.path(), "one", "gpu-1").unwrap();
        check_as(data.path(), "one", "renamed").unwrap();
        let kept = std::fs::read_to_string(data.path().join(FILE)).unwrap();
        assert!(!kept.contains("one") && kept.contains("gpu-1"), "{kept}");
        let error = check_as(data.path(), "two", "gpu-2").unwrap_err().to_string();
        for wanted in ["gpu-1", "gpu-2", "rota join", "rm "] {
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
        assert_eq!(
            std::fs::read_to_string(data.path().join(FILE)).unwrap(),
            kept,
            "a refusal changes nothing"
        );
        std::fs::remove_file(data.path().join(FILE)).unwrap();
        check_as(data.path(), "two", "gpu-2").unwrap();
        assert!(check_as(data.path(), "one", "gpu-1").is_err());
    }
}
