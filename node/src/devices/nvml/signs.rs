//! What a card says of its wellbeing. No profiling calls: a profiler that is ended at the wrong moment can wedge a card
//! (fault G12).

use super::card::Asked;
use crate::devices::clean;
use crate::devices::signs::{
    CardProcess, DeviceSigns, EccCounts, LinkSigns, PROCESSES_MAX, Recovery, RowRemap, Throttle,
};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::structs::device::FieldId;

/// Fields: rows remapped after corrected and uncorrected errors, pending, failed; the recovery action.
const FIELDS: [u32; 5] = [142, 143, 144, 145, 230];
/// Links of one card, at most.
const LINKS_MAX: u32 = 18;
/// More MHz than any clock has.
const CLOCK_MHZ_MAX: u32 = 100_000;

/// Asks the card for all of it. No answer of these closes a card; that one is lost is noted in `asked`.
pub(super) fn signs(device: &Device<'_>, asked: &mut Asked) -> DeviceSigns {
    let fields = fields(device, asked);
    let flag = |at: usize| fields[at].map(|value| value != 0);
    DeviceSigns {
        ecc: ecc(device, asked),
        remap: RowRemap { corrected: fields[0], uncorrected: fields[1], pending: flag(2), failed: flag(3) },
        // Bits that the wrapper does not know say nothing here.
        throttle: asked
            .told(device.current_throttle_reasons(), "throttle")
            .map(|reasons| Throttle(reasons.bits())),
        clock_mhz: clock(device, asked),
        recovery: fields[4].map(Recovery::of),
        processes: processes(device, asked),
        busy_permille: asked
            .told(device.utilization_rates(), "utilization")
            .and_then(|busy| clean::permille(busy.gpu)),
        links: links(device, asked),
        ..DeviceSigns::default()
    }
}

fn ecc(device: &Device<'_>, asked: &mut Asked) -> EccCounts {
    let mut count = |kind, time| asked.told(device.total_ecc_errors(kind, time), "ecc");
    EccCounts {
        volatile_corrected: count(MemoryError::Corrected, EccCounter::Volatile),
        volatile_uncorrected: count(MemoryError::Uncorrected, EccCounter::Volatile),
        aggregate_corrected: count(MemoryError::Corrected, EccCounter::Aggregate),
        aggregate_uncorrected: count(MemoryError::Uncorrected, EccCounter::Aggregate),
    }
}

pub(super) fn clock(device: &Device<'_>, asked: &mut Asked) -> Option<(u32, u32)> {
    let now = asked.told(device.clock_info(Clock::SM), "clock")?;
    let most = asked.told(device.max_clock_info(Clock::SM), "clock")?;
    (most > 0 && most < CLOCK_MHZ_MAX && now <= most).then_some((now, most))
}

/// A card without links says so at the first of them.
fn links(device: &Device<'_>, asked: &mut Asked) -> LinkSigns {
    let mut own = LinkSigns::default();
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        let Some(is_up) = asked.told(link.is_active(), "link") else { break };
        own.up = Some(own.up.unwrap_or(0) + u32::from(is_up));
        for counter in [ErrorCounter::DlReplay, ErrorCounter::DlRecovery].into_iter().filter(|_| is_up) {
            if let Some(count) = asked.told(link.error_counter(counter), "link errors") {
                own.errors = Some(own.errors.unwrap_or(0).saturating_add(count));
            }
        }
    }
    own
}

fn fields(device: &Device<'_>, asked: &mut Asked) -> [Option<u32>; FIELDS.len()] {
    let mut found = [None; FIELDS.len()];
    let Some(samples) = asked.told(device.field_values_for(&FIELDS.map(FieldId)), "fields") else {
        return found;
    };
    for (place, sample) in found.iter_mut().zip(samples) {
        *place = sample.ok().and_then(|sample| sample.value.ok()).and_then(|value| match value {
            SampleValue::U32(value) => Some(value),
            SampleValue::U64(value) => u32::try_from(value).ok(),
            SampleValue::I64(value) => u32::try_from(value).ok(),
            SampleValue::F64(_) => None,
        });
    }
    found
}

/// Processes of both lists, each once. A count that no host reaches is not believed: the wrapper would take memory for
/// so many.
fn processes(device: &Device<'_>, asked: &mut Asked) -> Option<Vec<CardProcess>> {
    let mut all = Vec::new();
    let mut told = false;
    let fair = |count: u32| count as usize <= PROCESSES_MAX;
    if asked.told(device.running_compute_processes_count(), "processes").is_some_and(fair)
        && let Some(list) = asked.told(device.running_compute_processes(), "processes")
    {
        told = true;
        all.extend(list);
    }
    if asked.told(device.running_graphics_processes_count(), "processes").is_some_and(fair)
        && let Some(list) = asked.told(device.running_graphics_processes(), "processes")
    {
        all.extend(list);
    }
    let mut all: Vec<CardProcess> = all
        .into_iter()
        .map(|process| CardProcess {
            pid: process.pid,
            vram_mib: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes.div_ceil(1 << 20)),
                UsedGpuMemory::Unavailable => None,
            },
        })
        .collect();
    all.sort_unstable();
    all.dedup_by_key(|process| process.pid);
    told.then_some(all)
}
