//! Does an ask fit a host? The one answer in the workspace: the planner, `apply` and `explain` all use it.
//!
//! Three questions in a fixed order, so that each host has exactly one first obstacle: could it ever (`capable`),
//! does it take work now (`open`), is enough free (`room`).

mod amounts;
mod misfit;
mod unified;

pub use amounts::amounts;
pub use amounts::card_amounts;
pub use misfit::{Misfit, gpus, mib, milli, tenths};
pub use unified::mem_held_mib;
pub(crate) use unified::pool_asked_mib;

use crate::state::host::{Holder, Host, Used};
use crate::state::job::Job;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::{DeviceFacts, DeviceKind, HostFacts};
use rota_protocol::view::HostState;
use rota_protocol::{DeviceUuid, Token};
use std::collections::BTreeSet;

/// Names of device kinds that `Ask::devices` accepts, alone or with a model after a colon.
pub const DEVICE_KINDS: [(&str, DeviceKind); 3] =
    [("fpga", DeviceKind::Fpga), ("mig", DeviceKind::Mig), ("other", DeviceKind::Other)];

/// Who asks, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want<'a> {
    /// What is asked of one host.
    pub ask: &'a Ask,
    /// Who pays: a card is shared only within one tenant.
    pub tenant: &'a str,
    /// It is part of a gang.
    pub in_gang: bool,
}

impl<'a> Want<'a> {
    /// One task of a job, by one of its asks.
    #[must_use]
    pub fn of(job: &'a Job, ask: &'a Ask) -> Self {
        Self { ask, tenant: &job.tenant, in_gang: job.spec.gang.is_some() }
    }

    /// It works over several cards, here or elsewhere: their links and the slowest of them count.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.ask.gpu_milli > 0 && self.in_gang || self.ask.gpus() > 1
    }

    /// A device that may be granted for it, as far as its health is concerned.
    #[must_use]
    pub fn accepts(&self, device: &DeviceFacts) -> bool {
        device.health.is_whole() || device.health.is_healthy() && !self.is_wide()
    }
}

/// The kind and the model part of a name in `Ask::devices`.
#[must_use]
pub fn device_kind(name: &str) -> Option<(DeviceKind, &str)> {
    let (kind, model) = name.split_once(':').unwrap_or((name, ""));
    DEVICE_KINDS.iter().find(|(known, _)| *known == kind).map(|(_, kind)| (*kind, model))
}

/// Everything that keeps `want` off `host` when `used` is granted there, or the healthy devices it may take: GPUs
/// that match and have what is asked free, and free devices of the other kinds asked.
///
/// # Errors
/// The first obstacle.
pub fn fits<'h>(
    host: &'h Host,
    used: &Used,
    want: Want<'_>,
    now_ms: u64,
) -> Result<Vec<&'h DeviceFacts>, Misfit> {
    capable(host, want.ask)?;
    open(host, used, now_ms)?;
    room(&host.facts, used, want)
}

/// The same, for exactly these devices.
///
/// # Errors
/// The first obstacle; `WrongDevices` if the set is not one that the ask may take.
pub fn takes(
    host: &Host,
    used: &Used,
    want: Want<'_>,
    devices: &[DeviceUuid],
    now_ms: u64,
) -> Result<(), Misfit> {
    let eligible = fits(host, used, want, now_ms)?;
    let named: BTreeSet<&DeviceUuid> = devices.iter().collect();
    let chosen: Vec<&DeviceFacts> = eligible.into_iter().filter(|d| named.contains(&d.uuid)).collect();
    // A device named twice is counted once here, so that the number shows it.
    if chosen.len() == devices.len() && is_exact(&chosen, want.ask) {
        Ok(())
    } else {
        Err(Misfit::WrongDevices)
    }
}

