//! Frames over byte streams: reads and writes [`rota_protocol::frame`] messages on any `AsyncRead` / `AsyncWrite`,
//! with every limit checked before memory is taken.
//!
//! What this is not: no connection, no authentication, no retry. A stream on which any of these functions failed is
//! out of step and must be dropped.

use rota_protocol::PublicError;
use rota_protocol::codec::{self, DecodeError, EncodeError};
use rota_protocol::frame::{
    self, FrameKind, HEADER_BYTES, HELLO_VERSION, Header, HeaderError, Hello, VERSION_MAX, VERSION_MIN,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes asked of the stream at once: a usual call with its answer fits, so that one system call reads a frame.
const READ_BYTES: usize = 16 << 10;
/// Bytes taken at once for a body on the word of its header alone; the rest only as bytes come in, so that a
/// stranger's header costs nothing.
const BODY_ON_TRUST_BYTES: usize = 64 << 10;

/// Why a stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FramingError {
    /// The stream broke, or ended inside a frame (`UnexpectedEof`).
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// Not a frame that this build takes.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A frame's body is not the message it should be.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Our own message cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A frame of another kind was due.
    #[error("a frame of kind {got:?} came where {wanted:?} was due")]
    Kind {
        /// What was due.
        wanted: FrameKind,
        /// What came.
        got: FrameKind,
    },
    /// The stream ended where a frame was due.
    #[error("the connection was closed where a {0:?} frame was due")]
    Closed(FrameKind),
    /// The two sides speak no common version.
    #[error("{0}")]
    Version(PublicError),
}

/// One frame with its body still encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawFrame {
    /// The version of the body.
    pub version: u16,
    /// What the body is.
    pub kind: FrameKind,
    /// The encoded body.
    pub body: Vec<u8>,
}

impl RawFrame {
    /// The message in the body.
    ///
    /// # Errors
    /// The frame is of another kind, or the body is malformed.
    pub fn message<T: DeserializeOwned>(&self, wanted: FrameKind) -> Result<T, FramingError> {
        if self.kind != wanted {
            return Err(FramingError::Kind { wanted, got: self.kind });
        }
        Ok(codec::decode(&self.body, rota_protocol::limits::FRAME_BYTES_MAX)?)
    }
}

/// The bytes of a whole frame around a message.
///
/// # Errors
/// The message is too large for a frame.
pub fn encode_message<T: Serialize>(
    version: u16,
    kind: FrameKind,
    message: &T,
) -> Result<Vec<u8>, FramingError> {
    let mut bytes = Vec::new();
    encode_behind(&mut bytes, version, kind, message)?;
    Ok(bytes)
}

/// As [`encode_message`], behind the frames that `out` holds already; on an error `out` is as before.
///
/// # Errors
/// The message is too large for a frame.
pub fn encode_behind<T: Serialize>(
    out: &mut Vec<u8>,
    version: u16,
    kind: FrameKind,
    message: &T,
) -> Result<(), FramingError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let body = start + HEADER_BYTES;
    let header = codec::encode_behind(out, message)
        .map_err(FramingError::from)
        .and_then(|()| Ok(frame::header(version, kind, out.len() - body)?));
    match header {
        Ok(header) => out[start..body].copy_from_slice(&header),
        Err(error) => {
            out.truncate(start);
            return Err(error);
        }
    }
    Ok(())
}

/// Writes one message and flushes it.
///
/// # Errors
/// The message is too large, or the stream broke.
pub async fn write_message<W, T>(
    writer: &mut W,
    version: u16,
    kind: FrameKind,
    message: &T,
) -> Result<(), FramingError>
where
    W: AsyncWrite + Unpin,
    T: Serialize,
{
    write_frame(writer, &encode_message(version, kind, message)?).await
}

/// Writes the bytes of one or more whole frames, as [`encode_message`] made them, and flushes them.
///
/// # Errors
/// The stream broke.
pub async fn write_frame<W: AsyncWrite + Unpin>(writer: &mut W, frames: &[u8]) -> Result<(), FramingError> {
    writer.write_all(frames).await?;
    writer.flush().await?;
    Ok(())
}

/// Reads one frame and not a byte more; `None` when the stream ended at a border between frames.
///
/// Not cancel-safe: for streams that carry one request, or for a task that only reads. Where reads are raced against
/// other things, use [`FrameReader`].
///
/// # Errors
/// The stream broke or ended inside the frame, or its header is refused.
pub async fn read_frame<R: AsyncRead + Unpin>(reader: &mut R) -> Result<Option<RawFrame>, FramingError> {
    let mut header = [0; HEADER_BYTES];
    let mut have = 0;
    while have < HEADER_BYTES {
        match reader.read(&mut header[have..]).await? {
            0 if have == 0 => return Ok(None),
            0 => return Err(cut_short().into()),
            n => have += n,
        }
    }
    let Header { version, kind, len } = Header::from_bytes(header)?;
    let len = len as usize;
    let mut body = Vec::with_capacity(len.min(BODY_ON_TRUST_BYTES));
    if reader.take(len as u64).read_to_end(&mut body).await? < len {
        return Err(cut_short().into());
    }
    Ok(Some(RawFrame { version, kind, body }))
}

