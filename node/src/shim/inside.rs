//! One command inside a running attempt: a further child of the shim, so that it has what the task has, dies with it and
//! keeps it from being over; with its input, its output files and its end.

use super::program::{Birth, NotRun, Streams, run_program};
use super::spill::{MOVE_BYTES, Spill};
use super::terminal::{self, Input, Pair};
use rota_protocol::Token;
use rota_protocol::session::{SessionEnd, TerminalSize};
use rota_protocol::spool::LaunchOrder;
use rustix::fd::BorrowedFd;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitStatus};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// The beginning of the names of a session's files, in the attempts folder.
pub(crate) fn files_base(token: Token, session: u64) -> String {
    format!("{token}.x{session:016x}")
}

/// A command inside an attempt.
pub(super) struct Inside {
    base: String,
    pid: Option<Pid>,
    pub(super) input: Input,
    /// Standard output and error; of a terminal, only the first.
    outputs: Vec<Spill>,
    pub(super) end: Option<SessionEnd>,
    /// Hung up when its client is silent until then, ms on the shim's clock.
    pub(super) held_until_ms: u64,
    pub(super) kill_at_ms: Option<u64>,
}

impl Inside {
    /// Starts a command.
    pub(super) fn start(
        order: &LaunchOrder,
        oom_default: bool,
        birth: Birth<'_>,
        base: String,
        terminal: Option<TerminalSize>,
    ) -> Result<Self, String> {
        let io = |error: rustix::io::Errno| format!("cannot make its terminal or pipes: {error}");
        let (input, outputs, pid) = match terminal {
            Some(size) => {
                let Pair { ours, theirs } = terminal::open(size, order.uid_gid).map_err(io)?;
                let reading = ours.try_clone().map_err(|error| error.to_string())?;
                let streams =
                    Streams { stdin: Some(&theirs), stdout: &theirs, stderr: &theirs, terminal: true };
                let pid = run_program(order, oom_default, birth, streams).map_err(words)?;
                (Input::new(ours, true), vec![Spill::new(reading, format!("{base}.stdout"))], pid)
            }
            None => {
                let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(io);
                let ((stdin, feed), (out, stdout), (err, stderr)) = (pipe()?, pipe()?, pipe()?);
                rustix::io::ioctl_fionbio(&feed, true).map_err(io)?;
                let streams =
                    Streams { stdin: Some(&stdin), stdout: &stdout, stderr: &stderr, terminal: false };
                let pid = run_program(order, oom_default, birth, streams).map_err(words)?;
                let outputs = vec![
                    Spill::new(out, format!("{base}.stdout")),
                    Spill::new(err, format!("{base}.stderr")),
                ];
                (Input::new(feed, false), outputs, pid)
            }
        };
        Ok(Self { base, pid: Some(pid), input, outputs, end: None, held_until_ms: 0, kill_at_ms: None })
    }

    /// One that could not be started.
    pub(super) fn not_started(base: String, reason: String) -> Self {
        let (input, outputs) = (Input::default(), Vec::new());
        let mut inside =
            Self { base, pid: None, input, outputs, end: None, held_until_ms: 0, kill_at_ms: None };
        inside.ended(SessionEnd::NotStarted { reason });
        inside
    }

    /// Its process, until it was reaped.
    pub(super) fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// Bytes of standard output and of standard error.
    pub(super) fn lens(&self) -> [u64; 2] {
        [0, 1].map(|at| self.outputs.get(at).map_or(0, Spill::len))
    }

    /// What there is to wait for.
    pub(super) fn outputs(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.outputs.iter().filter_map(Spill::source)
    }

    /// Moves what the readable ones have: flags in the order of [`Self::outputs`].
    pub(super) fn move_some(&mut self, ready: &mut impl Iterator<Item = bool>, buffer: &mut Vec<u8>) {
        for spill in self.outputs.iter_mut().filter(|spill| spill.source().is_some()) {
            if ready.next() == Some(true) {
                buffer.resize(MOVE_BYTES, 0);
                spill.move_some(buffer);
            }
        }
    }

    /// Its process was reaped. What it wrote is in the files before its end is.
    pub(super) fn reaped(&mut self, status: WaitStatus, buffer: &mut Vec<u8>) {
        let byte = |n: i32| u8::try_from(n).unwrap_or(u8::MAX);
        self.finish(buffer);
        self.pid = None;
        self.ended(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => SessionEnd::Exited { code: byte(code) },
            (None, Some(signal)) => SessionEnd::Signalled { signal: byte(signal) },
            (None, None) => SessionEnd::WithTask,
        });
    }

    /// The attempt is over, and this with it.
    pub(super) fn over(&mut self, buffer: &mut Vec<u8>) {
        if self.end.is_none() {
            self.finish(buffer);
            self.pid = None;
            self.ended(SessionEnd::WithTask);
        }
    }

    /// Removes its files.
    pub(super) fn forget(&self) {
        for name in ["stdout", "stderr", "end"] {
            let _ = std::fs::remove_file(format!("{}.{name}", self.base));
        }
    }

    fn finish(&mut self, buffer: &mut Vec<u8>) {
        buffer.resize(MOVE_BYTES, 0);
        for spill in self.outputs.iter_mut().filter(|spill| spill.source().is_some()) {
            spill.finish(buffer);
        }
        // The last hold on a terminal: what still runs on it is hung up by the kernel.
        self.input.close();
    }

    /// The end lies in a file of its own, moved into place as a whole.
    fn ended(&mut self, end: SessionEnd) {
        let write = || -> std::io::Result<()> {
            let bytes = rota_protocol::codec::encode(&end).map_err(std::io::Error::other)?;
            let fresh = format!("{}.new", self.base);
            let mut file: File =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&bytes)?;
            std::fs::rename(&fresh, format!("{}.end", self.base))
        };
        // On a full disk the answers of the shim still say it.
        let _ = write();
        self.end = Some(end);
    }
}

fn words(failed: NotRun) -> String {
    match failed {
        NotRun::Program(_, line) => line.trim_start_matches("rota: ").trim_end().to_owned(),
        NotRun::Job(_, reason) | NotRun::Host(reason) => reason,
    }
}
