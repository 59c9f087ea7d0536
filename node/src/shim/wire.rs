//! What agent, fork server and shims say to each other, as bytes.
//!
//! Order (agent to fork server, a stream): frame header | token, 8 bytes little-endian | encoded [`LaunchOrder`]. The
//! token stands in front so that the fork server need not decode what it passes on.
//! Event (shim to agent, one message each): frame header | encoded `(Token, ShimEvent)`.
//! Call (agent to shim): the value of one queued signal, see [`call_value`].

use rota_protocol::Token;
use rota_protocol::codec::{self, DecodeError};
use rota_protocol::frame::{FrameKind, HEADER_BYTES, Header, HeaderError, SHIM_VERSION, frame};
use rota_protocol::job::EndReason;
use rota_protocol::limits::FRAME_BYTES_MAX;
use rota_protocol::spool::{LaunchOrder, ShimCall, ShimEvent};

/// Longest event message, in bytes: reasons are cut before they are sent.
pub(crate) const EVENT_BYTES_MAX: usize = 4 << 10;
/// Bytes of the token in front of an order.
const TOKEN_BYTES: usize = 8;

/// Why bytes are not what was expected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The frame's header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The body.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Another kind of frame, or a length that does not agree.
    #[error("a frame of another kind or length than expected")]
    Shape,
    /// The value cannot be sent.
    #[error(transparent)]
    Encode(#[from] codec::EncodeError),
}

/// An order as bytes.
pub(crate) fn encode_order(order: &LaunchOrder) -> Result<Vec<u8>, WireError> {
    let mut body = order.token.0.to_le_bytes().to_vec();
    body.extend_from_slice(&codec::encode(order)?);
    Ok(frame(SHIM_VERSION, FrameKind::Shim, &body)?)
}

/// The order behind the token in a frame's body.
pub(crate) fn decode_order(order: &[u8]) -> Result<LaunchOrder, WireError> {
    Ok(codec::decode(order, FRAME_BYTES_MAX)?)
}

/// An order's token, its undecoded bytes, and the length of its frame.
pub(crate) type FirstOrder<'a> = (Token, &'a [u8], usize);

/// Cuts the first order out of `bytes`: its token, its undecoded rest, and how many bytes it took. None when bytes are
/// missing.
pub(crate) fn first_order(bytes: &[u8]) -> Result<Option<FirstOrder<'_>>, WireError> {
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let header = Header::from_bytes(*head)?;
    let len = header.len as usize;
    if header.kind != FrameKind::Shim || len < TOKEN_BYTES {
        return Err(WireError::Shape);
    }
    let Some(body) = bytes.get(HEADER_BYTES..HEADER_BYTES + len) else {
        return Ok(None);
    };
    let (token, order) = body.split_first_chunk::<TOKEN_BYTES>().ok_or(WireError::Shape)?;
    Ok(Some((Token(u64::from_le_bytes(*token)), order, HEADER_BYTES + len)))
}

/// An event as one message.
pub(crate) fn encode_event(token: Token, event: &ShimEvent) -> Result<Vec<u8>, WireError> {
    let body = codec::encode(&(token, event))?;
    Ok(frame(SHIM_VERSION, FrameKind::Shim, &body)?)
}

/// The event in one message.
pub(crate) fn decode_event(bytes: &[u8]) -> Result<(Token, ShimEvent), WireError> {
    let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(WireError::Shape)?;
    let header = Header::from_bytes(*head)?;
    if header.kind != FrameKind::Shim || header.len as usize != body.len() {
        return Err(WireError::Shape);
    }
    Ok(codec::decode(body, EVENT_BYTES_MAX)?)
}

/// A call as a signal's value: what is asked in the second byte, its argument in the first. The upper half is the mark
/// of the attempt that is meant: a shim may have gone on to another one meanwhile.
pub(crate) fn call_value(call: ShimCall, token: Token) -> u64 {
    let what = match call {
        ShimCall::End { reason } => 0x100 | reason_code(reason),
        ShimCall::Signal { signal } => 0x200 | i32::from(signal),
        ShimCall::Attach => 0x300,
        ShimCall::Sessions => 0x400,
    };
    mark(token) << 32 | u64::from(what.cast_unsigned())
}

/// Never zero, which is what builds say that know of no marks: their shims serve one attempt.
fn mark(token: Token) -> u64 {
    const SOME: u64 = 1 << 31;
    token.0 & (SOME - 1) | SOME
}

/// Every reason that a shim may hear.
const REASONS: [EndReason; 13] = [
    EndReason::Cancel,
    EndReason::Preempt,
    EndReason::Gang,
    EndReason::Drain,
    EndReason::Move,
    EndReason::Reclaim,
    EndReason::Ceiling,
    EndReason::Device,
    EndReason::Program,
    EndReason::Vram,
    EndReason::SharedFault,
    EndReason::Idle,
    EndReason::Turn,
];

fn reason_code(reason: EndReason) -> i32 {
    match reason {
        EndReason::Cancel => 0,
        EndReason::Preempt => 1,
        EndReason::Gang => 2,
        EndReason::Drain => 3,
        EndReason::Move => 4,
        EndReason::Reclaim => 5,
        EndReason::Ceiling => 6,
        EndReason::Device => 7,
        EndReason::Program => 8,
        EndReason::Vram => 9,
        EndReason::SharedFault => 10,
        EndReason::Idle => 11,
        EndReason::Turn => 12,
    }
}

/// The call behind a signal's value; none for values that this build does not know, and for those to another attempt.
pub(crate) fn call_of(value: u64, token: Token) -> Option<ShimCall> {
    let (meant, [argument, ..]) = (value >> 32, value.to_le_bytes());
    if meant != 0 && meant != mark(token) {
        return None;
    }
    match (value & 0xffff_ff00, argument) {
        (0x100, code) => {
            let reason = REASONS.into_iter().find(|reason| reason_code(*reason) == i32::from(code))?;
            Some(ShimCall::End { reason })
        }
        (0x200, signal) => Some(ShimCall::Signal { signal }),
        (0x300, 0) => Some(ShimCall::Attach),
        (0x400, 0) => Some(ShimCall::Sessions),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_survives_its_value_and_strangers_are_ignored() {
        let calls = [ShimCall::Signal { signal: 10 }, ShimCall::Attach, ShimCall::Sessions];
        let calls = calls.into_iter().chain(REASONS.map(|reason| ShimCall::End { reason }));
        for call in calls {
            let value = call_value(call, Token(7));
            assert_eq!(call_of(value, Token(7)), Some(call));
            assert_eq!(
                call_of(value & u64::from(u32::MAX), Token(8)),
                Some(call),
                "of a build without marks"
            );
            assert_eq!(call_of(value, Token(8)), None, "it comes late, to the next attempt");
        }
        for value in [0, u64::MAX, 0xffff_ffff, 0x1fe, 0x301, 0x401, 0x8000_0000] {
            assert_eq!(call_of(value, Token(7)), None, "{value:#x}");
        }
    }

    #[test]
    fn events_are_whole_messages() {
        let event = ShimEvent::Output { stdout: 1 << 40, stderr: 3 };
        let bytes = encode_event(Token(9), &event).unwrap();
        assert_eq!(decode_event(&bytes).unwrap(), (Token(9), event));
        for cut in 0..bytes.len() {
            assert!(decode_event(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
