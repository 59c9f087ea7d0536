//! Which hosts are members of the agreement at all: in a small cluster all of them; in a larger one those that vote, and
//! some that are ready to. The others follow the log through their peers, so that the leader feeds few, however many there
//! are.

use super::{Change, Decision, Look, Peer, spread};
use rota_protocol::HostId;
use std::collections::BTreeSet;

/// Members, unless the settings say otherwise: five that vote and two that could take the place of lost ones at once.
pub const MEMBERS_MAX: usize = 7;

impl Look {
    /// All hosts are members.
    pub(super) fn is_small(&self) -> bool {
        self.peers.iter().filter(|peer| !peer.removed).count() <= self.members_max
    }
}

/// Hosts that should become members.
pub(super) fn draft(look: &Look) -> Option<Decision> {
    let strangers = look.ids(|peer| !peer.removed && !peer.member);
    if look.is_small() {
        let why = || format!("{} joined and follows now", look.names(&strangers));
        return (!strangers.is_empty()).then(|| Decision::change(Change::Follow(strangers.clone()), why()));
    }
    let up = look.ids(|peer| !peer.removed && !peer.member && peer.up);
    // One that is lost holds no place: another is there before it goes.
    let members = look.ids(|peer| !peer.removed && peer.member && !peer.lost);
    // Whoever somebody wants to vote is taken in even if one too many: another one is let go for it then.
    let mut new = look.ids(|peer| up.contains(&peer.id) && peer.wished);
    loop {
        let with: BTreeSet<HostId> = members.union(&new).copied().collect();
        let left: BTreeSet<HostId> = up.difference(&with).copied().collect();
        match spread::best(look, &with, &left) {
            Some(best) if with.len() < look.members_max => new.insert(best),
            _ => break,
        };
    }
    let why = format!("{} stands by to vote", look.names(&new));
    (!new.is_empty()).then(|| Decision::change(Change::Follow(new), why))
}

/// Members that are none any more: one too many, or lost while others could stand by.
pub(super) fn release(look: &Look) -> Option<Decision> {
    if look.is_small() {
        return None;
    }
    let spare = look.peers.iter().any(|peer| !peer.removed && !peer.member && peer.up);
    let members = look.peers.iter().filter(|peer| !peer.removed && peer.member);
    let over = members.clone().count().saturating_sub(look.members_max);
    let mut free: Vec<&Peer> = members.filter(|peer| !peer.voter && peer.id != look.me).collect();
    // Those of least use first.
    free.sort_by_key(|peer| {
        (
            peer.wished,
            peer.up,
            !peer.lost,
            peer.lag.is_some(),
            u64::MAX - peer.lag.unwrap_or(0),
            u64::MAX - peer.id.0,
        )
    });
    let lost = if spare { free.iter().filter(|peer| peer.lost && !peer.wished).count() } else { 0 };
    let out: BTreeSet<HostId> = free.iter().take(over.max(lost)).map(|peer| peer.id).collect();
    let why = if over >= lost {
        format!("{} members are enough: {} follows its peers", look.members_max, look.names(&out))
    } else {
        format!("{} is lost and stands by no more", look.names(&out))
    };
    (!out.is_empty()).then(|| Decision::change(Change::Release(out), why))
}