/// The devices are as many of each kind as the ask says, none left over.
fn is_exact(chosen: &[&DeviceFacts], ask: &Ask) -> bool {
    let gpus = chosen.iter().filter(|d| d.kind == DeviceKind::Gpu).count();
    let others = chosen.len() - gpus;
    let asked: usize = ask.devices.values().map(|count| *count as usize).sum();
    gpus == ask.gpus() as usize && others == asked && kinds_met(chosen, ask).is_ok()
}

/// Each device asked by kind finds one of its own, also where kinds overlap (`mig` and `mig:1g.10gb`).
///
/// # Errors
/// The kind that finds too few, and how many it finds beside the others.
fn kinds_met<'a>(devices: &[&DeviceFacts], ask: &'a Ask) -> Result<(), (&'a String, u32)> {
    // Augmenting paths: an asked device takes a free one, or one whose holder finds another.
    let mut holder: Vec<Option<&str>> = vec![None; devices.len()];
    for (kind, count) in &ask.devices {
        for found in 0..*count {
            let mut seen = vec![false; devices.len()];
            if !find_device(devices, kind, &mut holder, &mut seen) {
                return Err((kind, found));
            }
        }
    }
    Ok(())
}

fn find_device<'a>(
    devices: &[&DeviceFacts],
    kind: &'a str,
    holder: &mut [Option<&'a str>],
    seen: &mut [bool],
) -> bool {
    // At most as deep as there are devices on a host.
    for at in 0..devices.len() {
        if seen[at] || !is_of_kind(devices[at], kind) {
            continue;
        }
        seen[at] = true;
        let free = match holder[at] {
            None => true,
            Some(other) => find_device(devices, other, holder, seen),
        };
        if free {
            holder[at] = Some(kind);
            return true;
        }
    }
    false
}

/// Could the host run it if it were empty, healthy and open?
///
/// # Errors
/// The first thing it lacks.
pub fn capable(host: &Host, ask: &Ask) -> Result<(), Misfit> {
    if host.state(0) == HostState::Joining {
        return Err(Misfit::Joining);
    }
    let facts = &*host.facts;
    for (key, value) in &ask.labels {
        if facts.labels.get(key) != Some(value) {
            return Err(Misfit::Label { asks: format!("{key}={value}") });
        }
    }
    gpus_capable(facts, ask)?;
    if !ask.devices.is_empty() {
        let all: Vec<&DeviceFacts> = facts.devices.iter().collect();
        kinds_met(&all, ask).map_err(|(kind, has)| {
            let asks = ask.devices.get(kind).copied().unwrap_or(0);
            Misfit::DeviceCount { kind: kind.clone(), asks, has }
        })?;
    }
    let (asks, has) = (u64::from(ask.cpus_milli), u64::from(facts.cpus_milli));
    if has < asks {
        return Err(Misfit::Cpus { asks, has });
    }
    if facts.mem_mib < ask.mem_mib {
        return Err(Misfit::Mem { asks: ask.mem_mib, has: facts.mem_mib });
    }
    Ok(())
}

fn gpus_capable(facts: &HostFacts, ask: &Ask) -> Result<(), Misfit> {
    let asks = ask.gpus();
    if asks == 0 {
        return Ok(());
    }
    let gpus = || facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
    let has = gpus().count() as u32;
    if has < asks {
        return Err(Misfit::GpuCount { asks, has });
    }
    let of_model = || gpus().filter(|d| model_accepted(&d.model, &ask.gpu_models));
    let has = of_model().count() as u32;
    if has < asks {
        return Err(Misfit::GpuModel { asks, has });
    }
    let able = || of_model().filter(|d| compute_cap_suffices(d, ask));
    if (able().count() as u32) < asks {
        return Err(Misfit::ComputeCap {
            asks: ask.compute_cap_min,
            has: of_model().filter_map(|d| d.compute_cap).max().unwrap_or(0),
        });
    }
    let suffices = |d: &&DeviceFacts| vram_suffices(d, ask) && unified::has_pool(facts.mem_mib, d, ask);
    if (able().filter(suffices).count() as u32) < asks {
        return Err(Misfit::Vram {
            asks: ask.vram_mib,
            has: able().filter_map(|d| d.vram_mib).max().unwrap_or(0),
        });
    }
    Ok(())
}

