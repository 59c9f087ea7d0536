//! As much of HTTP/2 as one unary gRPC call after the other needs, for the bench alone: frames, a fixed block of
//! headers, flow control. Sans-io: bytes in, answers out.
//!
//! What this is not: a client for anything that matters. Headers that come in are not read; an answer is good if it
//! carries a message, because a gRPC server sends none with an error.

use std::collections::BTreeMap;

/// What a client says first, then its settings (no push, windows of 1 MiB), then a window of 1 GiB for all streams.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: [u8; 12] = [0, 2, 0, 0, 0, 0, 0, 4, 0, 16, 0, 0];
const WINDOW: u32 = 1 << 30;
/// What was used of our own window before more is given.
const WINDOW_TOP_UP: u32 = 1 << 28;
/// Window that the server gives at first, in bytes.
const SERVER_WINDOW: i64 = 65_535;
/// Largest frame that we take: the protocol's default limit for what comes in.
const FRAME_BYTES_MAX: usize = 16_384;
const FRAME_HEADER: usize = 9;
/// Once the first request has put our four headers into the server's table, six bytes name all of them.
const HEADERS_KNOWN: [u8; 6] = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS_FRAME: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum H2Error {
    #[error("etcd closed the connection or a stream of it (frame kind {0})")]
    Closed(u8),
    #[error("etcd refused a call: it ended without a message")]
    Refused,
    #[error("a frame of {0} bytes")]
    TooLarge(usize),
}

/// The answer to one call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The stream that [`Connection::request`] returned.
    pub(super) stream: u32,
    /// The gRPC message, without its prefix.
    pub(super) message: Vec<u8>,
}

/// One connection that calls one method.
pub(super) struct Connection {
    path: &'static str,
    next_stream: u32,
    /// Bytes to be written.
    pub(super) out: Vec<u8>,
    input: Vec<u8>,
    /// What the server lets us send.
    credit: i64,
    used: u32,
    open: BTreeMap<u32, Vec<u8>>,
}

impl Connection {
    pub(super) fn new(path: &'static str) -> Self {
        let mut out = PREFACE.to_vec();
        frame(&mut out, SETTINGS_FRAME, 0, 0, &SETTINGS);
        frame(&mut out, WINDOW_UPDATE, 0, 0, &(WINDOW - SERVER_WINDOW as u32).to_be_bytes());
        Self {
            path,
            next_stream: 1,
            out,
            input: Vec::new(),
            credit: SERVER_WINDOW,
            used: 0,
            open: BTreeMap::new(),
        }
    }

    /// Whether the server's window has room for such a message.
    pub(super) fn has_room(&self, message: &[u8]) -> bool {
        self.credit >= message.len() as i64 + 5
    }

