//! Role: drives gossip: datagrams and timers in, datagrams and news out. Supervisor: root, which restarts it; members
//! are then announced again.
//!
//! Gossip informs (status pages, addresses, readings). It never decides an allocation and never fences a task.

use crate::io::clock;
use crate::net::gossip::{Action, Gossip, GossipConfig, Timer};
use crate::node::{Node, Seen};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::gossip::{GossipMember, StatusDigest};
use rota_protocol::ids::HostId;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often this host tells its news.
const STATUS_EVERY: Duration = Duration::from_millis(1_000);

/// What it is told.
pub enum Msg {
    /// A datagram arrived.
    Datagram {
        /// The sender, by its certificate.
        from: HostId,
        /// The membership protocol's bytes.
        bytes: Vec<u8>,
    },
    /// A timer is due.
    Timer(Timer),
    /// Time to tell this host's news.
    Status,
}

/// The gossip actor.
pub struct GossipActor;

/// The decider and what it needs.
pub struct State {
    node: Arc<Node>,
    gossip: Gossip,
    version: u64,
}

impl Actor for GossipActor {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let own = GossipMember {
            host: node.host,
            incarnation: clock::wall_ms(),
            addr: node.config.advertised(),
        };
        let gossip = Gossip::new(own, GossipConfig::default(), rand::random());
        myself.send_interval(STATUS_EVERY, || Msg::Status);
        myself.cast(Msg::Status)?;
        Ok(State { node, gossip, version: 0 })
    }

    async fn handle(&self, myself: ActorRef<Msg>, message: Msg, state: &mut State) -> Result<(), ActorProcessingErr> {
        let now_ms = clock::boottime_ms();
        let mut actions = Vec::new();
        match message {
            Msg::Datagram { from, bytes } => actions = state.gossip.handle_datagram(now_ms, from, &bytes),
            Msg::Timer(timer) => actions = state.gossip.handle_timer(now_ms, timer),
            Msg::Status => {
                state.version += 1;
                let digest = own_status(&state.node, &state.gossip, state.version);
                actions.extend(state.gossip.set_status(now_ms, digest));
                for (host, addr) in addresses(&state.node) {
                    actions.extend(state.gossip.know(now_ms, host, addr));
                }
                publish(&state.node, &state.gossip, now_ms);
            }
        }
        for action in actions {
            carry_out(&myself, &state.node, action);
        }
        Ok(())
    }
}

fn carry_out(myself: &ActorRef<Msg>, node: &Node, action: Action) {
    match action {
        Action::Send { to, bytes } => node.net.gossip_send(to, bytes),
        Action::Schedule { after_ms, timer } => {
            myself.send_after(Duration::from_millis(after_ms), move || Msg::Timer(timer));
        }
        Action::MemberUp(member) => {
            tracing::debug!(host = %member.host, "gossip sees a member");
            // A newer address than the log's is only a hint: the certificate decides who answers there.
            node.net.set_peer(member.host, member.addr);
        }
        Action::MemberDown(member) => tracing::info!(host = %member.host, "gossip lost a member"),
    }
}

fn addresses(node: &Node) -> Vec<(HostId, String)> {
    node.consensus.read(|state| {
        state.hosts().filter(|host| host.id != node.host).map(|host| (host.id, host.addr.clone())).collect()
    })
}

fn own_status(node: &Node, gossip: &Gossip, version: u64) -> StatusDigest {
    let (applied, attempts) =
        node.consensus.read(|state| (state.applied_index(), state.attempts_on(node.host).count()));
    let devices = node.own_readings.read().unwrap_or_else(PoisonError::into_inner).clone();
    StatusDigest {
        host: node.host,
        incarnation: gossip.own().incarnation,
        version,
        boot: node.boot,
        at_ms: clock::wall_ms(),
        addr: node.config.advertised(),
        applied,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        load_milli: crate::io::proc::load_milli().unwrap_or(0),
        devices,
    }
}

fn publish(node: &Node, gossip: &Gossip, now_ms: u64) {
    let mut seen = Seen::default();
    for (member, state) in gossip.members() {
        seen.states.insert(member.host, state);
        if let Some(status) = gossip.status(member.host, now_ms) {
            seen.status.insert(member.host, status.clone());
        }
    }
    *node.seen.write().unwrap_or_else(PoisonError::into_inner) = seen;
}
