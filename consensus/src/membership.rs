//! Who votes and who follows, as openraft knows it, and the one way to change it.
//!
//! What this is not: it decides nothing. One change at a time, each committed before the next. Host ids are raft node
//! ids and are never used again, so a wiped host can never vote under its old name.

use crate::Consensus;
use crate::config::Rota;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, EmptyNode, RaftMetrics};
use rota_protocol::ids::HostId;
use rota_protocol::{ErrorCode, PublicError};
use std::collections::{BTreeMap, BTreeSet};

/// The membership at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// This peer leads; what follows is then complete.
    pub leading: bool,
    /// No change is under way.
    pub settled: bool,
    /// Hosts that vote.
    pub voters: BTreeSet<HostId>,
    /// Hosts that only follow.
    pub learners: BTreeSet<HostId>,
    /// At the leader: how many entries each member is behind; none for one that never answered.
    pub lag: BTreeMap<HostId, Option<u64>>,
}

/// One change of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// These follow the log from now on.
    Follow(BTreeSet<HostId>),
    /// These vote, and nobody else; who voted before goes on following.
    Vote(BTreeSet<HostId>),
    /// These, which do not vote, are members no more.
    Forget(BTreeSet<HostId>),
}

/// A leader died half-way through a change of voters.
fn is_half_done(metrics: &RaftMetrics<Rota>) -> bool {
    metrics.membership_config.membership().get_joint_config().len() > 1
}

fn is_committed(metrics: &RaftMetrics<Rota>) -> bool {
    metrics.membership_config.log_id() == metrics.committed_membership_config.log_id()
}

impl Consensus {
    /// Who votes and who follows.
    #[must_use]
    pub fn members(&self) -> Members {
        let metrics = self.0.raft.metrics().borrow_watched().clone();
        let last = metrics.last_log_index.unwrap_or(0);
        let membership = metrics.membership_config.membership();
        let lag = metrics.replication.iter().flatten().map(|(id, matched)| {
            (HostId(*id), matched.as_ref().map(|matched| last.saturating_sub(matched.index)))
        });
        Members {
            leading: metrics.state.is_leader(),
            settled: is_committed(&metrics) && !is_half_done(&metrics),
            voters: membership.voter_ids().map(HostId).collect(),
            learners: membership.learner_ids().map(HostId).collect(),
            lag: lag.collect(),
        }
    }

    /// At the leader: makes one change, and waits until it is committed. False if it is not the time for it: this
    /// peer does not lead, or an earlier change is under way (which is finished first, if a leader died over it).
    ///
    /// # Errors
    /// `Internal` for what openraft refuses for good.
    pub async fn change_members(&self, change: &MemberChange) -> Result<bool, PublicError> {
        let Ok(_one) = self.0.changing.try_lock() else {
            return Ok(false);
        };
        let metrics = self.0.raft.metrics().borrow_watched().clone();
        if !metrics.state.is_leader() || !is_committed(&metrics) {
            return Ok(false);
        }
        if is_half_done(&metrics) {
            self.write(ChangeMembers::AddVoterIds(BTreeSet::new())).await?;
            return Ok(false);
        }
        let ids = |set: &BTreeSet<HostId>| set.iter().map(|id| id.0).collect();
        let change = match change {
            MemberChange::Follow(hosts) => {
                ChangeMembers::AddNodes(hosts.iter().map(|id| (id.0, EmptyNode::new())).collect())
            }
            MemberChange::Vote(voters) => ChangeMembers::ReplaceAllVoters(ids(voters)),
            MemberChange::Forget(hosts) => ChangeMembers::RemoveNodes(ids(hosts)),
        };
        self.write(change).await
    }

    async fn write(&self, changes: ChangeMembers<u64, EmptyNode>) -> Result<bool, PublicError> {
        tracing::info!(%changes, "change the membership");
        // `retain`: a host that no longer votes goes on following.
        match self.0.raft.change_membership(changes, true).await {
            Ok(_) => Ok(true),
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
            ))) => Ok(false),
            Err(RaftError::APIError(
                ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_),
            )) => Ok(false),
            Err(error) => Err(PublicError::new(ErrorCode::Internal, error.to_string())),
        }
    }
}
