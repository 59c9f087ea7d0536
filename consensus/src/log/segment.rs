//! Segment files: their names, how they are made durable, and the thread that keeps a spare one ready.
//!
//! A segment is zero-filled before its first use and recycled afterwards, so that making a record durable never
//! changes the file's size or extents: that is what turns an fsync of several ms into one of a fraction of a ms.

use super::header::{Owner, SegmentHeader};
use crate::disk::{Disk, Step};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the preparing thread rests after the disk refused a new segment.
pub(super) const PREPARE_RETRY: Duration = Duration::from_millis(500);
/// How long the writer waits for a spare that the disk refuses, before it gives up the log.
const SPARE_WAIT: Duration = Duration::from_secs(2);
/// Bytes of zeros written at a time.
const ZEROS: usize = 256 << 10;

/// The file of a segment in use.
pub(crate) fn path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("log-{sequence:020}.seg"))
}

/// The segments of a directory, in order.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let sequence = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix("log-")?.strip_suffix(".seg")?.parse().ok());
        if let Some(sequence) = sequence {
            found.push((sequence, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Gives a prepared file its header and its name; both are durable on return.
pub(crate) fn activate(dir: &Path, spare: &Path, header: SegmentHeader, disk: &dyn Disk) -> io::Result<File> {
    disk.before(Step::Activate, spare)?;
    let file = OpenOptions::new().read(true).write(true).open(spare)?;
    file.write_all_at(&header.to_bytes(), 0)?;
    disk.sync(&file)?;
    std::fs::rename(spare, path(dir, header.sequence))?;
    disk.sync_dir(dir)?;
    Ok(file)
}

/// Makes the first segment of a new log.
pub(crate) fn create_first(dir: &Path, owner: Owner, size: u64, disk: &dyn Disk) -> io::Result<File> {
    let spare = dir.join("spare.seg");
    zero_fill(&spare, size, disk)?;
    activate(dir, &spare, SegmentHeader { sequence: 1, owner, size }, disk)
}

fn zero_fill(path: &Path, size: u64, disk: &dyn Disk) -> io::Result<()> {
    disk.before(Step::Spare, path)?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let zeros = vec![0; ZEROS];
    let mut left = size;
    while left > 0 {
        let piece = left.min(ZEROS as u64) as usize;
        file.write_all(&zeros[..piece])?;
        left -= piece as u64;
    }
    file.sync_all()
}

/// Most spare files that are kept: one for the next segment, one so that a purge is recycled rather than deleted.
const SPARES_MAX: usize = 2;

/// The spare segments, and whether the disk has room for one.
pub(crate) struct Spares {
    dir: PathBuf,
    size: u64,
    disk: Arc<dyn Disk>,
    /// No thread prepares: whoever takes a spare makes it.
    in_line: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Files that are ready for use.
    ready: Vec<PathBuf>,
    /// Files named so far; names are never used twice.
    named: u64,
    /// Why the last try failed; cleared by the next success.
    refusal: Option<(io::ErrorKind, String)>,
    closed: bool,
}

impl State {
    fn name(&mut self, dir: &Path) -> PathBuf {
        self.named += 1;
        dir.join(format!("spare-{}.seg", self.named))
    }
}

impl Spares {
    /// Clears spares of an earlier run.
    pub(crate) fn new(dir: &Path, size: u64, disk: Arc<dyn Disk>, in_line: bool) -> io::Result<Arc<Self>> {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with("spare") {
                std::fs::remove_file(&path)?;
            }
        }
        let (dir, state, changed) = (dir.to_owned(), Mutex::default(), Condvar::new());
        Ok(Arc::new(Self { dir, size, disk, in_line, state, changed }))
    }

    /// Starts the thread that keeps one spare ready.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let own = self.clone();
        let builder = std::thread::Builder::new().name("rota-log-spare".into()).stack_size(128 << 10);
        builder.spawn(move || own.prepare())
    }

    /// Makes one spare if there is none, without the thread. Says whether there is one.
    pub(crate) fn prepare_in_line(&self) -> bool {
        let mut state = self.lock();
        if state.ready.is_empty() {
            let path = state.name(&self.dir);
            match zero_fill(&path, self.size, &*self.disk) {
                Ok(()) => {
                    state.ready.push(path);
                    state.refusal = None;
                }
                Err(error) => {
                    let _ = std::fs::remove_file(&path);
                    state.refusal = Some((error.kind(), error.to_string()));
                }
            }
        }
        !state.ready.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(&self) {
        let mut state = self.lock();
        while !state.closed {
            if !state.ready.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let path = state.name(&self.dir);
            drop(state);
            let made = zero_fill(&path, self.size, &*self.disk);
            state = self.lock();
            match made {
                Ok(()) => {
                    state.ready.push(path);
                    state.refusal = None;
                    self.changed.notify_all();
                }
                Err(error) => {
                    tracing::error!(%error, "cannot prepare a log segment");
                    // A half-written spare holds space that others may need.
                    let _ = std::fs::remove_file(&path);
                    state.refusal = Some((error.kind(), error.to_string()));
                    self.changed.notify_all();
                    let waited = self.changed.wait_timeout(state, PREPARE_RETRY);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Takes a spare; waits for one if none is ready.
    pub(crate) fn take(&self) -> io::Result<PathBuf> {
        if self.in_line {
            self.prepare_in_line();
        }
        let deadline = Instant::now() + SPARE_WAIT;
        let mut state = self.lock();
        loop {
            if let Some(path) = state.ready.pop() {
                self.changed.notify_all();
                return Ok(path);
            }
            let late = self.in_line || Instant::now() >= deadline;
            if let (true, Some((kind, text))) = (late, &state.refusal) {
                return Err(io::Error::new(*kind, text.clone()));
            }
            let waited = self.changed.wait_timeout(state, PREPARE_RETRY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes back a segment that nothing needs any more.
    pub(crate) fn recycle(&self, used: &Path) -> io::Result<()> {
        self.disk.before(Step::Recycle, used)?;
        let mut state = self.lock();
        if state.ready.len() >= SPARES_MAX {
            drop(state);
            return std::fs::remove_file(used);
        }
        let path = state.name(&self.dir);
        std::fs::rename(used, &path)?;
        state.ready.push(path);
        state.refusal = None;
        self.changed.notify_all();
        Ok(())
    }

    /// Whether the disk refused the next segment: what is left is for votes.
    pub(crate) fn is_refused(&self) -> bool {
        let state = self.lock();
        state.ready.is_empty() && state.refusal.is_some()
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}
