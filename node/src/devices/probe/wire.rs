//! What an agent and its probe process say to each other: frames of a length (4 bytes, little-endian) and a body.

use crate::devices::{DeviceError, Found};
use rota_protocol::codec;
use rota_protocol::device::DeviceReading;
use rota_protocol::ids::DeviceUuid;
use rota_protocol::limits::FRAME_BYTES_MAX;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;

/// Bytes of the length before each body.
pub(super) const LENGTH_BYTES: usize = 4;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// All devices.
    Discover,
    /// Live readings.
    Read,
}

/// One question.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Question {
    /// Its number: answers to an earlier one, whose asker went away, are passed over.
    pub(super) number: u64,
    /// What is asked.
    pub(super) order: Order,
    /// Devices to leave alone.
    pub(super) skip: BTreeSet<DeviceUuid>,
    /// Devices to ask last.
    pub(super) last: BTreeSet<DeviceUuid>,
}

/// One step of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Told {
    /// The next calls are about this device.
    Asking(DeviceUuid),
    /// They have returned, with this.
    Answered(Found),
    /// The end of an answer.
    Found(Result<Found, DeviceError>),
    /// The end of an answer.
    Readings(Vec<DeviceReading>),
}

/// A step and the question that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Step {
    /// The question's number.
    pub(super) number: u64,
    /// The step.
    pub(super) told: Told,
}

/// A frame's bytes.
///
/// # Errors
/// A body above the limit.
pub(super) fn frame<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let body = codec::encode(value).map_err(io::Error::other)?;
    if body.len() > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a frame of {} bytes is above {FRAME_BYTES_MAX}", body.len())));
    }
    // Below the limit, which a u32 holds.
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// The length that a frame begins with.
///
/// # Errors
/// Above the limit: nothing is allocated for it.
pub(super) fn length(bytes: [u8; LENGTH_BYTES]) -> io::Result<usize> {
    let length = u32::from_le_bytes(bytes) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a frame of {length} bytes is above {FRAME_BYTES_MAX}")));
    }
    Ok(length)
}

/// The value of a body.
///
/// # Errors
/// Bytes that are none.
pub(super) fn value<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    codec::decode(body, FRAME_BYTES_MAX).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_a_huge_one_is_refused() {
        let step = Step { number: 7, told: Told::Asking(DeviceUuid("GPU-1".into())) };
        let bytes = frame(&step).expect("small");
        let (head, body) = bytes.split_at(LENGTH_BYTES);
        assert_eq!(length(head.try_into().expect("four bytes")).expect("fair"), body.len());
        assert_eq!(value::<Step>(body).expect("whole"), step);
        assert!(value::<Step>(&body[..body.len() - 1]).is_err());
        assert!(length([0xff; LENGTH_BYTES]).is_err());
    }
}
