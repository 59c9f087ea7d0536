//! Choose devices: which of the cards that fit an attempt gets.

use crate::fit;
use rota_protocol::DeviceUuid;
use rota_protocol::ask::Ask;
use rota_protocol::device::{DeviceFacts, DeviceKind};
use std::collections::BTreeMap;

/// The smallest cards that do, on one NUMA node if one has enough, else by UUID.
pub(super) fn choose(eligible: &[&DeviceFacts], ask: &Ask) -> Vec<DeviceUuid> {
    let asked = ask.gpus() as usize;
    let mut gpus: Vec<&DeviceFacts> =
        eligible.iter().copied().filter(|d| d.kind == DeviceKind::Gpu).collect();
    gpus.sort_by_key(|d| (d.vram_mib, d.numa, &d.uuid));
    if asked > 1 {
        let mut nodes: BTreeMap<(Option<u64>, Option<u32>), Vec<&DeviceFacts>> = BTreeMap::new();
        for gpu in gpus.iter().filter(|d| d.numa.is_some()) {
            nodes.entry((gpu.vram_mib, gpu.numa)).or_default().push(gpu);
        }
        let enough = nodes.into_iter().filter(|(_, cards)| cards.len() >= asked);
        // Of several nodes the one with the least left over.
        if let Some((_, cards)) = enough.min_by_key(|(key, cards)| (key.0, cards.len(), key.1)) {
            gpus = cards;
        }
    }
    let mut chosen: Vec<DeviceUuid> = gpus.iter().take(asked).map(|d| d.uuid.clone()).collect();
    for (name, count) in &ask.devices {
        let kind = fit::DEVICE_KINDS.iter().find(|(n, _)| n == name).map(|(_, k)| *k);
        let of_kind = eligible.iter().filter(|d| Some(d.kind) == kind);
        chosen.extend(of_kind.take(*count as usize).map(|d| d.uuid.clone()));
    }
    chosen
}
