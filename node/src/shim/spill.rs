//! One output of a command inside an attempt: from its pipe or terminal into a file, for its client to fetch. Unlike a
//! task's output it is gone when it was fetched, so that it has one rule: past a length, and when the disk refuses, bytes
//! are thrown away, and the file says how many.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// Longest output that is kept, in bytes.
const BYTES_MAX: u64 = 1 << 30;
/// Bytes moved at once: as much as a pipe holds.
pub(super) const MOVE_BYTES: usize = 64 << 10;

/// One output.
pub(super) struct Spill {
    source: Option<OwnedFd>,
    name: String,
    file: Option<File>,
    len: u64,
    dropped: u64,
}

impl Spill {
    /// From a descriptor into a file of this name, made with the first byte.
    pub(super) fn new(source: OwnedFd, name: String) -> Self {
        Self { source: Some(source), name, file: None, len: 0, dropped: 0 }
    }

    /// To be read from, until its other end is closed.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(AsFd::as_fd)
    }

    /// Bytes in the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Moves what is there, at most one buffer full.
    pub(super) fn move_some(&mut self, buffer: &mut [u8]) {
        let Some(source) = &self.source else { return };
        match rustix::io::read(source, &mut *buffer) {
            Ok(len) if len > 0 => {
                let room = usize::try_from(BYTES_MAX.saturating_sub(self.len)).unwrap_or(usize::MAX);
                let kept = if self.dropped > 0 { 0 } else { self.write(&buffer[..len.min(room)]) };
                self.dropped += (len - kept) as u64;
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(_) | Err(_) => self.source = None,
        }
    }

    /// Moves all that is left; a stranger that was handed the other end is not waited for.
    pub(super) fn finish(&mut self, buffer: &mut [u8]) {
        /// More than any pipe holds by default.
        const MOVES_MAX: usize = 64;
        for _ in 0..MOVES_MAX {
            let Some(source) = &self.source else { break };
            let mut fds = [PollFd::new(source, PollFlags::IN)];
            match poll(&mut fds, Some(&super::timer::timespec(0))) {
                Ok(0) => break,
                Ok(_) => self.move_some(buffer),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.source = None;
        if self.dropped > 0 {
            let line = format!("\n[rota: {} bytes of this output were not kept]\n", self.dropped);
            self.write(line.as_bytes());
        }
    }

    /// How many bytes reached the file.
    fn write(&mut self, bytes: &[u8]) -> usize {
        if self.file.is_none() {
            self.file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.name).ok();
        }
        let Some(file) = &mut self.file else { return 0 };
        let mut written = 0;
        while written < bytes.len() {
            match file.write(&bytes[written..]) {
                Ok(len) if len > 0 => written += len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => break,
            }
        }
        self.len += written as u64;
        written
    }
}
