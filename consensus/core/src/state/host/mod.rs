//! Hosts: what they have, what of it is granted, and whether they take work.

mod belonging;
mod care;
mod launches;
mod used;

pub use belonging::Belonging;
pub use care::{HostCare, HostFault, LEMON_JOBS_MAX, LEMON_MS, PASSES_PER_BLAME};
pub use launches::{LaunchRecord, Suspension};
pub use used::{DeviceUse, Holder, Used};

use crate::state::attempt::Attempt;
use crate::state::care::{Mark, shown};
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts};
use rota_protocol::limits::HOST_DEVICES_MAX;
use rota_protocol::view::HostState;
use rota_protocol::{BootId, DeviceUuid, HostId, LeaseEpoch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// This many launch failures ..
pub const LAUNCH_FAILURES_MAX: usize = 3;
/// .. within this time suspend a host.
pub const LAUNCH_WINDOW_MS: u64 = 60_000;
/// First suspension; each further one doubles it.
pub const SUSPEND_MS_MIN: u64 = 30_000;
/// Longest suspension: a repaired host takes work again within this, without a command.
pub const SUSPEND_MS_MAX: u64 = 240_000;

/// Whether a host's lease holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostLife {
    /// Admitted, has never registered.
    Joining,
    /// Registered, its lease holds.
    Up,
    /// Its lease expired.
    Lost,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its number, never reused.
    pub id: HostId,
    /// Its name. Two hosts may have the same one if all but the newest are lost.
    pub name: String,
    /// Where peers reach it.
    pub addr: String,
    /// Its lease epoch.
    pub epoch: LeaseEpoch,
    /// Its boot, as last registered.
    pub boot: BootId,
    /// Its hardware, as last registered; devices in the order of their UUIDs.
    pub facts: Arc<HostFacts>,
    /// Devices it once registered and no longer has. They stay known while an attempt holds them.
    pub gone: Vec<DeviceFacts>,
    /// Whether its lease holds.
    pub life: HostLife,
    /// Why it is drained, if it is. A drain outlives reboots.
    pub drain: Option<String>,
    /// While drained: from this log time on running work is asked to end; none if it may finish.
    pub evict_at_ms: Option<u64>,
    /// Launch failures and suspension.
    pub launches: LaunchRecord,
    /// What is granted.
    pub used: Used,
    /// Card-milliseconds that ended attempts held here.
    pub gpu_ms: u64,
    /// What is held against it.
    pub care: HostCare,
    /// How it belongs to the cluster.
    pub belonging: Belonging,
}

impl Host {
    pub(crate) fn new(id: HostId, name: String, addr: String) -> Self {
        Self {
            id,
            name,
            addr,
            epoch: LeaseEpoch(0),
            boot: BootId::default(),
            facts: Arc::new(HostFacts {
                cpus_milli: 0,
                mem_mib: 0,
                devices: Vec::new(),
                labels: BTreeMap::new(),
                version: String::new(),
                notes: Default::default(),
            }),
            gone: Vec::new(),
            life: HostLife::Joining,
            drain: None,
            evict_at_ms: None,
            launches: LaunchRecord::default(),
            used: Used::default(),
            gpu_ms: 0,
            care: HostCare::default(),
            belonging: Belonging::default(),
        }
    }

    /// Whether it takes work at `now_ms`. The first that holds: removed, joining, lost, draining, faulty, suspended,
    /// shunned, up.
    #[must_use]
    pub fn state(&self, now_ms: u64) -> HostState {
        match (self.life, &self.drain) {
            _ if self.belonging.removed.is_some() => HostState::Removed,
            (HostLife::Joining, _) => HostState::Joining,
            (HostLife::Lost, _) => HostState::Lost,
            (HostLife::Up, Some(_)) => HostState::Draining,
            (HostLife::Up, None) if self.care.fault.is_some() => HostState::Faulty,
            (HostLife::Up, None) if self.suspension(now_ms).is_some() => HostState::Suspended,
            (HostLife::Up, None) if self.care.is_shunned(now_ms) => HostState::Shunned,
            (HostLife::Up, None) => HostState::Up,
        }
    }

    /// Why it takes no work at `now_ms`, or what else there is to know, for a person.
    #[must_use]
    pub fn reason(&self, now_ms: u64) -> Option<String> {
        match self.state(now_ms) {
            HostState::Up => {
                self.care.alert.as_ref().map(|alert| format!("alert, nothing was done: {}", alert.text))
            }
            HostState::Faulty => self.care.fault.as_ref().map(|fault| fault.reason.text.clone()),
            HostState::Shunned => self.care.shunned_until_ms().map(|until_ms| {
                let (jobs, left_s) =
                    (self.care.blamed(now_ms), until_ms.saturating_sub(now_ms).div_ceil(1_000));
                format!("{jobs} jobs failed here that ran well elsewhere; tried again in {left_s} s")
            }),
            HostState::Removed => self.belonging.removed.as_ref().map(|removal| removal.reason.clone()),
            HostState::Joining => Some("has not registered yet".into()),
            HostState::Lost => Some("its lease expired".into()),
            HostState::Draining => self.drain.clone(),
            HostState::Suspended => self.suspension(now_ms).map(|s| {
                let left_s = s.until_ms.saturating_sub(now_ms).div_ceil(1_000);
                format!("launches fail, tried again in {left_s} s: {}", s.reason)
            }),
        }
    }

