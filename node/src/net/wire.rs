//! Messages on QUIC streams: one request and one reply on each stream, each a frame followed by the stream's end.
//! A stream that is dropped half-way is reset, never finished: the library would finish it, and a cut message would
//! look whole.

use crate::framing::{self, FramingError};
use quinn::{RecvStream, SendStream, VarInt};
use rota_protocol::codec;
use rota_protocol::frame::{FrameKind, HEADER_BYTES};
use serde::de::DeserializeOwned;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Stream code: the side that opened it lost interest.
pub(super) const RESET_CANCELLED: VarInt = VarInt::from_u32(1);
/// Stream code: what came was no message.
pub(super) const RESET_MALFORMED: VarInt = VarInt::from_u32(2);

/// Why a message could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    /// The stream broke or carries no frame.
    #[error(transparent)]
    Framing(#[from] FramingError),
    /// Another version than the two sides agreed on.
    #[error("a frame of version {got} on a connection of version {agreed}")]
    Version { got: u16, agreed: u16 },
    /// Bytes after the message.
    #[error("bytes follow the message on its stream")]
    Trailing,
}

impl WireError {
    /// The stream broke, which is nobody's fault; otherwise the other side does not speak our protocol.
    pub(super) fn is_broken_stream(&self) -> bool {
        matches!(self, Self::Framing(FramingError::Io(_) | FramingError::Closed(_)))
    }
}

/// Reads the one message of a stream and its end. `limit` is in bytes of the body.
pub(super) async fn read_only<R, T>(
    stream: &mut R,
    wanted: FrameKind,
    agreed: u16,
    limit: usize,
) -> Result<T, WireError>
where
    R: AsyncRead + Unpin,
    T: DeserializeOwned,
{
    let (_, body) = read_only_of(stream, &[wanted], agreed, limit).await?;
    decoded(&body, limit)
}

/// The message in the body of a frame.
pub(super) fn decoded<T: DeserializeOwned>(body: &[u8], limit: usize) -> Result<T, WireError> {
    Ok(codec::decode(body, limit).map_err(FramingError::from)?)
}

/// As [`read_only`], for a frame of one of several kinds: which it is, and its body.
pub(super) async fn read_only_of<R: AsyncRead + Unpin>(
    stream: &mut R,
    wanted: &[FrameKind],
    agreed: u16,
    limit: usize,
) -> Result<(FrameKind, Vec<u8>), WireError> {
    // Callers name a kind at least.
    let due = wanted.first().copied().unwrap_or(FrameKind::Hello);
    let frame = framing::read_frame(&mut (&mut *stream).take((HEADER_BYTES + limit) as u64))
        .await?
        .ok_or(FramingError::Closed(due))?;
    if frame.version != agreed {
        return Err(WireError::Version { got: frame.version, agreed });
    }
    if !wanted.contains(&frame.kind) {
        return Err(FramingError::Kind { wanted: due, got: frame.kind }.into());
    }
    match stream.read(&mut [0]).await {
        Ok(0) => Ok((frame.kind, frame.body)),
        Ok(_) => Err(WireError::Trailing),
        Err(e) => Err(FramingError::from(e).into()),
    }
}

/// The sending half of a stream that must be sent whole: dropped before [`Self::send`] has returned, it is reset.
pub(super) struct WholeSend {
    stream: SendStream,
    whole: bool,
}

impl WholeSend {
    pub(super) fn new(stream: SendStream) -> Self {
        Self { stream, whole: false }
    }

    /// Writes the bytes and the end of the stream.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.finish()?;
        self.whole = true;
        Ok(())
    }

    /// Resolves when the other side no longer reads: it has everything, or lost interest, or is gone.
    pub(super) async fn stopped(&mut self) {
        let _ = self.stream.stopped().await;
    }

    /// Gives up on the message.
    pub(super) fn reset(mut self, code: VarInt) {
        let _ = self.stream.reset(code);
        self.whole = true;
    }
}

impl Drop for WholeSend {
    fn drop(&mut self) {
        if !self.whole {
            let _ = self.stream.reset(RESET_CANCELLED);
        }
    }
}

/// Tells the sender to stop, with a code.
pub(super) fn refuse(stream: &mut RecvStream, code: VarInt) {
    let _ = stream.stop(code);
}