/// Does the host take new work at all?
///
/// # Errors
/// Why not.
pub fn open(host: &Host, used: &Used, now_ms: u64) -> Result<(), Misfit> {
    match host.state(now_ms) {
        HostState::Joining => Err(Misfit::Joining),
        HostState::Lost | HostState::Removed => Err(Misfit::Lost),
        HostState::Draining => Err(Misfit::Draining),
        HostState::Suspended => Err(Misfit::Suspended),
        HostState::Faulty => Err(Misfit::Faulty),
        HostState::Shunned => Err(Misfit::Shunned),
        HostState::Up if host.on_probation() && used.launching > 0 => Err(Misfit::Probation),
        HostState::Up => Ok(()),
    }
}

/// Is enough healthy and free? Returns every device that may be taken.
fn room<'h>(facts: &'h HostFacts, used: &Used, want: Want<'_>) -> Result<Vec<&'h DeviceFacts>, Misfit> {
    let ask = want.ask;
    let mut eligible = Vec::new();
    let asks = ask.gpus();
    if asks > 0 {
        let matching = facts.devices.iter().filter(|d| want.accepts(d) && gpu_matches(d, ask));
        eligible.extend(matching.filter(|d| card_has_room(d, used, want)));
        let has = eligible.len() as u32;
        if has < asks {
            return Err(no_card(facts, used, want, has));
        }
        let free = facts.mem_mib.saturating_sub(used.mem_mib);
        eligible.retain(|d| unified::has_pool(free, d, ask));
        if (eligible.len() as u32) < asks {
            return Err(Misfit::MemBusy { asks: unified::pool_asked_mib(facts, ask), has: free });
        }
    }
    if !ask.devices.is_empty() {
        let named = |d: &DeviceFacts| ask.devices.keys().any(|kind| is_of_kind(d, kind));
        let free = |d: &&DeviceFacts| want.accepts(d) && !used.devices.contains_key(&d.uuid);
        let others: Vec<&DeviceFacts> = facts.devices.iter().filter(|d| named(d)).filter(free).collect();
        kinds_met(&others, ask).map_err(|(kind, has)| {
            let asks = ask.devices.get(kind).copied().unwrap_or(0);
            Misfit::DevicesBusy { kind: kind.clone(), asks, has }
        })?;
        eligible.extend(others);
    }
    let asks = u64::from(ask.cpus_milli);
    let has = u64::from(facts.cpus_milli).saturating_sub(used.cpus_milli);
    if has < asks {
        return Err(Misfit::CpusBusy { asks, has });
    }
    let (asks, has) = (ask.mem_mib, facts.mem_mib.saturating_sub(used.mem_mib));
    if has < asks {
        return Err(Misfit::MemBusy { asks, has });
    }
    Ok(eligible)
}

/// The card is free, or it is shared within the tenant and what is asked of its cores and memory is free.
#[must_use]
pub fn card_has_room(card: &DeviceFacts, used: &Used, want: Want<'_>) -> bool {
    let Some(held) = used.devices.get(&card.uuid) else {
        return true;
    };
    let Some(share) = want.ask.share_milli() else {
        return false;
    };
    let card_mib = card.vram_mib.unwrap_or(0);
    held.tenant == want.tenant
        && held.milli() + share <= CARD_MILLI
        // Shared memory is counted with the host's.
        && (card.detail.unified || held.vram_mib().saturating_add(want.ask.vram_held_mib(card_mib)) <= card_mib)
}