/// Reads one message of the kind that is due; `None` when the stream ended at a border between frames.
/// Not cancel-safe, see [`read_frame`].
///
/// # Errors
/// Those of [`read_frame`], a frame of another kind, a malformed body.
pub async fn read_message<R, T>(reader: &mut R, wanted: FrameKind) -> Result<Option<T>, FramingError>
where
    R: AsyncRead + Unpin,
    T: DeserializeOwned,
{
    match read_frame(reader).await? {
        Some(frame) => frame.message(wanted).map(Some),
        None => Ok(None),
    }
}

/// Cuts frames out of a stream that carries many. It reads ahead, so the stream must be read through it alone.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    buffer: Vec<u8>,
    start: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader at the beginning of a stream, or between two frames.
    pub fn new(inner: R) -> Self {
        Self { inner, buffer: Vec::new(), start: 0 }
    }

    /// The next frame; `None` when the stream ended at a border between frames. Cancel-safe: bytes that came in
    /// stay for the next call.
    ///
    /// # Errors
    /// The stream broke or ended inside a frame, or a header is refused.
    pub async fn next(&mut self) -> Result<Option<RawFrame>, FramingError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            self.buffer.reserve(READ_BYTES);
            if self.inner.read_buf(&mut self.buffer).await? == 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                return Err(cut_short().into());
            }
        }
    }

    /// A frame that is here already, without waiting.
    ///
    /// # Errors
    /// A header is refused.
    pub fn ready(&mut self) -> Result<Option<RawFrame>, FramingError> {
        self.take_frame()
    }

    /// The next message, which must be of the kind that is due; `None` as in [`Self::next`]. Cancel-safe.
    ///
    /// # Errors
    /// Those of [`Self::next`], a frame of another kind, a malformed body.
    pub async fn next_message<T: DeserializeOwned>(
        &mut self,
        wanted: FrameKind,
    ) -> Result<Option<T>, FramingError> {
        match self.next().await? {
            Some(frame) => frame.message(wanted).map(Some),
            None => Ok(None),
        }
    }

    fn take_frame(&mut self) -> Result<Option<RawFrame>, FramingError> {
        let ready = &self.buffer[self.start..];
        let Some((header, rest)) = ready.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let Header { version, kind, len } = Header::from_bytes(*header)?;
        let Some(body) = rest.get(..len as usize) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.start += HEADER_BYTES + body.len();
        Ok(Some(RawFrame { version, kind, body }))
    }
}

/// Sends our `Hello`, awaits the other side's, and returns it with the version that both speak from now on. Both
/// sides send at once, so this costs one way, not a round trip. The caller bounds the wait.
///
/// # Errors
/// The stream broke, the first frame is not a `Hello`, or there is no common version.
pub async fn exchange_hello<R, W>(
    reader: &mut FrameReader<R>,
    writer: &mut W,
    ours: &Hello,
) -> Result<(Hello, u16), FramingError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    write_message(writer, HELLO_VERSION, FrameKind::Hello, ours).await?;
    let theirs: Hello =
        reader.next_message(FrameKind::Hello).await?.ok_or(FramingError::Closed(FrameKind::Hello))?;
    let version =
        frame::negotiate((ours.version_min, ours.version_max), (theirs.version_min, theirs.version_max))
            .map_err(FramingError::Version)?;
    Ok((theirs, version))
}

