//! A child's side: asks its parent, takes what it gets, and asks again. Whoever it asks is `course.rs`'s to say.

use super::Fed;
use super::course::{Course, Heard, Step};
use super::shelf::{Shelf, Took};
use super::words::{Answer, Ask, Standing};
use crate::link::PeerLink;
use crate::wire::{self, WireId};
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a parent keeps a question to which there is nothing new: also how soon a new leader's word goes round.
const WAIT: Duration = Duration::from_millis(750);
/// What a parent may take longer than that, before it is given up for lost.
const PATIENCE: Duration = Duration::from_millis(750);
/// Time for a piece of a snapshot: it may share a slow line with others.
const PIECE_TIME: Duration = Duration::from_secs(5);
/// How often a piece is asked for again.
const PIECE_TRIES: u32 = 3;

/// What a child works with.
pub(crate) struct Terms {
    pub(crate) link: Arc<dyn PeerLink>,
    pub(crate) fed: Arc<Fed>,
}

/// Follows, for as long as the task lives.
pub(crate) async fn pull<S: Shelf>(shelf: Arc<S>, terms: Terms) {
    let mut course = Course::default();
    let born = Instant::now();
    let now_ms = || u64::try_from(born.elapsed().as_millis()).unwrap_or(u64::MAX);
    loop {
        if let Some(rest) = shelf.rest() {
            course.reset();
            terms.fed.lock().following.parent = None;
            sleep(rest).await;
            continue;
        }
        course.set_way(shelf.way_up());
        match course.next(now_ms()) {
            Step::Pause(ms) => sleep(Duration::from_millis(ms)).await,
            Step::Ask(parent) => {
                terms.told(parent, course.moves);
                let heard = terms.round(&*shelf, parent).await;
                course.heard(parent, heard, now_ms());
            }
        }
    }
}

impl Terms {
    fn told(&self, parent: HostId, moves: u64) {
        let following = &mut self.fed.lock().following;
        (following.parent, following.moves) = (Some(parent), moves);
    }

    async fn ask(&self, parent: HostId, ask: &Ask, ttl: Duration) -> Option<Answer> {
        let request = PeerRequest::Raft { call: RaftCall::Follow, body: wire::encode(ask) };
        match self.link.call(parent, request, ttl).await {
            Ok(PeerReply::Raft { body }) => wire::decode(&body)
                .inspect_err(|error| tracing::warn!(%parent, %error, "an answer to a follower"))
                .ok(),
            other => {
                tracing::debug!(%parent, ?other, "a follower was not answered");
                None
            }
        }
    }

    /// One question, and what comes of it.
    async fn round<S: Shelf>(&self, shelf: &S, parent: HostId) -> Heard {
        let shown = shelf.shown();
        let ask = Ask::Entries {
            after: shown.applied,
            term: shown.vote.map_or(0, |vote| vote.leader_id.term),
            wait_ms: u32::try_from(WAIT.as_millis()).unwrap_or(u32::MAX),
        };
        match self.ask(parent, &ask, WAIT + PATIENCE).await {
            None | Some(Answer::Piece { .. }) => Heard::Lost,
            Some(Answer::Full) => Heard::Full,
            Some(Answer::Behind(_)) => Heard::Behind,
            Some(Answer::Nothing(standing)) => self.heard(standing),
            Some(Answer::Entries { append, mark, standing }) => match shelf.take(append, mark).await {
                Took::All => self.heard(standing),
                Took::Older => Heard::Behind,
                Took::Refused => Heard::Lost,
            },
            Some(Answer::Gap(standing)) => {
                tracing::info!(%parent, after = ?shown.applied, "behind what its parent keeps: takes a snapshot");
                if self.snapshot(shelf, parent).await.is_none() {
                    return Heard::Lost;
                }
                self.fed.lock().following.snapshots += 1;
                self.heard(standing)
            }
        }
    }

    fn heard(&self, standing: Standing) -> Heard {
        let Standing { depth, silent_ms } = standing;
        let mut fed = self.fed.lock();
        fed.heard_at = Instant::now().checked_sub(Duration::from_millis(silent_ms));
        fed.following.depth = depth.saturating_add(1);
        Heard::Fed { silent_ms, depth }
    }

    /// Takes the parent's snapshot piece by piece; a lost answer is asked for again.
    async fn snapshot<S: Shelf>(&self, shelf: &S, parent: HostId) -> Option<()> {
        let mut at: (Option<WireId>, u64) = (None, 0);
        loop {
            let (of, chunk) = self.piece(parent, at).await?;
            let question = chunk.question();
            let (mut next, mut done) = shelf.take_piece(parent, of, chunk).await?;
            while !done && next == question.total {
                // All is here, and is being installed.
                (next, done) = shelf.take_piece(parent, of, question.clone()).await?;
            }
            if done {
                return Some(());
            }
            at = (Some(of), next);
        }
    }

    async fn piece(
        &self,
        parent: HostId,
        (of, offset): (Option<WireId>, u64),
    ) -> Option<(WireId, wire::Chunk)> {
        for _ in 0..PIECE_TRIES {
            match self.ask(parent, &Ask::Piece { of, offset }, PIECE_TIME).await {
                Some(Answer::Piece { of, chunk, standing }) => {
                    self.heard(standing);
                    return Some((of, chunk));
                }
                Some(_) => return None,
                None => {}
            }
        }
        None
    }
}
