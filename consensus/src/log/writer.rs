//! The one thread that writes the log. What queued up during a disk write goes out together: one write, one fsync,
//! then all callbacks. The order of jobs is the order in the file.
//!
//! An error of the disk ends the log for good. An fsync that failed is never tried again: the kernel may have
//! dropped the pages, and a second try would lie.

use super::Written;
use super::header::{Owner, SEGMENT_HEADER, SegmentHeader};
use super::queue::{Job, Queue};
use super::record::{self, Place, Record, record_bytes};
use super::recover::{Active, Closed};
use super::segment::{self, Spares};
use super::times::FsyncTimes;
use crate::config::{LogId, Rota, Vote};
use crate::disk::{Disk, Step};
use openraft::storage::IOFlushed;
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// The writer's own state.
pub(crate) struct Writer {
    pub dir: PathBuf,
    pub marker: PathBuf,
    pub marked: bool,
    pub owner: Owner,
    pub size: u64,
    pub disk: Arc<dyn Disk>,
    pub queue: Arc<Queue>,
    pub spares: Arc<Spares>,
    pub times: Arc<FsyncTimes>,
    pub written: Arc<Written>,
    pub on_failure: Box<dyn Fn(&io::Error) + Send>,
    pub active: Active,
    pub closed: VecDeque<Closed>,
    /// Offset below which the active segment is durable.
    pub synced: usize,
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    pub purged: Option<LogId>,
    /// Records that wait for one write; they belong at `active.end`.
    pub buffer: Vec<u8>,
}

/// Who waits for a batch to be durable.
enum Waiter {
    Append(IOFlushed<Rota>),
    Vote(oneshot::Sender<io::Result<()>>),
}

impl Writer {
    /// Takes over what was recovered. A sealed last segment is left behind at the first write.
    pub(crate) fn adopt(&mut self, recovered_sealed: bool) -> io::Result<()> {
        self.synced = self.active.end;
        if recovered_sealed {
            self.open_next()?;
            self.flush()?;
            self.make_durable()?;
        }
        Ok(())
    }

    /// Runs until the queue is closed.
    pub(crate) fn run(mut self) {
        loop {
            let taken = self.queue.take();
            let mut waiters = Vec::with_capacity(taken.jobs.len());
            let written = self.write(taken.jobs, taken.committed, &mut waiters);
            if self.tell(&written, waiters) || taken.closed {
                break;
            }
        }
    }

    /// The same as a task, for a simulated disk: what was written counts when the disk has taken its time.
    pub(crate) async fn run_as_task(mut self) {
        loop {
            let refused = !self.spares.prepare_in_line();
            let taken = tokio::select! {
                biased;
                taken = self.queue.taken() => taken,
                () = tokio::time::sleep(segment::PREPARE_RETRY), if refused => continue,
            };
            let mut waiters = Vec::with_capacity(taken.jobs.len());
            let mut written = self.write(taken.jobs, taken.committed, &mut waiters);
            if let (Ok(()), Some(settled)) = (&written, self.disk.settled()) {
                self.times.begin();
                written = settled.await;
                self.times.end();
            }
            if self.tell(&written, waiters) || taken.closed {
                break;
            }
        }
    }

