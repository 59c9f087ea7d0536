//! The state as bytes, and back. A snapshot says what it is and is checked before it is believed.
//!
//! Layout, little-endian: magic `ROTASNAP` (8), format u16, cluster id (16, zero before creation), applied index
//! u64, rolling hash u64, full hash u64 (of the body), body length u64, body. The body is the tables in the order
//! of `Body`, by `rota_protocol::codec`; indexes are not stored, they are rebuilt. Every format that was ever written
//! is read, each older one by a file of its own here; only the newest is written.

mod v1;

use crate::hash::Digest;
use crate::invariant::{self, Violation};
use crate::placement::hetero::lengths::Lengths;
use crate::state::State;
use crate::state::attempt::AttemptTable;
use crate::state::care::CareTable;
use crate::state::dedup::DedupTable;
use crate::state::demand::DemandTable;
use crate::state::history::History;
use crate::state::host::HostTable;
use crate::state::idle::IdleTable;
use crate::state::job::JobTable;
use crate::state::members::MemberTable;
use crate::state::meta::Meta;
use crate::state::metered::Metered;
use crate::state::queue::QueueTable;
use crate::state::reservation::ReservationTable;
use crate::state::speeds::Speeds;
use crate::state::token::TokenTable;
use crate::state::trust::TrustTable;
use rota_protocol::limits::SNAPSHOT_BYTES_MAX;
use rota_protocol::{ClusterId, codec, version};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"ROTASNAP";
/// The format of a state whose version every build of it reads. A newer state is written in the format of its version,
/// which adds the table of trust behind the others; this build reads all up to [`version::NEWEST`].
pub const SNAPSHOT_FORMAT: u16 = 2;
const HEADER_BYTES: usize = 8 + 2 + 16 + 8 * 4;

/// Why bytes are not a snapshot to trust.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Shorter than its header or its body says.
    #[error("{have} bytes where {want} are needed")]
    Truncated {
        /// Bytes there.
        have: usize,
        /// Bytes needed.
        want: usize,
    },
    /// Bytes after the body.
    #[error("{0} bytes after the end")]
    LeftOver(usize),
    /// Does not begin as a snapshot does.
    #[error("not a snapshot of rota")]
    Magic,
    /// Written by a newer version.
    #[error("format {0} is none that this build reads, 1 to {newest}; {todo}", newest = version::NEWEST, todo = version::OLDER_BUILD)]
    Format(u16),
    /// The body's hash is not the header's.
    #[error("the body hashes to {real:016x}, the header says {said:016x}")]
    Hash {
        /// Of the bytes.
        real: u64,
        /// As the header says.
        said: u64,
    },
    /// The body is no set of tables.
    #[error("malformed body: {0}")]
    Body(#[from] codec::DecodeError),
    /// Header and body disagree about the cluster, the index or the chain.
    #[error("header and body disagree about {0}")]
    Mismatch(&'static str),
    /// The tables break a law.
    #[error("the state breaks a law: {0}")]
    Law(Violation),
}

/// What a header says, for whoever wants to look before loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The format of the body.
    pub format: u16,
    /// Which cluster; zero before it was created.
    pub cluster: ClusterId,
    /// The last log index in it.
    pub index: u64,
    /// The chain at that index.
    pub rolling_hash: u64,
    /// Hash of the body.
    pub full_hash: u64,
}

#[derive(Serialize)]
struct BodyRef<'a> {
    meta: &'a Meta,
    hosts: &'a HostTable,
    jobs: &'a JobTable,
    attempts: &'a AttemptTable,
    dedup: &'a DedupTable,
    tokens: &'a TokenTable,
    queues: &'a QueueTable,
    reservations: &'a ReservationTable,
    demand: &'a DemandTable,
    history: &'a History,
    speeds: &'a Speeds,
    care: &'a CareTable,
    idle: &'a IdleTable,
    lengths: &'a Lengths,
    members: &'a MemberTable,
    metered: &'a Metered,
}

#[derive(Deserialize)]
struct Body {
    meta: Meta,
    hosts: HostTable,
    jobs: JobTable,
    attempts: AttemptTable,
    dedup: DedupTable,
    tokens: TokenTable,
    queues: QueueTable,
    reservations: ReservationTable,
    demand: DemandTable,
    history: History,
    speeds: Speeds,
    care: CareTable,
    idle: IdleTable,
    lengths: Lengths,
    members: MemberTable,
    metered: Metered,
}

impl From<Body> for State {
    fn from(body: Body) -> Self {
        Self {
            meta: body.meta,
            hosts: body.hosts,
            jobs: body.jobs,
            attempts: body.attempts,
            dedup: body.dedup,
            tokens: body.tokens,
            queues: body.queues,
            reservations: body.reservations,
            demand: body.demand,
            history: Arc::new(body.history),
            speeds: Arc::new(body.speeds),
            care: body.care,
            idle: body.idle,
            lengths: Arc::new(body.lengths),
            members: body.members,
            metered: body.metered,
            ..Self::default()
        }
    }
}

/// The state as bytes.
#[must_use]
pub fn encode(state: &State) -> Vec<u8> {
    let cluster = state.cluster().map_or(ClusterId(0), |c| c.id);
    let mut out = Vec::new();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&format_of(state).to_le_bytes());
    out.extend_from_slice(&cluster.0.to_le_bytes());
    out.extend_from_slice(&state.applied_index().to_le_bytes());
    out.extend_from_slice(&state.rolling_hash().to_le_bytes());
    // Hash and length are known once the body is there: it is large, and made where it stays.
    out.extend_from_slice(&[0; 16]);
    body(state, &mut out);
    let (full_hash, length) = (hash(&out[HEADER_BYTES..]), (out.len() - HEADER_BYTES) as u64);
    out[HEADER_BYTES - 16..HEADER_BYTES - 8].copy_from_slice(&full_hash.to_le_bytes());
    out[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    out
}

