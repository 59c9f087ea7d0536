//! From a grant to what its cage must let through: the nodes of the granted devices, a node that must stay closed, the
//! limits. What the driver calls its cards is read from `/proc`, by UUID or bus address, never by index.

use super::nodes::{Granted, of_grant};
use super::place::{CageAsk, Place};
use crate::warden::mps;
use rota_core::Attempt;
use rota_protocol::DeviceUuid;
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::job::JobSpec;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the NVIDIA driver describes its cards and its slices.
const DRIVER: &str = "/proc/driver/nvidia";

impl Place {
    /// What an attempt asks of its cage. `devices` is what the host has.
    #[must_use]
    pub fn ask(&self, devices: &[DeviceFacts], attempt: &Attempt, spec: &JobSpec) -> CageAsk {
        let granted = |facts: &&DeviceFacts| attempt.devices.contains(&facts.uuid);
        let nodes_of = |facts: &DeviceFacts| self.nodes_of(facts, Path::new(DRIVER));
        let mut nodes: Vec<PathBuf> = devices.iter().filter(granted).flat_map(nodes_of).collect();
        nodes.sort();
        nodes.dedup();
        let others = devices.iter().filter(|facts| !granted(facts)).flat_map(nodes_of);
        let probe = others.into_iter().find(|node| !nodes.contains(node) && node.exists());
        let own = rustix::process::geteuid().as_raw();
        let uid = spec.uid_gid.map_or(own, |(uid, _)| uid);
        CageAsk {
            cpus_milli: attempt.cpus_milli,
            mem_mib: attempt.mem_mib,
            nodes,
            probe,
            workdir: OsStr::from_bytes(&spec.workdir).into(),
            as_agent: uid == own,
            as_dynamic: self.settings().is_dynamic(uid),
            in_container: spec.container.is_some(),
            uses_mps: mps::is_asked(attempt, spec.ask_at(attempt.choice)),
        }
    }

    /// The nodes of one device: as the operator described them, as its provider tells them, or as its driver names it.
    fn nodes_of(&self, facts: &DeviceFacts, driver: &Path) -> Vec<PathBuf> {
        if let Some(described) = self.settings().device_nodes.get(&facts.uuid.0) {
            let described: Vec<Granted<'_>> = described.iter().map(|path| Granted::Described(path)).collect();
            return of_grant(&self.settings().device_dir, &described);
        }
        if !facts.detail.nodes.is_empty() {
            let told: Vec<PathBuf> = facts.detail.nodes.iter().map(PathBuf::from).collect();
            let told: Vec<Granted<'_>> = told.iter().map(|path| Granted::Described(path)).collect();
            return of_grant(&self.settings().device_dir, &told);
        }
        let granted = match facts.kind {
            DeviceKind::Gpu if facts.detail.minor.is_some() => {
                facts.detail.minor.map(|minor| vec![Granted::Card { minor }])
            }
            DeviceKind::Gpu | DeviceKind::Mig => Some(self.drivers.of(facts, driver)),
            DeviceKind::Fpga | DeviceKind::Other => None,
        };
        of_grant(&self.settings().device_dir, &granted.unwrap_or_default())
    }

    /// The devices were looked at anew: the driver is asked again.
    pub fn looked_at(&self) {
        self.drivers.known().clear();
    }
}

/// What the driver said of devices, from one look at them to the next: it takes its time to answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Drivers {
    known: Arc<Mutex<BTreeMap<DeviceUuid, Vec<Granted<'static>>>>>,
}

impl Drivers {
    fn known(&self) -> MutexGuard<'_, BTreeMap<DeviceUuid, Vec<Granted<'static>>>> {
        // Every change under the lock is complete when it is let go.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, facts: &DeviceFacts, driver: &Path) -> Vec<Granted<'static>> {
        let mut known = self.known();
        if let Some(said) = known.get(&facts.uuid) {
            return said.clone();
        }
        let said = ask_driver(facts, driver);
        known.insert(facts.uuid.clone(), said.clone());
        said
    }
}

fn ask_driver(facts: &DeviceFacts, driver: &Path) -> Vec<Granted<'static>> {
    let found = if facts.kind == DeviceKind::Mig {
        let bus = facts.bus.as_deref().map(short_bus);
        minor_of(driver, |text| bus.is_some() && field(text, "Bus Location").map(short_bus) == bus)
            .map(|minor| slices(driver, minor))
    } else {
        minor_of(driver, |text| field(text, "GPU UUID") == Some(&facts.uuid.0))
            .map(|minor| vec![Granted::Card { minor }])
    };
    found.unwrap_or_default()
}

