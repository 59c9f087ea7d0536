//! The one place that turns values into bytes and back. Every decode is bounded before it allocates and refuses
//! left-over bytes: an unbounded length aborts the process, and a silent rest hides a newer peer's fields.

use serde::{Serialize, de::DeserializeOwned};

/// Why bytes were not taken.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than the caller allows.
    #[error("{len} bytes exceed the limit of {limit}")]
    TooLarge {
        /// What came.
        len: usize,
        /// What is allowed.
        limit: usize,
    },
    /// Bytes were left after the value.
    #[error("{left} bytes left over after the value")]
    LeftOver {
        /// How many.
        left: usize,
    },
    /// Not a value of this type.
    #[error("malformed bytes: {0}")]
    Malformed(String),
    /// Written in a format that this build does not know.
    #[error("format {found} is none that this build reads, 1 to {newest}; {}", crate::version::OLDER_BUILD)]
    Version {
        /// As the bytes say.
        found: u16,
        /// The newest that this build reads.
        newest: u16,
    },
}

/// Why a value could not be encoded.
#[derive(Debug, thiserror::Error)]
#[error("cannot encode: {0}")]
pub struct EncodeError(String);

/// Largest value that any decode may allocate; callers set tighter limits on the bytes themselves.
const DECODE_CLAIM_MAX: usize = 2 << 30;

/// Encodes a value: little-endian, variable-length integers.
///
/// # Errors
/// Only for types that serde cannot lay out without names (none of ours).
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, EncodeError> {
    bincode::serde::encode_to_vec(value, bincode::config::standard()).map_err(|e| EncodeError(e.to_string()))
}

/// As [`encode`], behind what `out` holds already: a large value need not be copied to stand behind a header.
///
/// # Errors
/// As for [`encode`].
pub fn encode_behind<T: Serialize>(out: &mut Vec<u8>, value: &T) -> Result<(), EncodeError> {
    let written = bincode::serde::encode_into_std_write(value, out, bincode::config::standard());
    written.map(drop).map_err(|e| EncodeError(e.to_string()))
}

/// Decodes exactly one value from at most `limit` bytes.
///
/// # Errors
/// Too many bytes, malformed bytes, a length that claims more than the limit, or bytes left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, DecodeError> {
    if bytes.len() > limit {
        return Err(DecodeError::TooLarge { len: bytes.len(), limit });
    }
    let config = bincode::config::standard();
    // The claim limit is a type parameter, so the nearest step above the caller's limit is taken.
    let (value, used) = match limit {
        0..=0x1_0000 => bincode::serde::decode_from_slice(bytes, config.with_limit::<0x40_0000>()),
        0x1_0001..=0x40_0000 => bincode::serde::decode_from_slice(bytes, config.with_limit::<0x1000_0000>()),
        _ => bincode::serde::decode_from_slice(bytes, config.with_limit::<DECODE_CLAIM_MAX>()),
    }
    .map_err(|e| DecodeError::Malformed(e.to_string()))?;
    if used != bytes.len() {
        return Err(DecodeError::LeftOver { left: bytes.len() - used });
    }
    Ok(value)
}

/// Decodes the value at the front and ignores what follows: a look at a format before the rest is believed.
pub(crate) fn decode_first<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    const FIRST_BYTES_MAX: usize = 64;
    let config = bincode::config::standard().with_limit::<FIRST_BYTES_MAX>();
    let first = bincode::serde::decode_from_slice(bytes, config);
    first.map(|(value, _)| value).map_err(|e| DecodeError::Malformed(e.to_string()))
}
