//! Reading a log back at start: what counts, what is cut, and what is refused.
//!
//! A bad record is cut, with all behind it, if nothing shows that it had been durable. It is refused as damage if a
//! valid record behind it says so, or if it is not in the last segment. A peer that guessed here could vote twice.

use super::header::{FORMAT, HeaderFault, Owner, SEGMENT_HEADER, SegmentHeader};
use super::record::{self, Record};
use super::segment;
use super::store::Memory;
use crate::config::LogEntry;
use crate::disk::{Disk, RealDisk, Step};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk.
    #[error("cannot read or write the log in {dir}: {source}")]
    Io {
        /// The log's directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something that had been durable is damaged. The peer must not vote: give it a new host id and an empty disk.
    #[error("the log is damaged at byte {offset} of {file}: {what}")]
    Damaged {
        /// Which file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// For people.
        what: String,
    },
    /// The files are of another host or cluster.
    #[error("{file} belongs to host {host} of cluster {cluster}, not to this host")]
    Foreign {
        /// Which file.
        file: PathBuf,
        /// The host in its header.
        host: rota_protocol::HostId,
        /// The cluster in its header.
        cluster: rota_protocol::ClusterId,
    },
    /// Written by a newer build.
    #[error("{file} has log format {format}, this build reads {}", FORMAT)]
    Format {
        /// Which file.
        file: PathBuf,
        /// Its format.
        format: u16,
    },
    /// This host has voted before, and its log is gone. It must join again under a new id.
    #[error(
        "this host has voted before (says {marker}), but its log in {dir} is gone: join again under a new host id"
    )]
    Wiped {
        /// The log's directory.
        dir: PathBuf,
        /// The file that says so.
        marker: PathBuf,
    },
}

/// A segment that is written no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed {
    pub sequence: u64,
    /// Largest entry index in it.
    pub index_max: Option<u64>,
}

/// The segment that is written.
pub(crate) struct Active {
    pub file: File,
    pub sequence: u64,
    /// Where the next record goes.
    pub end: usize,
    pub index_max: Option<u64>,
}

/// A log as it was found.
pub(crate) struct Recovered {
    pub memory: Memory,
    pub closed: VecDeque<Closed>,
    pub active: Active,
    pub size: u64,
    /// The last segment was sealed: the writer must go on in a new one.
    pub sealed: bool,
}

/// All segments, read; nothing is written yet.
struct AllRead {
    replay: Replay,
    closed: VecDeque<Closed>,
    last: (u64, PathBuf),
    scan: Scan,
}

/// What a log holds, without a change to it; `None` if there is none.
pub(crate) fn look(dir: &Path, owner: Owner) -> Result<Option<Memory>, LogError> {
    Ok(read_all(dir, owner, &RealDisk)?.map(|all| all.replay.memory))
}

fn read_all(dir: &Path, owner: Owner, disk: &dyn Disk) -> Result<Option<AllRead>, LogError> {
    let io = |source| LogError::Io { dir: dir.to_owned(), source };
    let segments = segment::list(dir).map_err(io)?;
    let Some(((last, last_path), closed_segments)) = segments.split_last() else {
        return Ok(None);
    };
    let mut replay = Replay::default();
    let mut closed = VecDeque::new();
    let mut expected = segments[0].0;
    for (sequence, path) in closed_segments {
        disk.before(Step::Read, path).map_err(io)?;
        let scan = scan(path, *sequence, expected, owner, &mut replay).map_err(|e| e.or_io(dir))?;
        if !scan.sealed {
            return Err(damaged(
                path,
                scan.end,
                "a segment that is not the last one does not end with its seal",
            ));
        }
        closed.push_back(Closed { sequence: *sequence, index_max: scan.index_max });
        expected = sequence + 1;
    }
    disk.before(Step::Read, last_path).map_err(io)?;
    let scan = scan(last_path, *last, expected, owner, &mut replay).map_err(|e| e.or_io(dir))?;
    replay.check_joined(last_path, scan.end)?;
    Ok(Some(AllRead { replay, closed, last: (*last, last_path.clone()), scan }))
}

/// Reads all segments of a directory, and cuts off what a crash left half-written; `None` if there are none.
pub(crate) fn recover(dir: &Path, owner: Owner, disk: &dyn Disk) -> Result<Option<Recovered>, LogError> {
    let io = |source| LogError::Io { dir: dir.to_owned(), source };
    let Some(AllRead { replay, closed, last: (last, last_path), scan }) = read_all(dir, owner, disk)? else {
        return Ok(None);
    };
    let file = OpenOptions::new().read(true).write(true).open(&last_path).map_err(io)?;
    if scan.dirty {
        tracing::warn!(file = %last_path.display(), offset = scan.end, "cut a torn write off the log's end");
        cut(&file, scan.end, scan.size, disk).map_err(io)?;
    }
    Ok(Some(Recovered {
        memory: replay.memory,
        closed,
        active: Active { file, sequence: last, end: scan.end, index_max: scan.index_max },
        size: scan.size,
        sealed: scan.sealed,
    }))
}

