//! A link within one process, for tests here and in the simulator: peers by id, and cuts between them.
//!
//! What this is not: a model of a real network. It loses and cuts, it neither delays nor reorders.

use crate::watch;
use crate::{Consensus, LinkError, PeerLink};
use futures_util::future::BoxFuture;
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// All peers of one process.
#[derive(Clone, Default)]
pub struct Hub(Arc<Mutex<State>>);

type Filter = Box<dyn FnMut(&PeerRequest) -> bool + Send>;

#[derive(Default)]
struct State {
    peers: BTreeMap<HostId, Consensus>,
    /// Pairs (from, to) whose messages vanish.
    cut: BTreeSet<(HostId, HostId)>,
    /// Peers that take messages and answer none until they are thawed.
    frozen: BTreeMap<HostId, watch::Sender<()>>,
    /// Answers of this kind that are still to be lost: from a peer, once each.
    lost_answers: BTreeMap<HostId, u32>,
    /// Picks messages that are lost.
    loses: Option<Filter>,
    /// Messages that were answered.
    answered: u64,
}

impl Hub {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link of one peer.
    #[must_use]
    pub fn link(&self, from: HostId) -> Arc<dyn PeerLink> {
        Arc::new(HubLink { hub: self.clone(), from })
    }

    /// Makes a peer reachable, in place of an earlier one of its id.
    pub fn put(&self, id: HostId, peer: Consensus) {
        self.lock().peers.insert(id, peer);
    }

    /// Makes a peer unreachable, and forgets it.
    pub fn remove(&self, id: HostId) -> Option<Consensus> {
        self.lock().peers.remove(&id)
    }

    /// Cuts a peer off from these others, both ways.
    pub fn isolate(&self, id: HostId, others: impl IntoIterator<Item = HostId>) {
        let mut state = self.lock();
        for other in others.into_iter().filter(|other| *other != id) {
            state.cut.insert((id, other));
            state.cut.insert((other, id));
        }
    }

    /// Drops messages one way.
    pub fn cut_one_way(&self, from: HostId, to: HostId) {
        self.lock().cut.insert((from, to));
    }

    /// Ends all cuts and freezes.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.cut.clear();
        state.frozen.clear();
        state.lost_answers.clear();
        state.loses = None;
    }

    /// Lets a peer take messages and answer none, as a stopped process does.
    pub fn freeze(&self, id: HostId) {
        self.lock().frozen.insert(id, watch::Sender::new(()));
    }

    /// Loses the next answers of a peer to forwarded proposals.
    pub fn lose_answers(&self, from: HostId, count: u32) {
        self.lock().lost_answers.insert(from, count);
    }

    /// Loses the messages that a filter picks; their callers wait in vain, but not for long.
    pub fn lose(&self, filter: impl FnMut(&PeerRequest) -> bool + Send + 'static) {
        self.lock().loses = Some(Box::new(filter));
    }

    /// Messages that were answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.lock().answered
    }

    async fn deliver(&self, from: HostId, to: HostId, request: PeerRequest) -> Result<PeerReply, LinkError> {
        let is_proposal = matches!(request, PeerRequest::Propose { .. });
        if self.is_cut(from, to) {
            // A packet filter gives no answer at all.
            return std::future::pending().await;
        }
        if self.lock().loses.as_mut().is_some_and(|loses| loses(&request)) {
            return Err(LinkError::Timeout);
        }
        let (peer, frozen) = self.target(from, to);
        let peer = peer.ok_or_else(|| LinkError::Unreachable("no such peer".into()))?;
        if let Some(mut frozen) = frozen {
            // Ends, with an error, when the peer is thawed.
            let _ = frozen.changed().await;
        }
        let reply = peer.handle(from, request).await;
        if self.is_cut(to, from) || is_proposal && self.loses_answer(to) {
            return std::future::pending().await;
        }
        self.lock().answered += 1;
        Ok(reply)
    }

    fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.lock().cut.contains(&(from, to))
    }

    fn target(&self, from: HostId, to: HostId) -> (Option<Consensus>, Option<watch::Receiver<()>>) {
        let state = self.lock();
        let stuck = |id: &HostId| state.frozen.get(id).map(watch::Sender::subscribe);
        (state.peers.get(&to).cloned(), stuck(&to).or_else(|| stuck(&from)))
    }

    fn loses_answer(&self, from: HostId) -> bool {
        self.lock().lost_answers.get_mut(&from).is_some_and(|left| {
            let lose = *left > 0;
            *left = left.saturating_sub(1);
            lose
        })
    }
}

struct HubLink {
    hub: Hub,
    from: HostId,
}

impl PeerLink for HubLink {
    fn call(
        &self,
        to: HostId,
        request: PeerRequest,
        ttl: Duration,
    ) -> BoxFuture<'static, Result<PeerReply, LinkError>> {
        let (hub, from) = (self.hub.clone(), self.from);
        Box::pin(async move {
            tokio::time::timeout(ttl, hub.deliver(from, to, request)).await.unwrap_or(Err(LinkError::Timeout))
        })
    }
}
