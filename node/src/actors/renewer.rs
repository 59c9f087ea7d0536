//! Role: registers this host and keeps its lease alive. Supervisor: root, which restarts it; the lease file keeps the
//! last deadline, so a restart neither shortens nor lengthens any attempt's life.
//!
//! The deadline counts from the send time of the last acknowledged renewal (FAULTS 2.0). A host that cannot reach the
//! leader renews through any peer.

use crate::actors::reconciler;
use crate::io::clock;
use crate::logic::lease::LeaseHolder;
use crate::members::door;
use crate::net::PeerLink;
use crate::node::Node;
use crate::peer_handler;
use crate::shim::LeaseFile;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::RequestId;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::device::HostRegistration;
use rota_protocol::error::ErrorCode;
use rota_protocol::ids::{HostId, LeaseEpoch};
use rota_protocol::job::Actor as Author;
use rota_protocol::members::{MemberChange, NotLetIn};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a registration may take to commit.
const REGISTER_DEADLINE: Duration = Duration::from_millis(2_000);

/// This host's own lease.
pub struct OwnLease {
    /// The epoch that it was registered under.
    pub epoch: LeaseEpoch,
    /// Counts its deadline.
    pub holder: LeaseHolder,
    /// What the shims read.
    pub file: LeaseFile,
}

/// What the renewer is told.
pub enum Msg {
    /// Renew at once: another peer leads now, or time passed.
    Now,
    /// The regular renewal.
    Tick,
    /// The hardware is not what was registered.
    FactsChanged,
}

/// The renewer actor.
pub struct Renewer;

/// What it needs.
pub struct State {
    node: Arc<Node>,
    /// What was registered last: an equal registration is not proposed again.
    registered: Option<HostRegistration>,
    /// Which peer is asked when the leader does not answer.
    turn: usize,
    /// The log knows of this start.
    told: bool,
}

impl Actor for Renewer {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let every = Duration::from_millis(node.config.profile.lease().renew_ms);
        myself.send_interval(every, || Msg::Tick);
        myself.cast(Msg::Tick)?;
        Ok(State { node, registered: None, turn: 0, told: false })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("renewer");
        if let Msg::Now = message {
            state.node.doors.renewer.answered();
        }
        if !state.told {
            state.told = tell_start(&state.node).await;
        }
        if state.told && !is_registered(state) {
            register(state).await;
        }
        renew(state).await;
        Ok(())
    }
}

fn registration(node: &Node) -> Option<HostRegistration> {
    let mut facts = node.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    facts.notes.reads = node.config.reads();
    Some(HostRegistration { boot: node.boot, addr: node.config.advertised(), facts })
}

fn is_registered(state: &State) -> bool {
    state.registered.is_some() && state.registered == registration(&state.node)
}

/// Tells the log that an agent started on this data. Refused, it is a copy, an old backup or a removed host: it ends.
async fn tell_start(node: &Node) -> bool {
    let command = Command::Members(MemberChange::Started { host: node.host, life: node.membership.life });
    let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
    match node.consensus.propose(vec![proposal], REGISTER_DEADLINE).await.map(|mut outcomes| outcomes.pop()) {
        Ok(Some(Outcome::Done)) => true,
        Ok(Some(Outcome::Refused(error))) if error.code == ErrorCode::Forbidden => {
            let known = node.consensus.read(|state| {
                let host = state.host(node.host)?;
                let why = host.belonging.check(&node.membership.life).err()?;
                Some((why, host.not_let_in(why)))
            });
            let (why, text) = known.unwrap_or((NotLetIn::Older, error.message));
            door::give_up(&node.config.data_dir, why, &text)
        }
        other => {
            tracing::info!(?other, "the log has not heard yet that the agent started");
            false
        }
    }
}

