//! What is held against devices, wherever they are plugged in, and the breaker that keeps a mass alarm from emptying
//! the cluster. Marks follow a device by its UUID over restarts, renumbering and a move to another host (R014).

use rota_protocol::device::DeviceHealth;
use rota_protocol::health::{BreakerView, Cause, MarkView, Reason, Stage};
use rota_protocol::limits::REASON_BYTES_MAX;
use rota_protocol::{DeviceUuid, HostId, JobId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Reasons kept for one device, the newest.
pub const REASONS_KEPT_MAX: usize = 8;
/// The third fault that only a reset mends ..
pub const RESETS_MAX: usize = 3;
/// .. within this time takes a device out for good.
pub const RESETS_MS: u64 = 7 * 24 * 3_600 * 1_000;
/// Programs of so many jobs ..
pub const FAILED_JOBS_MAX: usize = 3;
/// .. that failed on a device within this time make it suspect.
pub const FAILED_JOBS_MS: u64 = 24 * 3_600 * 1_000;
/// Devices that something is known of; beyond it, those that are well are forgotten, and nothing new is noted.
const MARKS_MAX: usize = 1 << 17;

/// Hosts that may be taken out by their own faults within [`BREAKER_MS`]: one in so many, but at least one.
pub const BREAKER_ONE_IN: usize = 10;
/// The time over which the breaker counts, in ms.
pub const BREAKER_MS: u64 = 600_000;

/// What is held against one device, and what is remembered of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mark {
    /// Where it stands.
    pub stage: Stage,
    /// Since when, in log time.
    pub since_ms: u64,
    /// When its time of trial may end, in log time.
    pub until_ms: Option<u64>,
    /// How long a time of trial is, as its host last said, in ms.
    pub trial_ms: u64,
    /// An operator keeps new work off it.
    pub cordon: Option<Reason>,
    /// Why, oldest first.
    pub reasons: VecDeque<Reason>,
    /// Log times of the newest faults that only a reset mends.
    pub resets: VecDeque<u64>,
    /// Jobs whose programs failed on it lately, each with the log time.
    pub jobs: VecDeque<(JobId, u64)>,
}

impl Mark {
    /// What that means for grants; none if nothing.
    #[must_use]
    pub fn health(&self) -> Option<DeviceHealth> {
        if let Some(cordon) = &self.cordon {
            let reason = bounded(format!("cordoned by an operator: {}", cordon.text));
            return Some(DeviceHealth::Quarantined { reason });
        }
        let reason = || bounded(format!("{}: {}", self.stage, self.why()));
        match self.stage {
            Stage::Well => None,
            Stage::Degraded | Stage::Trial => Some(DeviceHealth::Degraded { reason: reason() }),
            Stage::Suspect | Stage::Quarantined | Stage::Probation | Stage::Out => {
                Some(DeviceHealth::Quarantined { reason: reason() })
            }
        }
    }

    /// The newest of its reasons that is something bad.
    fn why(&self) -> &str {
        let bad = |reason: &&Reason| {
            !matches!(reason.cause, Cause::Clean | Cause::Repaired | Cause::Served | Cause::Noted)
        };
        self.reasons.iter().rev().find(bad).map_or("", |reason| &reason.text)
    }

    /// Keeps a reason, once.
    pub(crate) fn note(&mut self, reason: Reason) {
        let known = |other: &Reason| other.cause == reason.cause && other.text == reason.text;
        self.reasons.retain(|other| !known(other));
        self.reasons.push_back(reason);
        while self.reasons.len() > REASONS_KEPT_MAX {
            self.reasons.pop_front();
        }
    }

    /// Notes a fault that only a reset mends; true if there were too many of them.
    pub(crate) fn note_reset(&mut self, now_ms: u64) -> bool {
        self.resets.push_back(now_ms);
        self.resets.retain(|at_ms| at_ms.saturating_add(RESETS_MS) > now_ms);
        while self.resets.len() > RESETS_MAX {
            self.resets.pop_front();
        }
        self.resets.len() >= RESETS_MAX
    }

    /// Notes a job whose program failed on it; true if there were too many of them.
    pub(crate) fn note_job(&mut self, job: JobId, now_ms: u64) -> bool {
        self.jobs.retain(|(other, at_ms)| *other != job && at_ms.saturating_add(FAILED_JOBS_MS) > now_ms);
        self.jobs.push_back((job, now_ms));
        while self.jobs.len() > FAILED_JOBS_MAX {
            self.jobs.pop_front();
        }
        self.jobs.len() >= FAILED_JOBS_MAX
    }

    /// Nothing of it matters any more.
    fn is_idle(&self, now_ms: u64) -> bool {
        self.stage == Stage::Well
            && self.cordon.is_none()
            && self.resets.iter().all(|at_ms| at_ms.saturating_add(RESETS_MS) <= now_ms)
            && self.jobs.iter().all(|(_, at_ms)| at_ms.saturating_add(FAILED_JOBS_MS) <= now_ms)
    }

