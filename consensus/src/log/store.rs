//! The log as openraft sees it: everything above the purge point in memory, every change through the writer.

use super::LogHandle;
use super::queue::{Job, Queue};
use super::record;
use crate::config::{APPEND_BYTES_MAX, LogEntry, LogId, Rota, Vote};
use crate::follow::Missing;
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

/// What is in memory of a log.
#[derive(Default)]
pub(crate) struct Memory {
    entries: BTreeMap<u64, LogEntry>,
    /// Bytes of all entries.
    bytes: usize,
    pub purged: Option<LogId>,
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
}

impl Memory {
    pub(crate) fn insert(&mut self, entry: LogEntry) {
        self.bytes += weight(&entry);
        if let Some(old) = self.entries.insert(entry.log_id.index, entry) {
            self.bytes -= weight(&old);
        }
    }

    pub(crate) fn truncate_after(&mut self, after: Option<&LogId>) {
        let cut = self.entries.split_off(&after.map_or(0, |id| id.index + 1));
        self.bytes -= cut.values().map(weight).sum::<usize>();
    }

    pub(crate) fn purge(&mut self, upto: LogId) {
        let kept = self.entries.split_off(&(upto.index + 1));
        let cut = std::mem::replace(&mut self.entries, kept);
        self.bytes -= cut.values().map(weight).sum::<usize>();
        if self.purged.as_ref() < Some(&upto) {
            self.purged = Some(upto);
        }
    }

    pub(crate) fn first_index(&self) -> Option<u64> {
        self.entries.keys().next().copied()
    }

    /// All entries behind the purge point, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &LogEntry> {
        self.entries.values()
    }

    /// Entries behind one of this term and index, up to an index, as many as one message takes.
    pub(crate) fn behind(&self, after: Option<(u64, u64)>, upto: u64) -> Result<Vec<LogEntry>, Missing> {
        let first = after.map_or(0, |(_, index)| index + 1);
        let known = match after {
            None => None,
            Some((_, index)) => match self.entries.get(&index) {
                Some(entry) => Some(entry.log_id),
                None => self.purged.filter(|purged| purged.index == index),
            },
        };
        match after {
            Some((term, _)) if known.is_some_and(|id| id.leader_id.term != term) => {
                return Err(Missing::Other);
            }
            Some(_) if known.is_none() => return Err(Missing::Cut),
            None if self.purged.is_some() => return Err(Missing::Cut),
            _ => {}
        }
        let mut bytes = 0;
        let mut entries = Vec::new();
        for entry in self.entries.range(first..upto.saturating_add(1).max(first)).map(|(_, entry)| entry) {
            bytes += weight(entry);
            if bytes > APPEND_BYTES_MAX && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    pub(crate) fn last_entry(&self) -> Option<&LogId> {
        self.entries.values().next_back().map(|entry| &entry.log_id)
    }

    /// The last entry, or where the log was cut.
    pub(crate) fn last(&self) -> Option<&LogId> {
        self.last_entry().or(self.purged.as_ref())
    }

    /// Whether this very entry is in memory, or the last one that was cut.
    pub(crate) fn holds(&self, id: &LogId) -> bool {
        self.purged.as_ref() == Some(id)
            || self.entries.get(&id.index).is_some_and(|entry| entry.log_id == *id)
    }

    /// Term, index and checksum of entries from an index on.
    pub(crate) fn checksums_from(&self, index: u64) -> Vec<((u64, u64), u32)> {
        let entries = self.entries.range(index..);
        entries
            .map(|(index, entry)| ((entry.log_id.leader_id.term, *index), record::checksum_of(entry)))
            .collect()
    }

    /// Bytes of all entries that are in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory that an entry takes, with its place in the map.
fn weight(entry: &LogEntry) -> usize {
    record::entry_payload_bytes(entry) + 96
}

/// A handle on the log; clones share it.
#[derive(Clone)]
pub(crate) struct LogStore(pub(crate) Arc<LogHandle>);

impl LogStore {
    fn queue(&self) -> &Queue {
        &self.0.queue
    }
}

impl RaftLogReader<Rota> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<LogEntry>, io::Error> {
        Ok(self.0.memory().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.0.memory().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<LogEntry>, io::Error> {
        let memory = self.0.memory();
        let mut entries = Vec::new();
        let mut bytes = 0;
        for entry in memory.entries.range(start..end).map(|(_, entry)| entry) {
            bytes += weight(entry);
            if bytes > APPEND_BYTES_MAX && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }
}

impl RaftLogStorage<Rota> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Rota>, io::Error> {
        let memory = self.0.memory();
        Ok(LogState {
            last_purged_log_id: memory.purged,
            last_log_id: memory.last_entry().cloned().or_else(|| memory.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let (done, durable) = tokio::sync::oneshot::channel();
        self.queue().push(Job::Vote { vote: *vote, done })?;
        durable
            .await
            .map_err(|_| io::Error::other("the log's writer ended before the vote was durable"))??;
        self.0.memory().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(committed) = committed {
            self.queue().committed(committed);
            self.0.memory().committed = Some(committed);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.0.memory().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Rota>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<LogEntry> = entries.into_iter().collect();
        let bytes = entries.iter().map(weight).sum();
        self.queue().room().await;
        {
            let mut memory = self.0.memory();
            for entry in &entries {
                memory.insert(entry.clone());
            }
        }
        self.queue().push(Job::Append { entries, bytes, done: callback })
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        self.0.memory().truncate_after(last_log_id.as_ref());
        self.queue().push(Job::Truncate(last_log_id))
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        self.0.memory().purge(log_id);
        self.queue().push(Job::Purge(log_id))
    }
}
