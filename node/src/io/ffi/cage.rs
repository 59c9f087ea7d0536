//! The steps by which a starting task is bounded, run between its birth and its exec on its parent's memory; a birth
//! inside a control group. Which steps there are is not decided here.
#![allow(unsafe_code, reason = "these calls have no safe wrapper; each block states why it is sound")]

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ffi::{CString, c_int, c_long, c_ulong, c_void};
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The highest capability that a kernel may have.
const CAPABILITY_MAX: c_ulong = 63;

/// One instruction of a system call filter, as the kernel lays it out.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterStep {
    /// What to do.
    pub code: u16,
    /// Instructions to pass over if it holds.
    pub jump_true: u8,
    /// Instructions to pass over if not.
    pub jump_false: u8,
    /// Its operand.
    pub value: u32,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes a text into a file that is there.
    Write(CString, CString),
    /// Writes a text into a file that the parent has open, and goes on having open.
    Put(RawFd, CString),
    /// Writes it unless the process was born inside the version 2 group.
    Join(CString, CString),
    /// Namespaces of its own, by the kernel's flags.
    Unshare(c_int),
    /// Somebody's namespace, by its file and kind.
    Enter(CString, c_int),
    /// Source, place, kind, flags, options.
    Mount(CString, CString, CString, c_ulong, CString),
    /// Makes a mount and all below it read-only.
    ReadOnly(CString),
    /// Makes a folder; one that is there is as good.
    Folder(CString),
    /// Makes an empty file; one that is there is as good.
    File(CString),
    /// Makes a link with this text.
    Link(CString, CString),
    /// Refused unless the kernel forbids opening this node; one that is not there is as good.
    Closed(CString),
    /// A resource limit.
    Limit(c_int, u64),
    /// File mode bits that new files do not get.
    Mask(u32),
    /// No program gives back any capability.
    DropBounding,
    /// No capability.
    DropAll,
    /// No program gives more rights than there are.
    NoNewPrivileges,
    /// A filter of system calls. The last thing, since it forbids much of the above.
    Filter(Arc<[FilterStep]>),
}

/// A step, and whether the task may start without it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// What.
    pub step: Step,
    /// It is only wished for.
    pub optional: bool,
}

/// All that bounds a starting task.
#[derive(Debug, Default)]
pub struct Steps {
    /// The version 2 group to be born in.
    pub group: Option<OwnedFd>,
    /// Before the change of user.
    pub enter: Vec<Planned>,
    /// The last before the exec.
    pub lock: Vec<Planned>,
    /// A step that was only wished for failed: told by the starting task, on its parent's memory.
    pub missed: AtomicBool,
}

impl Steps {
    /// For people: the step that failed, by the number that came back.
    #[must_use]
    pub fn name(&self, at: usize) -> String {
        let of = |planned: &Planned| match &planned.step {
            Step::Closed(path) => {
                format!("{} can be opened although it was not granted", path.to_string_lossy())
            }
            Step::Filter(_) => "the filter of system calls".to_owned(),
            Step::Mount(_, place, ..) => format!("mounting {}", place.to_string_lossy()),
            Step::Write(path, _) | Step::Join(path, _) => format!("writing {}", path.to_string_lossy()),
            Step::Put(..) => "joining a group".to_owned(),
            step => format!("{step:?}"),
        };
        let all = self.enter.iter().chain(&self.lock);
        all.map(of).nth(at).unwrap_or_default()
    }

    /// The step of that number only looks whether the others hold.
    #[must_use]
    pub fn is_probe(&self, at: usize) -> bool {
        self.enter.iter().chain(&self.lock).nth(at).is_some_and(|found| matches!(found.step, Step::Closed(_)))
    }

    /// # Safety
    /// Only inside a starting task.
    pub(super) unsafe fn enter(&self, inside: bool, at: &mut usize) -> bool {
        // SAFETY: the caller's.
        unsafe { self.run_all(&self.enter, inside, at, 0) }
    }

