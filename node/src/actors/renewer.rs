//! Role: registers this host and keeps its lease alive. Supervisor: root, which restarts it; the lease file keeps the
//! last deadline, so a restart neither shortens nor lengthens any attempt's life.
//!
//! The deadline counts from the send time of the last acknowledged renewal (FAULTS 2.0). A host that is no
//! member, or cannot reach the leader, renews through its peers.
//!
//! A restart costs a lease nothing but the time in which no agent runs: it is renewed last of all before a stop, and from the
//! first moment after a start, while the agent still looks at its devices and waits for the log. What runs goes on under
//! that; nothing new starts before the host is registered and has caught up. Whatever else takes long, renewals go on
//! beside it.

use crate::actors::{early, reconciler};
use crate::io::clock;
use crate::logic::lease::{LeaseHolder, Renewal};
use crate::members::door;
use crate::node::Node;
use crate::peer_handler;
use crate::shim::LeaseFile;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::RequestId;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::device::HostRegistration;
use rota_protocol::error::ErrorCode;
use rota_protocol::ids::LeaseEpoch;
use rota_protocol::job::Actor as Author;
use rota_protocol::members::{MemberChange, NotLetIn};
use rota_protocol::peer::PeerReply;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long a registration may take to commit.
const REGISTER_DEADLINE: Duration = Duration::from_millis(2_000);
/// A renewal that failed is tried again after this part of the usual interval.
const AGAIN_PART: u32 = 4;

/// This host's own lease.
pub struct OwnLease {
    /// The epoch that it was registered under.
    pub epoch: LeaseEpoch,
    /// Counts its deadline.
    pub holder: LeaseHolder,
    /// What the shims read.
    pub file: LeaseFile,
}

impl OwnLease {
    /// A renewal was acknowledged now: whether the deadline moved by it.
    pub(super) fn acknowledge(&mut self, renewal: Renewal) -> bool {
        let Some(deadline_ms) = self.holder.ack(renewal, clock::boottime_ms()) else { return false };
        if let Err(error) = self.file.extend(deadline_ms) {
            // The shims go by the old deadline: tasks may be ended early, never late.
            tracing::error!(%error, "cannot extend the lease file");
        }
        true
    }
}

/// What the renewer is told.
pub enum Msg {
    /// Renew at once: another peer leads now, or time passed.
    Now,
    /// The regular renewal.
    Tick,
    /// One that failed, once more.
    Again,
    /// The hardware is not what was registered.
    FactsChanged,
}

/// The renewer actor.
pub struct Renewer;

/// What it needs.
pub struct State {
    node: Arc<Node>,
    coming: Coming,
    /// The lease that the agent before this one held, until this one is registered.
    kept: Option<OwnLease>,
    /// Which peer is asked when the leader does not answer.
    turn: usize,
    /// Between two renewals.
    every: Duration,
    /// [`Msg::Again`] is on its way.
    again: bool,
}

/// How far this start has come.
#[derive(Default)]
struct Coming {
    /// What was registered last: an equal registration is not proposed again.
    registered: Option<HostRegistration>,
    /// The log knows of this start.
    told: bool,
}

/// What came of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renewed {
    /// Acknowledged, or there is nothing to renew.
    Yes,
    /// Not acknowledged: it may be the next time.
    No,
    /// This epoch is not in force any more.
    Over(LeaseEpoch),
}

impl Actor for Renewer {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let every = Duration::from_millis(node.config.profile.lease().renew_ms);
        myself.send_interval(every, || Msg::Tick);
        myself.cast(Msg::Tick)?;
        let kept = early::kept(&node.consensus, (node.host, &node.boot), &node.config);
        Ok(State { node, coming: Coming::default(), kept, turn: 0, every, again: false })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("renewer");
        let State { node, coming, kept, turn, every, again } = state;
        match message {
            Msg::Now => node.doors.renewer.answered(),
            Msg::Again => *again = false,
            Msg::Tick | Msg::FactsChanged => {}
        }
        if !coming.is_over(node) {
            // The log may take its time, and the lease does not wait for it.
            tokio::select! {
                () = coming.come(node) => {}
                () = keep(node, kept, turn, *every) => {}
            }
        }
        match renew(node, kept, turn).await {
            Renewed::Yes => {}
            Renewed::No if *again => {}
            Renewed::No => {
                *again = true;
                myself.send_after(*every / AGAIN_PART, || Msg::Again);
            }
            Renewed::Over(epoch) => {
                *kept = None;
                coming.registered = None;
                tokio::select! {
                    () = coming.come(node) => {}
                    () = keep(node, kept, turn, *every) => {}
                }
                let lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
                // A new epoch is renewed at once; the old one again would be refused again, so that waits its turn.
                if lease.as_ref().is_some_and(|own| own.epoch != epoch) {
                    node.doors.renewer.knock(Msg::Now);
                }
            }
        }
        Ok(())
    }
}

