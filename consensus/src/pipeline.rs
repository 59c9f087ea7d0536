//! Entries on their way to one follower: several calls at once, answers in the order of the calls. While a follower's
//! disk works on one, the next already crosses the network.
//!
//! Each call has a stream of its own, so they may overtake one another. The receiver sets that right by [`Turn`]: what
//! came too early waits a moment for what is before it. Should that not come, raft itself refuses the gap. The sender
//! knows such a refusal by the acknowledgement that came before it, keeps it from raft, which would take it for a log
//! that went back, and begins again from where they agree.
//!
//! A commit is told by the next entries; where none follow, a message tells it by itself. While entries stream, that
//! message waits a moment for entries to take its place.

use crate::config::{LogEntry, LogId, Rota};
use crate::watch;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use openraft::errors::{NetworkError, RPCError};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult};
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Calls with entries that are under way to one follower: with one, an entry that just missed it waits for a whole
/// round; more than these only make them smaller.
const APPENDS_INFLIGHT_MAX: usize = 3;
/// How long entries that came too early wait for those before them: calls sent one after the other arrive within this.
const EARLY_WAIT: Duration = Duration::from_millis(20);

/// Entries that follow one another within this are a stream of them.
const STREAM_GAP: Duration = Duration::from_millis(4);
/// From so many on: what a job or two makes is told at once.
const STREAM_ENTRIES: u32 = 8;
/// How long what only tells of a commit then waits for company.
const COMMIT_LINGER: Duration = Duration::from_millis(1);

type Answered = Result<StreamAppendResult<Rota>, RPCError<Rota>>;

/// Sends requests by `call` and gives their results in order, until the input ends or one did not take all that it
/// was sent.
pub(crate) fn stream<'s, S, F, Fut>(requests: S, mut call: F) -> BoxStream<'s, Answered>
where
    S: Stream<Item = AppendEntriesRequest<Rota>> + Send + 's,
    F: FnMut(AppendEntriesRequest<Rota>) -> Fut + Send + 's,
    Fut: Future<Output = Result<AppendEntriesResponse<Rota>, RPCError<Rota>>> + Send + 's,
{
    let calls = spared(requests).map(move |request| {
        let prev = request.prev_log_id;
        let last = request.entries.last().map(|entry| entry.log_id).or(prev);
        let answer = call(request);
        async move { (prev, last, answer.await) }
    });
    let answers = calls.buffered(APPENDS_INFLIGHT_MAX);
    let begun: (Option<LogId>, _) = (None, Box::pin(answers));
    let results = stream::unfold(Some(begun), |under_way| async move {
        let (acked, mut answers) = under_way?;
        let (prev, last, answer) = answers.next().await?;
        Some(match answer {
            Ok(AppendEntriesResponse::Conflict) if prev.is_some() && prev <= acked => {
                let why = NetworkError::from_string("entries overtook those before them");
                (Err(RPCError::Network(why)), None)
            }
            Ok(answer) => {
                let whole = match &answer {
                    AppendEntriesResponse::PartialSuccess(upto) => *upto == last,
                    _ => true,
                };
                let result = answer.into_stream_result(prev, last);
                let goes_on = whole && result.is_ok();
                (Ok(result), goes_on.then_some((last.max(acked), answers)))
            }
            Err(error) => (Err(error), None),
        })
    });
    Box::pin(results)
}

/// Leaves out what only tells of a commit where the next request tells of it as well.
fn spared<'s, S>(requests: S) -> impl Stream<Item = AppendEntriesRequest<Rota>> + Send + 's
where
    S: Stream<Item = AppendEntriesRequest<Rota>> + Send + 's,
{
    let begun = (Box::pin(requests.fuse()), Rate::default());
    stream::unfold(begun, |(mut requests, mut rate)| async move {
        let mut held: Option<(AppendEntriesRequest<Rota>, Instant)> = None;
        loop {
            let request = match held.take() {
                None => requests.next().await?,
                Some((tells, until)) => match timeout_at(until, requests.next()).await {
                    // Made later, so it tells of this commit or a later one.
                    Ok(Some(next)) if next.entries.is_empty() => {
                        held = Some((next, until));
                        continue;
                    }
                    Ok(Some(next)) => next,
                    Ok(None) | Err(_) => return Some((tells, (requests, rate))),
                },
            };
            let now = Instant::now();
            if request.entries.is_empty() && rate.streams(now) {
                held = Some((request, now + COMMIT_LINGER));
                continue;
            }
            if !request.entries.is_empty() {
                rate.count(now);
            }
            return Some((request, (requests, rate)));
        }
    })
}