    /// # Safety
    /// Only inside a starting task.
    pub(super) unsafe fn lock(&self, at: &mut usize) -> bool {
        // SAFETY: the caller's.
        unsafe { self.run_all(&self.lock, true, at, self.enter.len()) }
    }

    /// # Safety
    /// Only inside a starting task: steps change what the process is.
    unsafe fn run_all(&self, steps: &[Planned], inside: bool, at: &mut usize, first: usize) -> bool {
        for (index, planned) in steps.iter().enumerate() {
            *at = first + index;
            // SAFETY: the caller's.
            if !unsafe { run(&planned.step, inside) } {
                if !planned.optional {
                    return false;
                }
                self.missed.store(true, Ordering::Relaxed);
            }
        }
        *at = 0;
        true
    }
}

/// One step. False with errno set when it failed. Nothing here allocates.
///
/// # Safety
/// Only inside a starting task.
unsafe fn run(step: &Step, inside: bool) -> bool {
    // SAFETY: plain system calls on strings and tables that the suspended parent owns.
    unsafe {
        match step {
            Step::Join(..) if inside => true,
            Step::Write(path, text) | Step::Join(path, text) => write(path, text),
            Step::Put(file, text) => {
                let len = text.as_bytes().len();
                usize::try_from(libc::pwrite(*file, text.as_ptr().cast(), len, 0)) == Ok(len)
            }
            Step::Unshare(flags) => libc::unshare(*flags) == 0,
            Step::Enter(path, kind) => enter(path, *kind),
            Step::Mount(source, place, kind, flags, options) => {
                let (source, place, kind) = (source.as_ptr(), place.as_ptr(), kind.as_ptr());
                libc::mount(source, place, kind, *flags, options.as_ptr().cast()) == 0
            }
            Step::ReadOnly(place) => read_only(place),
            Step::Folder(path) => libc::mkdir(path.as_ptr(), 0o755) == 0 || errno() == libc::EEXIST,
            Step::File(path) => {
                let file = libc::open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC, 0o600);
                libc::close(file) == 0
            }
            Step::Link(path, text) => {
                libc::symlink(text.as_ptr(), path.as_ptr()) == 0 || errno() == libc::EEXIST
            }
            Step::Closed(path) => closed(path),
            Step::Limit(resource, most) => {
                let limit = libc::rlimit { rlim_cur: *most, rlim_max: *most };
                libc::setrlimit(resource.cast_unsigned(), &raw const limit) == 0
            }
            Step::Mask(bits) => {
                libc::umask(*bits);
                true
            }
            Step::DropBounding => {
                // The first that this kernel does not know is refused, and so are all above it.
                for capability in 0..=CAPABILITY_MAX {
                    if libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 && errno() == libc::EINVAL
                    {
                        break;
                    }
                }
                libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
                true
            }
            Step::DropAll => drop_all(),
            Step::NoNewPrivileges => libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0,
            Step::Filter(program) => filter(program),
        }
    }
}

unsafe fn write(path: &CString, text: &CString) -> bool {
    // SAFETY: as in `run`.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let len = text.as_bytes().len();
        let done = libc::write(file, text.as_ptr().cast(), len);
        let error = errno();
        libc::close(file);
        *libc::__errno_location() = error;
        usize::try_from(done) == Ok(len)
    }
}

unsafe fn enter(path: &CString, kind: c_int) -> bool {
    // SAFETY: as in `run`.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let entered = file >= 0 && libc::setns(file, kind) == 0;
        let error = errno();
        libc::close(file);
        *libc::__errno_location() = error;
        entered
    }
}

unsafe fn read_only(place: &CString) -> bool {
    #[repr(C)]
    struct MountAttributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user: u64,
    }
    const READ_ONLY: u64 = 1;
    let wish = MountAttributes { set: READ_ONLY, clear: 0, propagation: 0, user: 0 };
    // SAFETY: as in `run`; the structure has the size that is told.
    unsafe {
        let (size, flags) = (size_of::<MountAttributes>(), c_long::from(libc::AT_RECURSIVE));
        let cwd = c_long::from(libc::AT_FDCWD);
        libc::syscall(libc::SYS_mount_setattr, cwd, place.as_ptr(), flags, &raw const wish, size) == 0
    }
}

