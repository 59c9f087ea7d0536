//! What a parent reads from, and a child writes to. Two kinds: a host's own log and state (`real.rs`), and a log in
//! memory (`light.rs`).

use super::words::{Mark, Standing};
use crate::config::{LogEntry, Vote};
use crate::leadership::Leadership;
use crate::snapshot_file::SnapshotFile;
use crate::watch;
use crate::wire::{Chunk, WireAppend, WireId};
use rota_protocol::ids::HostId;
use std::future::Future;
use std::time::Duration;

/// A copy at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    /// The last entry that was applied.
    pub(crate) applied: Option<WireId>,
    /// The state there.
    pub(crate) mark: Option<Mark>,
    /// Of the newest leader, if one is known.
    pub(crate) vote: Option<Vote>,
    /// How it is fed.
    pub(crate) standing: Standing,
}

/// Why entries were not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// They were cut away.
    Cut,
    /// Another history: the entry before them is not the one that was named.
    Other,
}

/// What came of entries that were handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Took {
    /// They are in.
    All,
    /// They are of an older leader than this copy knows.
    Older,
    /// They are not usable, or there is no room.
    Refused,
}

/// A copy of the committed log.
pub(crate) trait Shelf: Send + Sync + 'static {
    /// As it is now.
    fn shown(&self) -> Shown;

    /// Changes with the applied index, and with the leader.
    fn changes(&self) -> (watch::Receiver<u64>, watch::Receiver<Leadership>);

    /// Entries behind `after` up to `upto`, as many as one message takes.
    fn entries(&self, after: Option<WireId>, upto: WireId) -> Result<Vec<LogEntry>, Missing>;

    /// The newest snapshot.
    fn snapshot(&self) -> Option<(WireId, SnapshotFile)>;

    /// This copy leads: its children are few.
    fn leads(&self) -> bool;

    /// How long this copy need not ask, because others feed it; none if it must.
    fn rest(&self) -> Option<Duration>;

    /// Who can be asked, the best first.
    fn way_up(&self) -> Vec<HostId>;

    /// Takes entries from a parent, and applies them.
    fn take(&self, append: WireAppend, mark: Option<Mark>) -> impl Future<Output = Took> + Send;

    /// Takes a piece of the snapshot with this last entry. Where the next one begins, and whether all is installed; none
    /// if it cannot be used.
    fn take_piece(
        &self,
        from: HostId,
        of: WireId,
        chunk: Chunk,
    ) -> impl Future<Output = Option<(u64, bool)>> + Send;
}
