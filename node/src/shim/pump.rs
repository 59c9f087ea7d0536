//! One output stream of a task: from its pipe into its file. The file is made with the first byte. Past a limit, and
//! when the disk refuses, bytes are thrown away and counted: the task is neither blocked nor killed by its output.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// Longest stream that is kept, in bytes: more is a flood, and one job's flood must not fill the host's disk.
const STREAM_BYTES_MAX: u64 = 1 << 30;
/// Bytes moved at once: as much as a pipe holds.
pub(crate) const MOVE_BYTES: usize = 64 << 10;

/// One stream.
#[derive(Debug)]
pub(crate) struct Pump {
    pipe: Option<OwnedFd>,
    name: String,
    file: Option<File>,
    len: u64,
    dropped: u64,
}

impl Pump {
    pub(crate) fn new(pipe: OwnedFd, name: String) -> Self {
        Self { pipe: Some(pipe), name, file: None, len: 0, dropped: 0 }
    }

    /// The pipe, until the task has closed its end.
    pub(crate) fn pipe(&self) -> Option<&OwnedFd> {
        self.pipe.as_ref()
    }

    /// Bytes in the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes thrown away.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Moves what is there, at most one buffer full. To be called when the pipe is readable.
    pub(crate) fn move_some(&mut self, buffer: &mut [u8]) {
        let Some(pipe) = &self.pipe else { return };
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(0) => self.pipe = None,
            Ok(len) => self.keep(&buffer[..len]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.pipe = None,
        }
    }

    /// Moves all that is left, once no process of the attempt can write any more. A stranger that was handed the pipe
    /// is not waited for.
    pub(crate) fn finish(&mut self, buffer: &mut [u8]) {
        /// More than any pipe holds by default: a stranger that goes on writing cannot keep the shim here.
        const MOVES_MAX: usize = 64;
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..MOVES_MAX {
            let Some(pipe) = &self.pipe else { break };
            let mut fds = [PollFd::new(pipe, PollFlags::IN)];
            match poll(&mut fds, Some(&now)) {
                Ok(0) => break,
                Ok(_) => self.move_some(buffer),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.pipe = None;
        if self.dropped > 0 {
            let marker = format!("\n[rota: {} bytes of this output were not kept]\n", self.dropped);
            self.write(marker.as_bytes());
        }
    }

    /// Adds a line of Rota's own, such as why the program could not be run.
    pub(crate) fn say(&mut self, line: &str) {
        self.write(line.as_bytes());
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = usize::try_from(STREAM_BYTES_MAX.saturating_sub(self.len)).unwrap_or(usize::MAX);
        let kept = if self.dropped > 0 { 0 } else { self.write(&bytes[..bytes.len().min(room)]) };
        self.dropped += (bytes.len() - kept) as u64;
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
                Ok(0) => break,
                Ok(len) => written += len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.len += written as u64;
        written
    }
}
