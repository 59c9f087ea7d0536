//! NVIDIA cards and MIG slices through `libnvidia-ml`, loaded at run time: a host without the library simply has no
//! such devices. Each symbol is resolved when it is called, so that an old driver lacks a feature, not its cards.
//! Any call but the UUID's may fail. Every call may hang: see [`super::probe`].

use super::{DeviceError, DeviceProvider, Found, Progress, clean};
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem;
use std::path::Path;
use std::sync::Arc;

/// The library's name for the loader's own search.
pub const LIBRARY_DEFAULT: &str = "libnvidia-ml.so.1";
/// Names the library's path where the configuration does not.
pub const LIBRARY_ENV: &str = "ROTA_NVML_LIBRARY";
/// After this many looks the library is started anew even if all is well: a driver shows cards that were added
/// later only to a new start.
const RESTART_LOOKS: u32 = 6;
/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

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
    /// How many cards it counts.
    pub cards: u32,
}

/// Loads the library, asks for its version and count, and lets it go. May hang like every call.
///
/// # Errors
/// `Ok(None)` when there is no such library; an error when it is there and does not work.
pub fn inspect(library: &OsStr) -> Result<Option<LibraryFacts>, DeviceError> {
    let Some(nvml) = start(library)? else {
        return Ok(None);
    };
    let count = nvml.device_count().map_err(|error| failed("nvmlDeviceGetCount", &error));
    let driver = nvml.sys_driver_version().ok().and_then(|version| clean::text(&version));
    let file = loaded_file(library);
    retire(nvml);
    Ok(Some(LibraryFacts { file, driver, cards: count? }))
}

/// Cards of one NVML library.
pub struct NvmlProvider {
    library: OsString,
    nvml: Option<Nvml>,
    looks: u32,
    progress: Arc<Progress>,
}

impl NvmlProvider {
    /// Does not touch the library yet.
    #[must_use]
    pub fn new(library: OsString) -> Self {
        Self { library, nvml: None, looks: 0, progress: Arc::default() }
    }
}

impl Drop for NvmlProvider {
    fn drop(&mut self) {
        if let Some(nvml) = self.nvml.take() {
            retire(nvml);
        }
    }
}

impl DeviceProvider for NvmlProvider {
    fn name(&self) -> &str {
        "nvml"
    }

    fn discover(&mut self) -> Result<Found, DeviceError> {
        self.looks += 1;
        if self.looks > RESTART_LOOKS {
            self.looks = 0;
            if let Some(nvml) = self.nvml.take() {
                retire(nvml);
            }
        }
        let nvml = match self.nvml.take() {
            Some(nvml) => nvml,
            None => match start(&self.library)? {
                Some(nvml) => nvml,
                None => {
                    let note = format!("nvml: no library {}", self.library.to_string_lossy());
                    return Ok(Found { notes: vec![note], ..Found::default() });
                }
            },
        };
        let found = cards(&nvml, &self.progress);
        // Only a host where all is well keeps the library open: after trouble the driver shows a card's return, or
        // a first card, to a new start alone.
        let well = found.as_ref().is_ok_and(|found| {
            found.notes.is_empty()
                && !found.devices.is_empty()
                && found.devices.iter().all(|d| d.health.is_healthy())
        });
        if well {
            self.nvml = Some(nvml)
        } else {
            retire(nvml)
        }
        found
    }

    fn read(&mut self) -> Vec<DeviceReading> {
        if let Some(nvml) = &self.nvml {
            return readings(nvml, &self.progress);
        }
        // Started for this alone and not kept: the next look needs a list of cards made afresh. A failure shows there;
        // readings only inform.
        let Ok(Some(nvml)) = start(&self.library) else { return Vec::new() };
        let all = readings(&nvml, &self.progress);
        retire(nvml);
        all
    }

    fn attend(&mut self, progress: Arc<Progress>) {
        self.progress = progress;
    }
}

fn readings(nvml: &Nvml, progress: &Progress) -> Vec<DeviceReading> {
    let mut all = Vec::new();
    for device in (0..nvml.device_count().unwrap_or(0)).filter_map(|index| nvml.device_by_index(index).ok()) {
        let Ok(uuid) = name_of(&device) else { continue };
        if progress.skips(&uuid) {
            continue;
        }
        progress.asking(&uuid);
        match slices(&device) {
            Some(slices) => all.extend(slices.iter().filter_map(reading)),
            None => all.extend(reading(&device)),
        }
        progress.answered(&[]);
    }
    all
}

