//! Role: tells this host's news and keeps what the others said where everybody can look it up. Supervisor: root,
//! which restarts it; members are then announced again under a new incarnation.
//!
//! Gossip informs (status pages, addresses, readings). It never decides an allocation and never fences a task.

use crate::io::clock;
use crate::net::gossip::{Change, Gossip, GossipHandle, Seen as ByGossip, driver};
use crate::node::{Node, Seen};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::gossip::{GossipMember, StatusDigest};
use rota_protocol::ids::HostId;
use std::sync::{Arc, PoisonError};
use tokio::task::JoinHandle;

/// What it is told.
pub enum Msg {
    /// A datagram arrived.
    Datagram {
        /// The sender, by its certificate.
        from: HostId,
        /// The membership protocol's bytes.
        bytes: Vec<u8>,
    },
    /// Time to tell this host's news, and to look at the others'.
    Status,
    /// A host appeared or went.
    Changed(Change),
}

/// The gossip actor.
pub struct GossipActor;

/// The protocol's handle, and the tasks that drive it.
pub struct State {
    node: Arc<Node>,
    gossip: GossipHandle,
    incarnation: u64,
    tasks: Vec<JoinHandle<()>>,
}

impl Actor for GossipActor {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let incarnation = clock::wall_ms();
        let own = GossipMember { host: node.host, incarnation, addr: node.config.advertised() };
        let (gossip, task) = driver(Gossip::new(own, rand::random()));
        let mut tasks = vec![tokio::spawn(task.run(Arc::clone(&node.net)))];
        let mut changes = gossip.changes();
        let listener = myself.clone();
        tasks.push(tokio::spawn(async move {
            // A listener that lagged looks at the list with the next status anyway.
            while let Ok(change) = changes.recv().await {
                if listener.cast(Msg::Changed(change)).is_err() {
                    return;
                }
            }
        }));
        myself.send_interval(gossip.status_period(), || Msg::Status);
        myself.cast(Msg::Status)?;
        Ok(State { node, gossip, incarnation, tasks })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("gossip");
        match message {
            Msg::Datagram { from, bytes } => state.gossip.datagram(from, bytes),
            Msg::Status => {
                state.gossip.set_seeds(addresses(&state.node));
                state.gossip.set_status(own_status(&state.node, state.incarnation));
                publish(&state.node, &state.gossip);
            }
            Msg::Changed(Change::Up(member)) => {
                tracing::debug!(host = %member.host, "gossip sees a host");
                // A newer address than the log's is only a hint: the certificate decides who answers there.
                state.node.net.hint_peer(member.host, member.addr);
                publish(&state.node, &state.gossip);
            }
            Msg::Changed(Change::Down(member)) => {
                tracing::info!(host = %member.host, "gossip lost a host");
                publish(&state.node, &state.gossip);
            }
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Msg>, state: &mut State) -> Result<(), ActorProcessingErr> {
        for task in &state.tasks {
            task.abort();
        }
        Ok(())
    }
}

fn addresses(node: &Node) -> Vec<(HostId, String)> {
    node.consensus.read(|state| {
        state.hosts().filter(|host| host.id != node.host).map(|host| (host.id, host.addr.clone())).collect()
    })
}

fn own_status(node: &Node, incarnation: u64) -> StatusDigest {
    let (applied, attempts) =
        node.consensus.read(|state| (state.applied_index(), state.attempts_on(node.host).count()));
    StatusDigest {
        host: node.host,
        incarnation,
        // The protocol counts versions itself.
        version: 0,
        boot: node.boot,
        at_ms: clock::wall_ms(),
        addr: node.config.advertised(),
        applied,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        load_milli: crate::devices::host::load_milli(),
        devices: node.own_readings.read().unwrap_or_else(PoisonError::into_inner).clone(),
    }
}

fn publish(node: &Node, gossip: &GossipHandle) {
    let hosts: Vec<HostId> = node.consensus.read(|state| state.hosts().map(|host| host.id).collect());
    let mut seen = Seen::default();
    let all = gossip.all_seen();
    for host in hosts.into_iter().filter(|host| *host != node.host) {
        seen.states.insert(host, all.get(&host).copied().unwrap_or(ByGossip::Unknown).word());
        if let Some(status) = gossip.status(host) {
            seen.status.insert(host, status.digest);
        }
    }
    *node.seen.write().unwrap_or_else(PoisonError::into_inner) = seen;
}
