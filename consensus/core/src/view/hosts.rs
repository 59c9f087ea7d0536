//! Rows of hosts and devices.

use crate::state::State;
use crate::state::care::Mark;
use crate::state::host::{Host, HostLife};
use rota_protocol::DeviceUuid;
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::health::BreakerView;
use rota_protocol::view::{DeviceHold, DeviceRow, HostRow};

/// All hosts by number, as of log time.
#[must_use]
pub fn hosts(state: &State) -> Vec<HostRow> {
    hosts_at(state, state.clock_ms())
}

/// All hosts by number. Log time stands still while nothing is proposed; whoever has a clock passes its time, so that
/// a suspension that is over is shown as over.
#[must_use]
pub fn hosts_at(state: &State, now_ms: u64) -> Vec<HostRow> {
    // A host that was removed is shown until its lease is over; after that only old attempts name it.
    let shown = |host: &&Host| host.belonging.removed.is_none() || host.life == HostLife::Up;
    state.hosts().filter(shown).map(|host| host_row(state, host, now_ms)).collect()
}

/// The breaker of mass alarms, at `now_ms`.
#[must_use]
pub fn breaker(state: &State, now_ms: u64) -> BreakerView {
    let hosts = state.hosts().filter(|host| host.life != HostLife::Joining).count();
    state.care().breaker().view(hosts, now_ms)
}

/// All devices by host and UUID; those that a host no longer has, and those it does not offer, last.
#[must_use]
pub fn devices(state: &State) -> Vec<DeviceRow> {
    let rows = state.hosts().flat_map(|host| {
        let known = host.facts.devices.iter().chain(&host.gone).map(|facts| (facts, true));
        let aside = host.facts.notes.set_aside.iter().map(|facts| (facts, false));
        known.chain(aside).map(move |(facts, offered)| DeviceRow {
            host: host.id,
            host_name: host.name.clone(),
            facts: facts.clone(),
            held_by: holds(state, host, &facts.uuid),
            reading: None,
            mark: state.care().mark(&facts.uuid).map(Mark::view),
            offered,
        })
    });
    rows.collect()
}

/// Who holds how much of a device, by token.
fn holds(state: &State, host: &Host, uuid: &DeviceUuid) -> Vec<DeviceHold> {
    let holders = host.used.devices.get(uuid).into_iter().flat_map(|held| &held.holders);
    let rows = holders.filter_map(|holder| {
        let task = state.attempt(holder.token)?.task;
        let all_mib = || host.device(uuid).and_then(|facts| facts.vram_mib).unwrap_or(0);
        let vram_mib = if holder.milli < CARD_MILLI { holder.vram_mib } else { all_mib() };
        Some(DeviceHold { task, token: holder.token, milli: holder.milli, vram_mib })
    });
    rows.collect()
}

fn host_row(state: &State, host: &Host, now_ms: u64) -> HostRow {
    let gpus = || host.facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
    // A card that is held but can no longer be granted still counts on both sides.
    let held = |d: &&DeviceFacts| host.used.devices.contains_key(&d.uuid);
    let gone_held = host.gone.iter().filter(held).filter(|d| d.kind == DeviceKind::Gpu).count();
    let offered = gpus().filter(|d| d.health.is_healthy() || held(d)).count();
    HostRow {
        host: host.id,
        name: host.name.clone(),
        addr: host.addr.clone(),
        state: host.state(now_ms),
        reason: host.reason(now_ms),
        boot: host.boot,
        epoch: host.epoch,
        cpus_milli: host.facts.cpus_milli,
        cpus_milli_used: u32::try_from(host.used.cpus_milli).unwrap_or(u32::MAX),
        mem_mib: host.facts.mem_mib,
        mem_mib_used: host.used.mem_mib,
        gpus: (offered + gone_held) as u32,
        gpus_used: (gpus().filter(held).count() + gone_held) as u32,
        attempts: state.attempts_on(host.id).count() as u32,
        labels: host.facts.labels.clone(),
        version: host.facts.version.clone(),
        care: host.care.view(now_ms),
        warnings: host.facts.notes.warnings.clone(),
    }
}
