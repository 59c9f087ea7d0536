//! Signals: taken over as a whole, read from a descriptor, queued with a value, sent through a pidfd.
#![allow(unsafe_code, reason = "these calls have no safe wrapper; each block states why it is sound")]

use super::fd_arg;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::Pid;
use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::ptr;

/// A signal as it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// The value that came with it, for queued signals.
    pub value: u64,
}

/// The signal by which agent and shim talk: a real-time signal, so that each is queued with its value.
#[must_use]
pub fn call_signal() -> i32 {
    const ABOVE_FIRST: i32 = 5;
    libc::SIGRTMIN() + ABOVE_FIRST
}

/// Makes every signal act as by default (what was ignored by whoever started this process would otherwise be
/// ignored by tasks too) and blocks all of them: they are read from [`signal_fd`].
///
/// # Errors
/// Not on Linux as it is.
pub fn take_signals() -> io::Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        // The raw call, because the C library refuses to touch the two signals that it keeps for itself.
        // SAFETY: four zero words are the kernel's structure for the default action without flags or mask; refusals
        // (KILL, STOP) are fine.
        unsafe {
            let default = [0_u64; 4];
            let mask_bytes = size_of::<u64>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                ptr::null_mut::<c_void>(),
                mask_bytes,
            );
        }
    }
    // SAFETY: the set is initialised by sigfillset before use.
    let done = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut())
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A descriptor from which CHLD, TERM and the call signal are read. A forked copy reads the copy's own signals.
///
/// # Errors
/// Out of descriptors.
pub fn signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised before use; a non-negative result is a new descriptor that nothing else owns.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, call_signal()] {
            libc::sigaddset(&raw mut set, signal);
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The next signal of a [`signal_fd`]; none when none is queued.
///
/// # Errors
/// The descriptor is not one of those.
pub fn read_signal(fd: BorrowedFd<'_>) -> io::Result<Option<Received>> {
    // SAFETY: the structure is plain data that the kernel fills; its full size is offered.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        let read = libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size);
        if read < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        Ok(Some(Received { signal: c_int::try_from(info.ssi_signo).unwrap_or(0), value: info.ssi_ptr }))
    }
}

/// Queues the call signal with a value for exactly the process behind a pidfd.
///
/// # Errors
/// `ESRCH` when it is gone, `EAGAIN` when too many signals are queued, `EPERM`.
pub fn queue_call(pidfd: BorrowedFd<'_>, value: u64) -> io::Result<()> {
    /// The head of the kernel's `siginfo_t` for queued signals; the rest of its 128 bytes is zero.
    #[repr(C)]
    struct QueuedInfo {
        signo: c_int,
        errno: c_int,
        code: c_int,
        align: c_int,
        pid: c_int,
        uid: u32,
        value: u64,
        rest: [u8; 96],
    }
    const _: () = assert!(size_of::<QueuedInfo>() == 128);
    let info = QueuedInfo {
        signo: call_signal(),
        errno: 0,
        code: libc::SI_QUEUE,
        align: 0,
        pid: Pid::as_raw(Some(rustix::process::getpid())),
        uid: rustix::process::getuid().as_raw(),
        value,
        rest: [0; 96],
    };
    let (call, number) = (libc::SYS_pidfd_send_signal, c_long::from(call_signal()));
    // SAFETY: `info` has the size and layout of siginfo_t on 64-bit Linux and lives through the call.
    let done = unsafe { libc::syscall(call, fd_arg(pidfd), number, &raw const info, 0 as c_long) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends any signal, real-time ones included, to exactly the process behind a pidfd.
///
/// # Errors
/// `ESRCH` when it is gone, `EINVAL` for a number that is no signal, `EPERM`.
pub fn signal(pidfd: BorrowedFd<'_>, number: u8) -> io::Result<()> {
    let (call, number, none) = (libc::SYS_pidfd_send_signal, c_long::from(number), 0 as c_long);
    // SAFETY: without information the kernel fills in its own, as for kill; nothing else is pointed to.
    let done = unsafe { libc::syscall(call, fd_arg(pidfd), number, none, none) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