    /// The suspension in force at `now_ms`.
    #[must_use]
    pub fn suspension(&self, now_ms: u64) -> Option<&Suspension> {
        self.launches.suspension.as_ref().filter(|s| now_ms < s.until_ms)
    }

    /// Has failed launches and none that worked since: one launch at a time.
    #[must_use]
    pub fn on_probation(&self) -> bool {
        self.launches.level > 0
    }

    /// A device it has, or had and still accounts for.
    #[must_use]
    pub fn device(&self, uuid: &DeviceUuid) -> Option<&DeviceFacts> {
        let listed = &self.facts.devices;
        match listed.binary_search_by(|d| d.uuid.cmp(uuid)) {
            Ok(at) => listed.get(at),
            Err(_) => self.gone.iter().find(|d| d.uuid == *uuid),
        }
    }

    /// Devices that no other host may offer: those listed here, and those held here that are listed no more.
    fn owned(&self) -> impl Iterator<Item = &DeviceUuid> {
        let listed = self.facts.devices.iter().filter(|d| !is_foreign(d));
        let held = self.gone.iter().filter(|d| self.used.devices.contains_key(&d.uuid));
        listed.chain(held).map(|d| &d.uuid)
    }

    /// Notes a failed launch; true if it suspends the host.
    pub(crate) fn note_launch_failure(&mut self, reason: &str, now_ms: u64) -> bool {
        let record = &mut self.launches;
        record.failures.push_back(now_ms);
        while record.failures.len() > LAUNCH_FAILURES_MAX {
            record.failures.pop_front();
        }
        let recent = record.failures.iter().filter(|at| at.saturating_add(LAUNCH_WINDOW_MS) > now_ms).count();
        let already = record.suspension.as_ref().is_some_and(|s| now_ms < s.until_ms);
        if already || (recent < LAUNCH_FAILURES_MAX && record.level == 0) {
            return false;
        }
        let for_ms = (SUSPEND_MS_MIN << record.level.min(8)).min(SUSPEND_MS_MAX);
        record.level = record.level.saturating_add(1);
        record.failures.clear();
        record.suspension =
            Some(Suspension { until_ms: now_ms.saturating_add(for_ms), reason: reason.to_owned() });
        true
    }

    /// A launch worked, or an operator says so: past failures count no more. True if that changes anything.
    pub(crate) fn clear_launch_failures(&mut self) -> bool {
        let changed = self.launches != LaunchRecord::default();
        self.launches = LaunchRecord::default();
        changed
    }

    /// Takes new facts. Devices that are no longer listed become `gone`; of those, the ones nobody holds are kept
    /// for people only, up to a limit.
    pub(crate) fn take_facts(&mut self, mut facts: HostFacts) {
        facts.devices.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        let listed = |uuid: &DeviceUuid| facts.devices.binary_search_by(|d| d.uuid.cmp(uuid)).is_ok();
        let vanished = self.facts.devices.iter().map(|device| DeviceFacts {
            health: DeviceHealth::Lost { reason: "no longer registered by its host".into() },
            ..device.clone()
        });
        let mut gone: Vec<DeviceFacts> = self.gone.drain(..).chain(vanished).collect();
        gone.retain(|d| !listed(&d.uuid));
        self.facts = Arc::new(facts);
        self.gone = gone;
        self.trim_gone();
    }

    /// Bounds the list of gone devices, the oldest that nobody holds first.
    pub(crate) fn trim_gone(&mut self) {
        let mut excess = self.gone.len().saturating_sub(HOST_DEVICES_MAX);
        let held = &self.used.devices;
        self.gone.retain(|d| {
            let drop = excess > 0 && !held.contains_key(&d.uuid);
            excess -= usize::from(drop);
            !drop
        });
    }
}

/// All hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct HostTable {
    map: BTreeMap<HostId, Arc<Host>>,
    /// The one host that may offer a device.
    #[serde(skip)]
    owner: BTreeMap<DeviceUuid, HostId>,
}

impl HostTable {
    pub(crate) fn get(&self, id: HostId) -> Option<&Host> {
        self.map.get(&id).map(|h| &**h)
    }

    pub(crate) fn get_mut(&mut self, id: HostId) -> Option<&mut Host> {
        self.map.get_mut(&id).map(Arc::make_mut)
    }

