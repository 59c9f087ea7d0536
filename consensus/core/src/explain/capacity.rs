//! How many tasks of an ask the hosts hold when they are empty, healthy and open: what a gang, or a layout, can count
//! on for ever.

use super::lack::Lack;
use super::text::count;
use crate::fit;
use crate::state::host::Host;
use crate::view::ask_text;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::DeviceFacts;
use rota_protocol::job::JobSpec;
use rota_protocol::work::Layout;
use std::collections::BTreeMap;

/// What is missing for the fewest parts of a gang to run together, or for the cards of one task to lie in one island;
/// none if there is room. Only for an ask of which one task fits some host.
pub(super) fn lack_of_room(known: &[&Host], spec: &JobSpec, ask: &Ask) -> Option<Lack> {
    let gang = spec.gang.map(|gang| gang.min.max(1));
    let needed = u64::from(gang.unwrap_or(1));
    let (most, place) = together(known, ask, spec.layout, needed);
    if most >= needed {
        return None;
    }
    match spec.layout {
        Layout::SameIsland if most == 0 => return Some(lack_of_island(known, ask)),
        Layout::SameRack if place.is_none() => return Some(lack_of_racks()),
        _ => {}
    }
    let wanted = match spec.layout {
        Layout::SameHost => " on one host",
        Layout::SameRack => " in one rack",
        _ => "",
    };
    let asked = format!("{} of {}{wanted}", count(needed, "part"), ask_text(ask));
    let (message, offer) = match place {
        Some(place) => {
            let offer = format!("{} {place}", count(most, "part"));
            (format!("{asked} asked at once, the largest offer is {offer}"), offer)
        }
        None => {
            let offer = count(most, "part");
            (format!("{asked} asked at once, all hosts together have room for {most}"), offer)
        }
    };
    let example = format!("at most {}", count(most, "part"));
    Some(Lack { field: "gang", message, example, offer: Some(offer) })
}

/// Tasks that lie as the layout wants them, counted no further than `needed` where all hosts count together; and
/// where, if that is one place.
fn together(known: &[&Host], ask: &Ask, layout: Layout, needed: u64) -> (u64, Option<String>) {
    let room = |host: &Host| tasks_on(host, ask, layout);
    match layout {
        Layout::SameHost => {
            // Of equal ones the first.
            let best = known.iter().rev().max_by_key(|host| room(host));
            best.map_or((0, None), |host| (room(host), Some(format!("on {}", host.name))))
        }
        Layout::SameRack => {
            let mut racks: BTreeMap<&str, u64> = BTreeMap::new();
            for host in known {
                if let Some(rack) = host.facts.labels.get(fit::RACK_LABEL) {
                    let sum = racks.entry(rack).or_default();
                    *sum = sum.saturating_add(room(host));
                }
            }
            let best = racks.into_iter().rev().max_by_key(|(_, sum)| *sum);
            best.map_or((0, None), |(rack, sum)| (sum, Some(format!("in rack {rack}"))))
        }
        Layout::Any | Layout::Pack | Layout::Spread | Layout::SameIsland => {
            let mut sum = 0_u64;
            for host in known {
                sum = sum.saturating_add(room(host));
                if sum >= needed {
                    break;
                }
            }
            (sum, None)
        }
    }
}

/// Tasks that an empty host holds.
fn tasks_on(host: &Host, ask: &Ask, layout: Layout) -> u64 {
    if fit::capable(host, ask).is_err() {
        return 0;
    }
    let facts = &host.facts;
    let cards = || facts.devices.iter().filter(|d| fit::gpu_matches(d, ask));
    let mut room = u64::MAX;
    let mut bound = |has: u64, asks: u64| {
        if let Some(times) = has.checked_div(asks) {
            room = room.min(times);
        }
    };
    bound(u64::from(facts.cpus_milli), u64::from(ask.cpus_milli));
    bound(facts.mem_mib, ask.mem_mib);
    for (kind, asks) in &ask.devices {
        bound(fit::of_kind(facts, kind).count() as u64, u64::from(*asks));
    }
    match ask.share_milli() {
        Some(share) => bound(cards().map(|card| shares_of(card, ask, share)).sum(), 1),
        None if layout == Layout::SameIsland && ask.gpus() > 1 => {
            let islands = islands(host, ask).into_values();
            bound(islands.map(|cards| cards / u64::from(ask.gpus())).sum(), 1);
        }
        None => bound(cards().count() as u64, u64::from(ask.gpus())),
    }
    room
}

fn shares_of(card: &DeviceFacts, ask: &Ask, share: u32) -> u64 {
    let has_mib = card.vram_mib.unwrap_or(0);
    let by_memory = has_mib.checked_div(ask.vram_held_mib(has_mib)).unwrap_or(u64::MAX);
    u64::from(CARD_MILLI / share).min(by_memory.max(1))
}

/// Matching cards by memory and island, as the planner chooses them.
fn islands(host: &Host, ask: &Ask) -> BTreeMap<(Option<u64>, u32), u64> {
    let mut islands = BTreeMap::new();
    for card in host.facts.devices.iter().filter(|d| fit::gpu_matches(d, ask)) {
        if let Some(island) = card.island {
            *islands.entry((card.vram_mib, island)).or_default() += 1;
        }
    }
    islands
}

fn lack_of_racks() -> Lack {
    let message =
        format!("parts in one rack asked, no host says which rack it is in (label {})", fit::RACK_LABEL);
    Lack { field: "layout", message, example: "another layout".into(), offer: Some("none".into()) }
}

fn lack_of_island(known: &[&Host], ask: &Ask) -> Lack {
    let largest = known.iter().rev().filter_map(|host| {
        let most = islands(host, ask).into_values().max()?;
        Some((most, host.name.as_str()))
    });
    let (most, host) = largest.max_by_key(|(most, _)| *most).unwrap_or((0, ""));
    let asked = format!("{} in one island asked", fit::gpus(u64::from(ask.gpus())));
    if most == 0 {
        let message = format!("{asked}, no host says which of its cards lie together");
        return Lack {
            field: "layout",
            message,
            example: "another layout".into(),
            offer: Some("none".into()),
        };
    }
    let offer = format!("{} on {host}", fit::gpus(most));
    Lack {
        field: "layout",
        message: format!("{asked}, the largest offer is {offer}"),
        example: format!("at most {}", fit::gpus(most)),
        offer: Some(offer),
    }
}
