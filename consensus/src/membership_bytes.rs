//! openraft's membership as plain numbers, for disks and wires.

use crate::config::Membership;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A membership as it is stored and sent: joint configs, then all members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MembershipBytes {
    configs: Vec<Vec<u64>>,
    nodes: Vec<u64>,
}

impl From<&Membership> for MembershipBytes {
    fn from(membership: &Membership) -> Self {
        Self {
            configs: membership
                .get_joint_config()
                .iter()
                .map(|config| config.iter().copied().collect())
                .collect(),
            nodes: membership.nodes().map(|(id, _)| *id).collect(),
        }
    }
}

impl MembershipBytes {
    /// `None` if it breaks openraft's rules (an empty config, a voter that is no member).
    pub(crate) fn membership(self) -> Option<Membership> {
        let configs: Vec<BTreeSet<u64>> = self.configs.into_iter().map(|c| c.into_iter().collect()).collect();
        let nodes: BTreeMap<u64, openraft::EmptyNode> =
            self.nodes.into_iter().map(|id| (id, openraft::EmptyNode::new())).collect();
        if configs.is_empty() && nodes.is_empty() {
            return Some(Membership::default());
        }
        Membership::new(configs, nodes).ok()
    }
}