/// Why too few cards may be taken, with the figure that says how near it is.
fn no_card(facts: &HostFacts, used: &Used, want: Want<'_>, has: u32) -> Misfit {
    let ask = want.ask;
    let asks = ask.gpus();
    let healthy = facts.devices.iter().filter(|d| d.health.is_healthy() && gpu_matches(d, ask));
    let count = healthy.clone().count() as u32;
    if count < asks {
        return Misfit::GpusUnhealthy { asks, has: count };
    }
    let whole = healthy.clone().filter(|d| want.accepts(d)).count() as u32;
    if whole < asks {
        return Misfit::GpusDegraded { asks, has: whole };
    }
    let healthy = healthy.filter(|d| want.accepts(d));
    let Some(share) = ask.share_milli() else {
        return Misfit::GpusBusy { asks, has };
    };
    let ours = healthy.filter_map(|d| used.devices.get(&d.uuid)).filter(|held| held.tenant == want.tenant);
    let most = ours.map(|held| CARD_MILLI.saturating_sub(held.milli())).max().unwrap_or(0);
    if most >= share { Misfit::ShareVram } else { Misfit::ShareBusy { asks: share, has: most } }
}

/// A GPU of an accepted model with the memory asked, whatever its health.
#[must_use]
pub fn gpu_matches(device: &DeviceFacts, ask: &Ask) -> bool {
    device.kind == DeviceKind::Gpu
        && model_accepted(&device.model, &ask.gpu_models)
        && compute_cap_suffices(device, ask)
        && vram_suffices(device, ask)
}

/// Devices of a kind named in `Ask::devices`.
pub(crate) fn of_kind<'h>(facts: &'h HostFacts, name: &str) -> impl Iterator<Item = &'h DeviceFacts> {
    facts.devices.iter().filter(move |d| is_of_kind(d, name))
}

/// The device is of the kind and model that a name in `Ask::devices` says.
#[must_use]
pub fn is_of_kind(device: &DeviceFacts, name: &str) -> bool {
    device_kind(name)
        .is_some_and(|(kind, model)| device.kind == kind && contains_ignoring_case(&device.model, model))
}

/// A capability unknown is not enough.
fn compute_cap_suffices(device: &DeviceFacts, ask: &Ask) -> bool {
    ask.compute_cap_min == 0 || device.compute_cap.is_some_and(|has| has >= ask.compute_cap_min)
}

/// Memory unknown is not enough memory.
fn vram_suffices(device: &DeviceFacts, ask: &Ask) -> bool {
    ask.vram_mib == 0 || device.vram_mib.is_some_and(|has| has >= ask.vram_mib)
}

/// Plain text, letter case aside, never a pattern.
#[must_use]
pub fn model_accepted(model: &str, accepted: &[String]) -> bool {
    accepted.is_empty() || accepted.iter().any(|part| contains_ignoring_case(model, part))
}

fn contains_ignoring_case(text: &str, part: &str) -> bool {
    let (text, part) = (text.as_bytes(), part.as_bytes());
    part.is_empty() || text.windows(part.len()).any(|w| w.eq_ignore_ascii_case(part))
}

/// Label that says in which rack a host stands.
pub const RACK_LABEL: &str = "rack";

/// Marks devices, CPU and memory as taken in a copy of what a host has in use. The token only has to be unlike any
/// that is real.
pub(crate) fn take(host: &Host, used: &mut Used, want: Want<'_>, devices: &[DeviceUuid], token: Token) {
    let holder = |device: &DeviceFacts| match (device.kind, want.ask.share_milli()) {
        (DeviceKind::Gpu, Some(milli)) => {
            let of_card = want.ask.vram_held_mib(device.vram_mib.unwrap_or(0));
            let vram_mib = if device.detail.unified { 0 } else { of_card };
            Holder { token, milli, vram_mib }
        }
        _ => Holder { token, milli: CARD_MILLI, vram_mib: 0 },
    };
    let known = devices.iter().filter_map(|uuid| host.device(uuid));
    let parts: Vec<(DeviceUuid, Holder)> = known.map(|d| (d.uuid.clone(), holder(d))).collect();
    let mem_mib = mem_held_mib(host, want.ask, devices);
    used.add(want.tenant, want.ask.cpus_milli, mem_mib, &parts);
    used.launching += 1;
}