/// Zeros all behind `end`, so that a stale record never follows a new one.
fn cut(file: &File, end: usize, size: u64, disk: &dyn Disk) -> io::Result<()> {
    let zeros = vec![0; (size as usize).saturating_sub(end)];
    file.write_all_at(&zeros, end as u64)?;
    disk.sync(file)
}

enum ScanError {
    Io(io::Error),
    Log(LogError),
}

impl ScanError {
    fn or_io(self, dir: &Path) -> LogError {
        match self {
            Self::Io(source) => LogError::Io { dir: dir.to_owned(), source },
            Self::Log(error) => error,
        }
    }
}

fn damaged(file: &Path, offset: usize, what: &str) -> LogError {
    LogError::Damaged { file: file.to_owned(), offset: offset as u64, what: what.to_owned() }
}

struct Scan {
    end: usize,
    size: u64,
    sealed: bool,
    /// There are bytes behind the end.
    dirty: bool,
    index_max: Option<u64>,
}

fn scan(
    path: &Path,
    sequence: u64,
    expected: u64,
    owner: Owner,
    replay: &mut Replay,
) -> Result<Scan, ScanError> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(ScanError::Io)?;
    let header = check_header(path, &bytes, sequence, owner).map_err(ScanError::Log)?;
    if sequence != expected {
        return Err(ScanError::Log(damaged(path, 0, "the segment before it is missing")));
    }
    let mut offset = SEGMENT_HEADER;
    let mut index_max = None;
    let mut sealed = false;
    while let Some(read) = record::read(&bytes, sequence, offset) {
        if let Record::Entry(entry) = &read.record {
            index_max = index_max.max(Some(entry.log_id.index));
        }
        sealed = read.record == Record::Seal;
        replay.take(read.record).map_err(|what| ScanError::Log(damaged(path, offset, what)))?;
        offset = read.next;
        if sealed {
            break;
        }
    }
    let behind = bytes.get(offset..).unwrap_or_default();
    let dirty = !sealed && behind.iter().any(|byte| *byte != 0);
    if dirty {
        let mut at = offset + record::ALIGN;
        while at < bytes.len() {
            if record::synced_of(&bytes, sequence, at).is_some_and(|synced| synced > offset) {
                return Err(ScanError::Log(damaged(
                    path,
                    offset,
                    "a later record says that this place was durable",
                )));
            }
            at += record::ALIGN;
        }
    }
    Ok(Scan { end: offset, size: header.size, sealed, dirty, index_max })
}

fn check_header(path: &Path, bytes: &[u8], sequence: u64, owner: Owner) -> Result<SegmentHeader, LogError> {
    let header = SegmentHeader::from_bytes(bytes).map_err(|fault| match fault {
        HeaderFault::Damaged => damaged(path, 0, "the header's checksum is wrong"),
        HeaderFault::Format(format) => LogError::Format { file: path.to_owned(), format },
    })?;
    if header.owner != owner {
        return Err(LogError::Foreign {
            file: path.to_owned(),
            host: header.owner.host,
            cluster: header.owner.cluster,
        });
    }
    if header.sequence != sequence || header.size != bytes.len() as u64 {
        return Err(damaged(path, 0, "the header does not fit the file's name or size"));
    }
    Ok(header)
}

/// Records, taken in order.
#[derive(Default)]
struct Replay {
    memory: Memory,
}

impl Replay {
    fn take(&mut self, record: Record) -> Result<(), &'static str> {
        match record {
            Record::Entry(entry) => self.entry(entry)?,
            Record::Vote(vote) => self.memory.vote = Some(vote),
            Record::Committed(id) => self.memory.committed = Some(id),
            Record::TruncateAfter(after) => self.memory.truncate_after(after.as_ref()),
            Record::Purge(id) => self.memory.purge(id),
            Record::Seal => {}
        }
        Ok(())
    }

    fn entry(&mut self, entry: LogEntry) -> Result<(), &'static str> {
        let index = entry.log_id.index;
        if let Some(last) = self.memory.last_entry() {
            if index != last.index + 1 {
                return Err("the log has a gap or an index twice");
            }
            if entry.log_id.leader_id < last.leader_id {
                return Err("the log's term goes back");
            }
        }
        // Entries that were purged later may still stand in a segment that is kept for its newer ones.
        self.memory.insert(entry);
        Ok(())
    }

    /// The entries must follow the purge point without a gap.
    fn check_joined(&self, path: &Path, end: usize) -> Result<(), LogError> {
        let first = self.memory.first_index();
        let want = self.memory.purged.as_ref().map_or(0, |purged| purged.index + 1);
        match first {
            Some(first) if first != want => {
                Err(damaged(path, end, "entries between the purge point and the first one are missing"))
            }
            _ => Ok(()),
        }
    }
}
