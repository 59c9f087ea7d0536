//! Which hosts: voters are to stand as far apart as the labels of hosts tell, wished ones come first, and of equals
//! the lowest number. Two voters in one zone cost more than any number in one rack.

use super::{Look, Peer};
use rota_protocol::HostId;
use std::collections::{BTreeMap, BTreeSet};

/// What two voters in one domain cost, by [`super::DOMAINS`].
const COSTS: [u64; 2] = [1_000, 1];

/// How close these stand together: pairs that share a domain. Hosts that say nothing stand at one unknown place.
fn closeness(look: &Look, voters: &BTreeSet<HostId>) -> u64 {
    let mut sum = 0;
    for (level, cost) in COSTS.iter().enumerate() {
        let mut counts: BTreeMap<Vec<Option<&str>>, u64> = BTreeMap::new();
        for peer in voters.iter().filter_map(|id| look.peer(*id)) {
            // Racks of one name in two zones are two racks.
            let place = peer.site[..=level].iter().map(Option::as_deref).collect();
            *counts.entry(place).or_default() += 1;
        }
        sum += counts.values().map(|count| count * (count - 1) / 2 * cost).sum::<u64>();
    }
    sum
}

/// One of each kind: of hosts that stand at one place the lowest number does as well as any, so that a thousand hosts
/// cost no more than their racks.
fn one_of_each<'a>(look: &'a Look, ready: &BTreeSet<HostId>) -> Vec<HostId> {
    let mut kinds: BTreeMap<(bool, &'a [Option<String>; 2]), HostId> = BTreeMap::new();
    for peer in ready.iter().filter_map(|id| look.peer(*id)) {
        kinds.entry((peer.wished, &peer.site)).or_insert(peer.id);
    }
    kinds.into_values().collect()
}

/// The one of these that should vote beside `base`.
pub(super) fn best(look: &Look, base: &BTreeSet<HostId>, ready: &BTreeSet<HostId>) -> Option<HostId> {
    let key = |id: &HostId| {
        let with: BTreeSet<HostId> = base.iter().copied().chain([*id]).collect();
        (!look.peer(*id).is_some_and(|peer| peer.wished), closeness(look, &with), *id)
    };
    one_of_each(look, ready).into_iter().min_by_key(key)
}

/// So many of these: the leader always, then those that live, then wished ones, standing far apart.
pub(super) fn keep(look: &Look, from: &BTreeSet<HostId>, size: usize) -> BTreeSet<HostId> {
    let mut kept = from.clone();
    while kept.len() > size {
        let key = |id: &HostId| {
            let rest: BTreeSet<HostId> = kept.iter().copied().filter(|other| other != id).collect();
            let peer = look.peer(*id);
            let is = |what: fn(&Peer) -> bool| peer.is_some_and(what);
            (
                *id == look.me,
                is(|peer| peer.up),
                is(|peer| peer.wished),
                closeness(look, &rest),
                u64::MAX - id.0,
            )
        };
        let Some(out) = kept.iter().copied().min_by_key(key) else { break };
        kept.remove(&out);
    }
    kept
}

/// One voter for another: because somebody wishes it, or because they then stand further apart. Nothing if all is well.
pub(super) fn swap(
    look: &Look,
    voters: &BTreeSet<HostId>,
    ready: &BTreeSet<HostId>,
) -> Option<(BTreeSet<HostId>, String)> {
    if !voters.iter().all(|id| look.is_up(*id) || *id == look.me) {
        return None;
    }
    let is_wished = |id: &HostId| look.peer(*id).is_some_and(|peer| peer.wished);
    let outs: Vec<HostId> = voters.iter().copied().filter(|id| *id != look.me && !is_wished(id)).collect();
    let now = closeness(look, voters);
    let ready = one_of_each(look, ready);
    let all = outs.iter().flat_map(|out| ready.iter().map(move |new| (*out, *new)));
    let exchanged = all.map(|(out, new)| {
        let next: BTreeSet<HostId> = voters.iter().copied().filter(|id| *id != out).chain([new]).collect();
        (!is_wished(&new), closeness(look, &next), new, out, next)
    });
    let (unwished, then, new, out, next) = exchanged.min()?;
    if unwished && then >= now {
        return None;
    }
    let reason = if unwished { "voters stand further apart" } else { "it was asked for" };
    Some((
        next,
        format!("{} votes instead of {}: {reason}{}", look.name(new), look.name(out), super::at(look, new)),
    ))
}