/// The `Hello` of a side that is a client: no cluster, no host.
#[must_use]
pub fn client_hello() -> Hello {
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        cluster: None,
        host: None,
        build: concat!("rota ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ended inside a frame")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::api::{ApiCall, ApiRequest};
    use rota_protocol::limits::FRAME_BYTES_MAX;
    use tokio::io::duplex;

    fn call(seq: u32, text_bytes: usize) -> ApiCall {
        ApiCall { seq, request: ApiRequest::Authenticate { token: "x".repeat(text_bytes).into() } }
    }

    fn encoded(call: &ApiCall) -> Vec<u8> {
        encode_message(VERSION_MAX, FrameKind::ApiCall, call).unwrap()
    }

    #[tokio::test]
    async fn frames_survive_any_cut_of_the_stream() {
        let calls = [call(1, 0), call(2, 40_000), call(3, 5)];
        let bytes: Vec<u8> = calls.iter().flat_map(encoded).collect();
        for pipe_bytes in [1, 7, 13, 4_096, 1 << 20] {
            let (mut tx, rx) = duplex(pipe_bytes);
            let send = async {
                tx.write_all(&bytes).await.unwrap();
                drop(tx);
            };
            let receive = async {
                let mut reader = FrameReader::new(rx);
                for wanted in &calls {
                    let got: ApiCall = reader.next_message(FrameKind::ApiCall).await.unwrap().unwrap();
                    assert_eq!(&got, wanted);
                }
                assert!(reader.next().await.unwrap().is_none());
            };
            tokio::join!(send, receive);
        }
    }

    #[tokio::test]
    async fn the_unbuffered_reader_takes_not_a_byte_more() {
        let mut stream = encoded(&call(1, 3));
        stream.extend(encoded(&call(2, 4)));
        let mut rest = stream.as_slice();
        for wanted in [call(1, 3), call(2, 4)] {
            let got: ApiCall = read_message(&mut rest, FrameKind::ApiCall).await.unwrap().unwrap();
            assert_eq!(got, wanted);
        }
        assert!(rest.is_empty());
        assert!(read_frame(&mut rest).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn every_prefix_of_a_frame_is_an_error_and_the_empty_one_an_end() {
        let whole = encoded(&call(9, 20));
        for cut in 1..whole.len() {
            let mut part = &whole[..cut];
            let plain = read_frame(&mut part).await;
            let buffered = FrameReader::new(&whole[..cut]).next().await;
            for result in [plain, buffered] {
                assert!(
                    matches!(&result, Err(FramingError::Io(e)) if e.kind() == io::ErrorKind::UnexpectedEof),
                    "cut at {cut}: {result:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn hostile_headers_are_refused_before_memory_is_taken() {
        let over = u32::try_from(FRAME_BYTES_MAX + 1).unwrap();
        for len in [over, u32::MAX] {
            let header = Header { version: VERSION_MAX, kind: FrameKind::ApiCall, len }.to_bytes();
            let mut bytes = header.as_slice();
            let result = read_frame(&mut bytes).await;
            assert!(matches!(result, Err(FramingError::Header(HeaderError::TooLarge(_)))));
            let result = FrameReader::new(header.as_slice()).next().await;
            assert!(matches!(result, Err(FramingError::Header(HeaderError::TooLarge(_)))));
        }
        let mut garbage = b"GET / HTTP/1.1\r\n\r\n".as_slice();
        assert!(matches!(read_frame(&mut garbage).await, Err(FramingError::Header(HeaderError::Magic))));
    }

    #[tokio::test]
    async fn a_frame_of_another_kind_and_left_over_bytes_are_refused() {
        let bytes = encoded(&call(1, 1));
        let result = read_message::<_, ApiCall>(&mut bytes.as_slice(), FrameKind::ApiAnswer).await;
        assert!(matches!(result, Err(FramingError::Kind { .. })));
        let mut body = codec::encode(&call(1, 1)).unwrap();
        body.push(0);
        let bytes = frame::frame(VERSION_MAX, FrameKind::ApiCall, &body).unwrap();
        let result = read_message::<_, ApiCall>(&mut bytes.as_slice(), FrameKind::ApiCall).await;
        assert!(matches!(result, Err(FramingError::Decode(DecodeError::LeftOver { left: 1 }))));
    }

    #[tokio::test]
    async fn a_read_that_was_given_up_loses_nothing() {
        let (mut tx, rx) = duplex(1 << 16);
        let mut reader = FrameReader::new(rx);
        let bytes = encoded(&call(4, 100));
        let (head, tail) = bytes.split_at(50);
        tx.write_all(head).await.unwrap();
        tokio::select! {
            biased;
            got = reader.next() => panic!("half a frame was taken for a whole one: {got:?}"),
            () = tokio::task::yield_now() => {}
        }
        tx.write_all(tail).await.unwrap();
        let got: Option<ApiCall> = reader.next_message(FrameKind::ApiCall).await.unwrap();
        assert_eq!(got, Some(call(4, 100)));
    }

    #[tokio::test]
    async fn hellos_agree_on_a_version_or_say_why_not() {
        let newer = Hello { version_min: VERSION_MAX + 1, version_max: VERSION_MAX + 4, ..client_hello() };
        let older = Hello { version_min: 1, version_max: VERSION_MIN - 1, ..client_hello() };
        for (theirs, fits) in [(client_hello(), true), (newer, false), (older, false)] {
            let (a, b) = duplex(1 << 12);
            let (a_read, mut a_write) = tokio::io::split(a);
            let (b_read, mut b_write) = tokio::io::split(b);
            let (mut a_read, mut b_read) = (FrameReader::new(a_read), FrameReader::new(b_read));
            let (ours, other) = (client_hello(), theirs.clone());
            let (left, right) = tokio::join!(
                exchange_hello(&mut a_read, &mut a_write, &ours),
                exchange_hello(&mut b_read, &mut b_write, &other),
            );
            if fits {
                assert_eq!(left.unwrap(), (theirs, VERSION_MAX));
                assert_eq!(right.unwrap().1, VERSION_MAX);
            } else {
                assert!(matches!(left, Err(FramingError::Version(_))));
                assert!(matches!(right, Err(FramingError::Version(_))));
            }
        }
    }
}
