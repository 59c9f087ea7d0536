//! The library itself: where it is, whether it starts, which versions meet in it.

use crate::devices::{DeviceError, clean};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem;
use std::path::Path;

/// The library's name for the loader's own search.
pub const LIBRARY_DEFAULT: &str = "libnvidia-ml.so.1";
/// Names the library's path where the configuration does not.
pub const LIBRARY_ENV: &str = "ROTA_NVML_LIBRARY";
/// Where distributions put libraries; the loader's own cache has no text to read.
const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/run/nvidia/driver/usr/lib64",
];
/// Where the kernel module tells its version.
const MODULE_VERSION: &str = "proc/driver/nvidia/version";

/// The library to load: configured, else from the environment, else the loader's search.
#[must_use]
pub fn library_path(configured: Option<&Path>) -> OsString {
    configured
        .map(|path| path.as_os_str().to_owned())
        .or_else(|| std::env::var_os(LIBRARY_ENV).filter(|path| !path.is_empty()))
        .unwrap_or_else(|| LIBRARY_DEFAULT.into())
}

/// What can be told of the library without asking about cards; for `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryFacts {
    /// The file that the loader found.
    pub file: Option<String>,
    /// The driver's version, when it tells.
    pub driver: Option<String>,
    /// The library's own version, when it tells.
    pub library: Option<String>,
    /// How many cards it counts.
    pub cards: u32,
}

/// Loads the library, asks for its version and count, and lets it go. May hang like every call.
///
/// # Errors
/// `Ok(None)` when there is no such library; an error when it is there and does not work.
pub fn inspect(library: &OsStr, root: &Path) -> Result<Option<LibraryFacts>, DeviceError> {
    let Some(nvml) = start(library, root)? else {
        return Ok(None);
    };
    let count = nvml.device_count().map_err(|error| failed("nvmlDeviceGetCount", &error));
    let driver = nvml.sys_driver_version().ok().and_then(|version| clean::text(&version));
    let own = nvml.sys_nvml_version().ok().and_then(|version| clean::text(&version));
    let file = loaded_file(library);
    retire(nvml);
    Ok(Some(LibraryFacts { file, driver, library: own, cards: count? }))
}

/// Starts the library; `None` when it is not there.
pub(super) fn start(library: &OsStr, root: &Path) -> Result<Option<Nvml>, DeviceError> {
    match Nvml::builder().lib_path(library).init() {
        Ok(nvml) => Ok(Some(nvml)),
        Err(NvmlError::LibloadingError(error)) if !is_there(library) => {
            tracing::debug!(%error, "no nvml library");
            Ok(None)
        }
        Err(error) => Err(DeviceError::Start {
            library: library.to_string_lossy().into_owned(),
            cause: cause(&error, library, root),
        }),
    }
}

/// The library's word, with the versions that meet and the cure where a person can do something.
fn cause(error: &NvmlError, library: &OsStr, root: &Path) -> String {
    let cure = match error {
        NvmlError::LibRmVersionMismatch => {
            "load the kernel module of the new driver (`modprobe -r nvidia`, `modprobe nvidia`), or reboot"
        }
        NvmlError::DriverNotLoaded => "load the kernel module (`modprobe nvidia`)",
        _ => return error.to_string(),
    };
    let told = |version: Option<String>| version.unwrap_or_else(|| "of unknown version".to_owned());
    let (module, own) = (told(module_version(root)), told(library_version(library)));
    format!("{error} (kernel module {module}, library {own}): {cure}")
}

/// The library's version by the name of its file: `libnvidia-ml.so.1` is a link to one that ends in it.
#[must_use]
pub fn library_version(library: &OsStr) -> Option<String> {
    let path = Path::new(library);
    let found = if path.components().count() > 1 {
        fs::canonicalize(path).ok()?
    } else {
        LIBRARY_FOLDERS.iter().find_map(|folder| fs::canonicalize(Path::new(folder).join(path)).ok())?
    };
    let (_, version) = found.file_name()?.to_str()?.split_once(".so.")?;
    version.contains('.').then(|| clean::text(version))?
}

/// A path that exists and cannot be loaded is a broken driver; a bare name that the loader does not find is none.
fn is_there(library: &OsStr) -> bool {
    let path = Path::new(library);
    path.components().count() > 1 && path.exists()
}

/// Which file a library that is loaded now came from: the loader does not tell, the kernel does.
fn loaded_file(library: &OsStr) -> Option<String> {
    let name = Path::new(library).file_name()?.to_str()?;
    // `libnvidia-ml.so.1` is a link to a file that ends in the driver's version.
    let stem = name.split(".so").next()?;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .find(|path| {
            Path::new(path).file_name().and_then(OsStr::to_str).is_some_and(|file| file.starts_with(stem))
        })
        .map(str::to_owned)
}

/// Shuts the library down. The wrapper panics when it lacks `nvmlShutdown`; then it stays loaded instead.
pub(super) fn retire(nvml: Nvml) {
    if nvml.lib().nvmlShutdown.is_err() {
        mem::forget(nvml);
    }
}

/// The version of the kernel module that is loaded, by its own word, as seen below `root`.
#[must_use]
pub fn module_version(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join(MODULE_VERSION)).ok()?;
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    // The version is the first word that is digits and dots, such as 580.95.05.
    let version = line
        .split_whitespace()
        .find(|word| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.'))?;
    clean::text(version)
}

pub(super) fn failed(call: &str, error: &NvmlError) -> DeviceError {
    DeviceError::Call { call: call.to_owned(), cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_library_wins() {
        assert_eq!(library_path(Some(Path::new("/opt/lib.so"))), OsString::from("/opt/lib.so"));
    }

    #[test]
    fn the_module_tells_its_version() {
        let root = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(module_version(root.path()), None);
        let file = root.path().join(MODULE_VERSION);
        fs::create_dir_all(file.parent().expect("it has one")).expect("creatable");
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12.2.0\n";
        fs::write(&file, open).expect("writable");
        assert_eq!(module_version(root.path()).as_deref(), Some("580.95.05"));
    }
}
