//! Health of devices and hosts: where a device stands, what may happen to it, who says so, and the one table of legal
//! transitions (law I17). Shared by the host that sees signs and by the state that keeps what follows from them.

use crate::ids::{DeviceUuid, HostId, JobId, Token};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a device stands. What its driver answers just now is another matter ([`crate::device::DeviceHealth`]): a
/// device is granted only if both are well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Stage {
    /// Nothing is held against it.
    #[default]
    Well,
    /// Throttled, slow without a reason, or its links are in doubt: granted only to work that needs one card.
    Degraded,
    /// Degraded before, well for some time now; still only for work that needs one card.
    Trial,
    /// Several jobs failed on it: nothing new, what runs goes on.
    Suspect,
    /// Broken until it is reset or its host restarts: nothing new, what ran was ended.
    Quarantined,
    /// Well again for the time being; nothing new until that has lasted.
    Probation,
    /// Broken for good as far as Rota can tell: only an operator brings it back.
    Out,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 7] = [
        Self::Well,
        Self::Degraded,
        Self::Trial,
        Self::Suspect,
        Self::Quarantined,
        Self::Probation,
        Self::Out,
    ];

    /// Where what happened leads; none if that is no step from here. The only such table: whatever is not in it
    /// changes nothing. No way leads to `Well` but a time of trial that was served, or an operator's word.
    #[must_use]
    pub fn after(self, cause: Cause) -> Option<Self> {
        use Stage::{Degraded, Out, Probation, Quarantined, Suspect, Trial, Well};
        Some(match (self, cause) {
            (Well | Trial, Cause::Throttled | Cause::Fabric | Cause::Slow) => Degraded,
            (Well | Degraded | Trial | Probation, Cause::JobsFailed) => Suspect,
            (Well | Degraded | Trial | Suspect | Probation, Cause::Fault | Cause::NodeFault) => Quarantined,
            (Well | Degraded | Trial | Suspect | Probation | Quarantined, Cause::Fatal) => Out,
            (Degraded, Cause::Clean) => Trial,
            (Suspect, Cause::Clean) => Probation,
            (Suspect | Quarantined, Cause::Repaired) => Probation,
            (Trial | Probation, Cause::Served) => Well,
            (Degraded | Trial | Suspect | Quarantined | Probation | Out, Cause::Cleared) => Well,
            _ => return None,
        })
    }

    /// Granted to work that needs one card.
    #[must_use]
    pub fn is_granted(self) -> bool {
        matches!(self, Self::Well | Self::Degraded | Self::Trial)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Well => "well",
            Self::Degraded => "degraded",
            Self::Trial => "on trial",
            Self::Suspect => "suspect",
            Self::Quarantined => "quarantined",
            Self::Probation => "on probation",
            Self::Out => "out",
        })
    }
}

/// What happened to a device: the one cause of each transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// A program failed on it by its own doing; by itself no step, but see [`Cause::JobsFailed`].
    Program,
    /// It lost a program's data, contained to that program: not the program's fault, and by itself no step.
    Contained,
    /// Slowed down for heat or power, again and again.
    Throttled,
    /// Its fast links are in doubt.
    Fabric,
    /// Programs of several jobs failed on it.
    JobsFailed,
    /// A fault that only a reset mends.
    Fault,
    /// A fault that only a restart of its host mends.
    NodeFault,
    /// A fault that nothing here mends.
    Fatal,
    /// Looked at several times in a row and found well.
    Clean,
    /// Reset, back after it was gone, or its host restarted.
    Repaired,
    /// Its time of trial is over.
    Served,
    /// An operator says so.
    Cleared,
    /// Worth knowing; no step.
    Noted,
    /// Slower than it should be, or than its equals in the same work, and no reason is told.
    Slow,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 14] = [
        Self::Program,
        Self::Contained,
        Self::Throttled,
        Self::Fabric,
        Self::JobsFailed,
        Self::Fault,
        Self::NodeFault,
        Self::Fatal,
        Self::Clean,
        Self::Repaired,
        Self::Served,
        Self::Cleared,
        Self::Noted,
        Self::Slow,
    ];

    /// A host may say so of its own devices; the rest follows in the state, or is an operator's.
    #[must_use]
    pub fn is_hosts(self) -> bool {
        !matches!(self, Self::JobsFailed | Self::Cleared)
    }

    /// For metrics: a word from a fixed set.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Contained => "contained",
            Self::Throttled => "throttled",
            Self::Fabric => "fabric",
            Self::JobsFailed => "jobs_failed",
            Self::Fault => "fault",
            Self::NodeFault => "node_fault",
            Self::Fatal => "fatal",
            Self::Clean => "clean",
            Self::Repaired => "repaired",
            Self::Served => "served",
            Self::Cleared => "cleared",
            Self::Noted => "noted",
            Self::Slow => "slow",
        }
    }
}

