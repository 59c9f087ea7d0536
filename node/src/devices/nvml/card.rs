//! One card: its facts, its slices when it is cut, its live values. Only the UUID must be told (R024): whatever else
//! cannot be told is absent, and the card stays as it is. Two answers alone close it: it fell off the bus, it must be reset.

use super::{mig, signs};
use crate::devices::{Found, clean, unified};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use rota_protocol::device::{DeviceDetail, DeviceFacts, DeviceHealth, DeviceKind, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::path::Path;

/// Device files are numbered below this.
const MINOR_END: u32 = 1 << 20;

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
pub(super) fn card(device: &Device<'_>, uuid: &DeviceUuid, index: u32, root: &Path) -> Found {
    let mut found = Found::default();
    let mut asked = Asked::default();
    let mut own = facts(device, uuid.clone(), DeviceKind::Gpu, Some(index), &mut asked);
    let mut signs = signs::signs(device, &mut asked);
    let slices = mig::slices(device, &mut asked);
    signs.lost = asked.lost.is_some();
    signs.reset_required = asked.reset_required.is_some();
    found.signs.insert(uuid.clone(), signs);
    own.health = asked.health();
    own.detail.minor = asked.told(device.minor_number(), "minor number").filter(|minor| *minor < MINOR_END);
    own.detail.power_limit_mw =
        asked.told(device.power_management_limit(), "power limit").and_then(clean::power_mw);
    if let Some(path) = own.detail.minor.map(|minor| root.join(format!("dev/nvidia{minor}")))
        && is_denied(&path)
    {
        let reason = format!("not managed: this agent's own cgroup does not let it open {}", shown(&path));
        own.health = DeviceHealth::Unknown { reason };
        found.set_aside.push(own);
        return found;
    }
    let Some(slices) = slices else {
        if own.vram_mib.is_none() && !own.detail.unified {
            found.warnings.push(format!(
                "{uuid} does not tell its memory: only tasks that ask for no GPU memory may have it"
            ));
        }
        found.devices.push(own);
        return found;
    };
    own.detail.profiles = mig::profiles(device, own.vram_mib);
    let (slices, notes) = mig::named(slices, index);
    found.notes = notes;
    for (slice, uuid) in slices {
        found.devices.push(part(&slice, uuid, &own));
    }
    own.health = DeviceHealth::Unknown { reason: mig::reason(&found.devices) };
    found.set_aside.push(own);
    found
}

/// The cgroup's rules for devices forbid it: `EPERM`, where missing rights of the user are `EACCES`.
fn is_denied(path: &Path) -> bool {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.is_err_and(|error| error.raw_os_error() == Some(Errno::PERM.raw_os_error()))
}

fn shown(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    format!("/dev/{}", name.unwrap_or_default())
}

/// A slice of a card.
fn part(slice: &Device<'_>, uuid: DeviceUuid, card: &DeviceFacts) -> DeviceFacts {
    let mut asked = Asked::default();
    let mut own = facts(slice, uuid, DeviceKind::Mig, None, &mut asked);
    if let Some(profile) = mig::profile(slice, card.vram_mib) {
        own.model = profile;
    }
    own.bus.clone_from(&card.bus);
    own.numa = card.numa;
    own.compute_cap = own.compute_cap.or(card.compute_cap);
    own.detail.parent = Some(card.uuid.clone());
    own.detail.minor = card.detail.minor;
    // A slice is no better than its card.
    own.health = if card.health.is_healthy() { asked.health() } else { card.health.clone() };
    own
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
    let model = model.unwrap_or_default();
    // A slice has memory of its own.
    let unified = kind == DeviceKind::Gpu && unified::is_shared(&model);
    DeviceFacts {
        uuid,
        kind,
        model,
        vram_mib: memory.and_then(|memory| clean::vram_mib(memory.total)),
        numa: bus.as_deref().and_then(numa_node),
        bus,
        index,
        compute_cap: cap.and_then(|cap| clean::compute_cap(cap.major, cap.minor)),
        island: None,
        health: DeviceHealth::Healthy,
        detail: DeviceDetail { unified, ..DeviceDetail::default() },
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
        clock_permille: signs::clock(device, &mut Asked::default()).and_then(clean::clock_permille),
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
