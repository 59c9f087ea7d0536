//! The record of one attempt: the proof that its token was used, who keeps it, and how it ended.
//!
//! File: magic (8 bytes), then records: length u32 | CRC-32 of the body u32 | body; little-endian. First a
//! [`ShimRecord`], later an [`ExitRecord`], and whose attempt it was: by then nobody else may know. The keeping shim holds an exclusive lock on the file while it lives.
//! A file is made exactly once per token; whoever finds it unlocked and without an end seals it, under the lock, with
//! an end of its own; a shim that comes late finds the seal and starts nothing.

use rota_protocol::codec;
use rota_protocol::spool::{ExitRecord, ShimRecord};
use rota_protocol::v1;
use rota_protocol::{TaskId, Token};
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
    task: TaskId,
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
    pub(crate) fn create(path: &Path, record: &ShimRecord, task: TaskId) -> io::Result<Self> {
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
        Ok(Self { file, task, len: bytes.len() as u64 })
    }

    /// Adds the end. May be tried again after an error.
    pub(crate) fn end(&mut self, exit: &ExitRecord) -> io::Result<()> {
        let mut bytes = Vec::new();
        push(&mut bytes, exit)?;
        // Last: builds that do not know it read no further.
        push(&mut bytes, &self.task)?;
        let written = self.file.write_all(&bytes);
        match written {
            Ok(()) => self.len += bytes.len() as u64,
            // Half a record would hide a whole one that is written later.
            Err(_) => drop(self.file.set_len(self.len)),
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
    /// Whose attempt it was, if its own shim told its end.
    pub(crate) task: Option<TaskId>,
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
    Ok(Found { kept, ..parse(&bytes) })
}

/// The ended attempts of a task whose records lie in a folder, in their order. Looks at every record there.
pub(crate) fn of_task(dir: &Path, task: TaskId) -> io::Result<Vec<Token>> {
    let names = std::fs::read_dir(dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // Without a lock: for a moment it would look like another's, and a shim that makes its record would give up.
    let of_task = |token: &Token| task_in(&record_path(dir, *token)).is_ok_and(|found| found == Some(task));
    let mut found: Vec<Token> = names.filter_map(|name| token_of(&name)).filter(of_task).collect();
    found.sort_unstable();
    Ok(found)
}

fn task_in(path: &Path) -> io::Result<Option<TaskId>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(parse(&bytes).task)
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
    let Found { shim, exit: end, .. } = parse(&bytes);
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
    Task(TaskId),
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

impl Record for TaskId {
    fn body(&self) -> Result<Vec<u8>, codec::EncodeError> {
        codec::encode(&Body::<(), (), ()>::Task(*self))
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

/// What a file holds; whether somebody keeps it is not in it.
fn parse(bytes: &[u8]) -> Found {
    let mut found = Found { shim: None, exit: None, task: None, kept: false };
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        return found;
    };
    while let Some((body, after)) = next_body(rest) {
        match decode_body(body) {
            Some(Body::Shim(record)) => found.shim = found.shim.or(Some(record)),
            Some(Body::OldExit(record)) => found.exit = found.exit.or(Some(record.into())),
            Some(Body::Exit(record)) => found.exit = found.exit.or(Some(record)),
            Some(Body::Task(task)) => found.task = Some(task),
            None => break,
        }
        rest = after;
    }
    found
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

    const TASK: TaskId = TaskId { job: rota_protocol::JobId(9), index: 4 };

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
        let mut own = OwnRecord::create(&path, &shim(), TASK).unwrap();
        let again = OwnRecord::create(&path, &shim(), TASK).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path).unwrap(), Found { shim: Some(shim()), exit: None, task: None, kept: true });
        assert_eq!(seal(&path, &exit(9)).unwrap(), None, "a kept record cannot be sealed");
        own.end(&exit(3)).unwrap();
        drop(own);
        assert_eq!(
            read(&path).unwrap(),
            Found { shim: Some(shim()), exit: Some(exit(3)), task: Some(TASK), kept: false }
        );
        assert_eq!(seal(&path, &exit(9)).unwrap(), Some(exit(3)), "the first end stays");
    }

    #[test]
    fn a_tasks_attempts_are_found_by_their_records() {
        let dir = tempfile::tempdir().unwrap();
        for (token, index) in [(9, 4), (5, 4), (7, 3), (6, 4)] {
            let path = record_path(dir.path(), Token(token));
            let mut own = OwnRecord::create(&path, &shim(), TaskId { index, ..TASK }).unwrap();
            // One that has not ended is known by others.
            if token != 6 {
                own.end(&exit(0)).unwrap();
            }
        }
        std::fs::write(dir.path().join("8.record"), b"torn").unwrap();
        std::fs::write(dir.path().join("5.out"), b"no record").unwrap();
        assert_eq!(of_task(dir.path(), TASK).unwrap(), [Token(5), Token(9)]);
    }

    /// A process that is forked at any moment has all descriptors until it runs its program.
    #[test]
    fn a_record_that_was_let_go_is_kept_by_no_copy_of_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = record_path(dir.path(), Token(5));
        let own = OwnRecord::create(&path, &shim(), TASK).unwrap();
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
        assert_eq!(parse(&bytes).exit, Some(ExitRecord { stdout_bytes: 1, stderr_bytes: 2, ..exit(3) }));
    }

    #[test]
    fn a_sealed_token_cannot_be_started_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = record_path(dir.path(), Token(5));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(seal(&path, &exit(1)).unwrap(), Some(exit(1)));
        assert!(OwnRecord::create(&path, &shim(), TASK).is_err());
        assert_eq!(read(&path).unwrap().exit, Some(exit(1)));
    }

    #[test]
    fn every_cut_of_a_record_is_seen_and_can_be_sealed() {
        let dir = tempfile::tempdir().unwrap();
        let path = record_path(dir.path(), Token(5));
        let mut own = OwnRecord::create(&path, &shim(), TASK).unwrap();
        let first = std::fs::read(&path).unwrap().len();
        own.end(&exit(0)).unwrap();
        drop(own);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let found = read(&path).unwrap();
            // The end may be whole although the task behind it is not.
            let whole_end = found.exit.is_some();
            assert!(!whole_end || found.exit == Some(exit(0)) && found.task.is_none(), "cut at {cut}");
            assert_eq!(found.shim.is_some(), cut >= first, "cut at {cut}");
            let end = if whole_end { exit(0) } else { exit(8) };
            assert_eq!(seal(&path, &exit(8)).unwrap(), Some(end.clone()));
            assert_eq!(read(&path).unwrap().exit, Some(end));
        }
        for at in MAGIC.len()..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            let sound = Found { shim: Some(shim()), exit: Some(exit(0)), task: Some(TASK), kept: false };
            assert_ne!(read(&path).unwrap(), sound);
        }
    }
}
