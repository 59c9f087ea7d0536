//! The one module with `unsafe`: fork, a vfork-like start of a task, queued signals with a value, signal descriptors.
//! Everything else of the kernel is reached through rustix's safe calls.
#![allow(unsafe_code, reason = "these calls have no safe wrapper; each block states why it is sound")]

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::Pid;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io;
use std::ptr;
use tokio::io::unix::AsyncFd;

/// Stack of a starting task between its birth and its exec, in bytes. A few calls deep, no buffers on it.
const START_STACK_BYTES: usize = 64 << 10;

/// Which side of a fork runs.
#[derive(Debug)]
pub enum Forked {
    /// The new process.
    Child,
    /// The old one.
    Parent(Pid),
}

/// Copies this process.
///
/// Only for processes with one thread (the fork server): in the copy of a process with several threads, locks of the
/// others stay taken for ever.
///
/// # Errors
/// No memory, or too many processes.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: fork has no memory preconditions; the caller's process has one thread, so the copy is consistent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Pid::from_raw(pid).map(Forked::Parent).ok_or_else(|| io::ErrorKind::Other.into()),
    }
}

/// Ends this process at once: no destructors, no exit handlers, no flushing.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any code and does not return.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor from `first` on that this process was started with.
///
/// To be called before the process has opened anything: whatever owns such a descriptor would lose it.
///
/// # Errors
/// Not on Linux since 5.9.
pub fn close_inherited(first: u32) -> io::Result<()> {
    // SAFETY: at its start a process owns nothing above its standard three; closing a stranger's is what is asked.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, c_long::from(first), c_long::from(u32::MAX), 0 as c_long)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// NUL-terminated strings with the table of pointers that exec wants.
#[derive(Debug)]
pub struct CStrings {
    pointers: Vec<*const c_char>,
    // Owns what the pointers point to; a CString's heap block does not move with it.
    _strings: Vec<CString>,
}

impl CStrings {
    /// The table of `strings`.
    #[must_use]
    pub fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect();
        Self { pointers, _strings: strings }
    }
}

/// All that is needed to start a task.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// Paths to try in order, as `execvp` does.
    pub programs: &'a [CString],
    /// Arguments, the program's name first.
    pub argv: &'a CStrings,
    /// The whole environment.
    pub envp: &'a CStrings,
    /// Working directory.
    pub workdir: &'a CStr,
    /// Becomes standard input; none: this process's own.
    pub stdin: Option<BorrowedFd<'a>>,
    /// Standard input is a terminal and becomes the one that controls the session.
    pub terminal: bool,
    /// Becomes standard output.
    pub stdout: BorrowedFd<'a>,
    /// Becomes standard error.
    pub stderr: BorrowedFd<'a>,
    /// Run as, if given.
    pub uid_gid: Option<(u32, u32)>,
    /// Make the task as likely to be chosen when memory runs out as any other process.
    pub oom_default: bool,
}

/// What a starting task was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Stage {
    /// Session, death signal, descriptors.
    Prepare = 1,
    /// Changing the user.
    User = 2,
    /// Entering the working directory.
    Workdir = 3,
    /// Running the program.
    Exec = 4,
    /// The new process itself could not be made.
    Clone = 5,
}

/// Why a task did not start.
#[derive(Debug)]
pub struct StartError {
    /// Where.
    pub stage: Stage,
    /// The kernel's words.
    pub error: io::Error,
    /// Which of the programs it was about, when it failed in its exec.
    pub program: usize,
}

struct StartCell {
    start: *const Start<'static>,
    parent: c_int,
    stage: c_int,
    errno: c_int,
    program: usize,
}

/// Starts a task in its own session, killed by the kernel when this process dies, with every signal as a program
/// expects it and no descriptor but its three. Returns after its exec has succeeded or failed, so that the two are
/// never confused: the new process shares this one's memory until then, and this one stands still.
///
/// # Errors
/// Where and why it failed; no process is left then (it was reaped).
pub fn start_task(start: &Start<'_>) -> Result<Pid, StartError> {
    let fail = |stage, error| Err(StartError { stage, error, program: 0 });
    let mut stack: Vec<u8> = Vec::with_capacity(START_STACK_BYTES);
    let mut cell = StartCell {
        start: ptr::from_ref(start).cast(),
        parent: Pid::as_raw(Some(rustix::process::getpid())),
        stage: 0,
        errno: 0,
        program: 0,
    };
    // SAFETY: the stack is this function's own block of START_STACK_BYTES, its top aligned down to 16; CLONE_VFORK
    // keeps this thread from touching `cell`, `start` and the stack until the child has exec'd or exited; the child
    // calls nothing that allocates, locks or unwinds; it has its own copies of descriptors and signal handlers.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(START_STACK_BYTES);
        let top = top.sub(top as usize % 16);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(start_child, top.cast(), flags, (&raw mut cell).cast())
    };
    if pid < 0 {
        return fail(Stage::Clone, io::Error::last_os_error());
    }
    // SAFETY: the child has written the cell, if at all, before this thread went on.
    let StartCell { stage, errno, program, .. } = unsafe { ptr::read_volatile(&raw const cell) };
    let pid = match Pid::from_raw(pid) {
        Some(pid) => pid,
        None => return fail(Stage::Clone, io::ErrorKind::Other.into()),
    };
    if stage == 0 {
        return Ok(pid);
    }
    let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    let stage = match stage {
        2 => Stage::User,
        3 => Stage::Workdir,
        4 => Stage::Exec,
        _ => Stage::Prepare,
    };
    Err(StartError { stage, error: io::Error::from_raw_os_error(errno), program })
}

