//! Programs that the kernel asks about device nodes: loading one, and giving it to a control group of version 2.
#![allow(unsafe_code, reason = "these calls have no safe wrapper; each block states why it is sound")]

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ffi::{c_int, c_long};
use std::io;
use std::mem::size_of;

/// Loads a program that the kernel asks about device nodes. Dropping it unloads it unless a group has it.
///
/// # Errors
/// The kernel cannot, the process may not, or the program is wrong.
pub fn load_device_program(steps: &[u64]) -> io::Result<OwnedFd> {
    const LOAD: c_long = 5;
    const CGROUP_DEVICE: u32 = 15;
    #[repr(C)]
    #[derive(Default)]
    struct Load {
        kind: u32,
        count: u32,
        steps: u64,
        license: u64,
        rest: [u64; 4],
    }
    let license = c"Dual MIT/GPL";
    let load = Load {
        kind: CGROUP_DEVICE,
        count: u32::try_from(steps.len()).map_err(io::Error::other)?,
        steps: steps.as_ptr() as u64,
        license: license.as_ptr() as u64,
        rest: [0; 4],
    };
    // SAFETY: the structure is the head of the kernel's, its size told; both pointers outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, LOAD, &raw const load, size_of::<Load>()) };
    let fd = c_int::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the kernel ask a program about every device node that a process of this version 2 group opens.
///
/// # Errors
/// The group or the process may not.
pub fn attach_device_program(group: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    const ATTACH: c_long = 8;
    const CGROUP_DEVICE: u32 = 6;
    /// Programs of groups below are asked too.
    const ALLOW_MULTI: u32 = 2;
    let attach: [u32; 5] = [
        group.as_raw_fd().cast_unsigned(),
        program.as_raw_fd().cast_unsigned(),
        CGROUP_DEVICE,
        ALLOW_MULTI,
        0,
    ];
    // SAFETY: the words are the kernel's structure for this call, its size told.
    let done = unsafe { libc::syscall(libc::SYS_bpf, ATTACH, attach.as_ptr(), size_of::<[u32; 5]>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