/// The driver's minor number of the card whose description is the wanted one.
fn minor_of(driver: &Path, wanted: impl Fn(&str) -> bool) -> Option<u32> {
    let cards = fs::read_dir(driver.join("gpus")).ok()?;
    let texts = cards.filter_map(|card| fs::read_to_string(card.ok()?.path().join("information")).ok());
    let mut minors =
        texts.filter(|text| wanted(text)).filter_map(|text| field(&text, "Device Minor")?.parse().ok());
    minors.next()
}

/// All slices of a card. Which of them a UUID means, only the management library knows; the slices of one card are kept
/// apart by the driver alone until the inventory tells their numbers.
fn slices(driver: &Path, minor: u32) -> Vec<Granted<'static>> {
    let root = driver.join(format!("capabilities/gpu{minor}/mig"));
    let below = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect()
    };
    let cap = |folder: &Path| -> Option<u32> {
        field(&fs::read_to_string(folder.join("access")).ok()?, "DeviceFileMinor")?.parse().ok()
    };
    let mut found = Vec::new();
    for instance in below(&root) {
        let Some(outer) = cap(&instance) else { continue };
        let inner = below(&instance).into_iter().filter_map(|part| cap(&part));
        found.extend(inner.map(|inner| Granted::Slice { minor, caps: [outer, inner] }));
    }
    found
}

/// The value in a line `name: value`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| Some(line.trim().strip_prefix(name)?.trim_start().strip_prefix(':')?.trim()))
}

/// The library writes the domain with eight digits, the kernel with four.
fn short_bus(bus: &str) -> String {
    let lower = bus.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) => format!("{}:{rest}", domain.trim_start_matches('0')),
        None => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::Offer;
    use super::super::settings::CageSettings;
    use super::*;
    use rota_protocol::cage::Isolation;
    use rota_protocol::device::DeviceHealth;

    fn facts(uuid: &str, kind: DeviceKind, bus: &str) -> DeviceFacts {
        DeviceFacts {
            uuid: DeviceUuid(uuid.into()),
            kind,
            model: "H100".into(),
            vram_mib: None,
            bus: Some(bus.into()),
            index: Some(0),
            numa: None,
            compute_cap: None,
            island: None,
            detail: rota_protocol::device::DeviceDetail::default(),
            health: DeviceHealth::Healthy,
        }
    }

    #[test]
    fn nodes_follow_the_uuid_and_the_bus_not_the_index() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let card = |uuid: &str, bus: &str, minor: u32| {
            format!(
                "Model: \t\t H100\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
            )
        };
        put("gpus/0000:17:00.0/information", &card("GPU-b", "0000:17:00.0", 3));
        put("gpus/0000:65:00.0/information", &card("GPU-a", "0000:65:00.0", 0));
        put("capabilities/gpu3/mig/gi1/access", "DeviceFileMinor: 12\nDeviceFileMode: 292\n");
        put("capabilities/gpu3/mig/gi1/ci0/access", "DeviceFileMinor: 13\n");
        fs::create_dir(dir.path().join("attempts")).unwrap();
        let mut settings = CageSettings { isolation: Isolation::None, ..CageSettings::default() };
        settings.device_nodes.insert("FPGA-1".into(), vec!["/dev/xclmgmt0".into()]);
        let place = Place::find(dir.path(), &settings, Offer::default()).unwrap();
        let nodes = |facts: &DeviceFacts| -> Vec<String> {
            place.nodes_of(facts, dir.path()).iter().map(|path| path.display().to_string()).collect()
        };
        let b = nodes(&facts("GPU-b", DeviceKind::Gpu, "x"));
        assert!(b.contains(&"/dev/nvidia3".into()) && !b.contains(&"/dev/nvidia0".into()), "{b:?}");
        let slice = nodes(&facts("MIG-1", DeviceKind::Mig, "00000000:17:00.0"));
        assert!(slice.contains(&"/dev/nvidia-caps/nvidia-cap13".into()), "{slice:?}");
        assert_eq!(nodes(&facts("FPGA-1", DeviceKind::Fpga, "")), ["/dev/xclmgmt0"]);
        assert!(nodes(&facts("GPU-gone", DeviceKind::Gpu, "x")).is_empty());
        // The driver was loaded anew and counts otherwise: known with the next look at the devices.
        put("gpus/0000:17:00.0/information", &card("GPU-b", "0000:17:00.0", 5));
        assert_eq!(nodes(&facts("GPU-b", DeviceKind::Gpu, "x")), b);
        place.looked_at();
        let again = nodes(&facts("GPU-b", DeviceKind::Gpu, "x"));
        assert!(
            again.contains(&"/dev/nvidia5".into()) && !again.contains(&"/dev/nvidia3".into()),
            "{again:?}"
        );
    }
}