extern "C" fn start_child(cell: *mut c_void) -> c_int {
    // SAFETY: the pointer is the parent's `StartCell`, which outlives this function (the parent is suspended).
    unsafe {
        let cell = cell.cast::<StartCell>();
        let stage = start_steps(&*(*cell).start, (*cell).parent, &mut (*cell).program);
        (*cell).errno = *libc::__errno_location();
        (*cell).stage = stage as c_int;
        libc::_exit(127)
    }
}

/// Runs in the child, on the parent's memory. Returns only when a step failed, with errno set by it.
///
/// # Safety
/// Only inside `start_task`'s child.
unsafe fn start_steps(start: &Start<'_>, parent: c_int, program: &mut usize) -> Stage {
    // SAFETY: plain system calls on values that the caller keeps alive; raw ones where a wrapper looks for other threads.
    unsafe {
        if libc::setsid() < 0
            || start.stdin.is_some_and(|fd| libc::dup2(fd.as_raw_fd(), 0) < 0)
            || (start.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0 as c_int) < 0)
            || libc::dup2(start.stdout.as_raw_fd(), 1) < 0
            || libc::dup2(start.stderr.as_raw_fd(), 2) < 0
        {
            return Stage::Prepare;
        }
        if start.oom_default {
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            // Best effort: a task that keeps the agent's protection still runs.
            libc::write(file, c"0".as_ptr().cast(), 1);
        }
        if libc::syscall(libc::SYS_close_range, 3 as c_long, c_long::from(u32::MAX), 0 as c_long) < 0 {
            return Stage::Prepare;
        }
        if let Some((uid, gid)) = start.uid_gid {
            let (uid, gid) = (c_long::from(uid), c_long::from(gid));
            if libc::syscall(libc::SYS_setgroups, 0 as c_long, ptr::null::<c_void>()) < 0
                || libc::syscall(libc::SYS_setresgid, gid, gid, gid) < 0
                || libc::syscall(libc::SYS_setresuid, uid, uid, uid) < 0
                || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0
            {
                return Stage::User;
            }
        }
        // After the change of user, which clears it. A parent that died before this line cannot send it any more.
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 || libc::getppid() != parent {
            return Stage::Prepare;
        }
        if libc::chdir(start.workdir.as_ptr()) < 0 {
            return Stage::Workdir;
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        exec_first(start, program)
    }
}

/// Tries each program in turn, as `execvp` does. Returns only when none could be run.
///
/// # Safety
/// Only inside `start_task`'s child.
unsafe fn exec_first(start: &Start<'_>, at: &mut usize) -> Stage {
    let mut refused = 0;
    for (index, program) in start.programs.iter().enumerate() {
        *at = index;
        // SAFETY: the tables end with a null pointer and point to strings that the suspended parent owns.
        unsafe {
            libc::execve(program.as_ptr(), start.argv.pointers.as_ptr(), start.envp.pointers.as_ptr());
            match *libc::__errno_location() {
                libc::EACCES => refused = libc::EACCES,
                libc::ENOENT | libc::ENOTDIR => {}
                _ => return Stage::Exec,
            }
        }
    }
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = if refused == 0 { libc::ENOENT } else { refused } };
    Stage::Exec
}

/// A signal as it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// The value that came with it, for queued signals.
    pub value: i32,
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
        Ok(Some(Received { signal: c_int::try_from(info.ssi_signo).unwrap_or(0), value: info.ssi_int }))
    }
}

/// Queues the call signal with a value for exactly the process behind a pidfd.
///
/// # Errors
/// `ESRCH` when it is gone, `EAGAIN` when too many signals are queued, `EPERM`.
pub fn queue_call(pidfd: BorrowedFd<'_>, value: i32) -> io::Result<()> {
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
        value: u64::from(value.cast_unsigned()),
        rest: [0; 96],
    };
    let (call, number) = (libc::SYS_pidfd_send_signal, c_long::from(call_signal()));
    // SAFETY: `info` has the size and layout of siginfo_t on 64-bit Linux and lives through the call.
    let done =
        unsafe { libc::syscall(call, c_long::from(pidfd.as_raw_fd()), number, &raw const info, 0 as c_long) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends any signal, real-time ones included, to exactly the process behind a pidfd.
///
/// # Errors
/// `ESRCH` when it is gone, `EINVAL` for a number that is no signal, `EPERM`.
pub fn signal(pidfd: BorrowedFd<'_>, number: u8) -> io::Result<()> {
    let (call, number, none) = (libc::SYS_pidfd_send_signal, c_long::from(number), 0 as c_long);
    // SAFETY: without information the kernel fills in its own, as for kill; nothing else is pointed to.
    let done = unsafe { libc::syscall(call, c_long::from(pidfd.as_raw_fd()), number, none, none) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Hands a descriptor to the runtime, to be waited for. To be called inside the runtime.
///
/// # Errors
/// The kernel cannot wait for it.
pub fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, and names the same file, for as long as the result owns it.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}