/// Renews for as long as it is polled.
async fn keep(node: &Arc<Node>, kept: &mut Option<OwnLease>, turn: &mut usize, every: Duration) {
    loop {
        let pause = match renew(node, kept, turn).await {
            Renewed::Yes => every,
            Renewed::No => every / AGAIN_PART,
            Renewed::Over(_) => {
                // Registering is what comes next anyway.
                *kept = None;
                every
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// The last renewal of an agent that stops: whoever starts it again has a whole lease's time for that.
pub(crate) async fn renew_last(node: &Arc<Node>) {
    if let Renewed::No = renew(node, &mut None, &mut 0).await {
        tracing::info!("the lease was not renewed before the stop");
    }
}

impl Coming {
    fn is_over(&self, node: &Node) -> bool {
        self.told && self.registered.is_some() && self.registered == registration(node)
    }

    async fn come(&mut self, node: &Arc<Node>) {
        if !self.told {
            self.told = tell_start(node).await;
        }
        if self.told
            && !self.is_over(node)
            && let Some(registration) = register(node).await
        {
            self.registered = Some(registration);
        }
    }
}

fn registration(node: &Node) -> Option<HostRegistration> {
    let mut facts = node.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    facts.notes.reads = node.config.reads();
    Some(HostRegistration { boot: node.boot, addr: node.config.advertised(), facts })
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
            let why = match other {
                Ok(Some(Outcome::Refused(error))) => error.to_string(),
                Ok(_) => "no answer that is one".to_owned(),
                Err(error) => error.to_string(),
            };
            tracing::info!("the log has not heard yet that the agent started, which is tried again: {why}");
            false
        }
    }
}

/// Registers this host, and gives what is registered now.
async fn register(node: &Arc<Node>) -> Option<HostRegistration> {
    let registration = registration(node)?;
    let command = Command::RegisterHost { host: node.host, registration: registration.clone() };
    let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
    match node.consensus.propose(vec![proposal], REGISTER_DEADLINE).await.map(|mut outcomes| outcomes.pop()) {
        Ok(Some(Outcome::HostRegistered { epoch })) => {
            // Launches begin with the lease: this replica must first know all that was committed before it, or a
            // restarted host would start what was cancelled while it was away.
            if let Err(error) = node.consensus.read_barrier(REGISTER_DEADLINE).await {
                tracing::warn!(%error, "registered, but the state cannot be brought up to date yet");
                return None;
            }
            tracing::info!(%epoch, "registered");
            let mut lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
            if lease.as_ref().is_none_or(|own| own.epoch != epoch)
                && let Some(own) = early::open(&node.config, &node.boot, epoch)
            {
                *lease = Some(own);
            }
            return Some(registration);
        }
        Ok(other) => tracing::warn!(?other, "the registration was refused"),
        Err(error) => tracing::warn!(%error, "cannot register"),
    }
    None
}

/// Does something with the lease that is to be renewed: the host's own, or, before there is one, the one that was kept.
fn with_lease<T>(
    node: &Node,
    kept: &mut Option<OwnLease>,
    act: impl FnOnce(&mut OwnLease) -> T,
) -> Option<T> {
    let mut lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
    lease.as_mut().or(kept.as_mut()).map(act)
}

/// Renews once.
async fn renew(node: &Arc<Node>, kept: &mut Option<OwnLease>, turn: &mut usize) -> Renewed {
    let sent = with_lease(node, kept, |own| own.holder.send(clock::boottime_ms()));
    let Some(renewal) = sent.flatten() else { return Renewed::Yes };
    let reply = ask(node, turn, renewal.epoch).await;
    let result = if matches!(reply, Some(PeerReply::Renewed)) { "ok" } else { "failed" };
    metrics::counter!(crate::meters::LEASE_RENEWALS, "result" => result).increment(1);
    match reply {
        Some(PeerReply::Renewed) => {
            let moved = with_lease(node, kept, |own| own.acknowledge(renewal));
            if moved == Some(true) {
                // Grants that came without a lease wait for one.
                node.doors.reconciler.knock(reconciler::Msg::Wake);
            }
            Renewed::Yes
        }
        Some(PeerReply::Refused(error)) if error.code == ErrorCode::Conflict => {
            tracing::warn!(%error, "the lease is over; registering again");
            Renewed::Over(renewal.epoch)
        }
        other => {
            tracing::debug!(?other, "the lease was not renewed");
            Renewed::No
        }
    }
}

/// Asks the leader, or any other peer to relay.
async fn ask(node: &Arc<Node>, turn: &mut usize, epoch: LeaseEpoch) -> Option<PeerReply> {
    let ttl = Duration::from_millis(node.config.profile.lease().renew_ms);
    if node.consensus.leadership().borrow().leader == Some(node.host) {
        return tokio::time::timeout(ttl, peer_handler::renew(node, node.host, epoch, false)).await.ok();
    }
    early::ask_others(&node.consensus, &node.net, (node.host, ttl), turn, epoch).await
}
