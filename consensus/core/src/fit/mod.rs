//! Does an ask fit a host? The one answer in the workspace: the planner, `apply` and `explain` all use it.
//!
//! Three questions in a fixed order, so that each host has exactly one first obstacle: could it ever (`capable`),
//! does it take work now (`open`), is enough free (`room`).

mod misfit;

pub use misfit::{Misfit, gpus, mib, milli};

use crate::state::host::{Host, Used};
use rota_protocol::DeviceUuid;
use rota_protocol::ask::Ask;
use rota_protocol::device::{DeviceFacts, DeviceKind, HostFacts};
use rota_protocol::view::HostState;
use std::collections::BTreeSet;

/// Names of device kinds that `Ask::devices` accepts.
pub const DEVICE_KINDS: [(&str, DeviceKind); 2] = [("fpga", DeviceKind::Fpga), ("mig", DeviceKind::Mig)];

/// Everything that keeps `ask` off `host` when `used` is granted there, or the healthy free devices it may take:
/// GPUs that match, and devices of the other kinds asked.
///
/// # Errors
/// The first obstacle.
pub fn fits<'h>(host: &'h Host, used: &Used, ask: &Ask, now_ms: u64) -> Result<Vec<&'h DeviceFacts>, Misfit> {
    capable(host, ask)?;
    open(host, used, now_ms)?;
    room(&host.facts, used, ask)
}

/// The same, for exactly these devices.
///
/// # Errors
/// The first obstacle; `WrongDevices` if the set is not one that the ask may take.
pub fn takes(host: &Host, used: &Used, ask: &Ask, devices: &[DeviceUuid], now_ms: u64) -> Result<(), Misfit> {
    let eligible = fits(host, used, ask, now_ms)?;
    let named: BTreeSet<&DeviceUuid> = devices.iter().collect();
    let chosen = || eligible.iter().filter(|d| named.contains(&d.uuid));
    let count = |kind| chosen().filter(|d| d.kind == kind).count();
    // A device named twice is counted once here, so that the number shows it.
    let exact = chosen().count() == devices.len()
        && count(DeviceKind::Gpu) == ask.gpus() as usize
        && DEVICE_KINDS
            .iter()
            .all(|(name, kind)| count(*kind) == ask.devices.get(*name).map_or(0, |n| *n as usize));
    if exact { Ok(()) } else { Err(Misfit::WrongDevices) }
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
    for (kind, asks) in &ask.devices {
        let has = of_kind(facts, kind).count() as u32;
        if has < *asks {
            return Err(Misfit::DeviceCount { kind: kind.clone(), asks: *asks, has });
        }
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
    if (of_model().filter(|d| vram_suffices(d, ask)).count() as u32) < asks {
        return Err(Misfit::Vram {
            asks: ask.vram_mib,
            has: of_model().filter_map(|d| d.vram_mib).max().unwrap_or(0),
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
        HostState::Lost => Err(Misfit::Lost),
        HostState::Draining => Err(Misfit::Draining),
        HostState::Suspended => Err(Misfit::Suspended),
        HostState::Up if host.on_probation() && used.launching > 0 => Err(Misfit::Probation),
        HostState::Up => Ok(()),
    }
}

/// Is enough healthy and free? Returns every device that the ask may take.
fn room<'h>(facts: &'h HostFacts, used: &Used, ask: &Ask) -> Result<Vec<&'h DeviceFacts>, Misfit> {
    let free = |d: &&DeviceFacts| d.health.is_healthy() && !used.devices.contains_key(&d.uuid);
    let mut eligible = Vec::new();
    let asks = ask.gpus();
    if asks > 0 {
        let healthy = || {
            let gpus = facts.devices.iter().filter(|d| gpu_matches(d, ask));
            gpus.filter(|d| d.health.is_healthy())
        };
        eligible.extend(healthy().filter(free));
        let has = eligible.len() as u32;
        if has < asks {
            let healthy = healthy().count() as u32;
            return Err(if healthy < asks {
                Misfit::GpusUnhealthy { asks, has: healthy }
            } else {
                Misfit::GpusBusy { asks, has }
            });
        }
    }
    for (kind, asks) in &ask.devices {
        let before = eligible.len();
        eligible.extend(of_kind(facts, kind).filter(free));
        let has = (eligible.len() - before) as u32;
        if has < *asks {
            return Err(Misfit::DevicesBusy { kind: kind.clone(), asks: *asks, has });
        }
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

/// A GPU of an accepted model with the memory asked, whatever its health.
#[must_use]
pub fn gpu_matches(device: &DeviceFacts, ask: &Ask) -> bool {
    device.kind == DeviceKind::Gpu
        && model_accepted(&device.model, &ask.gpu_models)
        && vram_suffices(device, ask)
}

/// Devices of a kind named in `Ask::devices`.
pub(crate) fn of_kind<'h>(
    facts: &'h HostFacts,
    name: &str,
) -> impl Iterator<Item = &'h DeviceFacts> + use<'h> {
    let kind = DEVICE_KINDS.iter().find(|(n, _)| *n == name).map(|(_, k)| *k);
    facts.devices.iter().filter(move |d| Some(d.kind) == kind)
}

/// Memory unknown is not enough memory.
fn vram_suffices(device: &DeviceFacts, ask: &Ask) -> bool {
    ask.vram_mib == 0 || device.vram_mib.is_some_and(|has| has >= ask.vram_mib)
}

/// Plain text, letter case aside, never a pattern.
pub(crate) fn model_accepted(model: &str, accepted: &[String]) -> bool {
    accepted.is_empty() || accepted.iter().any(|part| contains_ignoring_case(model, part))
}

fn contains_ignoring_case(text: &str, part: &str) -> bool {
    let (text, part) = (text.as_bytes(), part.as_bytes());
    part.is_empty() || text.windows(part.len()).any(|w| w.eq_ignore_ascii_case(part))
}
