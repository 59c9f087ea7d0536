//! Terminals and what is typed into them: both ends of a pseudo terminal, and a queue of input that never blocks the shim.

use rota_protocol::session::TerminalSize;
use rota_protocol::spool::LaunchOrder;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize};

/// Typed bytes that wait for the program; past this the client is asked to wait.
const WAITING_BYTES_MAX: usize = 64 << 10;
/// Clients whose place in the input is remembered: more do not sit at one terminal.
const TYPISTS_MAX: usize = 16;

/// A pseudo terminal: the shim's end and the program's.
pub(super) struct Pair {
    pub(super) ours: OwnedFd,
    pub(super) theirs: OwnedFd,
}

/// What a terminal shows: the end that the shim reads, and the one that the task writes to.
pub(super) type Shown = (OwnedFd, OwnedFd);

/// A task's terminal, if one was ordered: where keys go, and what it shows.
pub(super) fn of(order: &LaunchOrder) -> Result<Option<(OwnedFd, Shown)>, String> {
    let Some(session) = order.life.session else { return Ok(None) };
    let failed = |error: std::io::Error| format!("cannot make a terminal: {error}");
    let Pair { ours, theirs } = open(session.size, order.uid_gid).map_err(|error| failed(error.into()))?;
    let reading = ours.try_clone().map_err(failed)?;
    Ok(Some((ours, (reading, theirs))))
}

/// Makes a terminal, and gives it to the task's user where the shim may.
pub(super) fn open(size: TerminalSize, uid_gid: Option<(u32, u32)>) -> rustix::io::Result<Pair> {
    // Close-on-exec: a copy in another task would keep this one's terminal open for ever.
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    if let Some((uid, gid)) = uid_gid {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        // Best effort: without it only programs that open their terminal by its name are refused.
        let _ = rustix::fs::fchown(&theirs, Some(uid), Some(gid));
    }
    rustix::io::ioctl_fionbio(&ours, true)?;
    resize(&ours, size);
    Ok(Pair { ours, theirs })
}

/// Another size; the kernel tells the program.
fn resize(terminal: &OwnedFd, size: TerminalSize) {
    let TerminalSize { rows, cols } = size;
    let _ = tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 });
}

/// What is typed, on its way into a program.
#[derive(Default)]
pub(super) struct Input {
    fd: Option<OwnedFd>,
    is_terminal: bool,
    waiting: Vec<u8>,
    /// Nothing follows on a pipe.
    last: bool,
    in_line: bool,
    /// Clients, the one that came last at the end.
    typists: Vec<Typist>,
}

/// One client's part of the input.
#[derive(Debug, Clone, Copy)]
struct Typist {
    client: u64,
    taken: u64,
    last: bool,
}

impl Input {
    /// Into a terminal, or into a pipe.
    pub(super) fn new(fd: OwnedFd, is_terminal: bool) -> Self {
        Self { fd: Some(fd), is_terminal, ..Self::default() }
    }

    /// Takes what is new of `bytes`, the first of which is the client's number `offset`, as far as there is room. Returns
    /// how many of the client's bytes were taken so far.
    pub(super) fn take(&mut self, client: u64, offset: u64, bytes: &[u8], last: bool) -> u64 {
        let known = self.typists.iter().position(|typist| typist.client == client);
        let mut typist = match known {
            Some(at) => self.typists.remove(at),
            None => Typist { client, taken: 0, last: false },
        };
        // A gap: what lies between was never seen, so this must come again, later.
        if offset <= typist.taken && !typist.last {
            let known = usize::try_from(typist.taken - offset).unwrap_or(usize::MAX);
            let fresh = bytes.get(known..).unwrap_or_default();
            let fresh = &fresh[..fresh.len().min(WAITING_BYTES_MAX.saturating_sub(self.waiting.len()))];
            self.waiting.extend_from_slice(fresh);
            if let Some(newest) = fresh.last() {
                self.in_line = *newest != b'\n';
            }
            typist.taken += fresh.len() as u64;
            typist.last = last && typist.taken >= offset.saturating_add(bytes.len() as u64);
            if typist.last {
                self.end();
            }
        }
        self.typists.push(typist);
        if self.typists.len() > TYPISTS_MAX {
            self.typists.remove(0);
        }
        self.flush();
        typist.taken
    }

    /// The window has another size.
    pub(super) fn resize(&self, size: TerminalSize) {
        if let Some(fd) = self.fd.as_ref().filter(|_| self.is_terminal) {
            resize(fd, size);
        }
    }

