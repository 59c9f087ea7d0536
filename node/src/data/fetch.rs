//! One blob is fetched from whichever hosts have it: in pieces, a few on their way at once, hashed as they come. A source
//! that breaks off is followed by another, which goes on where it stopped; if the hash of all is wrong nothing of it is
//! kept, and the source that gave it is asked to look at its own and left out for a while. Where several gave it nobody
//! can be blamed: from then on each source gives all of it or nothing.

use super::sources::{BROKE_FOR, Found, Peers, Source, WRONG_FOR};
use super::store::{Incoming, KeepError};
use super::{Claim, Data, Failure, Flight, lock, on_disk};
use crate::io::clock;
use crate::logic::shelf::{Kept, Wanted};
use crate::meters;
use futures_util::{StreamExt, stream};
use rota_protocol::data::{BlobAsk, BlobNews};
use rota_protocol::ids::{HostId, JobId};
use rota_protocol::limits::BLOB_PIECE_BYTES_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pieces on their way at once: enough for a fast network, and two megabytes of memory.
const PIECES_AT_ONCE: usize = 4;
/// How long a source may take for one piece.
const PIECE: Duration = Duration::from_secs(5);
/// First pause before another look for a source; it doubles up to the other.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
const PIECE_BYTES: u64 = BLOB_PIECE_BYTES_MAX as u64;

/// What has come so far.
struct Partial {
    incoming: Incoming,
    claim: Claim,
    source: Source,
    from: BTreeSet<HostId>,
}

/// How a source did.
enum Pulled {
    /// All bytes are there.
    All(Partial),
    /// It broke off.
    Broke(Partial, String),
}

/// Starts a fetch that all who want it wait for.
pub(super) fn begin(data: &Arc<Data>, peers: &Peers, wanted: Wanted, job: JobId) {
    let (own, peers, of) = (Arc::clone(data), peers.clone(), wanted.clone());
    let shelf = lock(&data.shelf);
    // Whoever wanted it may have given up meanwhile.
    if !shelf.is_fetched(&wanted) {
        return;
    }
    let (mut flights, number) = (lock(&data.flights), rand::random());
    let task = tokio::spawn(async move {
        let trouble = String::new();
        let result = Fetch { data: &own, peers: &peers, wanted: &of, job, whole: false, trouble }.run().await;
        settle(&own, &of, number, result);
    });
    let standing = format!("looking for {}", wanted.0);
    flights.insert(wanted, Flight { number, task: task.abort_handle(), standing });
}

/// Whoever waits is told. Those for whom it came hold it already; a later fetch of the same is another's business.
fn settle(data: &Data, wanted: &Wanted, number: u64, result: Result<(), Failure>) {
    let waiting = {
        let (mut shelf, mut flights) = (lock(&data.shelf), lock(&data.flights));
        if flights.get(wanted).is_none_or(|flight| flight.number != number) {
            return;
        }
        flights.remove(wanted);
        shelf.fetch_over(wanted)
    };
    if let Err(failure) = result {
        tracing::info!(blob = %wanted.0, reason = failure.reason, "inputs cannot be had");
        lock(&data.failures).extend(waiting.into_iter().map(|token| (token, failure.clone())));
    }
    data.changed.notify_waiters();
}

struct Fetch<'a> {
    data: &'a Arc<Data>,
    peers: &'a Peers,
    wanted: &'a Wanted,
    job: JobId,
    /// Each source gives all of it.
    whole: bool,
    /// What went wrong with sources, for people.
    trouble: String,
}

