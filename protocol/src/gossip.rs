//! What peers tell each other without the log: who is there, and how their devices do. It informs and steers; it
//! never decides an allocation and never fences a task.

use crate::device::DeviceReading;
use crate::ids::{BootId, HostId};
use serde::{Deserialize, Serialize};

/// One datagram: the membership layer's own bytes, at most [`crate::limits::GOSSIP_BYTES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GossipPacket {
    /// Opaque bytes of the membership protocol, status digests included.
    pub bytes: Vec<u8>,
}

/// A member of the gossip: a host at one process life.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GossipMember {
    /// The host.
    pub host: HostId,
    /// Grows with each start of its agent; the newest wins.
    pub incarnation: u64,
    /// Where it says it is: `address:port`. A hint.
    pub addr: String,
}

/// A host's own news. A larger `(incarnation, version)` replaces a smaller one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusDigest {
    /// Whose.
    pub host: HostId,
    /// The agent's life.
    pub incarnation: u64,
    /// Counts within that life.
    pub version: u64,
    /// Its boot.
    pub boot: BootId,
    /// Wall time at the host, ms since the epoch, for showing an age.
    pub at_ms: u64,
    /// Where it is reached.
    pub addr: String,
    /// Last log index it applied.
    pub applied: u64,
    /// Live attempts.
    pub attempts: u32,
    /// Load average of the last minute, in thousandths.
    pub load_milli: u32,
    /// As many device readings as fit, in turn.
    pub devices: Vec<DeviceReading>,
}
