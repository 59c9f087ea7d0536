//! Who votes: the cluster's own work. All admitted hosts follow the log; one, three or five of them vote.
//!
//! One change at a time, each committed before the next; a host becomes a voter only when it is caught up. Host ids
//! are raft node ids and are never used again, so a wiped host can never vote under its old name.

use crate::config::{Raft, Rota};
use crate::machine::Shared;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, EmptyNode, RaftMetrics};
use rota_core::state::host::{Host, HostLife};
use rota_protocol::ids::HostId;
use rota_protocol::{ErrorCode, PublicError};
use std::collections::{BTreeMap, BTreeSet};

/// Entries that a host may be behind and still be made a voter: one heartbeat's worth under load.
const PROMOTE_LAG_MAX: u64 = 256;

/// What one step did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipStep {
    /// This peer does not lead, or an earlier change is under way.
    NotNow,
    /// Nothing to change.
    Settled,
    /// More voters are wanted, but no host is caught up yet: try again when the log has moved.
    Waiting,
    /// Hosts follow the log now.
    Added(BTreeSet<HostId>),
    /// The voters are these now.
    Voters(BTreeSet<HostId>),
}

/// How many of so many hosts vote.
#[must_use]
pub fn voters_wanted(hosts: usize) -> usize {
    match hosts {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// What the decision rests on.
struct Facts {
    /// Admitted hosts, and whether each was not declared lost.
    hosts: BTreeMap<u64, bool>,
    members: BTreeSet<u64>,
    voters: BTreeSet<u64>,
    /// Members that are at most [`PROMOTE_LAG_MAX`] behind.
    caught_up: BTreeSet<u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    Wait,
    Add(BTreeSet<u64>),
    Voters(BTreeSet<u64>),
}

/// The next change. Voters are only ever replaced when they are lost, and their number stays odd.
fn decide(facts: &Facts) -> Change {
    let missing: BTreeSet<u64> =
        facts.hosts.keys().filter(|id| !facts.members.contains(id)).copied().collect();
    if !missing.is_empty() {
        return Change::Add(missing);
    }
    let alive = |id: &u64| facts.hosts.get(id).copied().unwrap_or(false);
    let wanted = voters_wanted(facts.hosts.len());
    let kept: BTreeSet<u64> = facts.voters.iter().filter(|id| alive(id)).copied().collect();
    let mut next = kept.clone();
    let fresh = facts.caught_up.iter().filter(|id| alive(id) && !facts.voters.contains(id));
    for id in fresh {
        if next.len() >= wanted {
            break;
        }
        next.insert(*id);
    }
    // Lost voters stay for as long as nobody can take their place: fewer voters would be no safer.
    for id in facts.voters.difference(&kept) {
        if next.len() >= wanted.max(facts.voters.len()) {
            break;
        }
        next.insert(*id);
    }
    if next.len().is_multiple_of(2) {
        // An even number tolerates no more than the odd one below it, and is lost sooner.
        let newest = next.iter().rev().find(|id| !facts.voters.contains(id)).copied();
        if let Some(id) = newest {
            next.remove(&id);
        }
    }
    let live_majority = next.iter().filter(|id| alive(id)).count() * 2 > next.len();
    if next == facts.voters || next.is_empty() || !live_majority {
        return if facts.voters.len() < wanted { Change::Wait } else { Change::None };
    }
    Change::Voters(next)
}

fn facts(shared: &Shared, metrics: &RaftMetrics<Rota>) -> Facts {
    let last = metrics.last_log_index.unwrap_or(0);
    let hosts = shared.read(|state| {
        let alive = |host: &Host| host.life != HostLife::Lost && state.trust().revoked(host.id).is_none();
        state.hosts().map(|host| (host.id.0, alive(host))).collect()
    });
    let membership = metrics.membership_config.membership();
    let caught_up = metrics
        .replication
        .iter()
        .flatten()
        .filter(|(_, matched)| matched.as_ref().is_some_and(|id| id.index + PROMOTE_LAG_MAX >= last))
        .map(|(id, _)| *id)
        .collect();
    Facts {
        hosts,
        members: membership.nodes().map(|(id, _)| *id).collect(),
        voters: membership.voter_ids().collect(),
        caught_up,
    }
}

/// Takes the next step, and waits until it is committed.
pub(crate) async fn step(raft: &Raft, shared: &Shared) -> Result<MembershipStep, PublicError> {
    let metrics = raft.metrics().borrow_watched().clone();
    let settled = metrics.membership_config.log_id() == metrics.committed_membership_config.log_id()
        && metrics.membership_config.membership().get_joint_config().len() == 1;
    if !metrics.state.is_leader() {
        return Ok(MembershipStep::NotNow);
    }
    if metrics.membership_config.membership().get_joint_config().len() > 1
        && metrics.membership_config.log_id() == metrics.committed_membership_config.log_id()
    {
        // A leader died half-way through a change of voters: finish it.
        return change(
            raft,
            ChangeMembers::AddVoterIds(BTreeSet::new()),
            MembershipStep::Voters(BTreeSet::new()),
        )
        .await;
    }
    if !settled {
        return Ok(MembershipStep::NotNow);
    }
    let ids = |set: &BTreeSet<u64>| set.iter().copied().map(HostId).collect();
    match decide(&facts(shared, &metrics)) {
        Change::None => Ok(MembershipStep::Settled),
        Change::Wait => Ok(MembershipStep::Waiting),
        Change::Add(missing) => {
            let step = MembershipStep::Added(ids(&missing));
            let nodes = missing.into_iter().map(|id| (id, EmptyNode::new())).collect();
            change(raft, ChangeMembers::AddNodes(nodes), step).await
        }
        Change::Voters(voters) => {
            let step = MembershipStep::Voters(ids(&voters));
            change(raft, ChangeMembers::ReplaceAllVoters(voters), step).await
        }
    }
}

async fn change(
    raft: &Raft,
    changes: ChangeMembers<u64, EmptyNode>,
    step: MembershipStep,
) -> Result<MembershipStep, PublicError> {
    tracing::info!(%changes, "change the membership");
    // `retain`: a host that no longer votes goes on following.
    match raft.change_membership(changes, true).await {
        Ok(_) => Ok(step),
        Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
        ))) => Ok(MembershipStep::NotNow),
        Err(RaftError::APIError(
            ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_),
        )) => Ok(MembershipStep::NotNow),
        Err(error) => Err(PublicError::new(ErrorCode::Internal, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(hosts: &[(u64, bool)], members: &[u64], voters: &[u64], caught_up: &[u64]) -> Facts {
        Facts {
            hosts: hosts.iter().copied().collect(),
            members: members.iter().copied().collect(),
            voters: voters.iter().copied().collect(),
            caught_up: caught_up.iter().copied().collect(),
        }
    }

    fn alive(ids: &[u64]) -> Vec<(u64, bool)> {
        ids.iter().map(|id| (*id, true)).collect()
    }

    #[test]
    fn every_admitted_host_follows_first() {
        let facts = facts(&alive(&[1, 2, 3]), &[1], &[1], &[1]);
        assert_eq!(decide(&facts), Change::Add([2, 3].into()));
    }

    /// Fault R2: a host that is far behind does not vote.
    #[test]
    fn voters_grow_by_pairs_of_hosts_that_are_caught_up() {
        let all = [1, 2, 3];
        assert_eq!(decide(&facts(&alive(&all[..2]), &[1, 2], &[1], &[1, 2])), Change::None);
        assert_eq!(decide(&facts(&alive(&all), &all, &[1], &[1])), Change::Wait);
        assert_eq!(decide(&facts(&alive(&all), &all, &[1], &[1, 2])), Change::Wait);
        assert_eq!(decide(&facts(&alive(&all), &all, &[1], &[1, 2, 3])), Change::Voters([1, 2, 3].into()));
        let six = [1, 2, 3, 4, 5, 6];
        assert_eq!(
            decide(&facts(&alive(&six), &six, &[1, 2, 3], &six)),
            Change::Voters([1, 2, 3, 4, 5].into())
        );
        assert_eq!(decide(&facts(&alive(&six), &six, &[1, 2, 3], &[1, 2, 3, 6])), Change::Wait);
        assert_eq!(decide(&facts(&alive(&six), &six, &[1, 2, 3, 4, 5], &six)), Change::None);
    }

    /// Fault R11: a lost voter is replaced, and only by a host that is caught up.
    #[test]
    fn a_lost_voter_is_replaced() {
        let hosts = [(1, true), (2, false), (3, true), (4, true)];
        let members = [1, 2, 3, 4];
        assert_eq!(
            decide(&facts(&hosts, &members, &[1, 2, 3], &[1, 3, 4])),
            Change::Voters([1, 3, 4].into())
        );
        assert_eq!(decide(&facts(&hosts, &members, &[1, 2, 3], &[1, 3])), Change::None);
    }

    #[test]
    fn voters_without_a_live_majority_are_not_made() {
        let hosts = [(1, true), (2, false), (3, false), (4, true), (5, true)];
        let members = [1, 2, 3, 4, 5];
        // The quorum is gone; a change could not commit anyway, and none is tried that would leave a dead majority.
        assert_eq!(decide(&facts(&hosts, &members, &[1, 2, 3], &[1])), Change::Wait);
    }
}
