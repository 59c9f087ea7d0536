//! A shim's alarm.

use rustix::fd::OwnedFd;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// An alarm on the clock that goes on while the machine sleeps, made when it is first needed.
#[derive(Default)]
pub(super) struct Timer {
    fd: Option<OwnedFd>,
    armed_ms: u64,
}

impl Timer {
    /// Readable when it rings.
    pub(super) fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// Sets the alarm. False when there can be none; the caller then looks at the clock often.
    pub(super) fn arm(&mut self, at_ms: u64) -> bool {
        if self.fd.is_none() {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            self.fd = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags).ok();
        }
        let Some(fd) = &self.fd else { return false };
        if self.armed_ms != at_ms {
            let alarm = Itimerspec { it_interval: timespec(0), it_value: timespec(at_ms) };
            if rustix::time::timerfd_settime(fd, TimerfdTimerFlags::ABSTIME, &alarm).is_err() {
                return false;
            }
            self.armed_ms = at_ms;
        }
        true
    }

    /// It rang.
    pub(super) fn clear(&mut self) {
        self.armed_ms = 0;
        if let Some(fd) = &self.fd {
            let _ = rustix::io::read(fd, &mut [0_u8; 8][..]);
        }
    }
}

/// Ms as the kernel wants them.
pub(super) fn timespec(ms: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ms / 1_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ms % 1_000).unwrap_or(0) * 1_000_000,
    }
}
