//! Frames: how messages are cut out of byte streams, and how two builds find a common version.
//!
//! Layout, little-endian: magic `RTA1` (4) | version u16 | kind u16 | body length u32 | body. A stream begins with a
//! `Hello` frame from each side; both then speak `min(max, max)` if that is at least both minima. `Hello` itself is
//! the same in all versions for ever, so that two builds that have none in common can say so.

use crate::error::{ErrorCode, PublicError};
use crate::ids::{ClusterId, HostId};
use crate::limits::FRAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"RTA1";
/// Bytes before the body.
pub const HEADER_BYTES: usize = 12;
/// Oldest protocol version that this build speaks. Version 1 had other submissions, devices and proposals.
pub const VERSION_MIN: u16 = 2;
/// Newest protocol version that this build speaks. Version 3 differs from 2 by words alone, so that a cluster of version 3
/// ([`crate::version`]) can refuse hosts that could not read its log.
pub const VERSION_MAX: u16 = 3;
/// The version of every [`Hello`].
pub const HELLO_VERSION: u16 = 1;
/// The version of what agent and shims say to each other on one host. It is counted apart: a shim outlives the agent
/// that started it, and an upgraded agent must understand it.
pub const SHIM_VERSION: u16 = 1;

/// What a frame's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FrameKind {
    /// [`Hello`].
    Hello = 1,
    /// [`crate::peer::PeerRequest`].
    PeerRequest = 2,
    /// [`crate::peer::PeerReply`].
    PeerReply = 3,
    /// [`crate::api::ApiCall`].
    ApiCall = 4,
    /// [`crate::api::ApiAnswer`].
    ApiAnswer = 5,
    /// [`crate::gossip::GossipPacket`].
    Gossip = 6,
    /// [`crate::peer::JoinRequest`].
    JoinRequest = 7,
    /// [`crate::peer::JoinReply`].
    JoinReply = 8,
    /// [`crate::spool::ShimCall`].
    Shim = 9,
    /// [`crate::peer::JoinListening`].
    JoinListening = 10,
}

impl FrameKind {
    fn from_u16(kind: u16) -> Option<Self> {
        Some(match kind {
            1 => Self::Hello,
            2 => Self::PeerRequest,
            3 => Self::PeerReply,
            4 => Self::ApiCall,
            5 => Self::ApiAnswer,
            6 => Self::Gossip,
            7 => Self::JoinRequest,
            8 => Self::JoinReply,
            9 => Self::Shim,
            10 => Self::JoinListening,
            _ => return None,
        })
    }

    /// The versions of it that this build takes.
    fn versions(self) -> RangeInclusive<u16> {
        match self {
            Self::Hello => HELLO_VERSION..=HELLO_VERSION,
            Self::Shim => SHIM_VERSION..=SHIM_VERSION,
            _ => VERSION_MIN..=VERSION_MAX,
        }
    }
}

/// A frame's first twelve bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The version of the body.
    pub version: u16,
    /// What the body is.
    pub kind: FrameKind,
    /// Bytes of the body.
    pub len: u32,
}

/// Why a header was not taken. The connection cannot go on after any of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not ours.
    #[error("the first bytes are not a frame of Rota")]
    Magic,
    /// A version that this build does not speak.
    #[error(
        "a {kind:?} frame of version {version}, this build speaks {} to {}",
        kind.versions().start(),
        kind.versions().end()
    )]
    Version {
        /// What came.
        version: u16,
        /// Of what kind.
        kind: FrameKind,
    },
    /// A kind that this build does not know.
    #[error("unknown frame kind {0}")]
    Kind(u16),
    /// Longer than a frame may be; nothing was allocated.
    #[error("a frame body of {0} bytes exceeds the limit of {FRAME_BYTES_MAX}")]
    TooLarge(u32),
}

impl Header {
    /// The twelve bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads and checks the twelve bytes, before anything is allocated for the body.
    ///
    /// # Errors
    /// Anything that is not a frame that this build can take.
    pub fn from_bytes(bytes: [u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3] = bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(HeaderError::Magic);
        }
        let version = u16::from_le_bytes([v0, v1]);
        let kind = u16::from_le_bytes([k0, k1]);
        let kind = FrameKind::from_u16(kind).ok_or(HeaderError::Kind(kind))?;
        if !kind.versions().contains(&version) {
            return Err(HeaderError::Version { version, kind });
        }
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        if len as usize > FRAME_BYTES_MAX {
            return Err(HeaderError::TooLarge(len));
        }
        Ok(Self { version, kind, len })
    }
}

/// The header of a frame with a body of so many bytes.
///
/// # Errors
/// The body is longer than [`FRAME_BYTES_MAX`].
pub fn header(version: u16, kind: FrameKind, body_bytes: usize) -> Result<[u8; HEADER_BYTES], HeaderError> {
    let len = u32::try_from(body_bytes).unwrap_or(u32::MAX);
    if body_bytes > FRAME_BYTES_MAX {
        return Err(HeaderError::TooLarge(len));
    }
    Ok(Header { version, kind, len }.to_bytes())
}

/// A whole frame around an encoded body.
///
/// # Errors
/// The body is longer than [`FRAME_BYTES_MAX`].
pub fn frame(version: u16, kind: FrameKind, body: &[u8]) -> Result<Vec<u8>, HeaderError> {
    let header = header(version, kind, body.len())?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// First frame of each side of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest version spoken.
    pub version_min: u16,
    /// Newest version spoken.
    pub version_max: u16,
    /// The cluster, if the side belongs to one.
    pub cluster: Option<ClusterId>,
    /// The host, if the side is a peer; it must match the certificate.
    pub host: Option<HostId>,
    /// For logs: the build.
    pub build: String,
}

/// The version that both sides speak.
///
/// # Errors
/// They have none in common.
pub fn negotiate(ours: (u16, u16), theirs: (u16, u16)) -> Result<u16, PublicError> {
    let common = ours.1.min(theirs.1);
    if common >= ours.0 && common >= theirs.0 {
        return Ok(common);
    }
    Err(PublicError::new(
        ErrorCode::Version,
        format!(
            "no common protocol version: this side speaks {} to {}, the other {} to {}; upgrade the side that \
             speaks the older ones",
            ours.0, ours.1, theirs.0, theirs.1
        ),
    ))
}
