//! What a host says of its hardware. Absent is absent: never zero, never free capacity.

use crate::ids::{BootId, DeviceUuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use crate::device_detail::{DeviceDetail, HostNotes};

/// The family of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A whole graphics card.
    Gpu,
    /// A hardware slice of a card with its own UUID.
    Mig,
    /// A field-programmable gate array.
    Fpga,
    /// Anything else that an operator described; its model says what it is, and asks name it by that.
    Other,
}

/// Whether a device may be granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceHealth {
    /// May be granted.
    Healthy,
    /// Answers missing or stale; not granted until it answers again.
    Unknown {
        /// Why, for a person.
        reason: String,
    },
    /// A process or memory of an ended attempt is still on it; not granted until clean.
    Dirty {
        /// Why, for a person.
        reason: String,
    },
    /// Broken or gone; not granted.
    Lost {
        /// Why, for a person.
        reason: String,
    },
    /// Granted only to work that needs one card: throttled, or its links are in doubt. Only the state says so.
    Degraded {
        /// Why, for a person.
        reason: String,
    },
    /// It answers, but something is held against it; not granted. Only the state says so.
    Quarantined {
        /// Why, for a person.
        reason: String,
    },
}

impl DeviceHealth {
    /// It may be granted. That it is well enough for work over several cards says [`Self::is_whole`].
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy | Self::Degraded { .. })
    }

    /// It may be granted to anything, gangs and work over several cards included.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Healthy)
    }

    /// The reason of a device that may not be granted, or not to everything.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Healthy => None,
            Self::Unknown { reason }
            | Self::Dirty { reason }
            | Self::Lost { reason }
            | Self::Degraded { reason }
            | Self::Quarantined { reason } => Some(reason),
        }
    }
}

/// The lasting facts of one device. Only the UUID is mandatory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Its name for ever.
    pub uuid: DeviceUuid,
    /// Its family.
    pub kind: DeviceKind,
    /// The marketing model, such as `NVIDIA H100 80GB HBM3`; empty when unknown.
    pub model: String,
    /// Total memory in MiB.
    pub vram_mib: Option<u64>,
    /// PCI address, for people.
    pub bus: Option<String>,
    /// Position in the driver's list at this boot: for people only, never a name.
    pub index: Option<u32>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Compute capability in tenths, such as 90 for 9.0.
    pub compute_cap: Option<u16>,
    /// Cards of one number on a host are joined by fast links (NVLink, a PCIe switch).
    pub island: Option<u32>,
    /// Whether it may be granted.
    pub health: DeviceHealth,
    /// Further facts. Histories of older versions have none; where positions count it is always there.
    #[serde(default)]
    pub detail: DeviceDetail,
}

/// The lasting facts of one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// CPU capacity offered to tasks, in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory offered to tasks, in MiB.
    pub mem_mib: u64,
    /// Devices, in the order of their UUIDs.
    pub devices: Vec<DeviceFacts>,
    /// Operator's labels.
    pub labels: BTreeMap<String, String>,
    /// The version of Rota that runs there.
    pub version: String,
    /// What it says beside what it offers.
    #[serde(default)]
    pub notes: HostNotes,
}

/// One process life of a host's agent, as it registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRegistration {
    /// The kernel's boot id.
    pub boot: BootId,
    /// Where peers reach it: `address:port` of its QUIC endpoint. A hint, not an identity.
    pub addr: String,
    /// Its hardware.
    pub facts: HostFacts,
}

/// Live readings of one device. They steer and inform, they never decide an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReading {
    /// Which device.
    pub uuid: DeviceUuid,
    /// Busy share of the compute units.
    pub busy_permille: Option<u16>,
    /// Memory in use, MiB.
    pub vram_used_mib: Option<u64>,
    /// Core temperature in degrees Celsius.
    pub temperature_c: Option<u16>,
    /// Power draw in mW.
    pub power_mw: Option<u32>,
    /// Clock of the multiprocessors, in thousandths of the most that it can be.
    pub clock_permille: Option<u16>,
}
