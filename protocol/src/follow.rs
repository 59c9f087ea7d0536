//! How hosts that are no members of the agreement are fed, for people.

use crate::ids::HostId;
use serde::{Deserialize, Serialize};

/// The way of the log beyond the members, as one peer sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FollowView {
    /// Up to so many hosts are members; 0 where all are.
    pub members_max: u32,
    /// Hosts that are no members.
    pub followers: u32,
    /// The peer that the answering one asks for the log; none if it is a member.
    pub parent: Option<HostId>,
    /// How many steps from the leader it stands.
    pub depth: u8,
    /// How many hosts ask it.
    pub children: u32,
    /// How often it went from one parent to another.
    pub moves: u64,
    /// Snapshots that it took from a parent.
    pub snapshots: u64,
    /// Bytes that it has sent to other peers and clients over the network since it started.
    pub sent_bytes: u64,
}