/// Whether entries stream.
#[derive(Default)]
struct Rate {
    last: Option<Instant>,
    close: u32,
}

impl Rate {
    fn is_close(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.duration_since(last) <= STREAM_GAP)
    }

    fn count(&mut self, now: Instant) {
        self.close = if self.is_close(now) { self.close.saturating_add(1) } else { 0 };
        self.last = Some(now);
    }

    fn streams(&self, now: Instant) -> bool {
        self.close >= STREAM_ENTRIES && self.is_close(now)
    }
}

/// At the receiver: up to which index entries were handed to raft.
pub(crate) struct Turn(watch::Sender<u64>);

impl Turn {
    /// `last` is the last entry of the log.
    pub(crate) fn new(last: Option<&LogId>) -> Self {
        Self(watch::Sender::new(last.map_or(0, |id| id.index)))
    }

    /// Waits until what is before `prev` was handed over, or for a moment. What the log `holds` already waits for nothing:
    /// a new leader looks for where their logs agree, back and forth.
    pub(crate) async fn comes(&self, prev: Option<&LogId>, holds: impl FnOnce(&LogId) -> bool) {
        let Some(before) = prev else { return };
        let prev = before.index;
        if *self.0.borrow() < prev && !holds(before) {
            let mut handed = self.0.subscribe();
            // Late or never: raft says what it makes of the gap.
            let _ = timeout(EARLY_WAIT, handed.wait_for(|upto| *upto >= prev)).await;
        }
    }

    /// These were handed over.
    pub(crate) fn handed(&self, last: Option<u64>) {
        if let Some(last) = last {
            self.0.send_replace(last);
        }
    }
}

