//! Clients that put one value after the other, many on one connection as gRPC does it. One task serves a connection
//! with all its clients, so that the load costs little beside what it measures.

use super::h2::{Answer, Connection, H2Error};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PUT: &str = "/etcdserverpb.KV/Put";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const READ_BYTES: usize = 64 << 10;

/// Why puts ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum PutError {
    #[error("the connection to etcd: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    H2(#[from] H2Error),
}

/// What one connection's clients do.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) to: SocketAddr,
    /// Clients, each with one put under way at any time.
    pub(super) clients: usize,
    /// No put begins after it.
    pub(super) deadline: Instant,
    pub(super) value: Vec<u8>,
    /// Keys count up from here: etcd takes them faster in order than at random.
    pub(super) first_key: u128,
}

/// Puts new keys until the deadline; the time of each put that was answered.
pub(super) async fn run(load: Load) -> Result<Vec<Duration>, PutError> {
    let mut stream = connect(load.to).await?;
    let mut connection = Connection::new(PUT);
    let mut begun = BTreeMap::new();
    let mut times = Vec::new();
    let mut input = vec![0; READ_BYTES];
    let mut key = load.first_key;
    loop {
        while begun.len() < load.clients && Instant::now() < load.deadline {
            let message = put_request(key, &load.value);
            if !connection.has_room(&message) {
                break;
            }
            key += 1;
            let asked = Instant::now();
            begun.insert(connection.request(&message), asked);
        }
        if begun.is_empty() {
            return Ok(times);
        }
        for answer in exchange(&mut stream, &mut connection, &mut input).await? {
            if let Some(asked) = begun.remove(&answer.stream) {
                times.push(asked.elapsed());
            }
        }
    }
}

/// Whether this member leads.
pub(super) async fn is_leader(member: SocketAddr) -> Result<bool, PutError> {
    let mut stream = connect(member).await?;
    let mut connection = Connection::new(STATUS);
    connection.request(&[]);
    let mut input = vec![0; READ_BYTES];
    loop {
        let answers = exchange(&mut stream, &mut connection, &mut input).await?;
        if let Some(status) = answers.first() {
            let own = field(&status.message, 1).and_then(|header| match header {
                Field::Bytes(header) => field(header, 2),
                Field::Number(_) => None,
            });
            let leader = field(&status.message, 4);
            return Ok(
                matches!((own, leader), (Some(Field::Number(own)), Some(Field::Number(leader))) if own == leader),
            );
        }
    }
}

async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Writes what waits, then reads once.
async fn exchange(
    stream: &mut TcpStream,
    connection: &mut Connection,
    input: &mut [u8],
) -> Result<Vec<Answer>, PutError> {
    if !connection.out.is_empty() {
        stream.write_all(&connection.out).await?;
        connection.out.clear();
    }
    let read = stream.read(input).await?;
    if read == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(connection.take(&input[..read])?)
}

/// `PutRequest { key = 1, value = 2 }`.
fn put_request(key: u128, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 24);
    for (tag, content) in [(0x0a, &key.to_be_bytes()[..]), (0x12, value)] {
        bytes.push(tag);
        let mut length = content.len();
        while length >= 0x80 {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend_from_slice(content);
    }
    bytes
}

/// A field of a protobuf message.
#[derive(Debug, PartialEq, Eq)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The first field of that number, of the two kinds that etcd's status has.
fn field(mut message: &[u8], wanted: u64) -> Option<Field<'_>> {
    loop {
        let tag = varint(&mut message)?;
        let found = match tag & 7 {
            0 => Field::Number(varint(&mut message)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                let (bytes, rest) = message.split_at_checked(length)?;
                message = rest;
                Field::Bytes(bytes)
            }
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some(found);
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_has_its_two_fields() {
        let value = vec![7; 300];
        let bytes = put_request(5, &value);
        assert_eq!(field(&bytes, 1), Some(Field::Bytes(&5_u128.to_be_bytes()[..])));
        assert_eq!(field(&bytes, 2), Some(Field::Bytes(&value[..])));
        assert_eq!(field(&bytes, 3), None);
        assert_eq!(field(&[0x20, 0xac, 0x02], 4), Some(Field::Number(300)));
    }
}
