//! Where a peer's messages are answered, whichever way they came; and the checker that overhears votes.

use super::laws::Laws;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rota_consensus::Consensus;
use rota_consensus::inspect::granted_vote;
use rota_consensus::runtime::Chance;
use rota_node::net::gossip::GossipHandle;
use rota_node::net::{ApiStream, PeerHandler};
use rota_protocol::peer::{JoinReply, JoinRequest, PeerReply, PeerRequest};
use rota_protocol::{ErrorCode, HostId, PublicError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// One life's desk.
pub(super) struct Desk {
    pub(super) me: HostId,
    pub(super) chance: Chance,
    pub(super) laws: Laws,
    consensus: OnceLock<Consensus>,
    gossip: OnceLock<GossipHandle>,
    /// Messages of agreement, and gossip, are not heard.
    pub(super) deaf: (AtomicBool, AtomicBool),
}

impl Desk {
    pub(super) fn new(me: HostId, chance: Chance, laws: Laws) -> Arc<Self> {
        let (consensus, gossip) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { me, chance, laws, consensus, gossip, deaf: Default::default() })
    }

    /// From now on it answers.
    pub(super) fn open(&self, consensus: Consensus) {
        let _ = self.consensus.set(consensus);
    }

    /// Where gossip goes.
    pub(super) fn open_gossip(&self, gossip: GossipHandle) {
        let _ = self.gossip.set(gossip);
    }

    fn gossip(&self, from: HostId, bytes: Vec<u8>) {
        if let Some(gossip) = self.gossip.get().filter(|_| !self.deaf.1.load(Ordering::Relaxed)) {
            gossip.datagram(from, bytes);
        }
    }

    /// Answers one message.
    pub(super) async fn answer(&self, from: HostId, request: PeerRequest) -> PeerReply {
        if self.deaf.0.load(Ordering::Relaxed) {
            // Nobody says that it did not arrive.
            std::future::pending::<()>().await;
        }
        let Some(consensus) = self.consensus.get() else {
            return PeerReply::Refused(PublicError::new(ErrorCode::Busy, "still starting"));
        };
        let reply = self.chance.scope(consensus.handle(from, request.clone())).await;
        if let Some((term, candidate)) = granted_vote(&request, &reply) {
            self.laws.granted(self.me, term, candidate);
        }
        reply
    }
}

/// The desk as the product's network sees it.
pub(super) struct Counter(pub(super) Arc<Desk>);

impl PeerHandler for Counter {
    fn peer(&self, from: HostId, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
        let desk = self.0.clone();
        async move { desk.answer(from, request).await }.boxed()
    }

    fn join(&self, _request: JoinRequest) -> BoxFuture<'static, JoinReply> {
        let refused = PublicError::new(ErrorCode::Forbidden, "nobody joins here");
        std::future::ready(JoinReply::Refused(refused)).boxed()
    }

    fn gossip(&self, from: HostId, bytes: Vec<u8>) {
        self.0.gossip(from, bytes);
    }

    fn api(&self, _stream: ApiStream) {}
}