async fn register(state: &mut State) {
    let node = &state.node;
    let Some(registration) = registration(node) else { return };
    let command = Command::RegisterHost { host: node.host, registration: registration.clone() };
    let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
    match node.consensus.propose(vec![proposal], REGISTER_DEADLINE).await.map(|mut outcomes| outcomes.pop()) {
        Ok(Some(Outcome::HostRegistered { epoch })) => {
            // Launches begin with the lease: this replica must first know all that was committed before it, or a
            // restarted host would start what was cancelled while it was away.
            if let Err(error) = node.consensus.read_barrier(REGISTER_DEADLINE).await {
                tracing::warn!(%error, "registered, but the state cannot be brought up to date yet");
                return;
            }
            tracing::info!(%epoch, "registered");
            state.registered = Some(registration);
            let mut lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
            if lease.as_ref().is_none_or(|own| own.epoch != epoch) {
                match LeaseFile::open(&node.config.data_dir.join("lease"), &node.boot, epoch) {
                    Ok(file) => {
                        let mut holder = LeaseHolder::new(node.config.profile.lease());
                        holder.set_epoch(epoch);
                        *lease = Some(OwnLease { epoch, holder, file });
                    }
                    Err(error) => tracing::error!(%error, "cannot open the lease file"),
                }
            }
        }
        Ok(other) => tracing::warn!(?other, "the registration was refused"),
        Err(error) => tracing::warn!(%error, "cannot register"),
    }
}

async fn renew(state: &mut State) {
    let renewal = {
        let mut lease = state.node.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.as_mut().and_then(|own| own.holder.send(clock::boottime_ms()))
    };
    let Some(renewal) = renewal else { return };
    let reply = ask(state, renewal.epoch).await;
    let result = if matches!(reply, Some(PeerReply::Renewed)) { "ok" } else { "failed" };
    metrics::counter!(crate::meters::LEASE_RENEWALS, "result" => result).increment(1);
    match reply {
        Some(PeerReply::Renewed) => {
            let mut lease = state.node.lease.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(own) = lease.as_mut()
                && let Some(deadline_ms) = own.holder.ack(renewal, clock::boottime_ms())
            {
                if let Err(error) = own.file.extend(deadline_ms) {
                    // The shims go by the old deadline: tasks may be ended early, never late.
                    tracing::error!(%error, "cannot extend the lease file");
                }
                // Grants that came without a lease wait for one.
                state.node.doors.reconciler.knock(reconciler::Msg::Wake);
            }
        }
        Some(PeerReply::Refused(error)) if error.code == ErrorCode::Conflict => {
            tracing::warn!(%error, "the lease is over; registering again");
            state.registered = None;
            register(state).await;
            let lease = state.node.lease.lock().unwrap_or_else(PoisonError::into_inner);
            // A new epoch is renewed at once; the old one again would be refused again, so that waits its turn.
            if lease.as_ref().is_some_and(|own| own.epoch != renewal.epoch) {
                state.node.doors.renewer.knock(Msg::Now);
            }
        }
        other => tracing::debug!(?other, "the lease was not renewed"),
    }
}

/// Asks the leader, or any other peer to relay.
async fn ask(state: &mut State, epoch: LeaseEpoch) -> Option<PeerReply> {
    let node = Arc::clone(&state.node);
    let ttl = Duration::from_millis(node.config.profile.lease().renew_ms);
    let leader = node.consensus.leadership().borrow().leader;
    if leader == Some(node.host) {
        return tokio::time::timeout(ttl, peer_handler::renew(&node, node.host, epoch, false)).await.ok();
    }
    let request = || PeerRequest::Renew { host: node.host, epoch, relayed: false };
    if let Some(leader) = leader {
        match node.net.call(leader, request(), ttl / 2).await {
            Ok(reply @ (PeerReply::Renewed | PeerReply::Refused(_))) => return Some(reply),
            other => tracing::debug!(?other, "the leader did not take the renewal"),
        }
    }
    let others: Vec<HostId> = node.consensus.read(|replica| {
        replica.hosts().map(|host| host.id).filter(|id| *id != node.host && Some(*id) != leader).collect()
    });
    if others.is_empty() {
        return None;
    }
    state.turn += 1;
    node.net.call(others[state.turn % others.len()], request(), ttl / 2).await.ok()
}
