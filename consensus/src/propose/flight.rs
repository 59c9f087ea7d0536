//! One batch under way: as an entry of this leader, or to another peer that leads. It ends with an answer, or the
//! moment its leader is one no more.

use super::Item;
use crate::config::{Payload, Raft, Rota};
use crate::leadership::Leadership;
use crate::link::{LinkError, PeerLink};
use crate::log::store::LogStore;
use crate::room::Room;
use crate::watch;
use futures_util::future::BoxFuture;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::vote::leader_id_std::CommittedLeaderId;
use rota_protocol::command::Outcome;
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::{ErrorCode, PublicError};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest that a peer waits for the leader to answer a batch, whatever its callers allow.
const FORWARD_TTL_MAX: Duration = Duration::from_secs(10);

/// What came of one batch.
pub(super) enum Landing {
    Done(Vec<Outcome>),
    /// Surely not in any log.
    NotDelivered,
    /// It may be in a log.
    Maybe,
    Refused(PublicError),
}

/// What is known of the voters' disks.
pub(super) struct Disks {
    pub(super) me: HostId,
    pub(super) log: LogStore,
    pub(super) room: Arc<Room>,
}

impl Disks {
    /// Why no entry can be committed for want of room, if that is so.
    fn full(&self, raft: &Raft) -> Option<&'static str> {
        if self.log.0.is_full() {
            return Some("the leader's disk has no room for log entries");
        }
        if self.room.is_untroubled() {
            return None;
        }
        let metrics = raft.metrics();
        let lacks =
            self.room.lacks_majority(metrics.borrow_watched().membership_config.voter_ids(), self.me.0);
        lacks.then_some("too many voters' disks have no room for log entries")
    }
}

/// A batch with what came of it.
pub(super) struct Landed {
    pub(super) batch: Vec<Item>,
    pub(super) landing: Landing,
}

/// Ends when another leader, or a later term, is known than that of `route`. A leader that has merely lost sight of
/// its quorum may still finish what it has begun, and there is nobody else to ask.
async fn deposed(mut leadership: watch::Receiver<Leadership>, route: Leadership) {
    // An error means that this peer stops; the answer is lost just as well.
    let _ = leadership
        .wait_for(|now| {
            now.term != route.term || now.leader.is_some_and(|leader| Some(leader) != route.leader)
        })
        .await;
}

pub(super) fn write(
    raft: Raft,
    disks: Disks,
    batch: Vec<Item>,
    bytes: Vec<u8>,
    route: Leadership,
    leadership: watch::Receiver<Leadership>,
) -> BoxFuture<'static, Landed> {
    Box::pin(async move {
        if let Some(why) = disks.full(&raft) {
            let error = PublicError::new(ErrorCode::StorageFull, why);
            return Landed { batch, landing: Landing::Refused(error.retry_after(1_000)) };
        }
        let count: usize = batch.iter().map(|item| item.count).sum();
        let (responder, done) = ProgressResponder::<Rota, _>::complete_only();
        let submitted = raft
            .write(Payload(bytes.into()))
            .with_leader(CommittedLeaderId::new(route.term))
            .responder(responder)
            .await;
        if submitted.is_err() {
            return Landed { batch, landing: Landing::NotDelivered };
        }
        let landing = tokio::select! {
            biased;
            done = done => match done {
                Ok(Ok(written)) if written.data.0.len() == count => Landing::Done(written.data.0),
                Ok(Err(ClientWriteError::ForwardToLeader(_))) => Landing::NotDelivered,
                // Discarded here, but another leader may have it; or the core died with it.
                Ok(_) | Err(_) => Landing::Maybe,
            },
            () = deposed(leadership, route) => Landing::Maybe,
        };
        Landed { batch, landing }
    })
}

pub(super) fn forward(
    link: Arc<dyn PeerLink>,
    mut batch: Vec<Item>,
    leader: HostId,
    route: Leadership,
    leadership: watch::Receiver<Leadership>,
) -> BoxFuture<'static, Landed> {
    Box::pin(async move {
        let count: usize = batch.iter().map(|item| item.count).sum();
        let latest = batch.iter().map(|item| item.deadline).max();
        let left = latest.map_or(Duration::ZERO, |latest| latest.saturating_duration_since(Instant::now()));
        let proposals = batch.iter_mut().flat_map(Item::take_proposals).collect();
        let call = link.call(leader, PeerRequest::Propose { proposals }, left.min(FORWARD_TTL_MAX));
        let landing = tokio::select! {
            biased;
            answer = call => match answer {
                Ok(PeerReply::Proposed { outcomes }) if outcomes.len() == count => Landing::Done(outcomes),
                Ok(PeerReply::NotLeader { .. }) | Err(LinkError::Unreachable(_)) => Landing::NotDelivered,
                Ok(PeerReply::Refused(error)) if error.code == ErrorCode::NoLeader => Landing::NotDelivered,
                Ok(PeerReply::Refused(error)) if error.code == ErrorCode::Unknown => Landing::Maybe,
                Ok(PeerReply::Refused(error)) | Err(LinkError::Refused(error)) => Landing::Refused(error),
                Ok(_) | Err(LinkError::Timeout) => Landing::Maybe,
            },
            () = deposed(leadership, route) => Landing::Maybe,
        };
        Landed { batch, landing }
    })
}
