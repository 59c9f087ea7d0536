//! A stream's copy in a file of the user's own: opened with the rights of the task's user, written by a thread, so that
//! a file system that stands still never keeps the shim from ending its task. A slow one slows the task, as it would
//! if the task wrote there itself; one that refuses leaves a marker.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Stack of the writing thread, in bytes: it calls nothing deep.
const STACK_BYTES: usize = 128 << 10;
/// Bytes written at once.
const BLOCK_BYTES: usize = 64 << 10;
/// After the task's end, how long the rest may take to be written.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens a file for output as a user would: to its end, or emptied. The user is the task's; the agent's own where there
/// is none.
///
/// # Errors
/// The system refuses, or it is no file that can be written like one.
pub(super) fn open(path: &[u8], user: Option<(u32, u32)>, replace: bool) -> io::Result<File> {
    let path = Path::new(OsStr::from_bytes(path));
    let file = if geteuid().is_root() {
        match user {
            Some((uid, gid)) if uid != 0 => as_user(uid, gid, || open_plainly(path, true))?,
            _ => open_plainly(path, true),
        }
    } else {
        open_plainly(path, false)
    }?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_char_device() {
        return Err(io::Error::other("is no regular file"));
    }
    if replace && kind.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// `guarded`: who asks is not who opens. Neither the name itself nor a step to it may then be a link into what the
/// opening process has.
fn open_plainly(path: &Path, guarded: bool) -> io::Result<File> {
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::APPEND
        | OFlags::CLOEXEC
        | OFlags::NOCTTY
        // A FIFO without a reader is refused instead of waited for.
        | OFlags::NONBLOCK;
    let mode = Mode::from_raw_mode(0o644);
    if !guarded {
        return Ok(rustix::fs::open(path, flags, mode)?.into());
    }
    let flags = flags | OFlags::NOFOLLOW;
    let cwd = rustix::fs::CWD;
    let opened = match rustix::fs::openat2(cwd, path, flags, mode, ResolveFlags::NO_MAGICLINKS) {
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::open(path, flags, mode),
        other => other,
    };
    match opened {
        Ok(fd) => Ok(fd.into()),
        Err(Errno::LOOP) => Err(io::Error::other("is a symbolic link, which is not followed")),
        Err(error) => Err(error.into()),
    }
}

/// Does something with the rights of another user. Only of this thread, which must be the only one of its process.
fn as_user<T>(uid: u32, gid: u32, act: impl FnOnce() -> T) -> io::Result<T> {
    let (own_gid, own_groups) = (getegid(), getgroups()?);
    set_thread_groups(&[])?;
    set_thread_res_gid(None::<Gid>, Gid::from_raw(gid), None::<Gid>)?;
    set_thread_res_uid(None::<Uid>, Uid::from_raw(uid), None::<Uid>)?;
    let outcome = act();
    let back = set_thread_res_uid(None::<Uid>, Uid::ROOT, None::<Uid>)
        .and_then(|()| set_thread_res_gid(None::<Gid>, own_gid, None::<Gid>))
        .and_then(|()| set_thread_groups(&own_groups));
    if back.is_err() {
        // Half a user could neither keep the attempt nor end it.
        std::process::abort();
    }
    Ok(outcome)
}

/// The way to such a file.
#[derive(Debug)]
pub(super) struct Copy {
    pipe: OwnedFd,
    /// Taken, but not by the pipe yet.
    pending: Vec<u8>,
    thread: JoinHandle<()>,
}

impl Copy {
    /// Starts writing to `file`; `separator` comes first if the file holds something already.
    pub(super) fn start(file: File, separator: &[u8]) -> io::Result<Self> {
        let (reader, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let held = file.metadata()?;
        let first = if held.is_file() && held.len() > 0 { separator.to_vec() } else { Vec::new() };
        let thread = std::thread::Builder::new()
            .name("rota-copy".into())
            .stack_size(STACK_BYTES)
            .spawn(move || write_all(File::from(reader), file, &first))?;
        Ok(Self { pipe, pending: Vec::new(), thread })
    }

    /// Takes bytes. To be called only while nothing is pending.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        self.push();
    }

    /// What must become writable before more is taken.
    pub(super) fn blocked(&self) -> Option<BorrowedFd<'_>> {
        (!self.pending.is_empty()).then(|| self.pipe.as_fd())
    }

    /// Goes on with what is pending.
    pub(super) fn push(&mut self) {
        let mut done = 0;
        while done < self.pending.len() {
            match rustix::io::write(&self.pipe, &self.pending[done..]) {
                Ok(len) => done += len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The thread is gone: there is nobody who could write.
                Err(_) => done = self.pending.len(),
            }
        }
        self.pending.drain(..done);
    }

    /// Waits a while until all is written.
    pub(super) fn finish(mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.pending.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            self.push();
        }
        drop(self.pipe);
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The thread: until the pipe's other end is closed.
fn write_all(mut pipe: File, mut file: File, first: &[u8]) {
    let mut block = vec![0; BLOCK_BYTES];
    let mut lost: u64 = 0;
    let mut why = String::new();
    let _ = file.write_all(first);
    loop {
        let len = match pipe.read(&mut block) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        if lost > 0 {
            let marker = format!("\n[rota: {lost} bytes were not written here: {why}]\n");
            if file.write_all(marker.as_bytes()).is_ok() {
                lost = 0;
            }
        }
        if len == 0 {
            return;
        }
        if let Err(error) = file.write_all(&block[..len]) {
            lost += len as u64;
            why = error.to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    fn bytes(path: &Path) -> &[u8] {
        path.as_os_str().as_bytes()
    }

    #[test]
    fn a_file_is_gone_on_with_after_a_line_or_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        for (replace, wanted) in [(false, "one"), (false, "one\n--- 2\none"), (true, "one")] {
            let mut copy = Copy::start(open(bytes(&path), None, replace).unwrap(), b"\n--- 2\n").unwrap();
            copy.take(b"one");
            copy.finish();
            assert_eq!(text(&path), wanted);
        }
    }

    #[test]
    fn more_than_a_pipe_holds_comes_through_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut copy = Copy::start(open(bytes(&path), None, false).unwrap(), b"").unwrap();
        let all: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        for part in all.chunks(64 << 10) {
            while copy.blocked().is_some() {
                copy.push();
            }
            copy.take(part);
        }
        copy.finish();
        assert_eq!(std::fs::read(&path).unwrap(), all);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(open(bytes(&fifo), None, false).is_err(), "nobody would read it");
        assert!(open(bytes(dir.path()), None, false).is_err());
        assert!(open(b"/dev/null", None, true).is_ok());
        assert!(open(b"/no/such/folder/x", None, false).is_err());
    }
}
