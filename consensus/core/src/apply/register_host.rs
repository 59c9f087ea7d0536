//! RegisterHost: an agent came up, or its facts or address changed.
//!
//! A new boot id, or coming back from Lost, starts a new lease epoch and proves that every earlier process is gone:
//! the host's live attempts end as lost. The same boot keeps epoch and attempts (the agent was restarted, or a
//! device's health changed).

use super::{Answer, Event, Step, check_addr, end, health, members, no_host, raise_version};
use crate::spec::check_name;
use crate::state::State;
use crate::state::care::shown;
use crate::state::host::{FOREIGN, HostLife};
use rota_protocol::command::Outcome;
use rota_protocol::device::{DeviceFacts, DeviceHealth, HostFacts, HostNotes, HostRegistration};
use rota_protocol::limits::{HOST_DEVICES_MAX, HOST_MEM_MIB_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX};
use rota_protocol::{ErrorCode, HostId, LeaseEpoch, PublicError};
use std::collections::BTreeSet;

/// Most memory of one card that is believed, in MiB (16 TiB): what drivers say beyond it is an error code.
const VRAM_MIB_MAX: u64 = 1 << 24;
/// Most labels of one host.
const LABELS_MAX: usize = 64;
/// Most warnings of one host.
const WARNINGS_MAX: usize = 32;
/// Most device files, and most profiles, of one device.
const DETAILS_MAX: usize = 32;

pub(super) fn apply(
    state: &mut State,
    step: &mut Step,
    id: HostId,
    registration: &HostRegistration,
) -> Answer {
    let Some(host) = state.host(id) else {
        return Err(no_host(id));
    };
    members::still_here(host)?;
    check(registration)?;
    raise_version::check_reads(state, registration.facts.notes.reads)?;
    if let Some(why) = state.trust().revoked(id) {
        let message = format!("host {id} was revoked by {}: {}; it may join anew", why.by, why.reason);
        return Err(PublicError::new(ErrorCode::Forbidden, message));
    }
    let fresh = host.life != HostLife::Up || host.boot != registration.boot;
    let unchanged = !fresh && host.addr == registration.addr;
    if fresh {
        end::lose_all(state, step, id);
    }
    let facts = settle_owners(state, id, registration.facts.clone());
    let same_facts = state.host(id).is_some_and(|h| *h.facts == facts);
    if !same_facts {
        state.hosts.take_facts(id, facts);
    }
    let Some(host) = state.hosts.get_mut(id) else {
        return Err(no_host(id));
    };
    if fresh {
        host.epoch = LeaseEpoch(host.epoch.0.saturating_add(1));
        host.boot = registration.boot;
        host.life = HostLife::Up;
        // A reboot may have been the repair.
        host.clear_launch_failures();
    }
    host.care.stopping = false;
    host.addr.clone_from(&registration.addr);
    let epoch = host.epoch;
    if fresh {
        health::rebooted(state, step, id);
    }
    if !(unchanged && same_facts) {
        step.note(Event::HostChanged(id));
        step.plan_needed = true;
    }
    Ok(Outcome::HostRegistered { epoch })
}

/// Devices in the order of their UUIDs; one that another host offers or holds is listed here as lost, so that no
/// card is ever offered twice. A lost host gives its claim up.
fn settle_owners(state: &mut State, id: HostId, mut facts: HostFacts) -> HostFacts {
    facts.devices.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    for device in &mut facts.devices {
        // Unknown, and so never taken for free memory.
        device.vram_mib = device.vram_mib.filter(|mib| *mib <= VRAM_MIB_MAX);
        // A card has at least the memory that is lent of it.
        let lent =
            state.host(id).and_then(|host| host.used.devices.get(&device.uuid)).map(|held| held.vram_mib());
        device.vram_mib = device.vram_mib.map(|mib| mib.max(lent.unwrap_or(0)));
        let Some(owner) = state.hosts.owner(&device.uuid).filter(|owner| *owner != id) else {
            continue;
        };
        let other = state.host(owner);
        if other.is_none_or(|h| h.life != HostLife::Up && !h.used.devices.contains_key(&device.uuid)) {
            state.hosts.forget_device(owner, &device.uuid);
        } else {
            let reason = format!("{FOREIGN}{owner}");
            device.health = DeviceHealth::Lost { reason };
        }
    }
    for device in &mut facts.devices {
        device.health = shown(&device.health, state.care.mark(&device.uuid));
    }
    facts
}

