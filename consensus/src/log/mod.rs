//! The durable log: segments of checksummed records, one writer thread, everything above the purge point in memory.
//!
//! What this is not: it knows nothing of what entries mean, and it never decides. `record.rs` has every byte.

pub(crate) mod header;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod segment;
pub(crate) mod store;
#[cfg(test)]
mod tests;
pub(crate) mod times;
pub(crate) mod writer;

use crate::disk::Disk;
use header::{Owner, SEGMENT_HEADER};
use queue::Queue;
pub use recover::LogError;
use recover::{Active, Recovered};
use segment::Spares;
use std::collections::VecDeque;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use store::{LogStore, Memory};
use times::FsyncTimes;
pub use times::{DiskPace, fsync_pace};
use writer::Writer;

/// What the log's writer has done since it was opened.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) bytes: AtomicU64,
    pub(crate) fsyncs: AtomicU64,
}

/// How to open a log.
pub(crate) struct LogConfig {
    pub dir: PathBuf,
    pub owner: Owner,
    pub segment_bytes: u64,
    pub disk: Arc<dyn Disk>,
    /// Called once, when the disk has failed.
    pub on_failure: Box<dyn Fn(&io::Error) + Send>,
}

/// An open log, shared by its stores and readers.
pub(crate) struct LogHandle {
    memory: Mutex<Memory>,
    pub(crate) queue: Arc<Queue>,
    spares: Arc<Spares>,
    times: Arc<FsyncTimes>,
    written: Arc<Written>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl LogHandle {
    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        // Nothing panics while it holds this lock half-way.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the disk does; what takes longer than this is slow.
    pub(crate) fn pace(&self, slow_above: Duration) -> DiskPace {
        DiskPace { full: self.is_full(), ..self.times.pace(slow_above) }
    }

    /// Bytes written and fsyncs made since the log was opened.
    pub(crate) fn written(&self) -> (u64, u64) {
        (self.written.bytes.load(Ordering::Relaxed), self.written.fsyncs.load(Ordering::Relaxed))
    }

    /// Whether the disk refused room for the next segment; what is left is for votes.
    pub(crate) fn is_full(&self) -> bool {
        self.spares.is_refused()
    }

    /// Writes what is queued and ends the threads. Blocks for one disk write.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.spares.close();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic of the writer was reported by its dropped callbacks.
            let _ = thread.join();
        }
    }
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.queue.close();
        self.spares.close();
    }
}

/// The file beside the log's directory that says that this host has voted.
pub(crate) fn marker_path(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".voted");
    PathBuf::from(name)
}

/// Opens the log of a directory, or begins one in an empty directory.
///
/// # Errors
/// Damage, another owner's files, a wiped log, or the disk.
pub(crate) fn open(config: LogConfig) -> Result<LogStore, LogError> {
    let LogConfig { dir, owner, segment_bytes, disk, on_failure } = config;
    let io = |source| LogError::Io { dir: dir.clone(), source };
    std::fs::create_dir_all(&dir).map_err(io)?;
    // Jobs' commands and environments stand in it, and the folder above is everybody's to pass (fault S24).
    std::fs::set_permissions(&dir, Permissions::from_mode(0o700)).map_err(io)?;
    let marker = marker_path(&dir);
    let marked = marker.try_exists().map_err(io)?;
    let recovered = match recover::recover(&dir, owner, &*disk)? {
        Some(recovered) => recovered,
        None if marked => return Err(LogError::Wiped { dir, marker }),
        None => fresh(&dir, owner, segment_bytes, &*disk).map_err(io)?,
    };
    let Recovered { memory, closed, active, size, sealed } = recovered;
    let in_line = disk.settled().is_some();
    let spares = Spares::new(&dir, size, disk.clone(), in_line).map_err(io)?;
    let mut threads = Vec::new();
    if !in_line {
        threads.push(spares.start().map_err(io)?);
    }
    let queue = Arc::new(Queue::default());
    let times = Arc::new(FsyncTimes::default());
    let written = Arc::new(Written::default());
    let mut writer = Writer {
        dir: dir.clone(),
        marker,
        marked,
        owner,
        size,
        disk,
        queue: queue.clone(),
        spares: spares.clone(),
        times: times.clone(),
        written: written.clone(),
        on_failure,
        active,
        closed,
        synced: SEGMENT_HEADER,
        vote: memory.vote,
        committed: memory.committed,
        purged: memory.purged,
        buffer: Vec::new(),
    };
    writer.adopt(sealed).map_err(io)?;
    if in_line {
        crate::runtime::spawn(writer.run_as_task());
    } else {
        let builder = std::thread::Builder::new().name("rota-log".into()).stack_size(256 << 10);
        threads.push(builder.spawn(move || writer.run()).map_err(io)?);
    }
    Ok(LogStore(Arc::new(LogHandle {
        memory: Mutex::new(memory),
        queue,
        spares,
        times,
        written,
        threads: Mutex::new(threads),
    })))
}

fn fresh(dir: &Path, owner: Owner, size: u64, disk: &dyn Disk) -> io::Result<Recovered> {
    Ok(Recovered {
        memory: Memory::default(),
        closed: VecDeque::new(),
        active: Active {
            file: segment::create_first(dir, owner, size, disk)?,
            sequence: 1,
            end: SEGMENT_HEADER,
            index_max: None,
        },
        size,
        sealed: false,
    })
}
