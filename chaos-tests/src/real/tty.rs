//! A person's terminal with a program at it, for tests: keys are pressed, the window is resized, what is shown is read.

use super::row::Row;
use rota_node::lab::{LabError, io};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program on a terminal of its own.
pub(super) struct Client {
    ours: OwnedFd,
    /// Kept open, so that its modes can be looked at when the program is gone.
    theirs: OwnedFd,
    child: Child,
    shown: String,
}

impl Client {
    /// Starts a program on a terminal of this size, which controls its session.
    pub(super) fn start(exe: &Path, args: &[String], rows: u16, cols: u16) -> Result<Self, LabError> {
        let open = || -> std::io::Result<(OwnedFd, OwnedFd)> {
            let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
            grantpt(&ours)?;
            unlockpt(&ours)?;
            let name = ptsname(&ours, Vec::new())?;
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            let theirs = rustix::fs::open(&*name, flags, Mode::empty())?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            Ok((ours, theirs))
        };
        let (ours, theirs) = open().map_err(io("a terminal"))?;
        size(&ours, rows, cols)?;
        let end = || theirs.try_clone().map(Stdio::from).map_err(io("a terminal"));
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(exe).args(args).env("TERM", "xterm");
        command.stdin(end()?).stdout(end()?).stderr(end()?);
        let child = command.spawn().map_err(io("cannot run setsid"))?;
        Ok(Self { ours, theirs, child, shown: String::new() })
    }

    /// How the terminal treats keys now, for comparing.
    pub(super) fn modes(&self) -> Result<String, LabError> {
        let modes: Termios = tcgetattr(&self.theirs).map_err(|e| LabError::Io("modes".into(), e.into()))?;
        let flags = (modes.input_modes, modes.output_modes, modes.local_modes, modes.control_modes);
        Ok(format!("{flags:?}"))
    }

    /// Presses keys.
    pub(super) fn press(&self, keys: &[u8]) -> Result<(), LabError> {
        rustix::io::write(&self.ours, keys).map(drop).map_err(|e| LabError::Io("keys".into(), e.into()))
    }

    /// Another size of the window.
    pub(super) fn resize(&self, rows: u16, cols: u16) -> Result<(), LabError> {
        size(&self.ours, rows, cols)
    }

    /// All that was shown.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Waits until a text is shown; if it is not, the row does not hold.
    pub(super) fn until(&mut self, row: &mut Row, wanted: &str, limit: Duration) -> bool {
        let began = Instant::now();
        while !self.shown.contains(wanted) {
            self.read();
            if began.elapsed() > limit {
                row.wrong(format!("{wanted:?} was not shown, only {:?}", self.shown));
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// The program's status, when it ends in time.
    pub(super) fn status(&mut self, limit: Duration) -> Option<i32> {
        let began = Instant::now();
        while began.elapsed() < limit {
            self.read();
            if let Ok(Some(status)) = self.child.try_wait() {
                self.read();
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Kills the program: its own process too, which a killed `setsid` would leave.
    pub(super) fn kill(&mut self) {
        let pid = i32::try_from(self.child.id()).unwrap_or(0);
        for below in rota_node::io::proc::descendants(pid).unwrap_or_default() {
            if let Some(below) = rustix::process::Pid::from_raw(below) {
                let _ = rustix::process::kill_process(below, rustix::process::Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(len) = rustix::io::read(&self.ours, &mut buffer) {
            if len == 0 {
                return;
            }
            self.shown.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
    }
}

fn size(terminal: &OwnedFd, rows: u16, cols: u16) -> Result<(), LabError> {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).map_err(|e| LabError::Io("size".into(), e.into()))
}