/// The header alone.
///
/// # Errors
/// Too short, not a snapshot, or a newer format.
pub fn header(bytes: &[u8]) -> Result<SnapshotHeader, SnapshotError> {
    read_header(bytes).map(|(header, _)| header)
}

/// The state back, checked: header, hash, agreement of both, and every law.
///
/// # Errors
/// Anything that is not exactly a sound snapshot.
pub fn decode(bytes: &[u8]) -> Result<State, SnapshotError> {
    decode_as(bytes, false)
}

/// A planted defect: bytes whose hash is wrong are taken all the same.
///
/// # Errors
/// The bytes cannot be read at all.
#[doc(hidden)]
pub fn decode_unchecked(bytes: &[u8]) -> Result<State, SnapshotError> {
    decode_as(bytes, true)
}

fn decode_as(bytes: &[u8], trusting: bool) -> Result<State, SnapshotError> {
    let (header, body_len) = read_header(bytes)?;
    let rest = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let want = usize::try_from(body_len).unwrap_or(usize::MAX);
    if rest.len() < want {
        let (have, want) = (bytes.len(), HEADER_BYTES.saturating_add(want));
        return Err(SnapshotError::Truncated { have, want });
    }
    if rest.len() > want {
        return Err(SnapshotError::LeftOver(rest.len() - want));
    }
    let (real, said) = (hash(rest), header.full_hash);
    if real != said && !trusting {
        return Err(SnapshotError::Hash { real, said });
    }
    let mut state = match header.format {
        1 => v1::decode(rest)?,
        SNAPSHOT_FORMAT => State::from(codec::decode::<Body>(rest, SNAPSHOT_BYTES_MAX)?),
        _ => {
            let (body, trust) = codec::decode::<(Body, TrustTable)>(rest, SNAPSHOT_BYTES_MAX)?;
            State { trust, ..State::from(body) }
        }
    };
    state.jobs.share();
    state.rebuild();
    if state.cluster().map_or(ClusterId(0), |c| c.id) != header.cluster {
        return Err(SnapshotError::Mismatch("the cluster"));
    }
    if format_of(&state) != header.format.max(SNAPSHOT_FORMAT) {
        return Err(SnapshotError::Mismatch("the version"));
    }
    if state.applied_index() != header.index {
        return Err(SnapshotError::Mismatch("the index"));
    }
    if state.rolling_hash() != header.rolling_hash {
        return Err(SnapshotError::Mismatch("the rolling hash"));
    }
    match invariant::check(&state).into_iter().next() {
        Some(broken) => Err(SnapshotError::Law(broken)),
        None => Ok(state),
    }
}

/// Hash of the body that `encode` would write.
pub(crate) fn full_hash(state: &State) -> u64 {
    let mut out = Vec::new();
    body(state, &mut out);
    hash(&out)
}

fn body(state: &State, out: &mut Vec<u8>) {
    let body = BodyRef {
        meta: &state.meta,
        hosts: &state.hosts,
        jobs: &state.jobs,
        attempts: &state.attempts,
        dedup: &state.dedup,
        tokens: &state.tokens,
        queues: &state.queues,
        reservations: &state.reservations,
        demand: &state.demand,
        history: &state.history,
        speeds: &state.speeds,
        care: &state.care,
        idle: &state.idle,
        lengths: &state.lengths,
        members: &state.members,
        metered: &state.metered,
    };
    // These types encode without fail; what is cut short would be refused by `decode`, never taken for a state.
    let _ = codec::encode_behind(out, &body);
    if format_of(state) > SNAPSHOT_FORMAT {
        let _ = codec::encode_behind(out, &state.trust);
    }
}

/// What was never raised above the first version is written as every build of that reads it.
fn format_of(state: &State) -> u16 {
    state.version().max(SNAPSHOT_FORMAT)
}

fn hash(body: &[u8]) -> u64 {
    let mut digest = Digest::new(0);
    digest.write(body);
    digest.finish()
}

fn read_header(bytes: &[u8]) -> Result<(SnapshotHeader, u64), SnapshotError> {
    let mut at = 0;
    let magic: [u8; 8] = take(bytes, &mut at)?;
    if magic != *MAGIC {
        return Err(SnapshotError::Magic);
    }
    let format = u16::from_le_bytes(take(bytes, &mut at)?);
    if !(1..=version::NEWEST).contains(&format) {
        return Err(SnapshotError::Format(format));
    }
    let header = SnapshotHeader {
        format,
        cluster: ClusterId(u128::from_le_bytes(take(bytes, &mut at)?)),
        index: u64::from_le_bytes(take(bytes, &mut at)?),
        rolling_hash: u64::from_le_bytes(take(bytes, &mut at)?),
        full_hash: u64::from_le_bytes(take(bytes, &mut at)?),
    };
    let body_len = u64::from_le_bytes(take(bytes, &mut at)?);
    Ok((header, body_len))
}

fn take<const N: usize>(bytes: &[u8], at: &mut usize) -> Result<[u8; N], SnapshotError> {
    let part = bytes.get(*at..).and_then(|rest| rest.first_chunk::<N>());
    *at += N;
    part.copied().ok_or(SnapshotError::Truncated { have: bytes.len(), want: HEADER_BYTES })
}
