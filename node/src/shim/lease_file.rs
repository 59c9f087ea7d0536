//! The file by which the agent tells every shim of its host how long the lease holds. One per boot and epoch, so that
//! what an older boot or epoch granted can never look alive.
//!
//! Layout, little-endian: magic (8) | boot id (16) | epoch (8) | deadline in ms of `CLOCK_BOOTTIME` (8) | its bitwise
//! complement (8). A reader that meets a half-written deadline sees that the two disagree and looks again.

use rota_protocol::{BootId, LeaseEpoch};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const MAGIC: &[u8; 8] = b"RTALEAS1";
const DEADLINE_AT: u64 = 32;
const FILE_BYTES: usize = 48;
/// How often a half-written deadline is read again; a write takes far less than one read.
const READS_MAX: usize = 16;

/// The agent's end: writes the deadline, forward only.
#[derive(Debug)]
pub struct LeaseFile {
    path: PathBuf,
    file: File,
    deadline_ms: Mutex<u64>,
}

impl LeaseFile {
    /// Opens the file of this boot and epoch in `dir`, or makes it with a deadline in the past. A deadline that the
    /// agent's previous life wrote stays.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn open(dir: &Path, boot: &BootId, epoch: LeaseEpoch) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join(format!("{boot}-{epoch}"));
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let deadline_ms = match LeaseReader::check(&file, boot, epoch) {
            Ok(()) => read_deadline(&file)?.unwrap_or(0),
            Err(_) => {
                let mut bytes = Vec::with_capacity(FILE_BYTES);
                bytes.extend_from_slice(MAGIC);
                bytes.extend_from_slice(&boot.0.to_le_bytes());
                bytes.extend_from_slice(&epoch.0.to_le_bytes());
                bytes.extend_from_slice(&deadline_bytes(0));
                file.write_all_at(&bytes, 0)?;
                0
            }
        };
        Ok(Self { path, file, deadline_ms: Mutex::new(deadline_ms) })
    }

    /// Moves the deadline to `deadline_boot_ms` (ms of `CLOCK_BOOTTIME`); an earlier one changes nothing.
    ///
    /// # Errors
    /// Whatever the file system says; the shims then see the old deadline, which is safe.
    pub fn extend(&self, deadline_boot_ms: u64) -> io::Result<()> {
        let mut held = self.deadline_ms.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if deadline_boot_ms > *held {
            self.file.write_all_at(&deadline_bytes(deadline_boot_ms), DEADLINE_AT)?;
            *held = deadline_boot_ms;
        }
        Ok(())
    }

    /// What orders carry as `lease_path`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A shim's end: reads the deadline.
#[derive(Debug)]
pub struct LeaseReader {
    file: File,
    last_ms: u64,
}

impl LeaseReader {
    /// Opens the lease of exactly this boot and epoch.
    ///
    /// # Errors
    /// No such file, or it belongs to another boot or epoch.
    pub fn open(path: &Path, boot: &BootId, epoch: LeaseEpoch) -> io::Result<Self> {
        let file = File::open(path)?;
        Self::check(&file, boot, epoch)?;
        Ok(Self { file, last_ms: 0 })
    }

    /// The deadline in ms of `CLOCK_BOOTTIME`. What cannot be read counts as not extended.
    pub fn deadline_ms(&mut self) -> u64 {
        if let Ok(Some(deadline_ms)) = read_deadline(&self.file) {
            self.last_ms = self.last_ms.max(deadline_ms);
        }
        self.last_ms
    }

    fn check(file: &File, boot: &BootId, epoch: LeaseEpoch) -> io::Result<()> {
        let mut head = [0; DEADLINE_AT as usize];
        file.read_exact_at(&mut head, 0)?;
        let same =
            head[..8] == *MAGIC && head[8..24] == boot.0.to_le_bytes() && head[24..] == epoch.0.to_le_bytes();
        if same {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the lease is of another boot or epoch"))
        }
    }
}

fn deadline_bytes(deadline_ms: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&deadline_ms.to_le_bytes());
    bytes[8..].copy_from_slice(&(!deadline_ms).to_le_bytes());
    bytes
}

fn read_deadline(file: &File) -> io::Result<Option<u64>> {
    for _ in 0..READS_MAX {
        let mut bytes = [0; 16];
        file.read_exact_at(&mut bytes, DEADLINE_AT)?;
        let value = u128::from_le_bytes(bytes);
        let (low, high) = (value as u64, (value >> 64) as u64);
        if low == !high {
            return Ok(Some(low));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId(7);

    #[test]
    fn moves_forward_only_and_survives_a_restart_of_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let file = LeaseFile::open(dir.path(), &BOOT, LeaseEpoch(1)).unwrap();
        let mut reader = LeaseReader::open(file.path(), &BOOT, LeaseEpoch(1)).unwrap();
        assert_eq!(reader.deadline_ms(), 0);
        file.extend(500).unwrap();
        file.extend(400).unwrap();
        assert_eq!(reader.deadline_ms(), 500);
        drop(file);
        let file = LeaseFile::open(dir.path(), &BOOT, LeaseEpoch(1)).unwrap();
        file.extend(300).unwrap();
        assert_eq!(reader.deadline_ms(), 500);
        file.extend(u64::MAX).unwrap();
        assert_eq!(reader.deadline_ms(), u64::MAX);
    }

    #[test]
    fn another_boot_or_epoch_is_never_honoured() {
        let dir = tempfile::tempdir().unwrap();
        let file = LeaseFile::open(dir.path(), &BOOT, LeaseEpoch(1)).unwrap();
        file.extend(500).unwrap();
        assert!(LeaseReader::open(file.path(), &BootId(8), LeaseEpoch(1)).is_err(), "fault C4");
        assert!(LeaseReader::open(file.path(), &BOOT, LeaseEpoch(2)).is_err());
        let next = LeaseFile::open(dir.path(), &BOOT, LeaseEpoch(2)).unwrap();
        assert_ne!(next.path(), file.path());
        assert_eq!(LeaseReader::open(next.path(), &BOOT, LeaseEpoch(2)).unwrap().deadline_ms(), 0);
    }

    #[test]
    fn a_half_written_deadline_extends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = LeaseFile::open(dir.path(), &BOOT, LeaseEpoch(1)).unwrap();
        file.extend(500).unwrap();
        let mut reader = LeaseReader::open(file.path(), &BOOT, LeaseEpoch(1)).unwrap();
        assert_eq!(reader.deadline_ms(), 500);
        file.file.write_all_at(&900_u64.to_le_bytes(), DEADLINE_AT).unwrap();
        assert_eq!(reader.deadline_ms(), 500);
    }
}
