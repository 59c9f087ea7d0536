//! A stand-in for `/dev/kmsg`: a plain file (or a fifo) of records as the kernel writes them,
//! `priority,sequence,microseconds,flags;text`. A reader that fell behind sees that sequence numbers are missing, as
//! it does after the kernel's `EPIPE`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The writing end.
#[derive(Debug)]
pub struct Kmsg {
    path: PathBuf,
    file: File,
    next: u64,
}

impl Kmsg {
    /// Opens the file for more records, and makes it when there is none. A fifo opens as soon as somebody reads it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { path: path.to_owned(), file, next: 1 })
    }

    /// What the agent's `kmsg_path` must say.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one record of the driver's; gives its sequence number.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn line(&mut self, text: &str) -> io::Result<u64> {
        let sequence = self.next;
        self.next += 1;
        // One write, so that a reader never sees half of it.
        self.file.write_all(format!("4,{sequence},{},-;{text}\n", sequence * 1_000).as_bytes())?;
        Ok(sequence)
    }

    /// An Xid of the card at this PCI address (`0000:3b:00`), with the process if the driver knows it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn xid(&mut self, bus: &str, xid: u32, process: Option<(u32, &str)>, text: &str) -> io::Result<u64> {
        let who = process.map_or_else(
            || "pid='<unknown>', name=<unknown>".to_owned(),
            |(pid, name)| format!("pid={pid}, name={name}"),
        );
        self.line(&format!("NVRM: Xid (PCI:{bus}): {xid}, {who}, {text}"))
    }

    /// Records that the kernel threw away before anybody read them.
    pub fn overrun(&mut self, records: u64) {
        self.next += records;
    }
}
