//! What a copy of the state is to others: what it hands on to those that follow it, and what it must be by the word of the
//! one that it follows.

use super::{Shared, halt};
use crate::config::LogId;
use crate::follow::Mark;
use crate::snapshot_file::SnapshotFile;
use std::io;
use std::sync::PoisonError;

impl Shared {
    /// The last entry that was applied, and the state there.
    pub(crate) fn standing(&self) -> (Option<LogId>, Mark) {
        let replica = self.replica();
        let mark = Mark { index: replica.state.applied_index(), hash: replica.state.rolling_hash() };
        (replica.last, mark)
    }

    /// What the state must be after the entry of an index, by another copy.
    pub(crate) fn must_become(&self, mark: Option<Mark>) {
        *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }

    /// The snapshot that counts.
    pub(crate) fn current(&self) -> Option<(LogId, SnapshotFile)> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (meta, file) = current.as_ref()?;
        Some((meta.last_log_id?, file.clone()))
    }

    /// Two copies that differ at one index must not both go on (I8).
    pub(super) fn check_expected(&self, index: u64) -> io::Result<()> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mark) = expected.take_if(|mark| mark.index <= index) else { return Ok(()) };
        let hash = self.replica().state.rolling_hash();
        if mark.index == index && mark.hash != hash {
            return Err(halt(format!(
                "this copy of the state is {hash:016x} after the entry at {index}, the one that it follows is {:016x}",
                mark.hash
            )));
        }
        Ok(())
    }
}
