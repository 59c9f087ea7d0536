//! Choose devices: which of those that fit an attempt gets.

use super::sites::Ground;
use crate::fit::{self, Want};
use rota_protocol::DeviceUuid;
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::work::Layout;
use std::collections::{BTreeMap, BTreeSet};

/// Devices for one task on a site, out of those that fit; none if they do not do after all (a layout asks for one
/// island and there is none).
pub(super) fn choose(
    ground: &Ground,
    at: usize,
    want: Want<'_>,
    layout: Layout,
    eligible: &[&DeviceFacts],
) -> Option<Vec<DeviceUuid>> {
    let ask = want.ask;
    let mut chosen: Vec<DeviceUuid> = match ask.share_milli() {
        Some(_) => vec![card_to_share(ground, at, want, eligible)?],
        None => whole_cards(eligible, ask.gpus() as usize, &ask.gpu_models_preferred, layout)?,
    };
    let mut taken: BTreeSet<&DeviceUuid> = BTreeSet::new();
    // Names with a model come after the bare kind in the map and are served first: the bare one takes what is left.
    for (name, count) in ask.devices.iter().rev() {
        let of_kind = eligible.iter().filter(|d| fit::is_of_kind(d, name) && !taken.contains(&d.uuid));
        let mine: Vec<&DeviceUuid> = of_kind.take(*count as usize).map(|d| &d.uuid).collect();
        if mine.len() < *count as usize {
            return None;
        }
        chosen.extend(mine.iter().map(|uuid| (*uuid).clone()));
        taken.extend(mine);
    }
    Some(chosen)
}

/// The card of which taking a share hurts least; the fullest that does if the scorer has no word.
fn card_to_share(
    ground: &Ground,
    at: usize,
    want: Want<'_>,
    eligible: &[&DeviceFacts],
) -> Option<DeviceUuid> {
    let scored = ground.best_card(at, want, eligible);
    scored.filter(|uuid| eligible.iter().any(|d| d.uuid == *uuid)).or_else(|| {
        let used = ground.sites[at].used();
        let gpus = eligible.iter().filter(|d| d.kind == DeviceKind::Gpu);
        let held = |d: &DeviceFacts| used.devices.get(&d.uuid).map_or(0, |held| held.milli());
        gpus.max_by_key(|d| (held(d), std::cmp::Reverse(&d.uuid))).map(|d| d.uuid.clone())
    })
}

/// The smallest cards that do, those of a preferred model first; of several the ones of one island, else of one NUMA
/// node, with the least left over; else by UUID.
fn whole_cards(
    eligible: &[&DeviceFacts],
    asked: usize,
    preferred: &[String],
    layout: Layout,
) -> Option<Vec<DeviceUuid>> {
    let liking = |d: &DeviceFacts| {
        let likes = |name: &String| fit::model_accepted(&d.model, std::slice::from_ref(name));
        preferred.iter().position(likes).unwrap_or(preferred.len())
    };
    let mut gpus: Vec<&DeviceFacts> =
        eligible.iter().copied().filter(|d| d.kind == DeviceKind::Gpu).collect();
    gpus.sort_by_key(|d| (liking(d), d.vram_mib, d.island, d.numa, &d.uuid));
    if asked > 1 {
        let together = cluster(&gpus, asked, |d| d.island)
            .or_else(|| if layout == Layout::SameIsland { None } else { cluster(&gpus, asked, |d| d.numa) });
        match together {
            Some(cards) => gpus = cards,
            None if layout == Layout::SameIsland => return None,
            None => {}
        }
    }
    (gpus.len() >= asked).then(|| gpus.iter().take(asked).map(|d| d.uuid.clone()).collect())
}

/// Cards of one model that lie together by some number, as few more than asked as can be.
fn cluster<'d>(
    gpus: &[&'d DeviceFacts],
    asked: usize,
    by: impl Fn(&DeviceFacts) -> Option<u32>,
) -> Option<Vec<&'d DeviceFacts>> {
    let mut sets: BTreeMap<(Option<u64>, u32), Vec<&DeviceFacts>> = BTreeMap::new();
    for gpu in gpus {
        if let Some(number) = by(gpu) {
            sets.entry((gpu.vram_mib, number)).or_default().push(gpu);
        }
    }
    let enough = sets.into_iter().filter(|(_, cards)| cards.len() >= asked);
    enough.min_by_key(|(key, cards)| (key.0, cards.len(), key.1)).map(|(_, cards)| cards)
}
