//! The C interface: each exported call reads the script and answers as NVML does. Layouts follow `nvml.h`. What the
//! calls share is here; the calls stand by subject in the files beside this one.

mod events;
mod facts;
mod live;
mod mig;
mod signs;
mod system;

use crate::script::{Card, Script, code};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_void};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, ptr, thread};

/// How often a call that hangs looks whether the script still says so.
const HANG_LOOK: Duration = Duration::from_millis(10);

/// What a handle stands for.
#[derive(Clone, PartialEq, Eq)]
struct Named {
    card: Vec<u8>,
    slice: Option<Vec<u8>>,
}

/// The library's memory: how often it was started, the cards it listed then, and the handles it gave out. A handle is
/// a place in that list plus one, never a pointer to anything.
struct Library {
    started: u32,
    listed: Vec<Vec<u8>>,
    handles: Vec<Named>,
    /// Event sets: by card, the number of the last event heard.
    sets: Vec<BTreeMap<Vec<u8>, u64>>,
}

static LIBRARY: Mutex<Library> =
    Mutex::new(Library { started: 0, listed: Vec::new(), handles: Vec::new(), sets: Vec::new() });

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle_of(named: Named) -> *mut c_void {
    let mut library = library();
    let at = library.handles.iter().position(|known| *known == named).unwrap_or_else(|| {
        library.handles.push(named);
        library.handles.len() - 1
    });
    ptr::without_provenance_mut(at + 1)
}

fn named_by(device: *mut c_void) -> Result<Named, u32> {
    let at = device.addr().checked_sub(1).ok_or(code::INVALID_ARGUMENT)?;
    library().handles.get(at).cloned().ok_or(code::INVALID_ARGUMENT)
}

/// The script as it is now: read again when the file is another one than last time.
fn script() -> Arc<Script> {
    let path = crate::place::script_path(system::nvmlInit_v2 as *const c_void);
    let stamp =
        fs::metadata(&path).ok().map(|meta| (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()));
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    match &*read {
        Some((of, script)) if stamp.is_some() && *of == stamp => Arc::clone(script),
        _ => {
            let script = fs::read(path).map_or_else(|_| Script::default(), |bytes| Script::parse(&bytes));
            let script = Arc::new(script);
            *read = Some((stamp, Arc::clone(&script)));
            script
        }
    }
}

/// Which file it was: inode, time in seconds and nanoseconds, length.
type Stamp = Option<(u64, i64, i64, u64)>;

/// The script that was read last, and of which file.
static READ: Mutex<Option<(Stamp, Arc<Script>)>> = Mutex::new(None);

/// A call about no card: hangs or fails if the script says so.
fn system(call: &str) -> Result<Arc<Script>, u32> {
    loop {
        let script = script();
        if script.faults.hangs_in(call) {
            thread::sleep(HANG_LOOK);
            continue;
        }
        return match script.faults.code_of(call) {
            code::SUCCESS => Ok(script),
            failed => Err(failed),
        };
    }
}

/// Finds the card of a handle in the script, as the script now is, and lets the call hang or fail if it says so.
fn ask(device: *mut c_void, call: &str) -> Result<(Card, Named), u32> {
    let named = named_by(device)?;
    loop {
        let card = script().cards.iter().find(|card| card.uuid == named.card).cloned();
        let card = card.ok_or(code::GPU_IS_LOST)?;
        if card.faults.hangs_in(call) {
            thread::sleep(HANG_LOOK);
            continue;
        }
        return match card.faults.code_of(call) {
            code::SUCCESS => Ok((card, named)),
            failed => Err(failed),
        };
    }
}

/// What a script may leave out.
fn told<T>(value: Option<T>) -> Result<T, u32> {
    value.ok_or(code::NOT_SUPPORTED)
}

/// Gives `value` to the caller, or the failure's code.
///
/// # Safety
/// `out` must be valid for a write of `T`.
unsafe fn answer<T>(out: *mut T, value: Result<T, u32>) -> c_uint {
    match value {
        Ok(value) => {
            // SAFETY: by this function's contract.
            unsafe { out.write(value) };
            code::SUCCESS
        }
        Err(failed) => failed,
    }
}

/// Gives a text with its final NUL.
///
/// # Safety
/// `out` must be valid for `length` bytes.
unsafe fn answer_text(out: *mut c_char, length: c_uint, text: Result<Vec<u8>, u32>) -> c_uint {
    let text = match text {
        Ok(text) => text,
        Err(failed) => return failed,
    };
    if text.len() >= length as usize {
        return code::INSUFFICIENT_SIZE;
    }
    // SAFETY: text and NUL fit into `length` bytes, which the caller vouches for.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), text.len());
        out.add(text.len()).write(0);
    }
    code::SUCCESS
}
