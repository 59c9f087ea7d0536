//! Reads the kernel's log as it is written: `/dev/kmsg`, or a file or fifo that stands for it. A thread of its own, which
//! tells lines and that some were lost; it decides nothing.
//!
//! The kernel keeps old lines, and a reader begins with the oldest. What was acted upon before must not be acted upon
//! again: the caller says which record it had come to in this boot, and without that reading begins at the end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use rustix::io::{Errno, read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long one wait for a line lasts; a file that cannot be waited for is looked at so often.
const WAIT: Duration = Duration::from_millis(50);
/// The pause before another try to open it.
const OPEN_AGAIN: Duration = Duration::from_secs(5);
/// Longest run without an end of line, in bytes: what is longer is no line.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// What is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// One line. `old` ones were there before reading began.
    Line {
        /// Without its end.
        bytes: Vec<u8>,
        /// Written before.
        old: bool,
    },
    /// Lines were thrown away before they could be read.
    Overrun,
    /// It can be read, or can no longer be read and why.
    Opened(Result<(), String>),
}

/// Starts reading. The thread ends when `tell` says so (false) at the next thing it has to tell.
///
/// # Errors
/// No thread can be started.
pub fn follow(
    path: PathBuf,
    from_start: bool,
    mut tell: impl FnMut(Told) -> bool + Send + 'static,
) -> std::io::Result<()> {
    let run = move || {
        let mut from_start = from_start;
        loop {
            match begin(&path, from_start) {
                Ok(file) => {
                    if !tell(Told::Opened(Ok(()))) || !read_on(&file, from_start, &mut tell) {
                        return;
                    }
                    // It was taken away, or failed: what comes next is new.
                    from_start = false;
                }
                Err(errno) => {
                    let why = format!("{}: {}", path.display(), std::io::Error::from(errno));
                    if !tell(Told::Opened(Err(why))) {
                        return;
                    }
                }
            }
            std::thread::sleep(OPEN_AGAIN);
        }
    };
    std::thread::Builder::new().name("kmsg".into()).spawn(run).map(drop)
}

fn begin(path: &Path, from_start: bool) -> Result<OwnedFd, Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    if !from_start {
        // A fifo has no end to go to.
        let _ = seek(&file, SeekFrom::End(0));
    }
    Ok(file)
}

/// Reads until it can no longer be read; false when nobody wants to hear any more.
fn read_on(file: &OwnedFd, from_start: bool, tell: &mut impl FnMut(Told) -> bool) -> bool {
    let mut old = from_start;
    let mut pending: Vec<u8> = Vec::new();
    let mut buffer = vec![0_u8; 16 << 10];
    loop {
        match read(file, &mut buffer) {
            Ok(0) | Err(Errno::AGAIN) => {
                old = false;
                if !wait(file) {
                    return false;
                }
            }
            Ok(count) => {
                pending.extend_from_slice(&buffer[..count]);
                while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    let bytes = pending.drain(..=end).take(end).collect();
                    if !tell(Told::Line { bytes, old }) {
                        return false;
                    }
                }
                if pending.len() > PENDING_BYTES_MAX {
                    pending.clear();
                }
            }
            // The ring went round: the next read gives the oldest record that is left.
            Err(Errno::PIPE) => {
                if !tell(Told::Overrun) {
                    return false;
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return tell(Told::Opened(Err(std::io::Error::from(errno).to_string()))),
        }
    }
}

/// Waits for more; a plain file is always ready and never has more at once, so it is waited for by the clock.
fn wait(file: &OwnedFd) -> bool {
    let timeout = Timespec { tv_sec: 0, tv_nsec: WAIT.subsec_nanos().into() };
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0;
    if ready {
        std::thread::sleep(WAIT);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::mpsc;

    #[test]
    fn lines_are_told_as_they_come_and_old_ones_are_called_so() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("kmsg");
        std::fs::write(&path, "old\n").expect("written");
        for (from_start, expected) in
            [(true, vec![("old", true), ("new", false)]), (false, vec![("new", false)])]
        {
            std::fs::write(&path, "old\n").expect("written");
            let (sender, told) = mpsc::channel();
            follow(path.clone(), from_start, move |one| sender.send(one).is_ok()).expect("a thread");
            assert_eq!(told.recv(), Ok(Told::Opened(Ok(()))));
            std::thread::sleep(WAIT * 4);
            let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("there");
            file.write_all(b"ne").expect("written");
            file.write_all(b"w\n").expect("written");
            for (text, old) in expected {
                let line = told.recv_timeout(Duration::from_secs(10)).expect("told");
                assert_eq!(line, Told::Line { bytes: text.as_bytes().to_vec(), old });
            }
        }
    }

    #[test]
    fn what_cannot_be_opened_is_told() {
        let (sender, told) = mpsc::channel();
        follow("/nowhere/kmsg".into(), false, move |one| sender.send(one).is_ok()).expect("a thread");
        let Ok(Told::Opened(Err(why))) = told.recv() else { panic!("opened") };
        assert!(why.contains("/nowhere/kmsg"), "{why}");
    }
}
