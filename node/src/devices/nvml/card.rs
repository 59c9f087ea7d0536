//! One card: its facts, its slices when it is cut, its live values. Only the UUID must be told (R024): whatever else
//! cannot be told is absent, and the card stays as it is. Two answers alone close it: it fell off the bus, it must be reset.

use super::signs;
use crate::devices::{Found, clean};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use std::fs;

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;
/// More slices than any card has: a larger answer is not believed.
const SLICES_MAX: u32 = 64;

/// What the answers about one card say of its health: the worst of them stays.
#[derive(Debug, Default)]
pub(super) struct Asked {
    lost: Option<String>,
    reset_required: Option<String>,
}

impl Asked {
    /// An answer; its absence is noted when it closes the card.
    pub(super) fn told<T>(&mut self, answer: Result<T, NvmlError>, what: &str) -> Option<T> {
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        let place = match error {
            NvmlError::GpuLost => &mut self.lost,
            NvmlError::ResetRequired => &mut self.reset_required,
            _ => return None,
        };
        place.get_or_insert_with(|| format!("nvml {what}: {error}"));
        None
    }

    fn health(&self) -> DeviceHealth {
        match self.lost.as_ref().or(self.reset_required.as_ref()) {
            None => DeviceHealth::Healthy,
            Some(reason) => DeviceHealth::Lost { reason: reason.clone() },
        }
    }
}

/// What is found about the card at this place of the driver's list, or about its slices when it is cut.
pub(super) fn card(device: &Device<'_>, uuid: &DeviceUuid, index: u32) -> Found {
    let mut found = Found::default();
    let mut asked = Asked::default();
    let own = facts(device, uuid.clone(), DeviceKind::Gpu, Some(index), &mut asked);
    let mut signs = signs::signs(device, &mut asked);
    let slices = slices(device, &mut asked);
    signs.lost = asked.lost.is_some();
    signs.reset_required = asked.reset_required.is_some();
    found.signs.insert(uuid.clone(), signs);
    let health = asked.health();
    let Some(slices) = slices else {
        found.devices.push(DeviceFacts { health, ..own });
        return found;
    };
    if slices.is_empty() {
        found.notes.push(format!("nvml: card {index} is in MIG mode and has no slices"));
    }
    for slice in slices {
        match name_of(&slice) {
            Ok(uuid) => {
                let mut asked = Asked::default();
                let part = facts(&slice, uuid, DeviceKind::Mig, None, &mut asked);
                // A slice is no better than its card.
                let health = if health.is_healthy() { asked.health() } else { health.clone() };
                found.devices.push(DeviceFacts { bus: own.bus.clone(), numa: own.numa, health, ..part });
            }
            Err(error) => found.notes.push(format!("nvml: a slice of card {index} {error}")),
        }
    }
    found
}

/// The MIG slices of a card that is cut, which then cannot be granted whole; `None` for a whole card.
pub(super) fn slices<'nvml>(device: &Device<'nvml>, asked: &mut Asked) -> Option<Vec<Device<'nvml>>> {
    if asked.told(device.mig_mode(), "MIG mode")?.current != MIG_ENABLED {
        return None;
    }
    let most = device.mig_device_count().unwrap_or(0).min(SLICES_MAX);
    Some((0..most).filter_map(|index| device.mig_device_by_index(index).ok()).collect())
}

/// The one call that must not fail: what has no name cannot be granted.
pub(super) fn name_of(device: &Device<'_>) -> Result<DeviceUuid, String> {
    let raw = device.uuid().map_err(|error| format!("has no uuid: {error}"))?;
    Ok(DeviceUuid(clean::uuid(&raw).ok_or("has a uuid that cannot be a name")?))
}

fn facts(
    device: &Device<'_>,
    uuid: DeviceUuid,
    kind: DeviceKind,
    index: Option<u32>,
    asked: &mut Asked,
) -> DeviceFacts {
    let model = asked.told(device.name(), "name").and_then(|name| clean::text(&name));
    let memory = asked.told(device.memory_info(), "memory");
    let bus = asked.told(device.pci_info(), "bus").and_then(|pci| clean::text(&pci.bus_id));
    // Asked because it touches the hardware: names and sizes of a card that fell off the bus may still be cached.
    asked.told(device.temperature(TemperatureSensor::Gpu), "temperature");
    let cap = asked.told(device.cuda_compute_capability(), "capability");
    DeviceFacts {
        uuid,
        kind,
        model: model.unwrap_or_default(),
        vram_mib: memory.and_then(|memory| clean::vram_mib(memory.total)),
        numa: bus.as_deref().and_then(numa_node),
        bus,
        index,
        compute_cap: cap.and_then(|cap| clean::compute_cap(cap.major, cap.minor)),
        island: None,
        health: DeviceHealth::Healthy,
        detail: Default::default(),
    }
}

/// Live values of a card or slice.
pub(super) fn reading(device: &Device<'_>) -> Option<DeviceReading> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_addresses_are_written_as_sysfs_does() {
        assert_eq!(sysfs_bus("00000000:3B:00.0"), Some("0000:3b:00.0".into()));
        assert_eq!(sysfs_bus("0000:3b:00.0"), Some("0000:3b:00.0".into()));
        for odd in ["", "3b", "zz:1", "0000:../../etc"] {
            assert_eq!(sysfs_bus(odd), None, "{odd:?}");
        }
    }
}