/// Starts the library; `None` when it is not there.
fn start(library: &OsStr) -> Result<Option<Nvml>, DeviceError> {
    match Nvml::builder().lib_path(library).init() {
        Ok(nvml) => Ok(Some(nvml)),
        Err(NvmlError::LibloadingError(error)) if !is_there(library) => {
            tracing::debug!(%error, "no nvml library");
            Ok(None)
        }
        Err(error) => Err(DeviceError::Start {
            library: library.to_string_lossy().into_owned(),
            cause: error.to_string(),
        }),
    }
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
fn retire(nvml: Nvml) {
    if nvml.lib().nvmlShutdown.is_err() {
        mem::forget(nvml);
    }
}

fn cards(nvml: &Nvml, progress: &Progress) -> Result<Found, DeviceError> {
    let count = nvml.device_count().map_err(|error| failed("nvmlDeviceGetCount", &error))?;
    let mut found = Found::default();
    for index in 0..count {
        let device = match nvml.device_by_index(index) {
            Ok(device) => device,
            // A card that fell off the bus has no UUID to ask; the inventory misses it by name.
            Err(error) => {
                found.notes.push(format!("nvml: card {index} does not open: {error}"));
                continue;
            }
        };
        match name_of(&device) {
            Err(error) => found.notes.push(format!("nvml: card {index} {error}")),
            Ok(uuid) if progress.skips(&uuid) => {
                found.doubt = Some(format!("an earlier call about {uuid} has not returned"));
            }
            Ok(uuid) => {
                progress.asking(&uuid);
                let before = found.devices.len();
                card(&device, uuid, index, &mut found);
                progress.answered(&found.devices[before..]);
            }
        }
    }
    found.devices.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    Ok(found)
}

/// Adds the card, or its slices when it is cut.
fn card(device: &Device<'_>, uuid: DeviceUuid, index: u32, found: &mut Found) {
    let Some(slices) = slices(device) else {
        found.devices.push(facts(device, uuid, DeviceKind::Gpu, Some(index)));
        return;
    };
    if slices.is_empty() {
        found.notes.push(format!("nvml: card {index} is in MIG mode and has no slices"));
    }
    let bus = device.pci_info().ok().and_then(|pci| clean::text(&pci.bus_id));
    let numa = bus.as_deref().and_then(numa_node);
    for slice in slices {
        match name_of(&slice) {
            Ok(uuid) => {
                let own = facts(&slice, uuid, DeviceKind::Mig, None);
                found.devices.push(DeviceFacts { bus: bus.clone(), numa, ..own });
            }
            Err(error) => found.notes.push(format!("nvml: a slice of card {index} {error}")),
        }
    }
}

/// The MIG slices of a card that is cut, which then cannot be granted whole; `None` for a whole card.
fn slices<'nvml>(device: &Device<'nvml>) -> Option<Vec<Device<'nvml>>> {
    if device.mig_mode().ok()?.current != MIG_ENABLED {
        return None;
    }
    let most = device.mig_device_count().unwrap_or(0);
    Some((0..most).filter_map(|index| device.mig_device_by_index(index).ok()).collect())
}

/// The one call that must not fail: what has no name cannot be granted.
fn name_of(device: &Device<'_>) -> Result<DeviceUuid, String> {
    let raw = device.uuid().map_err(|error| format!("has no uuid: {error}"))?;
    Ok(DeviceUuid(clean::uuid(&raw).ok_or("has a uuid that cannot be a name")?))
}

fn facts(device: &Device<'_>, uuid: DeviceUuid, kind: DeviceKind, index: Option<u32>) -> DeviceFacts {
    let mut health = DeviceHealth::Healthy;
    let model = told(device.name(), "name", &mut health).and_then(|name| clean::text(&name));
    let memory = told(device.memory_info(), "memory", &mut health);
    let bus = told(device.pci_info(), "bus", &mut health).and_then(|pci| clean::text(&pci.bus_id));
    // Asked because it touches the hardware: names and sizes of a card that fell off the bus may still be cached.
    told(device.temperature(TemperatureSensor::Gpu), "temperature", &mut health);
    DeviceFacts {
        uuid,
        kind,
        model: model.unwrap_or_default(),
        vram_mib: memory.and_then(|memory| clean::vram_mib(memory.total)),
        numa: bus.as_deref().and_then(numa_node),
        bus,
        index,
        compute_cap: device
            .cuda_compute_capability()
            .ok()
            .and_then(|cap| clean::compute_cap(cap.major, cap.minor)),
        island: None,
        health,
    }
}

