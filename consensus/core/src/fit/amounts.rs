//! What grants come to, as queues and accounts count them.

use super::mem_held_mib;
use crate::state::host::Host;
use rota_protocol::DeviceUuid;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::queue::Amounts;

/// What these devices, and the CPU and memory asked, come to.
#[must_use]
pub fn amounts(host: &Host, ask: &Ask, devices: &[DeviceUuid]) -> Amounts {
    let mem_mib = mem_held_mib(host, ask, devices);
    let mut amounts = Amounts { cpus_milli: u64::from(ask.cpus_milli), mem_mib, ..Amounts::default() };
    for device in devices.iter().filter_map(|uuid| host.device(uuid)) {
        let mib = device.vram_mib.unwrap_or(0);
        match device.kind {
            DeviceKind::Gpu => {
                amounts.gpu_milli += u64::from(ask.card_milli());
                if !device.detail.unified {
                    amounts.vram_mib = amounts.vram_mib.saturating_add(ask.vram_held_mib(mib));
                }
            }
            DeviceKind::Mig => {
                amounts.gpu_milli += u64::from(slice_milli(&device.model));
                amounts.vram_mib = amounts.vram_mib.saturating_add(mib);
            }
            DeviceKind::Fpga | DeviceKind::Other => {}
        }
    }
    amounts
}

/// All of a card or slice, as queues count it.
#[must_use]
pub fn card_amounts(device: &DeviceFacts) -> Amounts {
    let gpu_milli = match device.kind {
        DeviceKind::Gpu => CARD_MILLI,
        DeviceKind::Mig => slice_milli(&device.model),
        DeviceKind::Fpga | DeviceKind::Other => return Amounts::default(),
    };
    let vram_mib = device.vram_mib.filter(|_| !device.detail.unified).unwrap_or(0);
    Amounts { gpu_milli: u64::from(gpu_milli), vram_mib, ..Amounts::default() }
}

/// The part of a card that a slice is, in thousandths: a profile such as `3g.40gb` is three of seven compute slices.
fn slice_milli(profile: &str) -> u32 {
    const SLICES: u32 = 7;
    let digits = profile.split("g.").next().and_then(|head| head.chars().last()).and_then(|c| c.to_digit(10));
    digits.unwrap_or(SLICES).min(SLICES) * CARD_MILLI / SLICES
}
