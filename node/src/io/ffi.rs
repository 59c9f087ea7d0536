//! The one module with `unsafe`: fork, a vfork-like start of a task, queued signals with a value, signal descriptors, the
//! allocator. All else of the kernel is reached through rustix's safe calls.
#![allow(unsafe_code, reason = "these calls have no safe wrapper; each block states why it is sound")]

mod allocator;
pub mod cage;
pub mod devices;
mod signals;

pub use allocator::Allocator;
pub use signals::{Received, call_signal, queue_call, read_signal, signal, signal_fd, take_signals};

use cage::Steps;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
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
    /// What bounds it.
    pub cage: &'a Steps,
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
    /// One of the steps that bound it; `program` says which.
    Cage = 6,
}

/// Why a task did not start.
#[derive(Debug)]
pub struct StartError {
    /// Where.
    pub stage: Stage,
    /// The kernel's words.
    pub error: io::Error,
    /// Which of the programs, or of the cage's steps, it was about.
    pub program: usize,
}

struct StartCell {
    start: *const Start<'static>,
    parent: c_int,
    stage: c_int,
    errno: c_int,
    program: usize,
    inside: bool,
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
        inside: false,
    };
    // SAFETY: the stack is this function's own block of START_STACK_BYTES, its top aligned down to 16; CLONE_VFORK
    // keeps this thread from touching `cell`, `start` and the stack until the child has exec'd or exited; the child
    // calls nothing that allocates, locks or unwinds; it has its own copies of descriptors and signal handlers.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(START_STACK_BYTES);
        let top = top.sub(top as usize % 16);
        cell.inside = start.cage.group.is_some();
        let inside = start.cage.group.as_ref().map(|group| {
            let size = top as usize - stack.as_ptr() as usize;
            cage::clone_into(group.as_fd(), stack.as_mut_ptr(), size, start_child, (&raw mut cell).cast())
        });
        match inside {
            Some(pid) if pid > 0 => pid,
            _ => {
                // It moves itself then, which is slower.
                cell.inside = false;
                let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
                libc::clone(start_child, top.cast(), flags, (&raw mut cell).cast())
            }
        }
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
        6 => Stage::Cage,
        _ => Stage::Prepare,
    };
    Err(StartError { stage, error: io::Error::from_raw_os_error(errno), program })
}

extern "C" fn start_child(cell: *mut c_void) -> c_int {
    // SAFETY: the pointer is the parent's `StartCell`, which outlives this function (the parent is suspended).
    unsafe {
        let cell = cell.cast::<StartCell>();
        let inside = (*cell).inside;
        let stage = start_steps(&*(*cell).start, (*cell).parent, inside, &mut (*cell).program);
        (*cell).errno = *libc::__errno_location();
        (*cell).stage = stage as c_int;
        libc::_exit(127)
    }
}

/// Runs in the child, on the parent's memory. Returns only when a step failed, with errno set by it.
///
/// # Safety
/// Only inside `start_task`'s child.
unsafe fn start_steps(start: &Start<'_>, parent: c_int, inside: bool, program: &mut usize) -> Stage {
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
        if !start.cage.enter(inside, program) {
            return Stage::Cage;
        }
        // Groups are joined by some of them.
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
        if !start.cage.lock(program) {
            return Stage::Cage;
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

fn fd_arg(fd: BorrowedFd<'_>) -> c_long {
    c_long::from(fd.as_raw_fd())
}

/// Hands a descriptor to the runtime, to be waited for. To be called inside the runtime.
///
/// # Errors
/// The kernel cannot wait for it.
pub fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, and names the same file, for as long as the result owns it.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}
