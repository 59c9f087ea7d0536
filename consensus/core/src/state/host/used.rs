//! What live attempts hold of one host: CPU, memory, devices whole or in shares, ports. Sums of what attempts carry,
//! never of what hosts say.

use rota_protocol::{DeviceUuid, Token};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What live attempts hold of one host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Used {
    /// CPU, in thousandths of a core.
    pub cpus_milli: u64,
    /// Memory, in MiB.
    pub mem_mib: u64,
    /// Devices of which something is held.
    pub devices: BTreeMap<DeviceUuid, DeviceUse>,
    /// Attempts granted here of which no start was reported yet.
    pub launching: u32,
    /// First ports of the blocks that gangs meet at on this host.
    pub ports: BTreeSet<u16>,
}

/// What is held of one device: the whole of it by one attempt, or shares by attempts of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Whose attempts. Cards are never shared between tenants: what keeps their memory apart is only the driver.
    pub tenant: String,
    /// Who holds how much, in the order of their tokens.
    pub holders: Vec<Holder>,
}

/// One attempt's part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The attempt.
    pub token: Token,
    /// Of the device's cores, in thousandths.
    pub milli: u32,
    /// Of the device's memory, in MiB; 0 for a whole device, of which all memory is held.
    pub vram_mib: u64,
}

impl DeviceUse {
    /// Thousandths of the device that are held.
    #[must_use]
    pub fn milli(&self) -> u32 {
        self.holders.iter().map(|holder| holder.milli).sum()
    }

    /// Memory that is held by shares, in MiB.
    #[must_use]
    pub fn vram_mib(&self) -> u64 {
        self.holders.iter().fold(0, |sum, holder| sum.saturating_add(holder.vram_mib))
    }

    /// The attempt holds something of it.
    #[must_use]
    pub fn is_held_by(&self, token: Token) -> bool {
        self.holders.iter().any(|holder| holder.token == token)
    }
}

impl Used {
    /// Adds what an attempt holds; `parts` are the devices with what is held of each.
    pub(crate) fn add(
        &mut self,
        tenant: &str,
        cpus_milli: u32,
        mem_mib: u64,
        parts: &[(DeviceUuid, Holder)],
    ) {
        self.cpus_milli += u64::from(cpus_milli);
        self.mem_mib += mem_mib;
        for (uuid, holder) in parts {
            let held = self.devices.entry(uuid.clone()).or_default();
            tenant.clone_into(&mut held.tenant);
            let at = held.holders.partition_point(|other| other.token < holder.token);
            held.holders.insert(at, *holder);
        }
    }

    /// Takes away what an attempt holds. Devices that it does not hold (any more) stay as they are.
    pub(crate) fn subtract(&mut self, token: Token, cpus_milli: u32, mem_mib: u64, devices: &[DeviceUuid]) {
        self.cpus_milli = self.cpus_milli.saturating_sub(u64::from(cpus_milli));
        self.mem_mib = self.mem_mib.saturating_sub(mem_mib);
        for uuid in devices {
            let Some(held) = self.devices.get_mut(uuid) else {
                continue;
            };
            held.holders.retain(|holder| holder.token != token);
            if held.holders.is_empty() {
                self.devices.remove(uuid);
            }
        }
    }
}
