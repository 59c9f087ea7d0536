//! What a card says of its wellbeing: memory errors, remapped rows, the recovery action, its links.

use super::{answer, ask, told};
use crate::script::{Card, Links, code, wall_ms};
use std::ffi::{c_int, c_longlong, c_uint, c_ulonglong, c_void};

/// `NVML_FI_DEV_REMAPPED_COR` and the three after it.
const REMAPPED_CORRECTED: c_uint = 142;
const REMAPPED_UNCORRECTED: c_uint = 143;
const REMAPPED_PENDING: c_uint = 144;
const REMAPPED_FAILURE: c_uint = 145;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: c_uint = 230;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED_INT: c_uint = 1;
/// `NVML_MEMORY_ERROR_TYPE_CORRECTED`; uncorrected is one more.
const CORRECTED: c_uint = 0;
/// `NVML_VOLATILE_ECC`; aggregate is one more.
const VOLATILE: c_uint = 0;

/// `nvmlFieldValue_t`.
#[repr(C)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency_us: c_longlong,
    kind: c_uint,
    code: c_uint,
    value: c_ulonglong,
}

/// Values of fields, each with a return code of its own.
///
/// # Safety
/// `values` must be valid for reads and writes of `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: *mut c_void,
    count: c_int,
    values: *mut FieldValue,
) -> c_uint {
    let (card, _) = match ask(device, "field") {
        Ok(asked) => asked,
        Err(failed) => return failed,
    };
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: by this function's contract, and nobody else has it meanwhile.
        let value = unsafe { &mut *values.add(at) };
        let told = field(&card, value.field);
        value.kind = UNSIGNED_INT;
        value.code = if told.is_some() { code::SUCCESS } else { code::NOT_SUPPORTED };
        value.value = told.map_or(0, c_ulonglong::from);
    }
    code::SUCCESS
}

fn field(card: &Card, field: c_uint) -> Option<c_uint> {
    match field {
        REMAPPED_CORRECTED => card.remap.map(|remap| remap.corrected),
        REMAPPED_UNCORRECTED => card.remap.map(|remap| remap.uncorrected),
        REMAPPED_PENDING => card.remap.map(|remap| remap.pending.into()),
        REMAPPED_FAILURE => card.remap.map(|remap| remap.failed.into()),
        RECOVERY_ACTION => card.recovery,
        _ => None,
    }
}

/// Memory errors of one kind over one time.
///
/// # Safety
/// `errors` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: *mut c_void,
    kind: c_uint,
    time: c_uint,
    errors: *mut c_ulonglong,
) -> c_uint {
    let counted = ask(device, "ecc").and_then(|(card, _)| {
        let ecc = told(card.ecc_at(wall_ms()))?;
        Ok(match (kind == CORRECTED, time == VOLATILE) {
            (true, true) => ecc.volatile_corrected,
            (false, true) => ecc.volatile_uncorrected,
            (true, false) => ecc.aggregate_corrected,
            (false, false) => ecc.aggregate_uncorrected,
        })
    });
    // SAFETY: by this function's contract.
    unsafe { answer(errors, counted) }
}

/// Whether one NVLink is up.
///
/// # Safety
/// `active` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: *mut c_void,
    link: c_uint,
    active: *mut c_uint,
) -> c_uint {
    let told = link_of(device, link).map(|links| c_uint::from(link < links.up));
    // SAFETY: by this function's contract.
    unsafe { answer(active, told) }
}

/// Errors of one kind on one NVLink that is up.
///
/// # Safety
/// `errors` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    device: *mut c_void,
    link: c_uint,
    _counter: c_uint,
    errors: *mut c_ulonglong,
) -> c_uint {
    let told = link_of(device, link).map(|links| links.errors);
    // SAFETY: by this function's contract.
    unsafe { answer(errors, told) }
}

/// The card's links, if it has this one.
fn link_of(device: *mut c_void, link: c_uint) -> Result<Links, u32> {
    let links = ask(device, "links").and_then(|(card, _)| told(card.links))?;
    if link < links.count { Ok(links) } else { Err(code::INVALID_ARGUMENT) }
}
