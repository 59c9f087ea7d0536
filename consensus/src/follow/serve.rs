//! A parent's side: what was committed, to whoever asks and is not one too many. A question waits here until there is
//! something new, so that news need one way, not two.

use super::shelf::{Missing, Shelf, Shown};
use super::words::{Answer, Ask};
use crate::config::{CHUNK_BYTES, Rota};
use crate::handing::Handing;
use crate::inbound::{internal, invalid};
use crate::runtime::blocking;
use crate::snapshot_file::SnapshotFile;
use crate::wire::{self, Chunk, WireAppend, WireId, plain_id, wire_id};
use openraft::raft::AppendEntriesRequest;
use rota_protocol::PublicError;
use rota_protocol::ids::HostId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Children that a parent serves: its own, and those of others that died, two layers deep.
const CHILDREN_MAX: usize = super::FAN_OUT * 4;
/// Children of the leader, which is asked where nobody else can be.
const LEADER_CHILDREN_MAX: usize = super::FAN_OUT / 2;
/// A child that has not asked for this long is none any more.
const CHILD_TIME: Duration = Duration::from_secs(5);
/// Longest that a question waits.
const WAIT_MS_MAX: u32 = 5_000;

#[derive(Debug)]
struct Child {
    asked: Instant,
    /// The snapshot that it is given: it stays the same until it is whole.
    snapshot: Option<(WireId, SnapshotFile)>,
}

/// Serves a shelf.
pub(crate) struct Server<S> {
    shelf: Arc<S>,
    children: Mutex<BTreeMap<HostId, Child>>,
    handing: Arc<Handing>,
}

impl<S: Shelf> Server<S> {
    pub(crate) fn new(shelf: Arc<S>, handing: Arc<Handing>) -> Self {
        Self { shelf, children: Mutex::default(), handing }
    }

    fn children(&self) -> MutexGuard<'_, BTreeMap<HostId, Child>> {
        // Each change is one call.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many hosts ask this one.
    pub(crate) fn count(&self) -> usize {
        self.children().values().filter(|child| child.asked.elapsed() < CHILD_TIME).count()
    }

    /// Answers a follower.
    pub(crate) async fn answer(&self, from: HostId, body: &[u8]) -> Result<Vec<u8>, PublicError> {
        let ask: Ask = wire::decode(body).map_err(invalid)?;
        let answer = match ask {
            _ if !self.has_room_for(from) => Answer::Full,
            Ask::Entries { after, term, wait_ms } => {
                self.entries(from, after, term, Duration::from_millis(wait_ms.min(WAIT_MS_MAX).into())).await
            }
            Ask::Piece { of, offset } => self.piece(from, of, offset).await?,
        };
        Ok(wire::encode(&answer))
    }

    fn has_room_for(&self, from: HostId) -> bool {
        let limit = if self.shelf.leads() { LEADER_CHILDREN_MAX } else { CHILDREN_MAX };
        let mut children = self.children();
        if !children.contains_key(&from) {
            children.retain(|_, child| child.asked.elapsed() < CHILD_TIME);
            if children.len() >= limit {
                return false;
            }
        }
        let child = children.entry(from).or_insert(Child { asked: Instant::now(), snapshot: None });
        child.asked = Instant::now();
        true
    }

    async fn entries(&self, from: HostId, after: Option<WireId>, term: u64, wait: Duration) -> Answer {
        let until = Instant::now() + wait;
        let (mut applied, mut leadership) = self.shelf.changes();
        loop {
            applied.mark_unchanged();
            leadership.mark_unchanged();
            let shown = self.shelf.shown();
            if let Some(answer) = self.now(after, term, &shown) {
                return answer;
            }
            let news = async {
                tokio::select! {
                    biased;
                    changed = applied.changed() => changed,
                    changed = leadership.changed() => changed,
                }
            };
            if !matches!(timeout_at(until, news).await, Ok(Ok(()))) {
                if let Some(child) = self.children().get_mut(&from) {
                    child.asked = Instant::now();
                }
                return Answer::Nothing(self.shelf.shown().standing);
            }
        }
    }

    /// The answer, if there is something to say.
    fn now(&self, after: Option<WireId>, term: u64, shown: &Shown) -> Option<Answer> {
        let standing = shown.standing;
        // While nobody leads nothing new is committed; an empty copy has nothing to give.
        let (upto, vote) = shown.applied.zip(shown.vote)?;
        if after.is_some_and(|after| after.index > upto.index) {
            return Some(Answer::Behind(standing));
        }
        let entries = match self.shelf.entries(after, upto) {
            Ok(entries) => entries,
            Err(Missing::Cut) => return Some(Answer::Gap(standing)),
            Err(Missing::Other) => return Some(Answer::Behind(standing)),
        };
        if entries.is_empty() && vote.leader_id.term <= term {
            return None;
        }
        let last = entries.last().map(|entry| wire_id(&entry.log_id)).or(after);
        let mark = shown.mark.filter(|mark| Some(mark.index) == last.map(|last| last.index));
        let append = WireAppend::from(AppendEntriesRequest::<Rota> {
            vote,
            prev_log_id: after.map(plain_id),
            entries,
            leader_commit: last.map(plain_id),
        });
        Some(Answer::Entries { append, mark, standing })
    }

    async fn piece(&self, from: HostId, of: Option<WireId>, offset: u64) -> Result<Answer, PublicError> {
        let shown = self.shelf.shown();
        let Some(vote) = shown.vote else {
            return Ok(Answer::Behind(shown.standing));
        };
        let held = self.children().get(&from).and_then(|child| child.snapshot.clone());
        let held = held.filter(|(id, _)| of == Some(*id));
        let Some((id, file)) = held.or_else(|| self.shelf.snapshot()) else {
            return Ok(Answer::Behind(shown.standing));
        };
        // Another one than was begun: from its beginning.
        let offset = if of == Some(id) { offset } else { 0 };
        let whole = offset >= file.bytes;
        self.handing.piece(from);
        if let Some(child) = self.children().get_mut(&from) {
            child.snapshot = (!whole).then(|| (id, file.clone()));
        }
        let (total, reader) = (file.bytes, file);
        let piece = blocking(move || reader.piece(offset, CHUNK_BYTES)).await;
        let piece = piece.map_err(internal)?.map_err(internal)?;
        let chunk = Chunk::new(&vote, total, offset, piece);
        Ok(Answer::Piece { of: id, chunk, standing: shown.standing })
    }
}