/// Index of the last of some entries.
pub(crate) fn last_index(entries: &[LogEntry]) -> Option<u64> {
    entries.last().map(|entry| entry.log_id.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{EntryPayload, Vote, log_id};
    use futures_util::FutureExt;
    use openraft::raft::StreamAppendError;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn request(index: u64) -> AppendEntriesRequest<Rota> {
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: Some(log_id(1, index - 1)),
            entries: vec![LogEntry { log_id: log_id(1, index), payload: EntryPayload::Blank }],
            leader_commit: None,
        }
    }

    /// Later calls are faster than earlier ones; results come in order all the same, and never too many are under way.
    #[tokio::test(start_paused = true)]
    async fn calls_overlap_and_results_keep_their_order() {
        let open = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let call = |request: AppendEntriesRequest<Rota>| {
            let (open, most) = (open.clone(), most.clone());
            async move {
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let index = request.entries[0].log_id.index;
                tokio::time::sleep(Duration::from_millis(100 - index)).await;
                open.fetch_sub(1, Ordering::SeqCst);
                Ok(AppendEntriesResponse::Success)
            }
        };
        let results: Vec<_> = stream(stream::iter((1..=9).map(request)), call).collect().await;
        let upto: Vec<_> = results.into_iter().map(|result| result.ok().and_then(Result::ok)).collect();
        assert_eq!(upto, (1..=9).map(|index| Some(Some(log_id(1, index)))).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::SeqCst), APPENDS_INFLIGHT_MAX);
    }

    /// Of twenty entries, each followed by the news of its commit, only the news that entries took along is left out; and
    /// what comes without a stream of entries is never late.
    #[tokio::test(start_paused = true)]
    async fn a_commit_waits_for_entries_only_while_they_stream() {
        let commit = |index| AppendEntriesRequest { entries: Vec::new(), ..request(index + 1) };
        let (tx, rx) = tokio::sync::mpsc::unbounded_channel();
        let from = stream::unfold(rx, |mut rx: tokio::sync::mpsc::UnboundedReceiver<_>| async {
            Some((rx.recv().await?, rx))
        });
        let mut spared = Box::pin(spared(from));
        let mut told = Vec::new();
        for index in 1..=20 {
            tx.send(request(index)).expect("it is read");
            assert_eq!(last_index(&spared.next().await.expect("entries").entries), Some(index));
            tx.send(commit(index)).expect("it is read");
            let at_once = spared.next().now_or_never().flatten();
            told.push(at_once.is_some_and(|request| request.entries.is_empty()));
        }
        let streams = 1 + STREAM_ENTRIES as usize;
        assert_eq!(told, (1..=20).map(|entry| entry < streams).collect::<Vec<_>>());
        // Nothing follows: it is told when the moment is over, and once.
        let waited = Instant::now();
        tx.send(commit(21)).expect("it is read");
        let last = spared.next().await.expect("the news");
        assert_eq!((last.entries.len(), last.prev_log_id), (0, Some(log_id(1, 21))));
        assert!(waited.elapsed() <= COMMIT_LINGER * 2);
        tokio::time::sleep(STREAM_GAP * 2).await;
        let idle = Instant::now();
        for index in 22..=24 {
            tx.send(request(index)).expect("it is read");
            tx.send(commit(index)).expect("it is read");
            assert_eq!(spared.next().await.map(|request| request.entries.len()), Some(1));
            assert_eq!(spared.next().await.map(|request| request.entries.len()), Some(0));
        }
        assert_eq!(idle.elapsed(), Duration::ZERO);
        tx.send(commit(25)).expect("it is read");
        drop(tx);
        assert!(spared.next().await.is_some() && spared.next().await.is_none());
    }

    #[tokio::test]
    async fn the_stream_ends_at_what_was_not_taken_whole() {
        let answers =
            [(AppendEntriesResponse::PartialSuccess(Some(log_id(1, 1))), Ok(Ok(Some(log_id(1, 1)))))];
        for (answer, want) in answers {
            let call = |request: AppendEntriesRequest<Rota>| {
                let second = request.entries[0].log_id.index == 2;
                let answer = if second { answer.clone() } else { AppendEntriesResponse::Success };
                async move { Ok(answer) }
            };
            let results: Vec<_> = stream(stream::iter((1..=9).map(request)), call).collect().await;
            assert_eq!(results.len(), 2);
            assert_eq!(format!("{:?}", results[1]), format!("{want:?}", want = want as Answered));
        }
    }

    /// Faults N5, N7: a refusal of what overtook others comes behind the acknowledgement of those. It is no conflict.
    #[tokio::test]
    async fn a_refusal_of_what_was_acknowledged_is_kept_from_raft() {
        let call = |request: AppendEntriesRequest<Rota>| async move {
            let third = request.entries[0].log_id.index == 3;
            Ok(if third { AppendEntriesResponse::Conflict } else { AppendEntriesResponse::Success })
        };
        let results: Vec<_> = stream(stream::iter((1..=9).map(request)), call).collect().await;
        assert_eq!(results.len(), 3);
        assert!(matches!(results[2], Err(RPCError::Network(_))), "{:?}", results[2]);
        // The first of a stream may well conflict: that is how the two find out where they agree.
        let call = |_: AppendEntriesRequest<Rota>| async { Ok(AppendEntriesResponse::Conflict) };
        let results: Vec<_> = stream(stream::iter((3..=4).map(request)), call).collect().await;
        assert!(matches!(results[..], [Ok(Err(StreamAppendError::Conflict(_)))]), "{results:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_too_early_waits_for_its_turn_but_not_for_ever() {
        let turn = Arc::new(Turn::new(Some(&log_id(1, 4))));
        turn.comes(Some(&log_id(1, 4)), |_| false).await;
        let early = tokio::spawn({
            let turn = turn.clone();
            async move { turn.comes(Some(&log_id(1, 7)), |_| false).await }
        });
        tokio::task::yield_now().await;
        assert!(!early.is_finished());
        turn.handed(Some(7));
        early.await.expect("it does not panic");
        let begun = tokio::time::Instant::now();
        turn.comes(Some(&log_id(1, 99)), |_| false).await;
        assert_eq!(begun.elapsed(), EARLY_WAIT);
        // A leader that looks for where the logs agree sends again what is here for long.
        turn.handed(Some(3));
        turn.comes(Some(&log_id(1, 5)), |before| *before == log_id(1, 5)).await;
        assert_eq!(begun.elapsed(), EARLY_WAIT);
    }
}
