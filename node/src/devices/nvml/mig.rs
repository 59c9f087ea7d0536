//! Cards in MIG mode: their slices are offered, they themselves never are (R030).

use super::card::{Asked, name_of};
use crate::devices::clean;
use nvml_wrapper::Device;
use rota_protocol::device::DeviceFacts;

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;
/// More slices than any card has: a larger answer is not believed.
const SLICES_MAX: u32 = 64;
/// Numbers of profiles that are tried: the library knows some 16.
const PROFILES_MAX: u32 = 20;

/// The MIG slices of a card that is cut, which then cannot be granted whole; `None` for a whole card.
pub(super) fn slices<'nvml>(device: &Device<'nvml>, asked: &mut Asked) -> Option<Vec<Device<'nvml>>> {
    if asked.told(device.mig_mode(), "MIG mode")?.current != MIG_ENABLED {
        return None;
    }
    let most = device.mig_device_count().unwrap_or(0).min(SLICES_MAX);
    Some((0..most).filter_map(|index| device.mig_device_by_index(index).ok()).collect())
}

/// The profile of a slice, such as `1g.10gb`: as the driver writes it behind the card's name, else by what the slice is
/// made of.
pub(super) fn profile(slice: &Device<'_>, card_mib: Option<u64>) -> Option<String> {
    let name = slice.name().ok().and_then(|name| clean::text(&name));
    if let Some((_, profile)) = name.as_deref().and_then(|name| name.rsplit_once(" MIG ")) {
        return Some(profile.to_owned());
    }
    let made = slice.attributes().ok()?;
    let (whole, part) = (made.gpu_instance_slice_count, made.compute_instance_slice_count);
    let gb = profile_gb(made.memory_size_mb, card_mib?)?;
    if part == whole { Some(format!("{whole}g.{gb}gb")) } else { Some(format!("{part}c.{whole}g.{gb}gb")) }
}

/// How the card may be cut, the smallest first.
pub(super) fn profiles(device: &Device<'_>, card_mib: Option<u64>) -> Vec<String> {
    let Some(card_mib) = card_mib else { return Vec::new() };
    let told = (0..PROFILES_MAX).filter_map(|number| device.profile_info(number).ok());
    let mut all: Vec<(u32, u64)> = told
        .filter_map(|info| Some((info.slice_count, profile_gb(info.memory_size_mb, card_mib)?)))
        .filter(|(slices, _)| *slices > 0)
        .collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|(slices, gb)| format!("{slices}g.{gb}gb")).collect()
}

/// Memory as profiles name it: eighths of the card's, rounded up, of its whole gibibytes.
fn profile_gb(mib: u64, card_mib: u64) -> Option<u64> {
    let eighths = (mib.checked_mul(8)?).div_ceil(card_mib.max(1)).min(8);
    let card_gb = card_mib.div_ceil(1 << 10);
    let gb = (eighths * card_gb * 2 + 8) / 16;
    (gb > 0).then_some(gb)
}

/// Why a card in MIG mode is not offered itself.
pub(super) fn reason(offered: &[DeviceFacts]) -> String {
    match offered.len() {
        0 => "it is in MIG mode and has no slices: make some, or leave the mode".to_owned(),
        1 => "it is in MIG mode: its slice is offered".to_owned(),
        many => format!("it is in MIG mode: its {many} slices are offered"),
    }
}

/// Slices with their names, and complaints about those without one.
pub(super) fn named<'n>(
    slices: Vec<Device<'n>>,
    index: u32,
) -> (Vec<(Device<'n>, rota_protocol::ids::DeviceUuid)>, Vec<String>) {
    let (mut known, mut notes) = (Vec::new(), Vec::new());
    for slice in slices {
        match name_of(&slice) {
            Ok(uuid) => known.push((slice, uuid)),
            Err(error) => notes.push(format!("nvml: a slice of card {index} {error}")),
        }
    }
    (known, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_named_as_profiles_do() {
        // An A100 of 40 GB and its 1g, 2g and 3g slices; an H100 of 80 GB and its 1g and 1g with double memory.
        let a100 = [4_864, 9_856, 19_968].map(|mib| profile_gb(mib, 40_960));
        assert_eq!(a100, [Some(5), Some(10), Some(20)]);
        let h100 = [9_984, 19_968].map(|mib| profile_gb(mib, 81_559));
        assert_eq!(h100, [Some(10), Some(20)]);
        assert_eq!((profile_gb(0, 40_960), profile_gb(u64::MAX, 1)), (None, None));
    }
}
