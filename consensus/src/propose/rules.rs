//! What may be tried again, what may be forwarded, and the words of refusals.

use rota_protocol::command::{Command, Proposal};
use rota_protocol::ids::{HostId, RequestId};
use rota_protocol::members::MemberChange;
use rota_protocol::trust::TrustChange;
use rota_protocol::{ErrorCode, PublicError};

/// Whether applying a proposal twice, or by a later leader, does no harm.
pub(super) fn is_safe(proposal: &Proposal) -> bool {
    proposal.request != RequestId::NONE
        || !matches!(
            proposal.command,
            Command::Submit { .. } | Command::AdmitHost { .. } | Command::MintToken { .. }
        )
}

/// Whether a proposal rests on what its leader knew: another leader must never commit it. An expiry above all: the
/// next leader may have acknowledged a renewal of the same epoch.
pub(super) fn is_leader_bound(proposal: &Proposal) -> bool {
    matches!(proposal.command, Command::Expire { .. } | Command::CommitPlan { .. })
}

/// Why another peer may not have this proposed here: it speaks for its own host only, and what rests on a leader's
/// knowledge does not travel.
pub(crate) fn refuse_forwarded(from: HostId, proposal: &Proposal) -> Option<PublicError> {
    let why = match &proposal.command {
        Command::CreateCluster { .. } | Command::Expire { .. } | Command::CommitPlan { .. } => {
            "this command is the leader's own"
        }
        Command::RegisterHost { host, .. } | Command::Report { host, .. } | Command::Health { host, .. }
            if *host != from =>
        {
            "a host reports itself only"
        }
        Command::Trust { change: TrustChange::TookCa { host, .. } | TrustChange::Seen { host, .. } }
            if *host != from =>
        {
            "a host speaks for itself only"
        }
        Command::Members(MemberChange::Started { host, .. }) if *host != from => {
            "a host speaks for itself only"
        }
        _ => return None,
    };
    Some(PublicError::new(ErrorCode::Forbidden, why))
}

/// What a host of the cluster could not read never becomes an entry: it would stop there.
pub(super) fn check_version(needed: u16, now: u16) -> Result<(), PublicError> {
    if needed <= now {
        return Ok(());
    }
    let message = format!(
        "this needs version {needed} of the cluster, which is at {now}: `rota cluster version --raise` when all hosts \
         are upgraded"
    );
    Err(PublicError::new(ErrorCode::Version, message))
}

pub(super) fn too_large(what: String) -> PublicError {
    PublicError::new(ErrorCode::TooLarge, what)
}

pub(super) fn busy() -> PublicError {
    PublicError::new(ErrorCode::Busy, "too many proposals wait at this peer").retry_after(20)
}

pub(super) fn unknown() -> PublicError {
    PublicError::new(
        ErrorCode::Unknown,
        "the answer was lost, the request may have been carried out: retry with the same request id",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::ids::JobId;
    use rota_protocol::job::{Actor, Role};

    fn proposal(index: u32) -> Proposal {
        Proposal {
            request: RequestId(u128::from(index)),
            actor: Actor { user: "ann".into(), tenant: "lab".into(), role: Role::Submitter },
            command: Command::Cancel { job: JobId(7), index: Some(index) },
        }
    }

    #[test]
    fn only_what_may_be_applied_twice_is_proposed_twice() {
        let mint = Command::MintToken {
            token: [0; 32],
            usage: rota_protocol::command::TokenUse::Join { host_name: None },
            expires_at_ms: 0,
        };
        let with = |request, command| Proposal { request, command, ..proposal(0) };
        assert!(is_safe(&with(RequestId::NONE, proposal(1).command)));
        assert!(!is_safe(&with(RequestId::NONE, mint.clone())));
        assert!(is_safe(&with(RequestId(1), mint)));
        let expire = Command::Expire { host: HostId(1), epoch: rota_protocol::LeaseEpoch(1) };
        assert!(is_leader_bound(&with(RequestId::NONE, expire)));
    }
}
