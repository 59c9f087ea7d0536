//! Who asks whom: a tree over all hosts of the cluster, worked out by each of them from what the state says, so that
//! nobody has to be told. Members that do not lead are its roots; the leader is asked only where there is nobody else.
//!
//! Pure. A host's place follows from its number, not from who is up: a host that dies moves only its own children,
//! and those to the next one on their way up.

use rota_protocol::ids::HostId;
use std::collections::BTreeSet;

/// Children that each host gets: with seven members a thousand hosts stand at most three steps from the leader, and no
/// host sends each entry more often than this.
pub const FAN_OUT: usize = 16;

/// The cluster as the tree sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    roots: Vec<HostId>,
    leader: Option<HostId>,
    /// By number.
    others: Vec<HostId>,
    fan_out: usize,
}

impl Tree {
    /// A tree of these members, this leader and these other hosts, which come in the order of their numbers.
    #[must_use]
    pub fn new(
        members: &BTreeSet<HostId>,
        leader: Option<HostId>,
        others: impl IntoIterator<Item = HostId>,
        fan_out: usize,
    ) -> Self {
        let mut roots: Vec<HostId> = members.iter().copied().filter(|id| Some(*id) != leader).collect();
        if roots.is_empty() {
            roots.extend(leader);
        }
        let others = others.into_iter().filter(|id| !members.contains(id)).collect();
        Self { roots, leader, others, fan_out: fan_out.max(1) }
    }

    /// Who stands above a host that is no member.
    fn above(&self, me: HostId) -> Option<HostId> {
        let at = self.others.binary_search(&me).ok()?;
        let first_layer = self.roots.len() * self.fan_out;
        match at.checked_sub(first_layer) {
            // Spread evenly, whether there are three of them or a hundred.
            None => self.roots.get(at % self.roots.len().max(1)).copied(),
            Some(behind) => self.others.get(behind / self.fan_out).copied(),
        }
    }

    /// Whom a host asks, the best first: those above it up to a root, the other roots, and last the leader.
    /// `down` are left out.
    #[must_use]
    pub fn way_up(&self, me: HostId, down: &BTreeSet<HostId>) -> Vec<HostId> {
        let mut way: Vec<HostId> = Vec::new();
        let mut at = me;
        // Each step goes to a lower place, so it ends.
        while let Some(next) = self.above(at) {
            way.push(next);
            at = next;
        }
        // Those whom a dead root leaves behind do not all go to the same one.
        let turn = usize::try_from(me.0 % self.roots.len().max(1) as u64).unwrap_or(0);
        let roots = self.roots.iter().cycle().skip(turn).take(self.roots.len());
        way.extend(roots);
        way.extend(self.leader);
        let mut seen = BTreeSet::from([me]);
        way.retain(|id| !down.contains(id) && seen.insert(*id));
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn hosts(ids: impl IntoIterator<Item = u64>) -> BTreeSet<HostId> {
        ids.into_iter().map(HostId).collect()
    }

    fn of(members: u64, all: u64) -> Tree {
        Tree::new(&hosts(1..=members), Some(HostId(1)), (1..=all).map(HostId), FAN_OUT)
    }

    /// A thousand hosts behind three and behind seven members: nobody has too many children, the leader has none, and
    /// all stand near it.
    #[test]
    fn a_thousand_hosts_stand_near_the_leader_and_cost_it_nothing() {
        for (members, steps_max) in [(3, 4), (7, 3)] {
            let tree = of(members, 1_000);
            let mut children: BTreeMap<HostId, usize> = BTreeMap::new();
            for id in members + 1..=1_000 {
                let (mut at, mut steps) = (HostId(id), 1);
                *children.entry(tree.above(at).expect("a parent")).or_default() += 1;
                while let Some(next) = tree.above(at) {
                    assert!(tree.above(next).is_none() || next < at, "upwards");
                    (at, steps) = (next, steps + 1);
                }
                assert!(tree.roots.contains(&at) && steps <= steps_max, "{id}: {steps} steps");
            }
            assert_eq!(children.get(&HostId(1)), None, "the leader");
            assert!(children.values().all(|count| *count <= FAN_OUT), "{children:?}");
        }
    }

    #[test]
    fn a_dead_host_moves_its_own_children_only() {
        let tree = of(3, 1_000);
        let dead = tree.above(HostId(900)).expect("a parent");
        let down = BTreeSet::from([dead]);
        for id in (4..=1_000).map(HostId).filter(|id| *id != dead) {
            let (before, after) = (tree.way_up(id, &BTreeSet::new()), tree.way_up(id, &down));
            if tree.above(id) == Some(dead) {
                assert_eq!(after[0], before[1], "the next on the way up");
            } else {
                assert_eq!(after[0], before[0]);
            }
        }
    }

    #[test]
    fn the_leader_is_the_last_that_is_asked_unless_it_is_alone() {
        assert_eq!(of(3, 5).way_up(HostId(5), &BTreeSet::new()), [3, 2, 1].map(HostId));
        assert_eq!(of(3, 5).way_up(HostId(4), &BTreeSet::new()), [2, 3, 1].map(HostId));
        assert_eq!(of(1, 2).way_up(HostId(2), &BTreeSet::new()), [HostId(1)]);
        // A host that knows nobody yet.
        let nobody = Tree::new(&BTreeSet::new(), None, [], FAN_OUT);
        assert_eq!(nobody.way_up(HostId(2), &BTreeSet::new()), []);
    }
}
