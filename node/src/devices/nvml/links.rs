//! Which cards are joined by fast links. Asked pair by pair; a pair that does not tell joins nothing, so that a card that
//! fell off the bus costs no other card its place (R016).

use crate::devices::Progress;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use rota_protocol::ids::DeviceUuid;
use std::collections::BTreeMap;

/// Islands by card: by NVLink where the host has any, else by PCIe switch. A card that is joined to no other is absent.
pub(super) fn islands(cards: &[(Device<'_>, DeviceUuid)], progress: &Progress) -> BTreeMap<DeviceUuid, u32> {
    let by_nvlink = joined(cards, progress, |one, (other, _)| {
        one.p2p_status(other, P2pCapabilitiesIndex::NvLink).is_ok_and(|status| status == P2pStatus::Ok)
    });
    if !by_nvlink.is_empty() {
        return by_nvlink;
    }
    joined(cards, progress, |one, (_, other)| {
        let near = [TopologyLevel::Internal, TopologyLevel::Single, TopologyLevel::Multiple];
        // The wrapper takes the other card away.
        let other = one.nvml().device_by_uuid(other.0.as_str());
        let level = other.and_then(|other| one.topology_common_ancestor(other));
        level.is_ok_and(|level| near.contains(&level))
    })
}

/// Numbers the groups of two and more, in the order of their cards.
fn joined(
    cards: &[(Device<'_>, DeviceUuid)],
    progress: &Progress,
    pair: impl Fn(&Device<'_>, &(Device<'_>, DeviceUuid)) -> bool,
) -> BTreeMap<DeviceUuid, u32> {
    // By each card the first card of its group.
    let mut first: Vec<usize> = (0..cards.len()).collect();
    for (at, (one, uuid)) in cards.iter().enumerate() {
        progress.asking(uuid);
        for (beside, other) in cards.iter().enumerate().skip(at + 1) {
            if first[at] != first[beside] && pair(one, other) {
                let (kept, gone) = (first[at].min(first[beside]), first[at].max(first[beside]));
                first.iter_mut().filter(|group| **group == gone).for_each(|group| *group = kept);
            }
        }
        progress.answered(&crate::devices::Found::default());
    }
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for group in &first {
        *sizes.entry(*group).or_default() += 1;
    }
    sizes.retain(|_, size| *size > 1);
    let numbers: BTreeMap<usize, u32> = sizes.into_keys().zip(0..).collect();
    let named = cards.iter().zip(&first);
    named.filter_map(|((_, uuid), group)| Some((uuid.clone(), *numbers.get(group)?))).collect()
}
