//! What changes from moment to moment: shares, heat, power, clocks, processes.

use super::{answer, ask, told};
use crate::script::{List, code};
use std::ffi::{c_uint, c_ulonglong, c_void};

/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// What instance numbers of processes are outside MIG.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// `nvmlUtilization_t`.
#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
pub struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
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

/// A clock as it is; all kinds of clock are one here.
///
/// # Safety
/// `mhz` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: *mut c_void,
    _kind: c_uint,
    mhz: *mut c_uint,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(mhz, ask(device, "clock").and_then(|(card, _)| Ok(told(card.clock)?.0))) }
}

/// A clock at its fastest.
///
/// # Safety
/// `mhz` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: *mut c_void,
    _kind: c_uint,
    mhz: *mut c_uint,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(mhz, ask(device, "clock").and_then(|(card, _)| Ok(told(card.clock)?.1))) }
}

/// Why the card is slower than it could be.
///
/// # Safety
/// `reasons` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: *mut c_void,
    reasons: *mut c_ulonglong,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(reasons, ask(device, "throttle").and_then(|(card, _)| told(card.throttle))) }
}

/// Processes that compute.
///
/// # Safety
/// `count` must be valid for reads and writes, `infos` for `count` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { processes(device, List::Compute, count, infos) }
}

/// Processes that draw.
///
/// # Safety
/// `count` must be valid for reads and writes, `infos` for `count` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { processes(device, List::Graphics, count, infos) }
}

/// Processes that compute by way of MPS.
///
/// # Safety
/// `count` must be valid for reads and writes, `infos` for `count` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    infos: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { processes(device, List::Mps, count, infos) }
}

/// One of the lists.
///
/// # Safety
/// `count` must be valid for reads and writes, `infos` for `count` writes.
unsafe fn processes(device: *mut c_void, list: List, count: *mut c_uint, infos: *mut ProcessInfo) -> c_uint {
    let (card, _) = match ask(device, "processes") {
        Ok(asked) => asked,
        Err(failed) => return failed,
    };
    let of_list: Vec<_> = card.processes.iter().filter(|process| process.list == list).collect();
    let said = card.processes_said.unwrap_or(of_list.len() as c_uint);
    // SAFETY: by this function's contract.
    let room = unsafe { count.replace(said) };
    if room < said || infos.is_null() && said > 0 {
        return code::INSUFFICIENT_SIZE;
    }
    for (at, process) in of_list.into_iter().enumerate().take(room as usize) {
        let info = ProcessInfo {
            pid: process.pid,
            used: process.bytes.unwrap_or(NOT_AVAILABLE),
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        };
        // SAFETY: `at` is less than the caller's room.
        unsafe { infos.add(at).write(info) };
    }
    code::SUCCESS
}
