//! Where the script lies: by the environment for whole processes, beside the library for tests that load several.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

/// `Dl_info` of `dlfcn.h`.
#[repr(C)]
struct DlInfo {
    file_name: *const c_char,
    base: *mut c_void,
    symbol_name: *const c_char,
    symbol: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(addr: *const c_void, info: *mut DlInfo) -> c_int;
}

/// `FAKE_NVML_STATE`, else `fake-nvml.state` beside the library: each copy of the library has its own cards.
pub(crate) fn script_path(own_function: *const c_void) -> PathBuf {
    if let Some(path) = std::env::var_os("FAKE_NVML_STATE") {
        return path.into();
    }
    let mut info = DlInfo {
        file_name: ptr::null(),
        base: ptr::null_mut(),
        symbol_name: ptr::null(),
        symbol: ptr::null_mut(),
    };
    // SAFETY: `info` is a valid place for the answer; any address may be asked about.
    let known = unsafe { dladdr(own_function, &raw mut info) } != 0;
    if !known || info.file_name.is_null() {
        return PathBuf::from("fake-nvml.state");
    }
    // SAFETY: the loader gives a C string that lives as long as the library is loaded, which is now.
    let file = unsafe { CStr::from_ptr(info.file_name) };
    Path::new(OsStr::from_bytes(file.to_bytes())).with_file_name("fake-nvml.state")
}
