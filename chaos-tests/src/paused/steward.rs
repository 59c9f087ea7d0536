//! What the host's autopilot does in the product, in its plainest form: all hosts follow, one, three or five vote, lost
//! voters are replaced by who is caught up, one change at a time.

use super::peer::Door;
use rota_consensus::{MemberChange, Members};
use rota_core::state::host::HostLife;
use rota_protocol::ids::HostId;
use std::collections::{BTreeMap, BTreeSet};

/// Entries that a host may be behind and still be made a voter.
const LAG_MAX: u64 = 256;

/// How many of so many hosts vote.
pub(super) fn voters_wanted(hosts: usize) -> usize {
    match hosts {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// The next change; `alive` are the admitted hosts, and whether each was not declared lost.
fn next(members: &Members, alive: &BTreeMap<HostId, bool>) -> Option<MemberChange> {
    let known: BTreeSet<HostId> = members.voters.union(&members.learners).copied().collect();
    let missing: BTreeSet<HostId> = alive.keys().filter(|host| !known.contains(host)).copied().collect();
    if !missing.is_empty() {
        return Some(MemberChange::Follow(missing));
    }
    let is_alive = |host: &HostId| alive.get(host).copied().unwrap_or(false);
    let wanted = voters_wanted(alive.len());
    let mut voters: BTreeSet<HostId> = members.voters.iter().filter(|host| is_alive(host)).copied().collect();
    let caught_up = members.learners.iter().filter(|host| {
        is_alive(host) && members.lag.get(host).copied().flatten().is_some_and(|lag| lag <= LAG_MAX)
    });
    voters.extend(caught_up.copied().take(wanted.saturating_sub(voters.len())));
    // Lost voters stay for as long as nobody can take their place: fewer voters would be no safer.
    let lost = members.voters.iter().filter(|host| !is_alive(host)).copied();
    let room = wanted.max(members.voters.len()).saturating_sub(voters.len());
    voters.extend(lost.take(room));
    if voters.len().is_multiple_of(2) {
        // An even number tolerates no more than the odd one below it.
        let newest = voters.iter().rev().find(|host| !members.voters.contains(host)).copied();
        newest.map(|host| voters.remove(&host));
    }
    let lives = voters.iter().filter(|host| is_alive(host)).count() * 2 > voters.len();
    (lives && voters != members.voters).then_some(MemberChange::Vote(voters))
}

/// Takes the next step at a leader, and waits until it is committed.
pub(super) async fn step(door: &Door) {
    let members = door.peer.members();
    if !members.leading || !members.settled {
        // A change that a leader died over is finished by the attempt at another.
        let _ = door.peer.change_members(&MemberChange::Follow(BTreeSet::new())).await;
        return;
    }
    let alive = door.peer.read(|state| {
        let alive = state.hosts().map(|host| (host.id, host.life != HostLife::Lost));
        alive.collect()
    });
    if let Some(change) = next(&members, &alive) {
        let _ = door.peer.change_members(&change).await;
    }
}
