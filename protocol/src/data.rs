//! Data that tasks need where they run: blobs, each named by the hash of its bytes. What a job says of them, what
//! clients and peers ask of a host that keeps some, and what it answers. Words only.

use crate::ids::{HostId, JobId, Token};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a blob's name begins with.
const SCHEME: &str = "sha256:";

/// SHA-256 of a blob's bytes: its name everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlobId(pub [u8; 32]);

impl BlobId {
    /// 64 digits, as in the name of its file.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads 64 hexadecimal digits.
    #[must_use]
    pub fn of_hex(text: &str) -> Option<Self> {
        let digits: Vec<u8> =
            text.chars().map_while(|c| c.to_digit(16)).map_while(|d| u8::try_from(d).ok()).collect();
        if digits.len() != 64 || text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.hex())
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no blob's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not sha256: and 64 hexadecimal digits")]
pub struct NoBlobId;

impl FromStr for BlobId {
    type Err = NoBlobId;

    fn from_str(text: &str) -> Result<Self, NoBlobId> {
        text.strip_prefix(SCHEME).and_then(Self::of_hex).ok_or(NoBlobId)
    }
}

/// A blob that each task of a job finds where it runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Input {
    /// Its path below the folder of inputs.
    pub name: String,
    /// Which.
    pub blob: BlobId,
}

/// What a client asks of the host that it speaks to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataAsk {
    /// Bytes will come; answered by `Upload`.
    Begin {
        /// So many.
        bytes: u64,
        /// For people.
        name: String,
        /// For all tenants.
        public: bool,
    },
    /// The next of them.
    Piece {
        /// Of which upload.
        upload: u64,
        /// How many came before.
        offset: u64,
        /// The bytes.
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
    },
    /// That was all: keep it, if it is what the client read; answered by `Added`.
    Commit {
        /// Which upload.
        upload: u64,
        /// What the client read.
        blob: BlobId,
    },
    /// Everything that this host keeps and the caller may see.
    List,
    /// The caller's tenant needs it no more; of an operator: nobody does.
    Remove {
        /// Which.
        blob: BlobId,
    },
}

/// What a client hears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataNews {
    /// An upload's number.
    Upload {
        /// The number.
        upload: u64,
    },
    /// All that has come so far is written.
    Taken,
    /// It is kept.
    Added(BlobRow),
    /// What is kept.
    Cache(Box<CacheView>),
    /// Whether its bytes are gone, too: what tasks use goes after them.
    Removed {
        /// They are.
        gone: bool,
    },
}

/// One blob of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRow {
    /// Its name, `sha256:` and so on.
    pub blob: String,
    /// Its length.
    pub bytes: u64,
    /// What the one who added it called it; empty for one that was fetched.
    pub name: String,
    /// Who may use it, as far as the caller may know.
    pub tenants: Vec<String>,
    /// Everybody may.
    pub public: bool,
    /// It stays until it is removed.
    pub pinned: bool,
    /// Attempts that use it.
    pub holders: Vec<Token>,
    /// When it was last taken into use, ms since the epoch.
    pub used_ms: u64,
}

/// A host's cache of blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheView {
    /// Which host.
    pub host: HostId,
    /// Blobs by name.
    pub rows: Vec<BlobRow>,
    /// Bytes in use, those on their way included.
    pub bytes_used: u64,
    /// Most bytes.
    pub bytes_max: u64,
    /// What was counted since the agent started.
    pub counts: CacheCounts,
}

/// What a cache did since its agent started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Inputs of attempts that were there.
    pub hits: u64,
    /// Inputs of attempts that were not.
    pub misses: u64,
    /// Bytes fetched from other hosts.
    pub fetched_bytes: u64,
    /// Blobs that were thrown away because their bytes had another hash than their name.
    pub refused: u64,
}

/// What a peer asks of a host for a job. The host looks the job up itself: who does not name it in a job of a tenant
/// that may use it hears the same as of one that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlobAsk {
    /// Is it there?
    Have {
        /// Which.
        blob: BlobId,
        /// For which job.
        job: JobId,
    },
    /// A piece of it.
    Read {
        /// Which.
        blob: BlobId,
        /// For which job.
        job: JobId,
        /// First byte.
        offset: u64,
        /// How many, at most.
        bytes: u32,
    },
    /// What came from this host had another hash: it had better look.
    Doubt {
        /// Which.
        blob: BlobId,
        /// For which job.
        job: JobId,
    },
    /// What an attempt's inputs wait for on that host.
    Standing {
        /// Which attempt.
        attempt: Token,
    },
}

/// What a host answers to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlobNews {
    /// Not here, or not for that job.
    Absent,
    /// Here.
    Here {
        /// Its length.
        bytes: u64,
        /// All tenants may use it.
        public: bool,
    },
    /// A piece.
    Piece {
        /// The bytes; fewer than were asked only at its end.
        #[serde(with = "crate::bytes")]
        bytes: Vec<u8>,
    },
    /// Taken note of.
    Noted,
    /// What is waited for; none if nothing is.
    Standing(Option<String>),
}

/// A granted attempt that waits for its inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagingRow {
    /// Which attempt.
    pub attempt: Token,
    /// Where.
    pub host: String,
    /// What for, in a sentence.
    pub waits_for: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_text() {
        let blob = BlobId(std::array::from_fn(|at| u8::try_from(at * 7).unwrap_or(0)));
        assert_eq!(blob.to_string().parse(), Ok(blob));
        assert_eq!(BlobId::of_hex(&blob.hex().to_uppercase()), Some(blob));
        let hex = blob.hex();
        for wrong in [
            "",
            "sha256:",
            &hex,
            &format!("sha256:{hex}0"),
            &format!("sha256:{}g", &hex[1..]),
            &format!("sha1:{hex}"),
        ] {
            assert_eq!(wrong.parse::<BlobId>(), Err(NoBlobId), "{wrong}");
        }
    }
}