/// An answer, or what its absence means for the card's health. The worst finding stays.
fn told<T>(answer: Result<T, NvmlError>, what: &str, health: &mut DeviceHealth) -> Option<T> {
    let error = match answer {
        Ok(answer) => return Some(answer),
        Err(error) => error,
    };
    let reason = format!("nvml {what}: {error}");
    match grade(&error) {
        Grade::Lacking => {}
        Grade::Doubtful if health.is_healthy() => *health = DeviceHealth::Unknown { reason },
        Grade::Doubtful => {}
        Grade::Gone => *health = DeviceHealth::Lost { reason },
    }
    None
}

enum Grade {
    /// The card or driver does not have it; nothing is wrong.
    Lacking,
    /// Nobody knows.
    Doubtful,
    /// The card cannot work.
    Gone,
}

fn grade(error: &NvmlError) -> Grade {
    match error {
        NvmlError::GpuLost | NvmlError::ResetRequired => Grade::Gone,
        NvmlError::NotSupported
        | NvmlError::NoPermission
        | NvmlError::NotFound
        | NvmlError::NoData
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::InvalidArg
        | NvmlError::Utf8Error(_)
        | NvmlError::InsufficientSize(_)
        | NvmlError::UnexpectedVariant(_)
        | NvmlError::IncorrectBits(_) => Grade::Lacking,
        _ => Grade::Doubtful,
    }
}

fn reading(device: &Device<'_>) -> Option<DeviceReading> {
    let uuid = name_of(device).ok()?;
    let memory = device.memory_info().ok();
    Some(DeviceReading {
        uuid,
        busy_permille: device.utilization_rates().ok().and_then(|busy| clean::permille(busy.gpu)),
        vram_used_mib: memory.and_then(|m| clean::vram_used_mib(m.used, m.total)),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok().and_then(clean::temperature_c),
        power_mw: device.power_usage().ok().and_then(clean::power_mw),
    })
}

/// The NUMA node that the card hangs on, by the kernel's word: NVML's own call means the memory node of cards that
/// are one themselves. NVML writes an 8-digit PCI domain in capitals, sysfs a 4-digit one in small letters.
fn numa_node(bus: &str) -> Option<u32> {
    let path = format!("/sys/bus/pci/devices/{}/numa_node", sysfs_bus(bus)?);
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn sysfs_bus(bus: &str) -> Option<String> {
    let (domain, rest) = bus.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let fair = rest.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
    fair.then(|| format!("{domain:04x}:{}", rest.to_ascii_lowercase()))
}

fn failed(call: &'static str, error: &NvmlError) -> DeviceError {
    DeviceError::Call { call, cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    //! The real wrapper against a scripted library is tested in `chaos-tests/tests/nvml.rs`.
    use super::*;

    #[test]
    fn a_host_without_the_library_has_no_devices_and_says_so() {
        for absent in ["libnvidia-ml-not-here.so.1", "/nonexistent/libnvidia-ml.so.1"] {
            let found = NvmlProvider::new(absent.into()).discover().expect("not an error");
            assert!(found.devices.is_empty());
            assert!(found.notes[0].contains(absent), "{:?}", found.notes);
            assert_eq!(inspect(absent.as_ref()), Ok(None));
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error_and_not_an_empty_host() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("libnvidia-ml.so.1");
        fs::write(&path, "not an object file").expect("writable");
        let error = NvmlProvider::new(path.clone().into()).discover().expect_err("broken driver");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }

    #[test]
    fn bus_addresses_are_written_as_sysfs_does() {
        assert_eq!(sysfs_bus("00000000:3B:00.0"), Some("0000:3b:00.0".into()));
        assert_eq!(sysfs_bus("0000:3b:00.0"), Some("0000:3b:00.0".into()));
        for odd in ["", "3b", "zz:1", "0000:../../etc"] {
            assert_eq!(sysfs_bus(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn a_configured_library_wins() {
        assert_eq!(library_path(Some(Path::new("/opt/lib.so"))), OsString::from("/opt/lib.so"));
    }
}
