//! Whose allocator a process has: mimalloc's, which saves a busy agent a sixth of its time, or the system's in the
//! small ones of which there is one for each attempt that runs; another would make each of them 2 MiB larger.

use crate::devices::probe::PROBE_ARG;
use crate::shim::SERVER_ARG;
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const SMALL: u8 = 1;
const BUSY: u8 = 2;

/// What the process is; read once, before it has another thread.
static IS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The allocator of programs that are `rota`: the first word of their arguments tells which.
#[derive(Debug, Clone, Copy)]
pub struct Allocator;

fn is_small() -> bool {
    let known = match IS.load(Ordering::Relaxed) {
        UNKNOWN => find(),
        known => known,
    };
    known == SMALL
}

unsafe extern "C" {
    /// Of mimalloc; the binding has it only together with much else.
    fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_arena_eager_commit`: a gigabyte of memory is asked for at once, and the kernel gives it in huge pages. An idle
/// agent holds a third less without it, and a busy one, which no more waits for pages of 2 MiB to be cleared, does a
/// sixth more.
const EAGER_COMMIT: c_int = 4;

#[cold]
fn find() -> u8 {
    let mut words = [0; 4_096];
    let found = if first_word_is_small(arguments(&mut words)) { SMALL } else { BUSY };
    if found == BUSY {
        // SAFETY: sets one number of the allocator, before it is asked for anything.
        unsafe { mi_option_set(EAGER_COMMIT, 0) };
    }
    // What a process was started with does not change, so nothing is ever given back to the other allocator. Where the
    // arguments cannot be read, that is so always.
    IS.store(found, Ordering::Relaxed);
    found
}

/// The beginning of this process's arguments, NUL after each, without a piece of memory being asked for.
fn arguments(words: &mut [u8]) -> &[u8] {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with NUL; at most as many bytes are written as there is room for; the descriptor is this
    // function's own.
    let read = unsafe {
        match libc::open(c"/proc/self/cmdline".as_ptr(), flags) {
            file if file < 0 => 0,
            file => {
                let read = libc::read(file, words.as_mut_ptr().cast(), words.len());
                libc::close(file);
                read
            }
        }
    };
    &words[..usize::try_from(read).unwrap_or(0).min(words.len())]
}

fn first_word_is_small(arguments: &[u8]) -> bool {
    let first = arguments.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    first == SERVER_ARG.as_bytes() || first == PROBE_ARG.as_bytes()
}

// SAFETY: each call is handed on unchanged to one of two sound allocators, for one process always to the same.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what the caller promised is what is asked of it.
        unsafe { if is_small() { System.alloc(layout) } else { MiMalloc.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { if is_small() { System.alloc_zeroed(layout) } else { MiMalloc.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above, and the piece is of the same allocator.
        unsafe {
            if is_small() { System.realloc(at, layout, size) } else { MiMalloc.realloc(at, layout, size) }
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as for `realloc`.
        unsafe { if is_small() { System.dealloc(at, layout) } else { MiMalloc.dealloc(at, layout) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_decides() {
        for (line, small) in [
            (&b"/usr/bin/rota\0shimd\0--dir\0/x\0"[..], true),
            (b"rota\0probed\0", true),
            (b"rota\0agent\0shimd\0", false),
            (b"rota-chaos\0rota\0agent\0", false),
            (b"rota\0shimdd\0", false),
            (b"shimd\0", false),
            (b"rota", false),
            (b"", false),
        ] {
            assert_eq!(first_word_is_small(line), small, "{}", String::from_utf8_lossy(line));
        }
        let mut words = [0; 4_096];
        let own = arguments(&mut words).split(|byte| *byte == 0).next().map(<[u8]>::to_vec);
        let told = std::env::args_os().next().map(std::os::unix::ffi::OsStringExt::into_vec);
        assert_eq!(own, told, "these are the process's own arguments");
    }
}
