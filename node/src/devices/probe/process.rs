//! A provider in a process of its own. A call that hangs in the kernel costs that process, never the agent; a library that
//! was replaced, or a driver that was changed under it, is met afresh by the next one (fault G5).

use super::source::Source;
use super::wire::{self, LENGTH_BYTES, Order, Question, Step, Told};
use super::{PROBE_ARG, Silence};
use crate::devices::Progress;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Between the polite signal and the other one: a driver gets the chance to let a card go in order (fault G12).
const KILL_AFTER: Duration = Duration::from_millis(500);

/// Looks, 1 ms apart, at whether a process that nobody will ask again has ended.
const FAREWELL_LOOKS: u32 = 200;

/// The program that is a probe when it is started with [`PROBE_ARG`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its file.
    pub file: PathBuf,
    /// What it wants to hear before the argument.
    pub args: Vec<OsString>,
}

/// A running probe process.
pub(super) struct Process {
    child: Child,
    stream: UnixStream,
    heard: Vec<u8>,
    number: u64,
    /// A question was begun and not written to its end: its asker went away.
    torn: bool,
}

/// One that nobody asks any more.
pub(super) struct Leaving {
    child: Child,
    since: Instant,
    killed: bool,
}

impl Process {
    pub(super) fn start(program: &Program, source: &Source) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let stream = UnixStream::from_std(ours)?;
        let child = Command::new(&program.file)
            .args(&program.args)
            .arg(PROBE_ARG)
            .args(source.args())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Vendor libraries write where they like.
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;
        Ok(Self { child, stream, heard: Vec::new(), number: 0, torn: false })
    }

    /// Asks, and notes each step in `progress`. Gives the last step.
    pub(super) async fn ask(
        &mut self,
        order: Order,
        deadline: Duration,
        progress: &Progress,
    ) -> Result<Told, Silence> {
        match tokio::time::timeout(deadline, self.exchange(order, progress)).await {
            Ok(Ok(told)) => Ok(told),
            Ok(Err(error)) => {
                tracing::warn!(%error, pid = self.child.id(), "a probe process broke off");
                Err(Silence::Died)
            }
            Err(_) => Err(Silence::Deadline),
        }
    }

    async fn exchange(&mut self, order: Order, progress: &Progress) -> io::Result<Told> {
        if self.torn {
            return Err(io::Error::other("an earlier question was not written to its end"));
        }
        self.number += 1;
        let (skip, last) = progress.apart();
        let question = wire::frame(&Question { number: self.number, order, skip, last })?;
        self.torn = true;
        self.stream.write_all(&question).await?;
        self.torn = false;
        loop {
            let step: Step = self.next().await?;
            if step.number != self.number {
                continue;
            }
            match step.told {
                Told::Asking(uuid) => progress.asking(&uuid),
                Told::Answered(part) => progress.answered(&part),
                end @ (Told::Found(_) | Told::Readings(_)) => return Ok(end),
            }
        }
    }

    /// The next whole frame. What was read of it is kept when the asker goes away.
    async fn next(&mut self) -> io::Result<Step> {
        loop {
            if let Some((head, rest)) = self.heard.split_first_chunk::<LENGTH_BYTES>() {
                let length = wire::length(*head)?;
                if let Some(body) = rest.get(..length) {
                    let step = wire::value(body);
                    self.heard.drain(..LENGTH_BYTES + length);
                    return step;
                }
            }
            if self.stream.read_buf(&mut self.heard).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Whether it has ended by itself.
    pub(super) fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it no more: it ends in order when it sees the stream closed.
    pub(super) fn dismiss(self) -> Leaving {
        Leaving { child: self.child, since: Instant::now(), killed: false }
    }

    /// Asks it no more, and tells it to end.
    pub(super) fn abandon(self) -> Leaving {
        let leaving = self.dismiss();
        leaving.signal(Signal::TERM);
        leaving
    }
}

impl Leaving {
    /// Whether it is gone. One that does not go is killed; one that hangs in the kernel goes when the driver lets it.
    pub(super) fn is_gone(&mut self) -> bool {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return true;
        }
        if !self.killed && self.since.elapsed() >= KILL_AFTER {
            self.killed = true;
            self.signal(Signal::KILL);
        }
        false
    }

    /// Not reaped yet, so that the number is still its own.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Leaving {
    /// Nobody is left to look after it: a moment to end in order, then the other signal. What hangs in the kernel is left.
    fn drop(&mut self) {
        for look in 0..FAREWELL_LOOKS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            if look == FAREWELL_LOOKS / 2 {
                self.signal(Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
