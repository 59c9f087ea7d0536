//! The three standard streams of an attempt: two pumps, and an input that is there as a whole before the task starts.

use super::copy::{self, Copy};
use super::program::launch_failed;
use super::pump::{MOVE_BYTES, Pump};
use super::spool::{Limits, Spool};
use rota_protocol::api::OutputStream;
use rota_protocol::job::AttemptEnd;
use rota_protocol::spool::LaunchOrder;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::PathBuf;

/// A shell's code for what cannot be carried out.
const CODE_CANNOT: u8 = 126;

/// Standard output and standard error.
#[derive(Debug)]
pub(super) struct Streams {
    pumps: [Pump; 2],
    buffer: Vec<u8>,
}

/// The ends of the pipes that become the task's own.
pub(super) type Ends = [OwnedFd; 2];

impl Streams {
    /// Makes pipes and opens the user's files. Of a terminal, the ends that are read and written are standard output.
    ///
    /// # Errors
    /// How the attempt ends instead, and how many bytes standard error has.
    pub(super) fn open(
        order: &LaunchOrder,
        terminal: Option<(OwnedFd, OwnedFd)>,
    ) -> Result<(Self, Ends), (AttemptEnd, u64)> {
        let hosts = |error: io::Error| (launch_failed(format!("cannot make a pipe: {error}")), 0);
        let files = match user_files(order) {
            Ok(files) => files,
            Err(line) => {
                let mut spool = spool(order, OutputStream::Stderr);
                spool.write(line.as_bytes(), 0);
                return Err((AttemptEnd::Exited { code: CODE_CANNOT }, spool.len()));
            }
        };
        let [stdout, stderr] = files;
        let separator = &order.output.separator;
        // What both streams go to begins once.
        let shared = order.output.stderr.is_empty();
        let (stdout, stdout_end) =
            pumped(order, OutputStream::Stdout, terminal, stdout, separator).map_err(hosts)?;
        let separator = if shared { b"" } else { &separator[..] };
        let (stderr, stderr_end) =
            pumped(order, OutputStream::Stderr, None, stderr, separator).map_err(hosts)?;
        Ok((Self { pumps: [stdout, stderr], buffer: Vec::new() }, [stdout_end, stderr_end]))
    }

    /// Adds what the streams wait for. Returns the positions.
    pub(super) fn watch<'f>(&'f self, fds: &mut Vec<PollFd<'f>>) -> [Option<usize>; 2] {
        let mut add = |at: usize| {
            let (fd, flags): (_, PollFlags) = self.pumps[at].waits_for()?;
            fds.push(PollFd::from_borrowed_fd(fd, flags));
            Some(fds.len() - 1)
        };
        [add(0), add(1)]
    }

    /// Moves what is there on those streams that are ready.
    pub(super) fn go_on(&mut self, ready: [bool; 2]) {
        for (pump, _) in self.pumps.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            self.buffer.resize(MOVE_BYTES, 0);
            pump.move_some(&mut self.buffer);
        }
    }

    /// Moves all that is left.
    pub(super) fn finish(&mut self) {
        for pump in self.pumps.iter_mut() {
            if pump.waits_for().is_some() {
                self.buffer.resize(MOVE_BYTES, 0);
            }
            pump.finish(&mut self.buffer);
        }
    }

    /// Adds a line of Rota's own to standard error, at the end of all that comes. Returns its length then.
    pub(super) fn last_word(&mut self, line: &str) -> u64 {
        self.pumps[1].say(line);
        self.finish();
        self.pumps[1].len()
    }

    /// Adds a line of Rota's own to standard output.
    pub(super) fn say(&mut self, line: &str) {
        self.pumps[0].say(line);
    }

    /// Lengths of standard output and standard error.
    pub(super) fn lens(&self) -> [u64; 2] {
        [self.pumps[0].len(), self.pumps[1].len()]
    }

    /// Bytes of both that are not kept.
    pub(super) fn dropped(&self) -> u64 {
        self.pumps.iter().map(Pump::dropped).sum()
    }
}

fn spool(order: &LaunchOrder, stream: OutputStream) -> Spool {
    let limits = Limits::new(order.output.bytes_max, order.output.rate_bytes);
    // The working directory of a shim is the attempts folder.
    Spool::new(PathBuf::new(), order.token, stream, limits)
}

fn pumped(
    order: &LaunchOrder,
    stream: OutputStream,
    ends: Option<(OwnedFd, OwnedFd)>,
    file: Option<File>,
    separator: &[u8],
) -> io::Result<(Pump, OwnedFd)> {
    let (source, end) = match ends {
        Some(ends) => ends,
        None => pipe_with(PipeFlags::CLOEXEC)?,
    };
    let copy = file.map(|file| Copy::start(file, separator)).transpose()?;
    Ok((Pump::new(source, spool(order, stream), copy), end))
}

/// The files that the user named, or a line that says which of them cannot be had. Opened before the lease is looked
/// at for the last time: a file system may take its time.
fn user_files(order: &LaunchOrder) -> Result<[Option<File>; 2], String> {
    let output = &order.output;
    let open = |path: &[u8], replace| {
        copy::open(path, order.uid_gid, replace).map_err(|error| {
            format!("rota: cannot write output to {}: {error}\n", String::from_utf8_lossy(path))
        })
    };
    let stdout = match &output.stdout[..] {
        b"" => None,
        path => Some(open(path, output.replace)?),
    };
    let stderr = match (&output.stderr[..], &stdout) {
        (b"", None) => None,
        (b"", Some(file)) => Some(file.try_clone().map_err(|error| format!("rota: {error}\n"))?),
        (path, _) => Some(open(path, output.replace && path != output.stdout)?),
    };
    Ok([stdout, stderr])
}

/// Makes `stdin` this process's standard input, for the task to inherit: a file in memory that nobody can change, so
/// that every attempt reads the same, to an end.
pub(super) fn give_input(stdin: &[u8]) -> io::Result<()> {
    if stdin.is_empty() {
        return Ok(());
    }
    let fd = rustix::fs::memfd_create("rota-stdin", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(stdin)?;
    file.rewind()?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    rustix::stdio::dup2_stdin(&file)?;
    Ok(())
}

/// This process's own standard input again.
pub(super) fn take_input_back() -> io::Result<()> {
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(())
}