    /// The host to be changed, if it is so: an untouched row stays shared.
    pub(crate) fn get_mut_if(&mut self, id: HostId, is: impl FnOnce(&Host) -> bool) -> Option<&mut Host> {
        self.map.get_mut(&id).filter(|host| is(host)).map(Arc::make_mut)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Host> {
        self.map.values().map(|h| &**h)
    }

    pub(crate) fn shared(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.map.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn insert(&mut self, host: Host) {
        self.map.insert(host.id, Arc::new(host));
    }

    /// Thousandths of healthy cards that nobody holds, by model.
    pub(crate) fn free_by_model(&self) -> BTreeMap<String, u64> {
        let mut free: BTreeMap<String, u64> = BTreeMap::new();
        for host in self.iter() {
            let cards =
                host.facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu && d.health.is_healthy());
            for card in cards {
                let held = host.used.devices.get(&card.uuid).map_or(0, DeviceUse::milli);
                let more = u64::from(CARD_MILLI.saturating_sub(held));
                if let Some(sum) = free.get_mut(&card.model) {
                    *sum += more;
                } else {
                    free.insert(card.model.clone(), more);
                }
            }
        }
        free
    }

    /// The host that lists a device.
    pub(crate) fn owner(&self, uuid: &DeviceUuid) -> Option<HostId> {
        self.owner.get(uuid).copied()
    }

    /// Brings a device's row in line with what is held against it; true if that changed it.
    pub(crate) fn remark(&mut self, id: HostId, uuid: &DeviceUuid, mark: Option<&Mark>) -> bool {
        let Some(host) = self.map.get(&id) else {
            return false;
        };
        let Ok(at) = host.facts.devices.binary_search_by(|d| d.uuid.cmp(uuid)) else {
            return false;
        };
        let health = shown(&host.facts.devices[at].health, mark);
        if host.facts.devices[at].health == health {
            return false;
        }
        if let Some(host) = self.get_mut(id) {
            Arc::make_mut(&mut host.facts).devices[at].health = health;
        }
        true
    }

    /// Takes new facts of a host and keeps the index of owners.
    pub(crate) fn take_facts(&mut self, id: HostId, facts: HostFacts) {
        self.change(id, |host| host.take_facts(facts));
    }

    /// A lost host stops listing a device that another host now has.
    pub(crate) fn forget_device(&mut self, id: HostId, uuid: &DeviceUuid) {
        self.change(id, |host| {
            Arc::make_mut(&mut host.facts).devices.retain(|d| d.uuid != *uuid);
            host.gone.retain(|d| d.uuid != *uuid);
        });
    }

    /// Records what an attempt holds.
    pub(crate) fn hold(&mut self, attempt: &Attempt) {
        let Some(host) = self.get_mut(attempt.host) else {
            return;
        };
        let parts = attempt.holdings();
        host.used.add(&attempt.tenant, attempt.cpus_milli, attempt.mem_mib, &parts);
        host.used.ports.extend(attempt.port);
        host.used.launching += 1;
    }

    /// Gives back what an attempt holds. Devices that it does not hold (any more) stay as they are.
    pub(crate) fn release(&mut self, attempt: &Attempt) {
        let Some(host) = self.map.get_mut(&attempt.host).map(Arc::make_mut) else {
            return;
        };
        host.used.subtract(attempt.token, attempt.cpus_milli, attempt.mem_mib, &attempt.devices);
        if let Some(port) = &attempt.port {
            host.used.ports.remove(port);
        }
        for uuid in &attempt.devices {
            let gone = !host.used.devices.contains_key(uuid) && host.gone.iter().any(|d| d.uuid == *uuid);
            if gone && self.owner.get(uuid) == Some(&host.id) {
                self.owner.remove(uuid);
            }
        }
        host.trim_gone();
    }

    /// Rebuilds the index from the rows, after a snapshot was read.
    pub(crate) fn rebuild(&mut self) {
        self.owner =
            self.map.values().flat_map(|host| host.owned().map(|uuid| (uuid.clone(), host.id))).collect();
    }

    fn change(&mut self, id: HostId, change: impl FnOnce(&mut Host)) {
        let Some(host) = self.map.get_mut(&id).map(Arc::make_mut) else {
            return;
        };
        for uuid in host.owned() {
            self.owner.remove(uuid);
        }
        change(host);
        for uuid in host.owned() {
            self.owner.insert(uuid.clone(), id);
        }
    }
}

/// Prefix of the reason of a device that another host registered first.
pub(crate) const FOREIGN: &str = "also registered by host ";

/// Listed by this host, owned by another.
pub(crate) fn is_foreign(device: &DeviceFacts) -> bool {
    matches!(&device.health, DeviceHealth::Lost { reason } if reason.starts_with(FOREIGN))
}
