//! What this host does when a peer, a joining host or a remote client speaks to it over QUIC.
//!
//! The caller's identity was checked in the handshake and its rights in `net::authorize`; here the request is handed
//! to whoever can answer it.

use crate::api::{session, sessions};
use crate::data;
use crate::io::clock;
use crate::lead;
use crate::logic::lease_book::{Receipt, RoundEnd};
use crate::members::door;
use crate::net::{ApiStream, PeerHandler, hash_secret, issue, join_request_id, print_of_key};
use crate::node::Node;
use crate::relay;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, LeaseEpoch, RequestId};
use rota_protocol::job::Actor;
use rota_protocol::limits::RENEWALS_MAX;
use rota_protocol::members::{Admission, NotLetIn, PeerLife};
use rota_protocol::peer::{JoinReply, JoinRequest, PeerReply, PeerRequest, Renewal};
use rota_protocol::trust::TrustChange;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long this host may take to catch up before it looks for a join token.
const INVITED_WITHIN: Duration = Duration::from_secs(2);
/// How long an admission may take to commit.
const ADMIT_DEADLINE: Duration = Duration::from_millis(5_000);

/// Answers for a node that is still being put together: the network starts before agreement, which needs it.
#[derive(Default)]
pub struct Handler {
    node: OnceLock<Arc<Node>>,
    consensus: OnceLock<rota_consensus::Consensus>,
    own: OnceLock<PeerLife>,
}

impl Handler {
    /// A handler that says who this process is.
    #[must_use]
    pub fn new(own: PeerLife) -> Self {
        Self { own: OnceLock::from(own), ..Self::default() }
    }

    /// Agreement is up: raft messages can be answered.
    pub fn set_consensus(&self, consensus: rota_consensus::Consensus) {
        // Set once by boot; a second call would be a defect and changes nothing.
        let _ = self.consensus.set(consensus);
    }

    /// The node is complete.
    pub fn set_node(&self, node: Arc<Node>) {
        let _ = self.node.set(node);
    }

    fn starting() -> PublicError {
        PublicError::new(ErrorCode::Busy, "this host is still starting").retry_after(100)
    }
}

impl PeerHandler for Handler {
    fn peer(&self, from: HostId, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
        let (consensus, node) = (self.consensus.get().cloned(), self.node.get().cloned());
        async move {
            match request {
                PeerRequest::Raft { .. } | PeerRequest::Propose { .. } | PeerRequest::ReadIndex => {
                    match consensus {
                        Some(consensus) => consensus.handle(from, request).await,
                        None => PeerReply::Refused(Self::starting()),
                    }
                }
                other => match node {
                    Some(node) => answer(&node, other).await,
                    None => PeerReply::Refused(Self::starting()),
                },
            }
        }
        .boxed()
    }

    fn invites(&self, request: &JoinRequest) -> BoxFuture<'static, bool> {
        let (consensus, token) = (self.consensus.get().cloned(), hash_secret(&request.token));
        async move {
            let Some(consensus) = consensus else { return false };
            // A token that was made a moment ago elsewhere.
            let _ = consensus.read_barrier(INVITED_WITHIN).await;
            consensus.read(|state| state.invites(&token, clock::wall_ms()))
        }
        .boxed()
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'static, JoinReply> {
        let node = self.node.get().cloned();
        async move {
            match node {
                Some(node) => admit(&node, request).await.unwrap_or_else(JoinReply::Refused),
                None => JoinReply::Refused(Self::starting()),
            }
        }
        .boxed()
    }

    fn gossip(&self, from: HostId, bytes: Vec<u8>) {
        if let Some(node) = self.node.get() {
            node.doors.gossip.send(crate::actors::gossip::Msg::Datagram { from, bytes });
        }
    }

    fn hail(&self) -> Option<PeerLife> {
        self.own.get().cloned()
    }

    fn admit(&self, from: HostId, life: &PeerLife) -> Admission {
        let own = self.own.get().unwrap_or(life);
        door::admit(self.consensus.get(), own, from, life)
    }

    fn let_in(&self, _: HostId) {
        if let Some(node) = self.node.get() {
            node.membership.heard.let_in();
        }
    }

    fn turned_away(&self, by: HostId, why: NotLetIn, text: &str) {
        // While the agent is being put together nobody can tell whether it holds a lease; it is turned away again.
        if let Some(node) = self.node.get() {
            node.membership.heard.turned_away(node, by, why, text);
        }
    }

    fn api(&self, stream: ApiStream) {
        if let Some(node) = self.node.get().cloned() {
            tokio::spawn(async move {
                if let Err(error) = session::serve(node, stream, None).await {
                    tracing::debug!(%error, "a remote client's connection ended");
                }
            });
        }
    }
}

