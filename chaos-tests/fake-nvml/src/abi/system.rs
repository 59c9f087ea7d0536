//! Start and end of the library, versions, and how cards are found.

use super::{Named, answer, answer_text, ask, handle_of, library, system};
use crate::script::code;
use std::ffi::{CStr, c_char, c_uint, c_void};

/// Starts the library, or starts it once more.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    let script = match system("init") {
        Ok(script) if script.init == code::SUCCESS => script,
        Ok(script) => return script.init,
        Err(failed) => return failed,
    };
    let mut library = library();
    if library.started == 0 {
        library.listed = script.cards.iter().map(|card| card.uuid.clone()).collect();
    }
    library.started += 1;
    code::SUCCESS
}

/// Ends one start.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_uint {
    let mut library = library();
    library.started = library.started.saturating_sub(1);
    code::SUCCESS
}

/// The driver's version.
///
/// # Safety
/// `version` must be valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer_text(version, length, system("driver").map(|script| script.driver.clone().into_bytes())) }
}

/// The library's version.
///
/// # Safety
/// `version` must be valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe {
        answer_text(version, length, system("library").map(|script| script.library.clone().into_bytes()))
    }
}

/// Cards listed at the start.
///
/// # Safety
/// `count` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_uint {
    let said = system("count").map(|script| script.count.unwrap_or(library().listed.len() as c_uint));
    // SAFETY: by this function's contract.
    unsafe { answer(count, said) }
}

/// The card at a place of the list.
///
/// # Safety
/// `device` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) -> c_uint {
    let listed = library().listed.get(index as usize).cloned();
    let handle = listed.ok_or(code::INVALID_ARGUMENT).and_then(|card| {
        let handle = handle_of(Named { card, slice: None });
        ask(handle, "handle").map(|_| handle)
    });
    // SAFETY: by this function's contract.
    unsafe { answer(device, handle) }
}

/// The card of this UUID.
///
/// # Safety
/// `uuid` must be a C string and `device` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut *mut c_void) -> c_uint {
    // SAFETY: by this function's contract.
    let uuid = unsafe { CStr::from_ptr(uuid) }.to_bytes().to_vec();
    let known = library().listed.contains(&uuid);
    let handle = if known { Ok(uuid) } else { Err(code::NOT_FOUND) }.and_then(|card| {
        let handle = handle_of(Named { card, slice: None });
        ask(handle, "handle").map(|_| handle)
    });
    // SAFETY: by this function's contract.
    unsafe { answer(device, handle) }
}