impl Fetch<'_> {
    async fn run(mut self) -> Result<(), Failure> {
        let blob = self.wanted.0;
        let (mut moved, mut pause, mut partial) = (Instant::now(), PAUSE_MIN, None);
        loop {
            match self.peers.find(&self.data.doubts, blob, self.job).await {
                Found::Source(source) => {
                    pause = PAUSE_MIN;
                    let begun = self.begin_with(partial.take(), source).await?;
                    let before = begun.incoming.bytes();
                    match self.pull(begun).await? {
                        Pulled::All(all) => {
                            if self.keep(all).await? {
                                return Ok(());
                            }
                        }
                        Pulled::Broke(rest, why) => {
                            let (host, name) = (rest.source.host, &rest.source.name);
                            tracing::info!(%blob, source = name, why, "a source of inputs broke off");
                            self.data.doubts.leave_out(blob, host, BROKE_FOR);
                            self.trouble = format!(" ({name} broke off: {why})");
                            if rest.incoming.bytes() > before {
                                moved = Instant::now();
                            }
                            partial = Some(rest).filter(|_| !self.whole);
                        }
                    }
                }
                Found::Nobody { asked_all } => {
                    let text = match asked_all {
                        true => format!("no host has {blob}; add it with `rota data add FILE`"),
                        false => format!("no host that can be asked just now has {blob}"),
                    };
                    let reason = format!("{text}{}", self.trouble);
                    if moved.elapsed() >= self.data.patience {
                        return Err(Failure { nowhere: asked_all, reason });
                    }
                    self.stands(reason);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            if moved.elapsed() >= self.data.patience.saturating_mul(2) {
                return Err(Failure::here(format!("{blob} cannot be had{}", self.trouble)));
            }
        }
    }

    /// Goes on with what came from others, if it can be the same, or begins.
    async fn begin_with(&self, partial: Option<Partial>, source: Source) -> Result<Partial, Failure> {
        if let Some(mut partial) = partial.filter(|partial| partial.source.bytes == source.bytes) {
            partial.source = source;
            return Ok(partial);
        }
        let claim = self.room(source.bytes).await?;
        let store = self.data.store.clone();
        let incoming = on_disk(move || store.begin()).await.map_err(no_disk)?;
        Ok(Partial { incoming, claim, source, from: BTreeSet::new() })
    }

    /// Room for so many bytes, after a while.
    async fn room(&self, bytes: u64) -> Result<Claim, Failure> {
        let blob = self.wanted.0;
        let until = Instant::now() + self.data.patience;
        loop {
            let mut changed = std::pin::pin!(self.data.changed.notified());
            changed.as_mut().enable();
            let no_room = match Claim::take(self.data, bytes) {
                Ok(claim) => return Ok(claim),
                Err(no_room) => no_room,
            };
            let (bytes_max, free) = (lock(&self.data.shelf).bytes_max(), no_room.bytes_free);
            let text = match no_room.never {
                true => format!("{blob} has {bytes} bytes, more than this host's cache of {bytes_max}"),
                false => format!(
                    "the cache is full: {blob} has {bytes} bytes, and of {bytes_max} all but {free} are held by tasks or pinned"
                ),
            };
            self.stands(text.clone());
            if no_room.never || tokio::time::timeout_at(until, changed).await.is_err() {
                return Err(Failure::here(text));
            }
        }
    }

    /// Takes from a source what is missing.
    async fn pull(&self, mut partial: Partial) -> Result<Pulled, Failure> {
        let (blob, job) = (self.wanted.0, self.job);
        let Source { host, bytes: total, name, .. } = partial.source.clone();
        let first = partial.incoming.bytes();
        let offsets =
            std::iter::successors(Some(first), |at| Some(at + PIECE_BYTES)).take_while(|at| *at < total);
        let pieces = offsets.map(|offset| {
            let bytes = PIECE_BYTES.min(total - offset);
            let ask = BlobAsk::Read { blob, job, offset, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) };
            async move { (bytes, self.peers.ask(host, ask, PIECE).await) }
        });
        let mut pieces = std::pin::pin!(stream::iter(pieces).buffered(PIECES_AT_ONCE));
        while let Some((wanted, answer)) = pieces.next().await {
            let piece = match answer {
                Ok(BlobNews::Piece { bytes }) if bytes.len() as u64 == wanted => bytes,
                Ok(BlobNews::Absent) => return Ok(Pulled::Broke(partial, "it has it no more".to_owned())),
                Ok(_) => return Ok(Pulled::Broke(partial, "a piece of another length".to_owned())),
                Err(why) => return Ok(Pulled::Broke(partial, why)),
            };
            let Partial { mut incoming, claim, source, mut from } = partial;
            let count = piece.len() as u64;
            incoming = on_disk(move || incoming.write(&piece).map(|()| incoming)).await.map_err(no_disk)?;
            from.insert(host);
            lock(&self.data.counts).fetched_bytes += count;
            metrics::counter!(meters::INPUTS_FETCHED_BYTES).increment(count);
            self.stands(format!("fetching {blob} from {name}: {} of {total} bytes", incoming.bytes()));
            partial = Partial { incoming, claim, source, from };
        }
        Ok(Pulled::All(partial))
    }

    /// Checks and keeps it; false if it was something else, and nothing of it is left.
    async fn keep(&mut self, all: Partial) -> Result<bool, Failure> {
        let (blob, tenant) = self.wanted.clone();
        let Partial { incoming, claim, source, from } = all;
        let kept = Kept {
            bytes: source.bytes,
            owners: BTreeMap::from([(tenant, false)]),
            public: source.public,
            used_ms: clock::wall_ms(),
            ..Kept::default()
        };
        let store = self.data.store.clone();
        // Goes on to its end also if nobody waits for it any more: a file is under its name only with the shelf knowing.
        let done = tokio::task::spawn_blocking(move || {
            let ready = store.ready(incoming, blob, kept)?;
            claim.fulfil(ready).map_err(KeepError::Io)
        });
        match done.await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(KeepError::OtherHash(found))) => {
                self.data.refused();
                self.trouble = format!(" (the bytes of {} had another hash)", source.name);
                tracing::error!(%blob, %found, source = source.name, "bytes with another hash came: thrown away");
                match from.len() {
                    0 | 1 => {
                        self.data.doubts.leave_out(blob, source.host, WRONG_FOR);
                        let ask = BlobAsk::Doubt { blob, job: self.job };
                        // Its own business what it makes of it.
                        let _ = self.peers.ask(source.host, ask, PIECE).await;
                    }
                    _ => self.whole = true,
                }
                Ok(false)
            }
            Ok(Err(KeepError::Io(error))) => Err(no_disk(error)),
            Err(error) => Err(Failure::here(error.to_string())),
        }
    }

    fn stands(&self, standing: String) {
        if let Some(flight) = lock(&self.data.flights).get_mut(self.wanted) {
            flight.standing = standing;
        }
    }
}

fn no_disk(error: std::io::Error) -> Failure {
    Failure::here(format!("this host's cache cannot be written: {error}"))
}

#[cfg(test)]
#[path = "tests/fetch.rs"]
mod tests;
