//! What is held against a host: a fault of its own, jobs that fail there and nowhere else, and whether its agent
//! stopped on purpose.

use super::Host;
use rota_protocol::health::{HostCareView, Reason};
use rota_protocol::{DeviceUuid, JobId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// So many jobs that failed on a host and ran well elsewhere ..
pub const LEMON_JOBS_MAX: usize = 3;
/// .. within this time keep work off it.
pub const LEMON_MS: u64 = 24 * 3_600 * 1_000;
/// So many runs that went well there make up for one job that failed.
pub const PASSES_PER_BLAME: u8 = 8;
/// Jobs remembered for one host; more would not make it worse.
const BLAMED_KEPT_MAX: usize = 16;

/// A fault of the host itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFault {
    /// The first that was told.
    pub reason: Reason,
    /// The devices that told it; it is over when they are all mended.
    pub devices: BTreeSet<DeviceUuid>,
}

/// What is held against a host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostCare {
    /// Nothing runs here until it is mended.
    pub fault: Option<HostFault>,
    /// A fault that the breaker kept from acting.
    pub alert: Option<Reason>,
    /// Its agent said that it stops on purpose, and has not come back.
    pub stopping: bool,
    /// Jobs that failed here and ran well elsewhere, with the log time, oldest first.
    pub(crate) blamed: VecDeque<(JobId, u64)>,
    /// Runs that went well here since the last blame or since they last made up for one.
    pub(crate) passes: u8,
    /// Work was kept off it because of them.
    pub(crate) shunned: bool,
}

impl HostCare {
    /// Jobs that still count against it.
    #[must_use]
    pub fn blamed(&self, now_ms: u64) -> usize {
        self.blamed.iter().filter(|(_, at_ms)| at_ms.saturating_add(LEMON_MS) > now_ms).count()
    }

    /// Until when work is kept off it because jobs fail here; none if it is not.
    #[must_use]
    pub fn shunned_until_ms(&self) -> Option<u64> {
        // Once this one no longer counts there are too few.
        let decides = self.blamed.len().checked_sub(LEMON_JOBS_MAX)?;
        self.shunned.then(|| self.blamed[decides].1.saturating_add(LEMON_MS))
    }

    /// Work is kept off it because jobs fail here that run well elsewhere.
    #[must_use]
    pub fn is_shunned(&self, now_ms: u64) -> bool {
        self.shunned_until_ms().is_some_and(|until_ms| now_ms < until_ms)
    }

    /// A job failed here and ran well elsewhere; true if there were too many of them.
    pub(crate) fn blame(&mut self, job: JobId, now_ms: u64) -> bool {
        self.blamed.retain(|(other, at_ms)| *other != job && at_ms.saturating_add(LEMON_MS) > now_ms);
        self.blamed.push_back((job, now_ms));
        self.passes = 0;
        if self.blamed.len() > BLAMED_KEPT_MAX {
            self.blamed.pop_front();
        }
        self.blamed.len() >= LEMON_JOBS_MAX
    }

    /// A run went well here.
    pub(crate) fn pass(&mut self) {
        self.passes += 1;
        if self.passes >= PASSES_PER_BLAME {
            self.passes = 0;
            self.blamed.pop_front();
        }
    }

    /// Forgets what failed here; true if there was anything.
    pub(crate) fn forgive(&mut self) -> bool {
        let changed = !self.blamed.is_empty() || self.fault.is_some() || self.alert.is_some();
        *self = Self { stopping: self.stopping, ..Self::default() };
        changed
    }

    /// For people, at `now_ms`.
    #[must_use]
    pub fn view(&self, now_ms: u64) -> HostCareView {
        HostCareView {
            fault: self.fault.as_ref().map(|fault| fault.reason.clone()),
            alert: self.alert.clone(),
            failed_jobs: u32::try_from(self.blamed(now_ms)).unwrap_or(u32::MAX),
            shunned: self.is_shunned(now_ms),
        }
    }
}

impl Host {
    /// Whether it takes work may change with time alone.
    #[must_use]
    pub fn openness_is_timed(&self) -> bool {
        self.reopens_ms().next().is_some()
    }

    /// When what keeps work off it for a time is over, or was.
    pub fn reopens_ms(&self) -> impl Iterator<Item = u64> {
        self.launches.suspended_until_ms().into_iter().chain(self.care.shunned_until_ms())
    }
}
