//! One output stream of a task: from whatever it comes out of, a pipe or a terminal, to the host's disk and, if the user
//! named a file, to that as well.

use super::copy::Copy;
use super::spool::Spool;
use crate::io::clock::boottime_ms;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// Bytes moved at once: as much as a pipe holds.
pub(crate) const MOVE_BYTES: usize = 64 << 10;

/// One stream.
#[derive(Debug)]
pub(crate) struct Pump {
    source: Option<OwnedFd>,
    spool: Spool,
    copy: Option<Copy>,
}

impl Pump {
    /// A pump from any descriptor that can be read; its end, or any error, ends the stream.
    pub(super) fn new(source: OwnedFd, spool: Spool, copy: Option<Copy>) -> Self {
        Self { source: Some(source), spool, copy }
    }

    /// What it waits for, until the task has closed its end.
    pub(crate) fn waits_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let source = self.source.as_ref()?;
        match self.copy.as_ref().and_then(Copy::blocked) {
            Some(copy) => Some((copy, PollFlags::OUT)),
            None => Some((source.as_fd(), PollFlags::IN)),
        }
    }

    /// Length of the stream.
    pub(crate) fn len(&self) -> u64 {
        self.spool.len()
    }

    /// Bytes of it that are not kept.
    pub(crate) fn dropped(&self) -> u64 {
        self.spool.dropped()
    }

    /// Moves what is there, at most one buffer full. To be called when what it waits for has happened.
    pub(crate) fn move_some(&mut self, buffer: &mut [u8]) {
        if let Some(copy) = &mut self.copy {
            copy.push();
            if copy.blocked().is_some() {
                return;
            }
        }
        let Some(source) = &self.source else { return };
        match rustix::io::read(source, &mut *buffer) {
            Ok(0) => self.source = None,
            Ok(len) => self.take(&buffer[..len]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.source = None,
        }
    }

    /// Moves all that is left, once no process of the attempt can write any more. A stranger that was handed the pipe
    /// is not waited for.
    pub(crate) fn finish(&mut self, buffer: &mut [u8]) {
        /// More than any pipe holds by default: a stranger that goes on writing cannot keep the shim here.
        const MOVES_MAX: usize = 64;
        /// A user's file that does not take more is left alone after so many ms.
        const BLOCKED_MS: u32 = 500;
        for _ in 0..MOVES_MAX {
            let Some((fd, flags)) = self.waits_for() else { break };
            let ms = if flags == PollFlags::OUT { BLOCKED_MS } else { 0 };
            let wait = super::timer::timespec(u64::from(ms));
            let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
            match poll(&mut fds, Some(&wait)) {
                // The user's file stands still: the host's own copy goes on without it.
                Ok(0) if flags == PollFlags::OUT => self.copy = None,
                Ok(0) => break,
                Ok(_) => self.move_some(buffer),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.source = None;
        if let Some(copy) = self.copy.take() {
            copy.finish();
        }
    }

    /// Adds a line of Rota's own, such as why the program could not be run.
    pub(crate) fn say(&mut self, line: &str) {
        self.take(line.as_bytes());
    }

    fn take(&mut self, bytes: &[u8]) {
        self.spool.write(bytes, boottime_ms());
        if let Some(copy) = &mut self.copy {
            copy.take(bytes);
        }
    }
}
