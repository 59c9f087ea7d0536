//! MIG: the mode, the slices, what they are made of, and the profiles a card offers.

use super::{Named, answer, ask, handle_of, named_by, told};
use crate::script::{Slice, code};
use std::ffi::{c_uint, c_ulonglong, c_void};

/// Slices of a card at most, unless the script says otherwise.
const SLOTS: c_uint = 7;

/// `nvmlDeviceAttributes_t`.
#[repr(C)]
pub struct Attributes {
    multiprocessors: c_uint,
    copy_engines: c_uint,
    decoders: c_uint,
    encoders: c_uint,
    jpegs: c_uint,
    flows: c_uint,
    gpu_slices: c_uint,
    compute_slices: c_uint,
    memory_mib: c_ulonglong,
}

/// `nvmlGpuInstanceProfileInfo_t`.
#[repr(C)]
pub struct ProfileInfo {
    number: c_uint,
    p2p: c_uint,
    slices: c_uint,
    instances: c_uint,
    multiprocessors: c_uint,
    copy_engines: c_uint,
    decoders: c_uint,
    encoders: c_uint,
    jpegs: c_uint,
    flows: c_uint,
    memory_mib: c_ulonglong,
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
    let mode = ask(device, "mig").map(|(card, _)| c_uint::from(card.mig || !card.slices.is_empty()));
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
    unsafe { answer(count, ask(device, "mig").map(|(card, _)| card.slots.unwrap_or(SLOTS))) }
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
    let handle = ask(device, "slice").and_then(|(card, _)| {
        let slice = card.slices.get(index as usize).ok_or(code::NOT_FOUND)?;
        Ok(handle_of(Named { card: card.uuid.clone(), slice: Some(slice.uuid.clone()) }))
    });
    // SAFETY: by this function's contract.
    unsafe { answer(slice, handle) }
}

/// The card that a slice was cut from.
///
/// # Safety
/// `parent` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    device: *mut c_void,
    parent: *mut *mut c_void,
) -> c_uint {
    let handle = named_by(device).and_then(|named| match named.slice {
        Some(_) => Ok(handle_of(Named { card: named.card, slice: None })),
        None => Err(code::NOT_FOUND),
    });
    // SAFETY: by this function's contract.
    unsafe { answer(parent, handle) }
}

/// What a slice is made of.
///
/// # Safety
/// `attributes` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(
    device: *mut c_void,
    attributes: *mut Attributes,
) -> c_uint {
    let made_of = |slice: &Slice| Attributes {
        multiprocessors: slice.gpu_slices * 16,
        copy_engines: 1,
        decoders: 0,
        encoders: 0,
        jpegs: 0,
        flows: 0,
        gpu_slices: slice.gpu_slices,
        compute_slices: slice.compute_slices,
        memory_mib: slice.bytes >> 20,
    };
    let found = ask(device, "slice").and_then(|(card, named)| {
        let slice = card.slices.iter().find(|slice| Some(&slice.uuid) == named.slice.as_ref());
        told(slice.map(made_of))
    });
    // SAFETY: by this function's contract.
    unsafe { answer(attributes, found) }
}

/// A profile of the card.
///
/// # Safety
/// `info` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: *mut c_void,
    number: c_uint,
    info: *mut ProfileInfo,
) -> c_uint {
    let found = ask(device, "profile").and_then(|(card, _)| {
        let profile = told(card.profiles.iter().find(|profile| profile.number == number).copied())?;
        Ok(ProfileInfo {
            number,
            p2p: 0,
            slices: profile.slices,
            instances: profile.count,
            multiprocessors: profile.slices * 16,
            copy_engines: 1,
            decoders: 0,
            encoders: 0,
            jpegs: 0,
            flows: 0,
            memory_mib: profile.mib,
        })
    });
    // SAFETY: by this function's contract.
    unsafe { answer(info, found) }
}