fn check(registration: &HostRegistration) -> Result<(), PublicError> {
    check_addr(&registration.addr)?;
    let facts = &registration.facts;
    check_name("version", &facts.version)?;
    if facts.mem_mib > HOST_MEM_MIB_MAX {
        let message = format!("{} MiB is above {HOST_MEM_MIB_MAX}", facts.mem_mib);
        return Err(PublicError::invalid("mem", message, "512GiB"));
    }
    if facts.devices.len() > HOST_DEVICES_MAX {
        let message = format!("{} devices are above {HOST_DEVICES_MAX}", facts.devices.len());
        return Err(PublicError::invalid("devices", message, "8 devices"));
    }
    if facts.labels.len() > LABELS_MAX {
        let message = format!("{} labels are above {LABELS_MAX}", facts.labels.len());
        return Err(PublicError::invalid("labels", message, "rack=a1"));
    }
    for (key, value) in &facts.labels {
        check_name("labels", key)?;
        check_name("labels", value)?;
    }
    let mut seen = BTreeSet::new();
    for device in &facts.devices {
        check_device(device)?;
        if !seen.insert(&device.uuid) {
            let message = format!("{} is listed twice", device.uuid);
            return Err(PublicError::invalid("devices.uuid", message, "GPU-5c3f0e1a"));
        }
    }
    check_notes(&facts.notes)
}

fn check_notes(notes: &HostNotes) -> Result<(), PublicError> {
    if notes.warnings.len() > WARNINGS_MAX {
        let message = format!("{} are above {WARNINGS_MAX}", notes.warnings.len());
        return Err(PublicError::invalid("notes.warnings", message, "one warning"));
    }
    if let Some(warning) = notes.warnings.iter().find(|warning| warning.len() > REASON_BYTES_MAX) {
        let message = format!("{} bytes are above {REASON_BYTES_MAX}", warning.len());
        return Err(PublicError::invalid("notes.warnings", message, "one warning"));
    }
    if notes.set_aside.len() > HOST_DEVICES_MAX {
        let message = format!("{} devices are above {HOST_DEVICES_MAX}", notes.set_aside.len());
        return Err(PublicError::invalid("notes.set_aside", message, "8 devices"));
    }
    notes.set_aside.iter().try_for_each(check_device)
}

fn check_device(device: &DeviceFacts) -> Result<(), PublicError> {
    check_name("devices.uuid", &device.uuid.0)?;
    if device.uuid.0.is_empty() {
        return Err(PublicError::invalid("devices.uuid", "is empty", "GPU-5c3f0e1a"));
    }
    check_name("devices.model", &device.model)?;
    check_name("devices.bus", device.bus.as_deref().unwrap_or_default())?;
    let detail = &device.detail;
    check_name("devices.parent", detail.parent.as_ref().map_or("", |parent| &parent.0))?;
    for (field, texts) in [("devices.nodes", &detail.nodes), ("devices.profiles", &detail.profiles)] {
        if texts.len() > DETAILS_MAX {
            let message = format!("{} are above {DETAILS_MAX}", texts.len());
            return Err(PublicError::invalid(field, message, "1g.10gb"));
        }
        texts.iter().try_for_each(|text| check_name(field, text))?;
    }
    if let Some(reason) = device.health.reason().filter(|r| r.len() > 4 * NAME_BYTES_MAX) {
        let message = format!("a reason of {} bytes is above {}", reason.len(), 4 * NAME_BYTES_MAX);
        return Err(PublicError::invalid("devices.health", message, "Xid 79"));
    }
    Ok(())
}
