//! Further facts of devices and hosts, beside those that every device has. Absent is absent: never zero.

use crate::device::DeviceFacts;
use crate::ids::DeviceUuid;
use serde::{Deserialize, Serialize};

/// Further lasting facts of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceDetail {
    /// Its memory is the host's: what is granted of either is taken from one pool, which the host's figure counts.
    pub unified: bool,
    /// The physical card that a slice was cut from.
    pub parent: Option<DeviceUuid>,
    /// The number of its own device file, such as 3 for `/dev/nvidia3`.
    pub minor: Option<u32>,
    /// Device files of its own, where they do not follow from the number.
    pub nodes: Vec<String>,
    /// Power limit in mW.
    pub power_limit_mw: Option<u32>,
    /// How a card may be cut, such as `1g.10gb`.
    pub profiles: Vec<String>,
}

/// What a host says beside what it offers, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostNotes {
    /// What is not as it should be.
    pub warnings: Vec<String>,
    /// Devices that are there and not offered; their health says why.
    pub set_aside: Vec<DeviceFacts>,
    /// The newest version of the cluster's words that its program reads ([`crate::version`]); 0 where it does not say.
    pub reads: u16,
}
