//! What lasts: names, addresses, memory, and how cards are joined.

use super::{answer, answer_text, ask, told};
use crate::script::Card;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// `NVML_P2P_CAPS_INDEX_NVLINK`.
const P2P_NVLINK: c_uint = 2;
/// `NVML_P2P_STATUS_OK`.
const P2P_OK: c_uint = 0;
/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const P2P_NONE: c_uint = 5;
/// `NVML_TOPOLOGY_SINGLE`: one PCIe switch.
const TOPOLOGY_SWITCH: c_uint = 10;
/// `NVML_TOPOLOGY_NODE`.
const TOPOLOGY_NODE: c_uint = 40;

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
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

/// The model; of a slice, with its profile.
///
/// # Safety
/// `name` must be valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: *mut c_void, name: *mut c_char, length: c_uint) -> c_uint {
    let text = ask(device, "name").map(|(card, named)| {
        let slice = card.slices.iter().find(|slice| Some(&slice.uuid) == named.slice.as_ref());
        let mut text = card.name.clone();
        if let Some(slice) = slice.filter(|slice| !slice.profile.is_empty()) {
            text.extend_from_slice(format!(" MIG {}", slice.profile).as_bytes());
        }
        text
    });
    // SAFETY: by this function's contract.
    unsafe { answer_text(name, length, text) }
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

/// The number of the device file.
///
/// # Safety
/// `minor` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: *mut c_void, minor: *mut c_uint) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(minor, ask(device, "minor").and_then(|(card, _)| told(card.minor))) }
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
        return crate::script::code::INVALID_ARGUMENT;
    }
    let info = ask(device, "memory").map(|(card, named)| {
        let slice = card.slices.iter().find(|slice| Some(&slice.uuid) == named.slice.as_ref());
        let total = slice.map_or(card.total, |slice| slice.bytes);
        let used = card.used;
        MemoryV2 { version, total, reserved: 0, free: total.saturating_sub(used), used }
    });
    // SAFETY: by this function's contract.
    unsafe { answer(memory, info) }
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

/// The power limit that the operator set.
///
/// # Safety
/// `milliwatts` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerManagementLimit(
    device: *mut c_void,
    milliwatts: *mut c_uint,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(milliwatts, ask(device, "power_limit").and_then(|(card, _)| told(card.power_limit))) }
}

/// The power limit that holds.
///
/// # Safety
/// `milliwatts` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    device: *mut c_void,
    milliwatts: *mut c_uint,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { nvmlDeviceGetPowerManagementLimit(device, milliwatts) }
}

/// Whether two cards reach each other in this way. Only NVLink is known.
///
/// # Safety
/// `status` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    one: *mut c_void,
    other: *mut c_void,
    way: c_uint,
    status: *mut c_uint,
) -> c_uint {
    let found = both(one, other, "p2p").map(|(one, other)| {
        let joined = way == P2P_NVLINK && one.nvlink.is_some() && one.nvlink == other.nvlink;
        if joined { P2P_OK } else { P2P_NONE }
    });
    // SAFETY: by this function's contract.
    unsafe { answer(status, found) }
}

/// How far two cards are apart on PCIe.
///
/// # Safety
/// `level` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    one: *mut c_void,
    other: *mut c_void,
    level: *mut c_uint,
) -> c_uint {
    let found = both(one, other, "topology").map(|(one, other)| {
        if one.switch.is_some() && one.switch == other.switch { TOPOLOGY_SWITCH } else { TOPOLOGY_NODE }
    });
    // SAFETY: by this function's contract.
    unsafe { answer(level, found) }
}

fn both(one: *mut c_void, other: *mut c_void, call: &str) -> Result<(Card, Card), u32> {
    Ok((ask(one, call)?.0, ask(other, call)?.0))
}