    /// To be waited for, when something could not be written yet.
    pub(super) fn blocked(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().filter(|_| !self.waiting.is_empty()).map(AsFd::as_fd)
    }

    /// Writes what the program can take.
    pub(super) fn flush(&mut self) {
        while let Some(fd) = self.fd.as_ref().filter(|_| !self.waiting.is_empty()) {
            match rustix::io::write(fd, &self.waiting) {
                Ok(0) | Err(Errno::AGAIN) => return,
                Ok(len) => drop(self.waiting.drain(..len)),
                Err(Errno::INTR) => {}
                // Nobody reads any more; what is typed is gone, as on any terminal.
                Err(_) => self.close(),
            }
        }
        if self.last {
            self.fd = None;
        }
    }

    /// A client types no more: a pipe is closed; a terminal that is read by lines is sent its own sign of that.
    fn end(&mut self) {
        if !self.is_terminal {
            self.last = true;
            return;
        }
        let Some(modes) = self.fd.as_ref().and_then(|fd| tcgetattr(fd).ok()) else { return };
        if modes.local_modes.contains(LocalModes::ICANON) {
            // In the middle of a line the first one only hands over what was typed.
            let signs = if self.in_line { 2 } else { 1 };
            let sign = modes.special_codes[SpecialCodeIndex::VEOF];
            self.waiting.extend(std::iter::repeat_n(sign, signs));
        }
    }

    /// Lets go of the terminal or pipe.
    pub(super) fn close(&mut self) {
        self.fd = None;
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn input() -> (Input, OwnedFd) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        (Input::new(writer, false), reader)
    }

    fn read(fd: &OwnedFd) -> Vec<u8> {
        let mut buffer = vec![0; 200_000];
        let len = rustix::io::read(fd, &mut buffer[..]).unwrap();
        buffer.truncate(len);
        buffer
    }

    #[test]
    fn what_is_sent_again_is_taken_once_and_a_gap_is_not_jumped() {
        let (mut input, reader) = input();
        input.take(1, 0, b"abc", false);
        input.take(1, 0, b"abc", false);
        input.take(1, 2, b"cde", false);
        assert_eq!(input.take(1, 9, b"gap", false), 5);
        input.take(1, 5, b"", true);
        assert_eq!(read(&reader), b"abcde");
        assert_eq!(read(&reader), b"", "the end is told");
        assert_eq!(input.take(1, 5, b"x", false), 5, "nothing follows the end");
    }

    #[test]
    fn two_clients_at_one_terminal_do_not_swallow_each_others_keys() {
        let (mut input, reader) = input();
        assert_eq!(input.take(1, 0, b"ab", false), 2);
        assert_eq!(input.take(2, 0, b"X", false), 1);
        assert_eq!(input.take(1, 2, b"c", false), 3);
        assert_eq!(input.take(2, 0, b"XY", false), 2);
        assert_eq!(read(&reader), b"abXcY");
    }

    #[test]
    fn a_program_that_does_not_read_makes_its_client_wait() {
        let (mut input, reader) = input();
        let many = vec![b'x'; 200_000];
        let first = input.take(1, 0, &many, true);
        assert!(first < 200_000, "{first}");
        // The pipe is full now, and then the queue is.
        let second = input.take(1, 0, &many, true);
        assert!(second > first && second < 200_000, "{second}");
        assert!(input.blocked().is_some());
        let mut got = 0;
        while got < 200_000 {
            input.flush();
            input.take(1, 0, &many, true);
            got += read(&reader).len();
        }
        assert_eq!(got, 200_000);
        input.flush();
        assert_eq!(read(&reader), b"");
    }

    #[test]
    fn a_terminal_tells_the_end_by_its_own_sign() {
        let size = TerminalSize { rows: 20, cols: 70 };
        let Pair { ours, theirs } = open(size, None).unwrap();
        let seen = rustix::termios::tcgetwinsize(&theirs).unwrap();
        assert_eq!((seen.ws_row, seen.ws_col), (20, 70));
        let mut input = Input::new(ours, true);
        input.take(1, 0, b"no newline", true);
        assert_eq!(read(&theirs), b"no newline");
        assert_eq!(read(&theirs), b"");
        input.resize(TerminalSize { rows: 5, cols: 6 });
        let seen = rustix::termios::tcgetwinsize(&theirs).unwrap();
        assert_eq!((seen.ws_row, seen.ws_col), (5, 6));
    }
}