async fn answer(node: &Arc<Node>, request: PeerRequest) -> PeerReply {
    match request {
        PeerRequest::Renew { host, epoch, relayed } => renew(node, host, epoch, relayed).await,
        PeerRequest::Renewals { renewals, .. } if renewals.len() > RENEWALS_MAX => {
            let message = format!("{} renewals exceed the limit of {RENEWALS_MAX}", renewals.len());
            PeerReply::Refused(PublicError::new(ErrorCode::TooLarge, message))
        }
        PeerRequest::Renewals { renewals, hops } if node.consensus.leadership().borrow().leading => {
            tracing::trace!(count = renewals.len(), hops, "renewals were handed on");
            PeerReply::Renewals(renew_all_here(node, renewals).await)
        }
        PeerRequest::Renewals { renewals, hops } => {
            PeerReply::Renewals(relay::hand_on(node, renewals, hops).await)
        }
        PeerRequest::ReadLog { attempt, stream, offset, wait_ms } => {
            let wait = Duration::from_millis(u64::from(wait_ms));
            match node.shims.read_log(attempt, stream, offset, wait).await {
                Ok(chunk) => PeerReply::Log(chunk),
                Err(error) => PeerReply::Refused(error),
            }
        }
        PeerRequest::FindLog { attempt, stream, lines } => {
            match node.shims.find_log(attempt, stream, lines).await {
                Ok(offset) => PeerReply::LogAt { offset },
                Err(error) => PeerReply::Refused(error),
            }
        }
        PeerRequest::FindTask { task } => match node.shims.find_task(task).await {
            Ok(found) => PeerReply::Attempts(found),
            Err(error) => PeerReply::Refused(error),
        },
        PeerRequest::Signal { attempt, signal } => {
            node.shims.signal(attempt, signal).await;
            PeerReply::Done
        }
        PeerRequest::Session { job, attempt, actor, session, ask } => {
            match sessions::serve_here(node, &actor, job, attempt, session, ask).await {
                Ok(news) => PeerReply::Session(Box::new(news)),
                Err(error) => PeerReply::Refused(error),
            }
        }
        PeerRequest::Clock => PeerReply::Clock { boot: node.boot, boottime_us: clock::boottime_us() },
        PeerRequest::Lead(ask) => lead::answer(node, ask).await,
        PeerRequest::Data(ask) => {
            data::answer_peer(node, ask).await.map_or_else(PeerReply::Refused, PeerReply::Data)
        }
        PeerRequest::Authority { ca } => {
            let named =
                node.consensus.read(|state| state.trust().authorities().iter().any(|known| known.ca == ca));
            match node.authority_key(&ca).filter(|_| named) {
                Some(key_pem) => PeerReply::Authority { key_pem: key_pem.into() },
                None => PeerReply::Refused(PublicError::new(ErrorCode::NotFound, "no such authority here")),
            }
        }
        PeerRequest::Raft { .. }
        | PeerRequest::Propose { .. }
        | PeerRequest::ReadIndex
        | PeerRequest::Hail(_) => {
            PeerReply::Refused(PublicError::new(ErrorCode::Internal, "taken elsewhere"))
        }
    }
}

/// Takes a renewal as the leader, or hands it on.
///
/// It is acknowledged only after a quorum confirmation that began after it was received: a leader that was cut off
/// must not extend a lease that its successor lets expire.
pub async fn renew(node: &Arc<Node>, host: HostId, epoch: LeaseEpoch, relayed: bool) -> PeerReply {
    let leadership = *node.consensus.leadership().borrow();
    let renewed = if leadership.leading {
        renew_all_here(node, vec![(host, epoch)]).await.pop()
    } else if relayed {
        None
    } else {
        relay::hand_on(node, vec![(host, epoch)], 0).await.pop()
    };
    match renewed {
        Some(Renewal::Renewed) => PeerReply::Renewed,
        Some(Renewal::NotLeader { leader }) => PeerReply::NotLeader { leader },
        Some(Renewal::Refused(error)) => PeerReply::Refused(error),
        None => PeerReply::NotLeader { leader: leadership.leader },
    }
}

