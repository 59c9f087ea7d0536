//! Names of things: newtypes, so that a job's number can never stand where a host's is meant.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub u64);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number_id!(
    /// A host's number, handed out by the log at admission and never reused. It is also its raft node id.
    HostId
);
number_id!(
    /// A job's number, handed out by the log and never reused.
    JobId
);
number_id!(
    /// Counts the incarnations of a host's lease. It grows when the host registers with a new boot id and when the
    /// lease expires; whatever carries an older epoch is refused.
    LeaseEpoch
);
number_id!(
    /// Fencing token of one attempt: unique and growing over the life of the cluster.
    Token
);

impl Token {
    /// Bits that tell grants of one log entry apart.
    const ORDINAL_BITS: u32 = 20;

    /// The token of the `ordinal`-th grant in the log entry at `index`.
    #[must_use]
    pub fn new(index: u64, ordinal: u32) -> Self {
        debug_assert!(ordinal < 1 << Self::ORDINAL_BITS);
        Self((index << Self::ORDINAL_BITS) | u64::from(ordinal))
    }

    /// The log index of the grant.
    #[must_use]
    pub fn log_index(self) -> u64 {
        self.0 >> Self::ORDINAL_BITS
    }
}

macro_rules! wide_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u128);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
        impl FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                u128::from_str_radix(&text.replace('-', ""), 16).map(Self)
            }
        }
        // Hex in texts (JSON has no 128-bit numbers), 16 bytes on wires.
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                if s.is_human_readable() { s.collect_str(self) } else { self.0.to_le_bytes().serialize(s) }
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                if d.is_human_readable() {
                    String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; 16]>::deserialize(d).map(|bytes| Self(u128::from_le_bytes(bytes)))
                }
            }
        }
    };
}

wide_id!(
    /// Names one cluster, drawn at random by `rota init`; a peer of another cluster is refused by it.
    ClusterId
);
wide_id!(
    /// A client's name for one request. The same id gives the same answer for 24 h; zero means "not deduplicated"
    /// and is used by commands that are idempotent by their content.
    RequestId
);
wide_id!(
    /// The kernel's boot id of a host: a new one proves that all earlier processes of the host are gone.
    BootId
);

impl RequestId {
    /// For commands that are idempotent by content.
    pub const NONE: Self = Self(0);
}

/// A device's own name, such as `GPU-5c3f...`. Devices are never named by index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceUuid(pub String);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One task of a job: array index or gang rank; 0 for a plain job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// The job.
    pub job: JobId,
    /// The array index as the user wrote it; 0 for a plain job.
    pub index: u32,
}

impl fmt::Display for TaskId {
    /// `123_4`, as Slurm users expect.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.job, self.index)
    }
}