    /// Tells everybody what came of a write; true if it was the last one.
    fn tell(&self, written: &io::Result<()>, waiters: Vec<Waiter>) -> bool {
        if let Err(error) = written {
            tracing::error!(%error, "the log's disk failed, this peer takes no further part");
            self.queue.fail(error);
            (self.on_failure)(error);
        }
        for waiter in waiters {
            let result = match written {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            match waiter {
                Waiter::Append(done) => done.io_completed(result),
                // The core may have been shut down meanwhile.
                Waiter::Vote(done) => drop(done.send(result)),
            }
        }
        written.is_err()
    }

    fn write(
        &mut self,
        jobs: Vec<Job>,
        committed: Option<LogId>,
        waiters: &mut Vec<Waiter>,
    ) -> io::Result<()> {
        let durable = !jobs.is_empty();
        let mut purge = false;
        let mut outcome = Ok(());
        for job in jobs {
            // Every waiter is kept, also behind a failure: each must hear of it.
            let records = match job {
                Job::Append { entries, done, .. } => {
                    waiters.push(Waiter::Append(done));
                    entries.into_iter().map(Record::Entry).collect()
                }
                Job::Vote { vote, done } => {
                    waiters.push(Waiter::Vote(done));
                    vec![Record::Vote(vote)]
                }
                Job::Truncate(after) => vec![Record::TruncateAfter(after)],
                Job::Purge(upto) => {
                    purge = true;
                    vec![Record::Purge(upto)]
                }
            };
            for record in records {
                if outcome.is_ok() {
                    outcome = self.put(record);
                }
            }
        }
        outcome?;
        if let Some(committed) = committed {
            self.put(Record::Committed(committed))?;
        }
        self.flush()?;
        if durable {
            self.make_durable()?;
        }
        if purge {
            self.drop_purged()?;
        }
        Ok(())
    }

    fn put(&mut self, record: Record) -> io::Result<()> {
        if let Some(step) = step_of(&record) {
            self.disk.before(step, &self.dir)?;
        }
        if !self.marked && matches!(record, Record::Vote(_) | Record::Entry(_)) {
            self.mark()?;
        }
        let payload = match &record {
            Record::Entry(entry) => record::entry_payload_bytes(entry),
            _ => 17,
        };
        let need = record_bytes(payload);
        if self.active.end + self.buffer.len() + need + record_bytes(0) > self.size as usize {
            self.next_segment()?;
            if self.active.end + self.buffer.len() + need + record_bytes(0) > self.size as usize {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("a log record of {need} bytes is larger than a segment"),
                ));
            }
        }
        match &record {
            Record::Entry(entry) => {
                self.active.index_max = self.active.index_max.max(Some(entry.log_id.index));
            }
            Record::Vote(vote) => self.vote = Some(*vote),
            Record::Committed(id) => self.committed = Some(*id),
            Record::Purge(id) => self.purged = self.purged.take().max(Some(*id)),
            Record::TruncateAfter(_) | Record::Seal => {}
        }
        self.push(&record);
        Ok(())
    }

    fn push(&mut self, record: &Record) {
        let place = Place {
            sequence: self.active.sequence,
            offset: self.active.end + self.buffer.len(),
            synced: self.synced,
        };
        record::write(&mut self.buffer, place, record);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.active.file.write_all_at(&self.buffer, self.active.end as u64)?;
        self.active.end += self.buffer.len();
        self.written.bytes.fetch_add(self.buffer.len() as u64, Ordering::Relaxed);
        self.buffer.clear();
        Ok(())
    }

    fn make_durable(&mut self) -> io::Result<()> {
        self.times.begin();
        self.disk.sync(&self.active.file)?;
        self.times.end();
        self.written.fsyncs.fetch_add(1, Ordering::Relaxed);
        self.synced = self.active.end;
        Ok(())
    }

    /// Seals the active segment and goes on in a new one, which begins with all that older ones said besides entries.
    fn next_segment(&mut self) -> io::Result<()> {
        self.push(&Record::Seal);
        self.flush()?;
        self.make_durable()?;
        self.open_next()
    }

    fn open_next(&mut self) -> io::Result<()> {
        let spare = self.spares.take()?;
        let header = SegmentHeader { sequence: self.active.sequence + 1, owner: self.owner, size: self.size };
        let file = segment::activate(&self.dir, &spare, header, &*self.disk)?;
        let next = Active { file, sequence: header.sequence, end: SEGMENT_HEADER, index_max: None };
        let old = std::mem::replace(&mut self.active, next);
        self.closed.push_back(Closed { sequence: old.sequence, index_max: old.index_max });
        self.synced = SEGMENT_HEADER;
        let carried = [
            self.purged.map(Record::Purge),
            self.vote.map(Record::Vote),
            self.committed.map(Record::Committed),
        ];
        for record in carried.iter().flatten() {
            self.push(record);
        }
        Ok(())
    }

    /// Gives up the oldest segments whose entries are all purged. The purge is durable by now.
    fn drop_purged(&mut self) -> io::Result<()> {
        let purged = self.purged.as_ref().map(|id| id.index);
        let mut dropped = false;
        while self.closed.front().is_some_and(|segment| segment.index_max <= purged) {
            if let Some(segment) = self.closed.pop_front() {
                self.spares.recycle(&segment::path(&self.dir, segment.sequence))?;
                dropped = true;
            }
        }
        if dropped {
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(())
    }

    /// Leaves word beside the log's directory that this host has voted, before it first does.
    fn mark(&mut self) -> io::Result<()> {
        self.disk.before(Step::Mark, &self.marker)?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&self.marker)?;
        let text = format!("host {} of cluster {} has voted\n", self.owner.host, self.owner.cluster);
        file.write_all_at(text.as_bytes(), 0)?;
        self.disk.sync(&file)?;
        if let Some(parent) = self.marker.parent() {
            self.disk.sync_dir(parent)?;
        }
        self.marked = true;
        Ok(())
    }
}

/// What the disk calls the writing of a record; a commit index and a seal are of no use by themselves.
fn step_of(record: &Record) -> Option<Step> {
    match record {
        Record::Entry(_) => Some(Step::Append),
        Record::Vote(_) => Some(Step::Vote),
        Record::TruncateAfter(_) => Some(Step::Truncate),
        Record::Purge(_) => Some(Step::Purge),
        Record::Committed(_) | Record::Seal => None,
    }
}
