//! The record of one attempt: the proof that its token was used, who keeps it, and how it ended.
//!
//! File: magic (8 bytes), then records: length u32 | CRC-32 of the body u32 | body; little-endian. First a
//! [`ShimRecord`], later an [`ExitRecord`]. The keeping shim holds an exclusive lock on the file while it lives.
//! A file is made exactly once per token; whoever finds it unlocked and without an end seals it, under the lock, with
//! an end of its own; a shim that comes late finds the seal and starts nothing.

use rota_protocol::Token;
use rota_protocol::codec;
use rota_protocol::spool::{ExitRecord, ShimRecord};
use rota_protocol::v1;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"RTAREC1\n";
const HEAD_BYTES: usize = 8;
/// Longest body of one record, in bytes.
const BODY_BYTES_MAX: usize = 4 << 10;
/// Longest record file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 10;

/// Names of an attempt's files in the attempts folder.
pub(crate) fn record_name(token: Token) -> String {
    format!("{token}.record")
}

/// The token of a record's file name.
pub(crate) fn token_of(name: &str) -> Option<Token> {
    name.strip_suffix(".record")?.parse().ok().map(Token)
}

/// A record that this process made and holds the lock of.
#[derive(Debug)]
pub(crate) struct OwnRecord {
    file: File,
    len: u64,
}

/// Not left to the descriptor's end: a process that was forked meanwhile has the lock as well until it runs its program.
impl Drop for OwnRecord {
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl OwnRecord {
    /// Makes the record of a token that was never used. `AlreadyExists` when it was.
    pub(crate) fn create(path: &Path, record: &ShimRecord) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        // Someone may have come between the two calls and sealed the file.
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| io::ErrorKind::AlreadyExists)?;
        if file.metadata()?.len() != 0 {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut bytes = MAGIC.to_vec();
        push(&mut bytes, record)?;
        if let Err(error) = file.write_all(&bytes) {
            // An empty file would forbid the token for ever although nothing was started.
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Ok(Self { file, len: bytes.len() as u64 })
    }

    /// Adds the end. May be tried again after an error.
    pub(crate) fn end(&mut self, exit: &ExitRecord) -> io::Result<()> {
        let mut bytes = Vec::new();
        push(&mut bytes, exit)?;
        let written = self.file.write_all(&bytes);
        if written.is_err() {
            // Half a record would hide a whole one that is written later.
            let _ = self.file.set_len(self.len);
        }
        written
    }

    /// Makes it durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// A record as somebody else's file shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Who keeps it; none in a file that its shim never wrote to, or that is damaged.
    pub(crate) shim: Option<ShimRecord>,
    /// How it ended; none while it lives, or when its shim died.
    pub(crate) exit: Option<ExitRecord>,
    /// A shim lives and keeps it.
    pub(crate) kept: bool,
}

/// Reads a record and whether somebody keeps it. A torn or damaged tail counts as not written.
pub(crate) fn read(path: &Path) -> io::Result<Found> {
    let file = File::open(path)?;
    // First the lock, then the content: a shim that goes between the two has written its end before.
    let kept = match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            flock(&file, FlockOperation::Unlock)?;
            false
        }
        Err(rustix::io::Errno::WOULDBLOCK) => true,
        Err(error) => return Err(error.into()),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let (shim, exit) = parse(&bytes);
    Ok(Found { shim, exit, kept })
}

/// Gives an attempt whose shim is gone without an end the end `exit`, durably. Returns the end that the file holds
/// afterwards; none when a shim keeps it after all.
pub(crate) fn seal(path: &Path, exit: &ExitRecord) -> io::Result<Option<ExitRecord>> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let sealed = seal_locked(&mut file, exit);
    // As with an own record: a forked process would seem to keep it.
    flock(&file, FlockOperation::Unlock)?;
    sealed.map(Some)
}

fn seal_locked(file: &mut File, exit: &ExitRecord) -> io::Result<ExitRecord> {
    let mut bytes = Vec::new();
    Read::take(&mut *file, FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let (shim, end) = parse(&bytes);
    if let Some(end) = end {
        return Ok(end);
    }
    // Written from the start, so that a damaged tail does not hide the seal.
    let mut whole = MAGIC.to_vec();
    if let Some(shim) = &shim {
        push(&mut whole, shim)?;
    }
    push(&mut whole, exit)?;
    file.set_len(0)?;
    io::Seek::rewind(file)?;
    file.write_all(&whole)?;
    file.sync_data()?;
    Ok(exit.clone())
}

/// Path of a record in a folder.
pub(crate) fn record_path(dir: &Path, token: Token) -> PathBuf {
    dir.join(record_name(token))
}

#[derive(serde::Serialize, serde::Deserialize)]
enum Body<S, O, E> {
    Shim(S),
    /// Of a build that counted nothing.
    OldExit(O),
    Exit(E),
}

trait Record: Serialize {
    fn body(&self) -> Result<Vec<u8>, codec::EncodeError>;
}

impl Record for ShimRecord {
    fn body(&self) -> Result<Vec<u8>, codec::EncodeError> {
        codec::encode(&Body::<&Self, (), ()>::Shim(self))
    }
}

impl Record for ExitRecord {
    fn body(&self) -> Result<Vec<u8>, codec::EncodeError> {
        codec::encode(&Body::<(), (), &Self>::Exit(self))
    }
}

fn push<T: Record>(bytes: &mut Vec<u8>, record: &T) -> io::Result<()> {
    let body = record.body().map_err(io::Error::other)?;
    let len = u32::try_from(body.len()).map_err(io::Error::other)?;
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(())
}

fn parse(bytes: &[u8]) -> (Option<ShimRecord>, Option<ExitRecord>) {
    let (mut shim, mut exit) = (None, None);
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        return (None, None);
    };
    while let Some((body, after)) = next_body(rest) {
        match decode_body(body) {
            Some(Body::Shim(record)) => shim = shim.or(Some(record)),
            Some(Body::OldExit(record)) => exit = exit.or(Some(record.into())),
            Some(Body::Exit(record)) => exit = exit.or(Some(record)),
            None => break,
        }
        rest = after;
    }
    (shim, exit)
}