    /// Begins a call and returns its stream.
    pub(super) fn request(&mut self, message: &[u8]) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        if stream == 1 {
            frame(&mut self.out, HEADERS, END_HEADERS, stream, &first_headers(self.path));
        } else {
            frame(&mut self.out, HEADERS, END_HEADERS, stream, &HEADERS_KNOWN);
        }
        let mut body = Vec::with_capacity(5 + message.len());
        body.push(0);
        body.extend_from_slice(&(message.len() as u32).to_be_bytes());
        body.extend_from_slice(message);
        frame(&mut self.out, DATA, END_STREAM, stream, &body);
        self.credit -= body.len() as i64;
        self.open.insert(stream, Vec::new());
        stream
    }

    /// Takes bytes that came in; gives the calls that they complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Vec<Answer>, H2Error> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let (mut answers, mut rest) = (Vec::new(), &input[..]);
        while let Some((head, after)) = rest.split_first_chunk::<FRAME_HEADER>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if length > FRAME_BYTES_MAX {
                return Err(H2Error::TooLarge(length));
            }
            let Some((body, next)) = after.split_at_checked(length) else {
                break;
            };
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
            if let Some(answer) = self.frame(head[3], head[4], stream, body)? {
                answers.push(answer);
            }
            rest = next;
        }
        self.input = rest.to_vec();
        Ok(answers)
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, body: &[u8]) -> Result<Option<Answer>, H2Error> {
        match kind {
            DATA => {
                if let Some(message) = self.open.get_mut(&stream) {
                    message.extend_from_slice(body);
                }
                self.used += body.len() as u32;
                if self.used >= WINDOW_TOP_UP {
                    frame(&mut self.out, WINDOW_UPDATE, 0, 0, &self.used.to_be_bytes());
                    self.used = 0;
                }
            }
            SETTINGS_FRAME if flags & ACK == 0 => frame(&mut self.out, SETTINGS_FRAME, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(&mut self.out, PING, ACK, 0, body),
            WINDOW_UPDATE if stream == 0 => {
                self.credit += body.first_chunk().map_or(0, |more| i64::from(u32::from_be_bytes(*more)));
            }
            RST_STREAM | GOAWAY => return Err(H2Error::Closed(kind)),
            _ => {}
        }
        if !matches!(kind, DATA | HEADERS) || flags & END_STREAM == 0 {
            return Ok(None);
        }
        let body = self.open.remove(&stream).unwrap_or_default();
        let message = body.get(5..).ok_or(H2Error::Refused)?.to_vec();
        Ok(Some(Answer { stream, message }))
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    out.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(body);
}

/// `:method POST`, `:scheme http`, then path, authority, content type and `te`, each kept in the server's table.
fn first_headers(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    // Path and authority have names in the fixed table (4, 1), so has the content type (31); `te` has none.
    for (name, key, value) in
        [(0x44, "", path), (0x41, "", "etcd"), (0x5f, "", "application/grpc"), (0x40, "te", "trailers")]
    {
        block.push(name);
        for text in [key, value].into_iter().filter(|text| !text.is_empty()) {
            // All of them are shorter than 127 bytes, the most that one byte of length can say.
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_bytes(stream: u32, message: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame(&mut bytes, HEADERS, END_HEADERS, stream, &[0x88]);
        let prefix = [0, 0, 0, 0, message.len() as u8];
        frame(&mut bytes, DATA, 0, stream, &[&prefix, message].concat());
        frame(&mut bytes, HEADERS, END_HEADERS | END_STREAM, stream, &[0x40, 0]);
        bytes
    }

    #[test]
    fn answers_are_found_however_the_bytes_are_cut() {
        let mut bytes = Vec::new();
        frame(&mut bytes, SETTINGS_FRAME, 0, 0, &[]);
        bytes.extend(answer_bytes(3, b"b"));
        bytes.extend(answer_bytes(1, b"a"));
        for piece in [1, 5, 9, bytes.len()] {
            let mut connection = Connection::new("/a.B/C");
            assert_eq!((connection.request(b"x"), connection.request(b"y")), (1, 3));
            let answers: Vec<_> =
                bytes.chunks(piece).flat_map(|bytes| connection.take(bytes).expect("valid")).collect();
            let want = [(3, b"b"), (1, b"a")].map(|(stream, m)| Answer { stream, message: m.to_vec() });
            assert_eq!(answers, want);
        }
    }

    #[test]
    fn an_end_without_a_message_is_a_refusal_and_a_window_that_is_used_up_is_seen() {
        let mut connection = Connection::new("/a.B/C");
        let message = vec![0; 60_000];
        assert!(connection.has_room(&message));
        connection.request(&message);
        assert!(!connection.has_room(&message));
        let mut bytes = Vec::new();
        frame(&mut bytes, WINDOW_UPDATE, 0, 0, &60_005_u32.to_be_bytes());
        assert_eq!(connection.take(&bytes).expect("valid"), []);
        assert!(connection.has_room(&message));
        bytes.clear();
        frame(&mut bytes, HEADERS, END_HEADERS | END_STREAM, 1, &[0x88]);
        assert!(matches!(connection.take(&bytes), Err(H2Error::Refused)));
    }
}
