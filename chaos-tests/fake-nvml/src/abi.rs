//! The C interface: each exported call reads the script and answers as NVML does. Layouts follow `nvml.h`.

use crate::script::{Card, Script, code};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, ptr, thread};

/// How often a call that hangs looks whether the script still says so.
const HANG_LOOK: Duration = Duration::from_millis(10);

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
pub struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

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
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { started: 0, listed: Vec::new(), handles: Vec::new() });

fn library() -> std::sync::MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn handle_of(named: Named) -> *mut c_void {
    let mut library = library();
    let at = library.handles.iter().position(|known| *known == named).unwrap_or_else(|| {
        library.handles.push(named);
        library.handles.len() - 1
    });
    ptr::without_provenance_mut(at + 1)
}

fn script() -> Script {
    fs::read(crate::place::script_path(nvmlInit_v2 as *const c_void))
        .map_or_else(|_| Script::default(), |bytes| Script::parse(&bytes))
}

/// Finds the card of a handle in the script, as the script now is, and lets the call hang or fail if it says so.
fn ask(device: *mut c_void, call: &str) -> Result<(Card, Named), u32> {
    let at = device.addr().checked_sub(1).ok_or(code::INVALID_ARGUMENT)?;
    let named = library().handles.get(at).cloned().ok_or(code::INVALID_ARGUMENT)?;
    loop {
        let script = script();
        let card = script.cards.into_iter().find(|card| card.uuid == named.card);
        let card = card.ok_or(code::GPU_IS_LOST)?;
        if card.hangs_in(call) {
            thread::sleep(HANG_LOOK);
            continue;
        }
        return match card.code_of(call) {
            code::SUCCESS => Ok((card, named)),
            failed => Err(failed),
        };
    }
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

/// Starts the library, or starts it once more.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    let script = script();
    if script.init != code::SUCCESS {
        return script.init;
    }
    let mut library = library();
    if library.started == 0 {
        library.listed = script.cards.into_iter().map(|card| card.uuid).collect();
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

/// Only there because the wrapper calls it when it drops an event set.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> c_uint {
    code::SUCCESS
}

/// The driver's version.
///
/// # Safety
/// `version` must be valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer_text(version, length, Ok(script().driver.into_bytes())) }
}

/// Cards listed at the start.
///
/// # Safety
/// `count` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_uint {
    let listed = library().listed.len() as c_uint;
    // SAFETY: by this function's contract.
    unsafe { answer(count, Ok(listed)) }
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

/// The UUID of a card or slice.
///
/// # Safety
/// `uuid` must be valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, uuid: *mut c_char, length: c_uint) -> c_uint {
    let text = ask(device, "uuid").map(|(card, named)| named.slice.unwrap_or(card.uuid));
    // SAFETY: by this function's contract.
    unsafe { answer_text(uuid, length, text) }
}

/// The model.
///
/// # Safety
/// `name` must be valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: *mut c_void, name: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer_text(name, length, ask(device, "name").map(|(card, _)| card.name)) }
}

/// The PCI address.
///
/// # Safety
/// `pci` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: *mut c_void, pci: *mut PciInfo) -> c_uint {
    let info = ask(device, "bus").map(|(card, _)| {
        let mut info = PciInfo {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id: [0; 32],
        };
        fill(&mut info.bus_id, &card.bus);
        fill(&mut info.bus_id_legacy, &card.bus);
        info
    });
    // SAFETY: by this function's contract.
    unsafe { answer(pci, info) }
}

fn fill(place: &mut [c_char], text: &[u8]) {
    let most = place.len() - 1;
    for (byte, from) in place.iter_mut().take(most).zip(text) {
        *byte = from.cast_signed();
    }
}

/// Memory. The caller says by `version` that it knows this layout.
///
/// # Safety
/// `memory` must be valid for reads and writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut MemoryV2) -> c_uint {
    // SAFETY: by this function's contract.
    let version = unsafe { (*memory).version };
    if version != (size_of::<MemoryV2>() as c_uint | 2 << 24) {
        return code::INVALID_ARGUMENT;
    }
    let info = ask(device, "memory").map(|(card, named)| {
        let slice = card.slices.iter().find(|(uuid, _)| Some(uuid) == named.slice.as_ref());
        let total = slice.map_or(card.total, |(_, bytes)| *bytes);
        let used = card.used;
        MemoryV2 { version, total, reserved: 0, free: total.saturating_sub(used), used }
    });
    // SAFETY: by this function's contract.
    unsafe { answer(memory, info) }
}

/// Busy shares.
///
/// # Safety
/// `utilization` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: *mut c_void,
    utilization: *mut Utilization,
) -> c_uint {
    let rates = ask(device, "utilization").map(|(card, _)| Utilization { gpu: card.busy, memory: 0 });
    // SAFETY: by this function's contract.
    unsafe { answer(utilization, rates) }
}

/// The temperature.
///
/// # Safety
/// `celsius` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: *mut c_void,
    _sensor: c_uint,
    celsius: *mut c_uint,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(celsius, ask(device, "temperature").map(|(card, _)| card.temperature)) }
}

/// The power draw.
///
/// # Safety
/// `milliwatts` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: *mut c_void, milliwatts: *mut c_uint) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(milliwatts, ask(device, "power").map(|(card, _)| card.power)) }
}

/// The compute capability.
///
/// # Safety
/// `major` and `minor` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: *mut c_void,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_uint {
    let tenths = ask(device, "capability").map(|(card, _)| card.capability);
    // SAFETY: by this function's contract.
    unsafe {
        answer(minor, tenths.map(|tenths| (tenths % 10).cast_signed()));
        answer(major, tenths.map(|tenths| (tenths / 10).cast_signed()))
    }
}

/// Whether the card is cut into slices.
///
/// # Safety
/// `current` and `pending` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: *mut c_void,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> c_uint {
    let mode = ask(device, "mig").map(|(card, _)| c_uint::from(!card.slices.is_empty()));
    // SAFETY: by this function's contract.
    unsafe {
        answer(pending, mode);
        answer(current, mode)
    }
}

/// How many slices the card can have.
///
/// # Safety
/// `count` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: *mut c_void, count: *mut c_uint) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(count, ask(device, "mig").map(|_| 7)) }
}

/// The slice at a place.
///
/// # Safety
/// `slice` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: *mut c_void,
    index: c_uint,
    slice: *mut *mut c_void,
) -> c_uint {
    let handle = ask(device, "mig").and_then(|(card, _)| {
        let (uuid, _) = card.slices.get(index as usize).ok_or(code::NOT_FOUND)?;
        Ok(handle_of(Named { card: card.uuid.clone(), slice: Some(uuid.clone()) }))
    });
    // SAFETY: by this function's contract.
    unsafe { answer(slice, handle) }
}