unsafe fn closed(path: &CString) -> bool {
    // SAFETY: as in `run`.
    unsafe {
        let file =
            libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY);
        if file >= 0 {
            libc::close(file);
            *libc::__errno_location() = libc::ENOTSUP;
            return false;
        }
        // Anything but a refusal says that the driver, not the cage, was asked.
        matches!(errno(), libc::EPERM | libc::EACCES | libc::ENOENT)
    }
}

unsafe fn drop_all() -> bool {
    /// Version 3: two words of each set.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    const NONE: [u32; 6] = [0; 6];
    // SAFETY: as in `run`; header and data have the layout of that version.
    unsafe { libc::syscall(libc::SYS_capset, HEADER.as_ptr(), NONE.as_ptr()) == 0 }
}

unsafe fn filter(program: &[FilterStep]) -> bool {
    #[repr(C)]
    struct Program {
        len: u16,
        steps: *const FilterStep,
    }
    let Ok(len) = u16::try_from(program.len()) else { return false };
    let program = Program { len, steps: program.as_ptr() };
    // SAFETY: as in `run`; the kernel copies the program.
    unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) == 0 }
}

fn errno() -> c_int {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// A process that shares this one's memory and is born inside a version 2 group; this one stands still until it has
/// exec'd or exited. Its number; not above zero when the kernel cannot, and then nothing was made.
///
/// Moving a process into such a group instead waits for every processor, which takes ms on a quiet machine.
///
/// # Safety
/// As for `clone` with `CLONE_VM | CLONE_VFORK`: `stack` is `size` bytes of nobody else's, `main` neither returns nor
/// unwinds and touches only what outlives this call.
pub(super) unsafe fn clone_into(
    group: BorrowedFd<'_>,
    stack: *mut u8,
    size: usize,
    main: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> c_int {
    #[repr(C, align(8))]
    struct Arguments([u64; 11]);
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    let flags = (libc::CLONE_VM | libc::CLONE_VFORK).cast_unsigned();
    let mut wish = Arguments([0; 11]);
    wish.0[0] = u64::from(flags) | INTO_CGROUP;
    wish.0[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    wish.0[5] = stack as u64;
    wish.0[6] = size as u64;
    wish.0[10] = u64::from(group.as_raw_fd().cast_unsigned());
    // SAFETY: the caller's; `wish` has the size that is told.
    let made = unsafe { clone_raw(&raw const wish.0, size_of::<Arguments>(), main, argument) };
    c_int::try_from(made).unwrap_or(-1)
}

/// The bare call, because the child has another stack than the one to return on.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_raw(
    wish: *const [u64; 11],
    size: usize,
    main: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> i64 {
    let made: i64;
    // SAFETY: in the child nothing of this frame is used: it calls `main` on its own stack, aligned as a call wants it,
    // and never comes back. In the parent only what is named is changed.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {argument}",
            "call {main}",
            "ud2",
            "2:",
            argument = in(reg) argument,
            main = in(reg) main,
            inlateout("rax") libc::SYS_clone3 => made,
            in("rdi") wish,
            in("rsi") size,
            out("rcx") _,
            out("r11") _,
        );
    }
    made
}

/// The bare call, because the child has another stack than the one to return on.
#[cfg(target_arch = "aarch64")]
unsafe fn clone_raw(
    wish: *const [u64; 11],
    size: usize,
    main: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> i64 {
    let made: i64;
    // SAFETY: as for the other processor.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, {argument}",
            "blr {main}",
            "brk #1",
            "2:",
            argument = in(reg) argument,
            main = in(reg) main,
            inlateout("x0") wish => made,
            in("x1") size,
            in("x8") libc::SYS_clone3,
        );
    }
    made
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone_raw(
    _: *const [u64; 11],
    _: usize,
    _: extern "C" fn(*mut c_void) -> c_int,
    _: *mut c_void,
) -> i64 {
    -1
}