fn decode_body(body: &[u8]) -> Option<Body<ShimRecord, v1::ExitRecord, ExitRecord>> {
    fn decode<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
        codec::decode(body, BODY_BYTES_MAX).ok()
    }
    decode(body)
}

fn next_body(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    let [l0, l1, l2, l3, c0, c1, c2, c3] = *head;
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let body = bytes.get(HEAD_BYTES..HEAD_BYTES.checked_add(len)?)?;
    (crc32fast::hash(body) == u32::from_le_bytes([c0, c1, c2, c3]))
        .then_some((body, &bytes[HEAD_BYTES + len..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::job::AttemptEnd;
    use rota_protocol::{BootId, ClusterId, LeaseEpoch};

    fn shim() -> ShimRecord {
        ShimRecord {
            cluster: ClusterId(1),
            token: Token(5),
            epoch: LeaseEpoch(2),
            boot: BootId(3),
            shim_pid: 44,
        }
    }

    fn exit(code: u8) -> ExitRecord {
        ExitRecord { ran_ms: 7, ..ExitRecord::never_ran(Token(5), AttemptEnd::Exited { code }) }
    }

    #[test]
    fn a_token_is_used_once_and_its_lock_tells_whether_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = record_path(dir.path(), Token(5));
        let mut own = OwnRecord::create(&path, &shim()).unwrap();
        let again = OwnRecord::create(&path, &shim()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path).unwrap(), Found { shim: Some(shim()), exit: None, kept: true });
        assert_eq!(seal(&path, &exit(9)).unwrap(), None, "a kept record cannot be sealed");
        own.end(&exit(3)).unwrap();
        drop(own);
        assert_eq!(read(&path).unwrap(), Found { shim: Some(shim()), exit: Some(exit(3)), kept: false });
        assert_eq!(seal(&path, &exit(9)).unwrap(), Some(exit(3)), "the first end stays");
    }

    /// A process that is forked at any moment has all descriptors until it runs its program.
    #[test]
    fn a_record_that_was_let_go_is_kept_by_no_copy_of_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = record_path(dir.path(), Token(5));
        let own = OwnRecord::create(&path, &shim()).unwrap();
        let _copy = own.file.try_clone().unwrap();
        drop(own);
        assert!(!read(&path).unwrap().kept);
        assert_eq!(seal(&path, &exit(9)).unwrap(), Some(exit(9)));
    }

    #[test]
    fn an_end_of_an_older_build_is_read() {
        let mut bytes = MAGIC.to_vec();
        push(&mut bytes, &shim()).unwrap();
        // Variant 1: token, `Exited` with its code, run time, three counts.
        let body = [1, 5, 0, 3, 7, 1, 2, 0];
        bytes.extend_from_slice(&8_u32.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        let (_, end) = parse(&bytes);
        assert_eq!(end, Some(ExitRecord { stdout_bytes: 1, stderr_bytes: 2, ..exit(3) }));
    }

    #[test]
    fn a_sealed_token_cannot_be_started_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = record_path(dir.path(), Token(5));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(seal(&path, &exit(1)).unwrap(), Some(exit(1)));
        assert!(OwnRecord::create(&path, &shim()).is_err());
        assert_eq!(read(&path).unwrap().exit, Some(exit(1)));
    }

    #[test]
    fn every_cut_of_a_record_is_seen_and_can_be_sealed() {
        let dir = tempfile::tempdir().unwrap();
        let path = record_path(dir.path(), Token(5));
        let mut own = OwnRecord::create(&path, &shim()).unwrap();
        let first = std::fs::read(&path).unwrap().len();
        own.end(&exit(0)).unwrap();
        drop(own);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let found = read(&path).unwrap();
            assert_eq!(found.exit, None, "cut at {cut}");
            assert_eq!(found.shim.is_some(), cut >= first, "cut at {cut}");
            assert_eq!(seal(&path, &exit(8)).unwrap(), Some(exit(8)));
            assert_eq!(read(&path).unwrap().exit, Some(exit(8)));
        }
        for at in MAGIC.len()..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            assert_ne!(read(&path).unwrap(), Found { shim: Some(shim()), exit: Some(exit(0)), kept: false });
        }
    }
}
