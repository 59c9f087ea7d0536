//! The snapshot on disk, which is also what travels between peers: one file, checked whole before anything is kept.
//!
//! All numbers are little-endian.
//! ```text
//!  0  magic        8  "RTASNAP1"
//!  8  format       2  1
//! 10  zero         2
//! 12  meta length  4
//! 16  cluster     16
//! 32  body length  8
//! 40  meta crc32   4
//! 44  body crc32   4
//! 48  zero        12
//! 60  crc32        4  of bytes 0..60
//! 64  meta            [`MetaBytes`], by the common codec
//!     body            `rota_core::snapshot`, which checks its own hashes
//! ```

use crate::config::{LogId, SnapshotMeta, StoredMembership, log_id};
use crate::disk::{Disk, Step};
use crate::membership_bytes::MembershipBytes;
use rota_core::State;
use rota_protocol::codec;
use rota_protocol::ids::ClusterId;
use rota_protocol::limits::SNAPSHOT_BYTES_MAX;
use rota_protocol::version::OLDER_BUILD;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"RTASNAP1";
const FORMAT: u16 = 1;
const HEADER: usize = 64;
/// Bytes of the header that its checksum covers: all before it.
pub(crate) const SEALED: usize = HEADER - 4;
/// Largest meta: a membership of a thousand hosts takes about 10 KiB.
const META_BYTES_MAX: usize = 1 << 20;

/// Why a snapshot was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFault {
    /// The disk.
    #[error("cannot read or write a snapshot: {0}")]
    Io(#[from] io::Error),
    /// Not a whole, undamaged snapshot.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
    /// Another cluster's.
    #[error("the snapshot is of cluster {0}, not of this one")]
    Foreign(ClusterId),
    /// Written by a newer build.
    #[error("the snapshot has format {0}, this build reads {FORMAT}; {OLDER_BUILD}")]
    Format(u16),
    /// Of a cluster whose version this build does not know.
    #[error("the snapshot is of version {found}, this build reads up to {newest}; {OLDER_BUILD}")]
    Newer {
        /// The state's.
        found: u16,
        /// This build's.
        newest: u16,
    },
}

/// A snapshot file that is open; it stays readable while a newer one takes its place.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotFile {
    pub(crate) path: PathBuf,
    file: Arc<File>,
    pub(crate) bytes: u64,
}

impl SnapshotFile {
    /// Opens a file of at most [`SNAPSHOT_BYTES_MAX`].
    pub(crate) fn open(path: &Path) -> Result<Self, SnapshotFault> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        if bytes > SNAPSHOT_BYTES_MAX as u64 {
            return Err(SnapshotFault::Damaged(format!(
                "{bytes} bytes exceed the limit of {SNAPSHOT_BYTES_MAX}"
            )));
        }
        Ok(Self { path: path.to_owned(), file: Arc::new(file), bytes })
    }

    /// Reads a piece of at most `len` bytes.
    pub(crate) fn piece(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let left = self.bytes.saturating_sub(offset).min(len as u64) as usize;
        let mut piece = vec![0; left];
        self.file.read_exact_at(&mut piece, offset)?;
        Ok(piece)
    }

    /// Reads and checks all of it. `trusting` is a planted defect: no checksum is looked at.
    pub(crate) fn load(
        &self,
        cluster: ClusterId,
        newest: u16,
        trusting: bool,
    ) -> Result<(SnapshotMeta, State), SnapshotFault> {
        let bytes = self.piece(0, usize::try_from(self.bytes).unwrap_or(usize::MAX))?;
        let (meta, state) = parse_as(&bytes, cluster, trusting)?;
        match state.version() {
            found if found > newest => Err(SnapshotFault::Newer { found, newest }),
            _ => Ok((meta, state)),
        }
    }
}

/// What the log needs to know of a snapshot.
#[derive(Serialize, Deserialize)]
struct MetaBytes {
    /// Term and index of the last entry in it.
    last: Option<(u64, u64)>,
    /// Term and index of the membership in it.
    membership_at: Option<(u64, u64)>,
    membership: MembershipBytes,
}

fn pair(id: &LogId) -> (u64, u64) {
    (id.leader_id.term, id.index)
}

/// The bytes of a snapshot: what stands before the body, and the body, which is large and not copied once more.
pub(crate) fn to_bytes(
    cluster: ClusterId,
    meta: &SnapshotMeta,
    state: &State,
) -> Result<[Vec<u8>; 2], SnapshotFault> {
    let body = rota_core::snapshot::encode(state);
    let meta = codec::encode(&MetaBytes {
        last: meta.last_log_id.as_ref().map(pair),
        membership_at: meta.last_membership.log_id().as_ref().map(pair),
        membership: meta.last_membership.membership().into(),
    })
    .map_err(|e| SnapshotFault::Damaged(e.to_string()))?;
    let mut bytes = Vec::with_capacity(HEADER + meta.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&(meta.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&cluster.0.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&meta).to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&[0; 12]);
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(&meta);
    Ok([bytes, body])
}