/// At the leader: takes renewals, confirms the quorum once for all of them, and says what became of each.
pub async fn renew_all_here(node: &Node, renewals: Vec<(HostId, LeaseEpoch)>) -> Vec<Renewal> {
    let taken: Vec<_> = renewals.into_iter().map(|(host, epoch)| take_renewal(node, host, epoch)).collect();
    let round = node.lease_book().round_begin();
    if let Some(round) = round {
        let confirmed = node.consensus.confirm_quorum().await.is_ok();
        match node.lease_book().round_end(round, confirmed) {
            RoundEnd::Acknowledge(tickets) => node.renewals.answer(&tickets, true),
            RoundEnd::Refuse(tickets) => node.renewals.answer(&tickets, false),
        }
    }
    let mut renewed = Vec::with_capacity(taken.len());
    for one in taken {
        renewed.push(match one {
            Err(answer) => answer,
            Ok(answered) => match answered.await {
                Ok(true) => Renewal::Renewed,
                _ => refused(ErrorCode::NoLeader, "no quorum confirmed this leader"),
            },
        });
    }
    renewed
}

fn refused(code: ErrorCode, why: impl Into<String>) -> Renewal {
    Renewal::Refused(PublicError::new(code, why))
}

/// Puts one renewal into the book. `Err`: what is answered at once.
fn take_renewal(node: &Node, host: HostId, epoch: LeaseEpoch) -> Result<oneshot::Receiver<bool>, Renewal> {
    let unfit = node.consensus.read(|state| {
        if let Some(why) = state.trust().revoked(host) {
            return Some(format!("host {host} was revoked: {}", why.reason));
        }
        // Its lease runs out as any lease does, and only then is its work placed elsewhere.
        let removed = state.host(host).is_some_and(|row| row.belonging.removed.is_some());
        removed.then(|| format!("host {host} was removed from the cluster"))
    });
    if let Some(why) = unfit {
        return Err(refused(ErrorCode::Forbidden, why));
    }
    let (ticket, answered) = node.renewals.open();
    let mut receipt = node.lease_book().on_receipt(host, epoch, ticket, clock::boottime_ms());
    if !matches!(receipt, Receipt::Waits | Receipt::Acknowledge) {
        // The host may have registered since the book last looked.
        let held = node.lease_holders();
        let mut book = node.lease_book();
        book.set_hosts(held, clock::boottime_ms());
        receipt = book.on_receipt(host, epoch, ticket, clock::boottime_ms());
    }
    match receipt {
        Receipt::Waits => return Ok(answered),
        Receipt::Acknowledge => {
            node.renewals.answer(&[ticket], true);
            return Ok(answered);
        }
        Receipt::NotHere | Receipt::WrongEpoch { .. } => node.renewals.answer(&[ticket], false),
    }
    if receipt == Receipt::NotHere && node.lease_holders().contains(&(host, epoch)) {
        // Elected a moment ago: the book is not open yet.
        return Err(Renewal::NotLeader { leader: None });
    }
    let why = format!("lease epoch {epoch} of host {host} is not in force: register again");
    Err(refused(ErrorCode::Conflict, why))
}

/// Admits a host that knows a join token: the log uses the token up and hands out the id, then the certificate is
/// made here.
async fn admit(node: &Node, request: JoinRequest) -> Result<JoinReply, PublicError> {
    let command = Command::AdmitHost {
        token: hash_secret(&request.token),
        host_name: request.host_name.clone(),
        addr: request.addr.clone(),
    };
    let proposal = Proposal { request: join_request_id(&request), actor: Actor::system(), command };
    let outcome = node.consensus.propose(vec![proposal], ADMIT_DEADLINE).await?.pop();
    let host = match outcome {
        Some(Outcome::HostAdmitted { host }) => host,
        Some(Outcome::Refused(error)) => return Err(error),
        other => {
            return Err(PublicError::new(ErrorCode::Internal, format!("an unexpected outcome: {other:?}")));
        }
    };
    let peers = node.consensus.read(|state| {
        state.hosts().filter(|peer| peer.id != host).map(|peer| (peer.id, peer.addr.clone())).collect()
    });
    record_key(node, &request, host).await?;
    let grant = issue(&node.net.identity(), &request, host, peers).map_err(|error| {
        PublicError::new(ErrorCode::Invalid, format!("the certificate could not be made: {error}"))
    })?;
    tracing::info!(%host, name = request.host_name, "admitted a host");
    Ok(JoinReply::Granted(Box::new(grant)))
}

/// The new host's key goes into the log before it has a certificate: from then on no other key speaks for it.
async fn record_key(node: &Node, request: &JoinRequest, host: HostId) -> Result<(), PublicError> {
    if node.consensus.read(rota_core::State::version) < 3 {
        return Ok(());
    }
    let change = TrustChange::Key { host, key: print_of_key(&request.public_key_der) };
    let command = Command::Trust { change };
    let proposal = Proposal { request: RequestId::NONE, actor: Actor::system(), command };
    match node.consensus.propose(vec![proposal], ADMIT_DEADLINE).await?.pop() {
        Some(Outcome::Refused(error)) => Err(error),
        _ => Ok(()),
    }
}
