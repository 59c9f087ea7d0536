//! Faults of simulated devices, from a file that is read at each look: a card may vanish and return, be ill, show values,
//! signs of trouble and processes. For labs and tests of everything above the driver.

use super::signs::{CardProcess, DeviceSigns, Recovery, Throttle, XIDS_MAX};
use super::{Found, clean};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimScript {
    /// Devices that are not as usual.
    #[serde(default)]
    card: Vec<SimCard>,
}

/// One device that is not as usual. It is named by its UUID, or, for GPUs, by its place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SimCard {
    uuid: Option<String>,
    index: Option<u32>,
    /// It is not there.
    gone: bool,
    /// It fell off the bus, for this reason.
    lost: Option<String>,
    /// Nobody knows about it, for this reason.
    unknown: Option<String>,
    busy_percent: Option<u32>,
    vram_used_mib: Option<u64>,
    temperature_c: Option<u32>,
    ecc_volatile_corrected: Option<u64>,
    ecc_volatile_uncorrected: Option<u64>,
    remap_pending: Option<bool>,
    remap_failed: Option<bool>,
    throttle: Option<u64>,
    recovery: Option<u32>,
    reset_required: bool,
    /// Events: a number that grows, and the Xid.
    xids: Vec<(u64, u32)>,
    processes: Option<Vec<SimProcess>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SimProcess {
    pid: u32,
    vram_mib: Option<u64>,
}

/// Numbers of the events that were told, by device. What the first look finds is history.
pub type Heard = BTreeMap<DeviceUuid, u64>;

impl SimScript {
    /// Reads a script.
    ///
    /// # Errors
    /// Unreadable, too large, or not a script; the message names line and key.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(format!("{bytes} bytes are above {FILE_BYTES_MAX}"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        toml::from_str(&text).map_err(|error| error.to_string().trim().replace('\n', " "))
    }

    fn of(&self, device: &DeviceFacts) -> Option<&SimCard> {
        let by_place = |place| device.kind == DeviceKind::Gpu && device.index == place;
        self.card.iter().find(|card| match &card.uuid {
            Some(uuid) => *uuid == device.uuid.0,
            None => card.index.is_some() && by_place(card.index),
        })
    }

    /// The devices as the script shows them.
    #[must_use]
    pub fn show(&self, devices: &[DeviceFacts], heard: &mut Heard) -> Found {
        let mut found = Found::default();
        for device in devices {
            let mut device = device.clone();
            let mut signs = DeviceSigns { processes: Some(Vec::new()), ..DeviceSigns::default() };
            let last = heard.get(&device.uuid).copied();
            let mut newest = last.unwrap_or(0);
            if let Some(card) = self.of(&device) {
                newest = card.xids.iter().map(|(number, _)| *number).fold(newest, u64::max);
                let new = |number: u64| last.is_some_and(|last| number > last);
                let xids = card.xids.iter().filter(|(number, _)| new(*number)).map(|(_, xid)| *xid);
                signs.xids = xids.take(XIDS_MAX).collect();
                card.mark(&mut device, &mut signs);
                if card.gone {
                    heard.insert(device.uuid.clone(), newest);
                    continue;
                }
            }
            heard.insert(device.uuid.clone(), newest);
            if device.kind == DeviceKind::Gpu {
                found.signs.insert(device.uuid.clone(), signs);
            }
            found.devices.push(device);
        }
        found
    }

    /// A reading as the script shows it; none of a device that is gone.
    #[must_use]
    pub fn reading(&self, device: &DeviceFacts, mut usual: DeviceReading) -> Option<DeviceReading> {
        let Some(card) = self.of(device) else { return Some(usual) };
        if card.gone || card.lost.is_some() {
            return None;
        }
        usual.busy_permille = card.busy_percent.map_or(usual.busy_permille, clean::permille);
        usual.vram_used_mib = card.vram_used_mib.or(usual.vram_used_mib);
        usual.temperature_c = card.temperature_c.map_or(usual.temperature_c, clean::temperature_c);
        Some(usual)
    }
}

impl SimCard {
    fn mark(&self, device: &mut DeviceFacts, signs: &mut DeviceSigns) {
        signs.ecc.volatile_corrected = self.ecc_volatile_corrected;
        signs.ecc.volatile_uncorrected = self.ecc_volatile_uncorrected;
        signs.remap.pending = self.remap_pending;
        signs.remap.failed = self.remap_failed;
        signs.throttle = self.throttle.map(Throttle);
        signs.recovery = self.recovery.map(Recovery::of);
        signs.reset_required = self.reset_required;
        signs.lost = self.lost.is_some();
        let process = |one: &SimProcess| CardProcess { pid: one.pid, vram_mib: one.vram_mib };
        if let Some(processes) = &self.processes {
            signs.processes = Some(processes.iter().map(process).collect());
        }
        if let Some(reason) = &self.unknown {
            device.health = DeviceHealth::Unknown { reason: clean::reason(reason) };
        }
        if let Some(reason) = &self.lost {
            device.health = DeviceHealth::Lost { reason: clean::reason(reason) };
        }
    }
}
