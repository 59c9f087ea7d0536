//! Defects planted on purpose (fault I24). A harness that does not see them would not see real ones either.

use rota_core::state::Faults as CoreFaults;
use rota_node::logic::Faults as LogicFaults;

/// One planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Plant {
    /// The leader acknowledges a renewal before a quorum confirmed that it leads.
    AckRenewalAtOnce,
    /// Devices are given back when a cancel is asked, not when the processes are gone.
    FreeBeforeGone,
    /// Request ids are forgotten.
    SkipDedup,
    /// A lease expires by the timer of whoever believes that it leads, and whoever leads really commits it.
    ExpireWithoutQuorum,
    /// The holder counts from the acknowledgement instead of from the question.
    CountFromAck,
    /// A host that restarted does not remember which tokens it used, and acts on a replica that is behind.
    ForgetTokens,
    /// A restarted host starts attempts before its replica has seen its own registration.
    StaleReplica,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AckRenewalAtOnce,
        Self::FreeBeforeGone,
        Self::SkipDedup,
        Self::ExpireWithoutQuorum,
        Self::CountFromAck,
        Self::ForgetTokens,
        Self::StaleReplica,
    ];

    /// What is broken in the replicated state.
    pub(super) fn core(plant: Option<Self>) -> CoreFaults {
        CoreFaults {
            skip_dedup: plant == Some(Self::SkipDedup),
            free_on_cancel: plant == Some(Self::FreeBeforeGone),
        }
    }

    /// What is broken in the deciders of a host.
    pub(super) fn logic(plant: Option<Self>) -> LogicFaults {
        LogicFaults {
            ack_renewal_at_once: plant == Some(Self::AckRenewalAtOnce),
            expire_without_quorum: plant == Some(Self::ExpireWithoutQuorum),
            count_from_ack: plant == Some(Self::CountFromAck),
        }
    }
}