    /// For people.
    #[must_use]
    pub fn view(&self) -> MarkView {
        MarkView {
            stage: self.stage,
            since_ms: self.since_ms,
            until_ms: self.until_ms,
            cordon: self.cordon.clone(),
            reasons: self.reasons.iter().cloned().collect(),
            resets: u32::try_from(self.resets.len()).unwrap_or(u32::MAX),
        }
    }
}

/// Health as shown: what the driver says, unless that is well and something is held against the device. A host cannot
/// say itself what only the state knows.
pub(crate) fn shown(told: &DeviceHealth, mark: Option<&Mark>) -> DeviceHealth {
    match told {
        DeviceHealth::Healthy | DeviceHealth::Degraded { .. } | DeviceHealth::Quarantined { .. } => {
            mark.and_then(Mark::health).unwrap_or(DeviceHealth::Healthy)
        }
        other => other.clone(),
    }
}

fn bounded(mut text: String) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// Which hosts were taken out by their own faults of late.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Breaker {
    /// Log time and host, oldest first.
    taken_out: VecDeque<(u64, HostId)>,
    /// An operator's number of hosts instead of the rule.
    cap: Option<u32>,
    /// Since when it only alerts.
    open_since_ms: Option<u64>,
    /// Faults that it kept from acting, ever.
    alerts: u64,
}

impl Breaker {
    /// May another host be taken out? If so it is counted, otherwise the alert is.
    pub(crate) fn admits(&mut self, host: HostId, hosts: usize, now_ms: u64) -> bool {
        self.sweep(now_ms);
        if self.taken_out.iter().any(|(_, other)| *other == host) {
            return true;
        }
        if self.taken_out.len() < self.cap(hosts) {
            self.open_since_ms = None;
            self.taken_out.push_back((now_ms, host));
            return true;
        }
        self.open_since_ms.get_or_insert(now_ms);
        self.alerts = self.alerts.saturating_add(1);
        false
    }

    /// How many of so many hosts may be taken out.
    fn cap(&self, hosts: usize) -> usize {
        let rule = (hosts / BREAKER_ONE_IN).max(1);
        self.cap.map_or(rule, |cap| usize::try_from(cap).unwrap_or(usize::MAX).max(1))
    }

    fn sweep(&mut self, now_ms: u64) {
        self.taken_out.retain(|(at_ms, _)| at_ms.saturating_add(BREAKER_MS) > now_ms);
    }

    pub(crate) fn set_cap(&mut self, cap: Option<u32>) {
        self.cap = cap;
    }

    pub(crate) fn reset(&mut self) {
        self.taken_out.clear();
        self.open_since_ms = None;
    }

    /// For people, at `now_ms`.
    #[must_use]
    pub fn view(&self, hosts: usize, now_ms: u64) -> BreakerView {
        let lately = |at_ms: u64| at_ms.saturating_add(BREAKER_MS) > now_ms;
        let taken_out: Vec<HostId> =
            self.taken_out.iter().filter(|(at_ms, _)| lately(*at_ms)).map(|(_, host)| *host).collect();
        let cap = self.cap(hosts);
        BreakerView {
            open_since_ms: self.open_since_ms.filter(|_| taken_out.len() >= cap),
            cap: u32::try_from(cap).unwrap_or(u32::MAX),
            taken_out,
            alerts: self.alerts,
        }
    }
}

/// All marks, and the breaker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CareTable {
    marks: BTreeMap<DeviceUuid, Mark>,
    pub(crate) breaker: Breaker,
}

impl CareTable {
    /// What is held against a device.
    #[must_use]
    pub fn mark(&self, uuid: &DeviceUuid) -> Option<&Mark> {
        self.marks.get(uuid)
    }

    /// All marks by UUID.
    pub fn marks(&self) -> impl Iterator<Item = (&DeviceUuid, &Mark)> {
        self.marks.iter()
    }

    /// The breaker.
    #[must_use]
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Changes a device's mark, making it if need be; one that says nothing any more is dropped. None, and no change,
    /// when there are too many.
    pub(crate) fn change<R>(
        &mut self,
        uuid: &DeviceUuid,
        now_ms: u64,
        change: impl FnOnce(&mut Mark) -> R,
    ) -> Option<R> {
        if self.marks.len() >= MARKS_MAX && !self.marks.contains_key(uuid) {
            self.marks.retain(|_, mark| !mark.is_idle(now_ms));
            if self.marks.len() >= MARKS_MAX {
                return None;
            }
        }
        let mark = self.marks.entry(uuid.clone()).or_default();
        let result = change(mark);
        if mark.is_idle(now_ms) && mark.reasons.is_empty() {
            self.marks.remove(uuid);
        }
        Some(result)
    }
}