/// Who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Source {
    /// The kernel's log.
    Kmsg,
    /// The driver's management library.
    Nvml,
    /// A look at the device, or that it could not be looked at.
    Probe,
    /// An operator.
    Operator,
    /// The check after an attempt.
    CleanCheck,
    /// What became of jobs.
    Jobs,
    /// The host restarted.
    Boot,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kmsg => "kmsg",
            Self::Nvml => "nvml",
            Self::Probe => "probe",
            Self::Operator => "operator",
            Self::CleanCheck => "clean check",
            Self::Jobs => "jobs",
            Self::Boot => "boot",
        })
    }
}

/// Why a device or a host is where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What happened.
    pub cause: Cause,
    /// Who says so.
    pub source: Source,
    /// For a person.
    pub text: String,
    /// Log time, ms since the epoch.
    pub at_ms: u64,
}

/// What a host found about one of its devices: a fact, told at least once; telling it again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which device.
    pub uuid: DeviceUuid,
    /// What happened.
    pub cause: Cause,
    /// Who says so.
    pub source: Source,
    /// For a person; begins with the number of the Xid if there is one.
    pub text: String,
    /// The attempt whose program failed and its job, if that is known.
    pub program: Option<(Token, JobId)>,
    /// For what leads to a time of trial: how long it is, in ms.
    pub trial_ms: u64,
}

/// What an operator does about health.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tending {
    /// Keep new work off a device, whatever its health. What runs goes on.
    Cordon {
        /// Which device.
        uuid: DeviceUuid,
        /// For people.
        reason: String,
    },
    /// Lift a cordon and everything held against a device.
    Clear {
        /// Which device.
        uuid: DeviceUuid,
    },
    /// How many hosts may be taken out by their own faults within the breaker's time; none for the rule.
    BreakerCap {
        /// At least 1.
        hosts: Option<u32>,
    },
    /// Forget which hosts were taken out lately: the breaker closes.
    BreakerReset,
}

/// What a host says of itself beside its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    /// At most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Its agent stops on purpose: what becomes of its tasks then is no fault of theirs.
    pub stopping: bool,
}

/// Most findings in one report.
pub const FINDINGS_MAX: usize = 256;
/// Longest time of trial, in ms: a week.
pub const TRIAL_MS_MAX: u64 = 7 * 24 * 3_600 * 1_000;

/// What is held against a device, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkView {
    /// Where it stands.
    pub stage: Stage,
    /// Since when, ms since the epoch.
    pub since_ms: u64,
    /// When its time of trial may end, ms since the epoch.
    pub until_ms: Option<u64>,
    /// An operator's cordon.
    pub cordon: Option<Reason>,
    /// Why, oldest first.
    pub reasons: Vec<Reason>,
    /// Faults that only a reset mends within the last week.
    pub resets: u32,
}

/// What is held against a host, for people.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostCareView {
    /// A fault of the host itself keeps work off it.
    pub fault: Option<Reason>,
    /// Such a fault was told, but too many hosts told one: nothing was done about it.
    pub alert: Option<Reason>,
    /// Jobs that failed there and ran well elsewhere, within a day.
    pub failed_jobs: u32,
    /// Nothing is placed there because of them.
    pub shunned: bool,
}

/// The breaker that keeps a mass alarm from emptying the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BreakerView {
    /// Hosts that were taken out by their own faults within the breaker's time.
    pub taken_out: Vec<HostId>,
    /// How many may be.
    pub cap: u32,
    /// Since when it only alerts, ms since the epoch; none while it lets faults act.
    pub open_since_ms: Option<u64>,
    /// Faults that it kept from acting, ever.
    pub alerts: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Law I17: nothing recovers but by a trial that was served or by an operator, and a program's failure moves
    /// nothing.
    #[test]
    fn the_table_has_no_short_way_back() {
        for from in Stage::ALL {
            for cause in Cause::ALL {
                let Some(to) = from.after(cause) else { continue };
                assert_ne!(from, to, "{from} stays at {cause:?}: that is no step");
                if to == Stage::Well {
                    let served = cause == Cause::Served && matches!(from, Stage::Trial | Stage::Probation);
                    assert!(served || cause == Cause::Cleared, "{from} at {cause:?}");
                }
                assert!(!matches!(cause, Cause::Program | Cause::Contained | Cause::Noted));
                if from == Stage::Out {
                    assert_eq!(cause, Cause::Cleared, "only an operator brings it back");
                }
                // A device that gets no work comes to get some only by those two, too.
                if !from.is_granted() && to.is_granted() {
                    assert_eq!(to, Stage::Well);
                }
            }
        }
    }
}