/// The cluster that a snapshot says it is of; nothing else is checked.
pub(crate) fn cluster_of(bytes: &[u8]) -> Result<ClusterId, SnapshotFault> {
    let mut of = [0; 16];
    let field = bytes.get(16..32).filter(|_| bytes.starts_with(&MAGIC));
    of.copy_from_slice(
        field.ok_or_else(|| SnapshotFault::Damaged("it does not begin as a snapshot".to_owned()))?,
    );
    Ok(ClusterId(u128::from_le_bytes(of)))
}

/// Checks everything, then decodes.
pub(crate) fn parse(bytes: &[u8], cluster: ClusterId) -> Result<(SnapshotMeta, State), SnapshotFault> {
    parse_as(bytes, cluster, false)
}

fn parse_as(
    bytes: &[u8],
    cluster: ClusterId,
    trusting: bool,
) -> Result<(SnapshotMeta, State), SnapshotFault> {
    let damaged = |what: &str| SnapshotFault::Damaged(what.to_owned());
    let (header, rest) = bytes.split_at_checked(HEADER).ok_or_else(|| damaged("shorter than its header"))?;
    if header[..8] != MAGIC {
        return Err(damaged("it does not begin as a snapshot"));
    }
    if crc32fast::hash(&header[..SEALED]) != u32_at(header, SEALED) {
        return Err(damaged("the header's checksum is wrong"));
    }
    let format = u16::from_le_bytes([header[8], header[9]]);
    if format != FORMAT {
        return Err(SnapshotFault::Format(format));
    }
    let mut of = [0; 16];
    of.copy_from_slice(&header[16..32]);
    let of = ClusterId(u128::from_le_bytes(of));
    if of != cluster {
        return Err(SnapshotFault::Foreign(of));
    }
    let (meta, body) = rest
        .split_at_checked(u32_at(header, 12) as usize)
        .ok_or_else(|| damaged("it ends within its meta"))?;
    if body.len() as u64 != u64::from(u32_at(header, 32)) | u64::from(u32_at(header, 36)) << 32 {
        return Err(damaged("its length is not what the header says"));
    }
    let sound = crc32fast::hash(meta) == u32_at(header, 40) && crc32fast::hash(body) == u32_at(header, 44);
    if !sound && !trusting {
        return Err(damaged("a checksum is wrong"));
    }
    let meta: MetaBytes =
        codec::decode(meta, META_BYTES_MAX).map_err(|e| SnapshotFault::Damaged(e.to_string()))?;
    let membership = meta.membership.membership().ok_or_else(|| damaged("its membership is not one"))?;
    let decode = if trusting { rota_core::snapshot::decode_unchecked } else { rota_core::snapshot::decode };
    let state = decode(body).map_err(|e| SnapshotFault::Damaged(e.to_string()))?;
    let id = |(term, index)| log_id(term, index);
    let meta = SnapshotMeta {
        last_log_id: meta.last.map(id),
        last_membership: StoredMembership::new(meta.membership_at.map(id), membership),
    };
    if meta.last_log_id.as_ref().map_or(0, |last| last.index) != state.applied_index() {
        return Err(damaged("its state is not at the index that it names"));
    }
    Ok((meta, state))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// The name of the snapshot that counts.
pub(crate) fn current_path(dir: &Path) -> PathBuf {
    dir.join("snapshot.snap")
}

/// Removes what an earlier run left half-written.
pub(crate) fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "tmp") {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Bytes of a snapshot that go to the disk at once: the log's own writes wait behind no more than this.
const FLUSH_BYTES: usize = 4 << 20;

/// Writes a file from parts and makes it durable; its name is not.
pub(crate) fn write_durable(path: &Path, parts: &[Vec<u8>], disk: &dyn Disk) -> io::Result<()> {
    disk.before(Step::Export, path)?;
    let mut file = File::create(path)?;
    for piece in parts.iter().flat_map(|part| part.chunks(FLUSH_BYTES)) {
        file.write_all(piece)?;
        if piece.len() == FLUSH_BYTES {
            file.sync_data()?;
        }
    }
    disk.sync(&file)
}

/// Makes a durable file the one that counts.
pub(crate) fn promote(path: &Path, dir: &Path, disk: &dyn Disk) -> io::Result<()> {
    disk.before(Step::Promote, path)?;
    std::fs::rename(path, current_path(dir))?;
    disk.sync_dir(dir)
}
