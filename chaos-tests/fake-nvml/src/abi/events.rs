//! Events: who registered for a card hears each of its Xids once, in the order of their numbers.

use super::{Named, answer, ask, handle_of, library, system};
use crate::script::code;
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::time::{Duration, Instant};
use std::{ptr, thread};

/// `nvmlEventTypeXidCriticalError`.
const XID: c_ulonglong = 8;
/// How often a waiting call looks for an event.
const LOOK: Duration = Duration::from_millis(10);

/// `nvmlEventData_t`.
#[repr(C)]
pub struct EventData {
    device: *mut c_void,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Makes a set of events.
///
/// # Safety
/// `set` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut *mut c_void) -> c_uint {
    let made = system("events").map(|_| {
        let mut library = library();
        library.sets.push(Default::default());
        ptr::without_provenance_mut(library.sets.len())
    });
    // SAFETY: by this function's contract.
    unsafe { answer(set, made) }
}

/// Ends a set. Its place stays, empty.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: *mut c_void) -> c_uint {
    if let Some(cards) = place(set).and_then(|at| library().sets.get_mut(at).map(std::mem::take)) {
        drop(cards);
    }
    code::SUCCESS
}

/// Which kinds of events a card has.
///
/// # Safety
/// `kinds` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: *mut c_void,
    kinds: *mut c_ulonglong,
) -> c_uint {
    // SAFETY: by this function's contract.
    unsafe { answer(kinds, ask(device, "events").map(|_| XID)) }
}

/// Adds a card to a set: what happened until now is history.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: *mut c_void,
    _kinds: c_ulonglong,
    set: *mut c_void,
) -> c_uint {
    let (card, named) = match ask(device, "events") {
        Ok(asked) => asked,
        Err(failed) => return failed,
    };
    let last = card.xids.iter().map(|(number, _)| *number).max().unwrap_or(0);
    match place(set).and_then(|at| library().sets.get_mut(at).map(|cards| cards.insert(named.card, last))) {
        Some(_) => code::SUCCESS,
        None => code::INVALID_ARGUMENT,
    }
}

/// Waits for an event of a set.
///
/// # Safety
/// `data` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: *mut c_void,
    data: *mut EventData,
    timeout_ms: c_uint,
) -> c_uint {
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let found = match heard(set) {
            Ok(None) if Instant::now() < until => {
                thread::sleep(LOOK);
                continue;
            }
            Ok(None) => Err(code::TIMEOUT),
            Ok(Some(event)) => Ok(event),
            Err(failed) => Err(failed),
        };
        // SAFETY: by this function's contract.
        return unsafe { answer(data, found) };
    }
}

fn heard(set: *mut c_void) -> Result<Option<EventData>, u32> {
    let script = system("events")?;
    let at = place(set).ok_or(code::INVALID_ARGUMENT)?;
    let mut found = None;
    if let Some(cards) = library().sets.get_mut(at) {
        for (uuid, last) in cards.iter_mut() {
            let Some(card) = script.cards.iter().find(|card| card.uuid == *uuid) else { continue };
            let next = card.xids.iter().filter(|(number, _)| number > last).min();
            if let Some((number, xid)) = next {
                *last = *number;
                found = Some((uuid.clone(), *xid));
                break;
            }
        }
    }
    Ok(found.map(|(card, xid)| EventData {
        device: handle_of(Named { card, slice: None }),
        kind: XID,
        data: xid,
        gpu_instance: c_uint::MAX,
        compute_instance: c_uint::MAX,
    }))
}

fn place(set: *mut c_void) -> Option<usize> {
    set.addr().checked_sub(1)
}
