//! GPUs whose memory is the host's (R022): GPU memory asked on them is taken from the host's memory, beside the memory asked
//! itself, so that one pool is never granted twice. What is not asked is not held: such a GPU alone takes no memory.

use crate::state::host::Host;
use rota_protocol::DeviceUuid;
use rota_protocol::ask::Ask;
use rota_protocol::device::{DeviceFacts, DeviceKind, HostFacts};

fn is_shared(device: &DeviceFacts) -> bool {
    device.kind == DeviceKind::Gpu && device.detail.unified
}

/// Memory of the host that is held with these devices, in MiB.
#[must_use]
pub fn mem_held_mib(host: &Host, ask: &Ask, devices: &[DeviceUuid]) -> u64 {
    let known = devices.iter().filter_map(|uuid| host.device(uuid));
    let shared = known.filter(|device| is_shared(device)).count() as u64;
    ask.mem_mib.saturating_add(ask.vram_mib.saturating_mul(shared))
}

/// Memory of the host that the ask takes if all its cards are of this kind, in MiB.
fn of_all_mib(ask: &Ask) -> u64 {
    ask.mem_mib.saturating_add(ask.vram_mib.saturating_mul(u64::from(ask.gpus())))
}

/// The most memory of a host that the ask may take, in MiB.
pub(crate) fn pool_asked_mib(facts: &HostFacts, ask: &Ask) -> u64 {
    if ask.vram_mib > 0 && facts.devices.iter().any(is_shared) { of_all_mib(ask) } else { ask.mem_mib }
}

/// Whether a card's memory is its own, or `mib` of the host's memory are enough even if all cards are like it: which
/// ones are taken is not known yet.
pub(super) fn has_pool(mib: u64, device: &DeviceFacts, ask: &Ask) -> bool {
    ask.vram_mib == 0 || !is_shared(device) || of_all_mib(ask) <= mib
}
