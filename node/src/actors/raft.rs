//! Role: keeps agreement's surroundings in step: the address book, the membership, the wake-ups of everybody who
//! acts on commits. Supervisor: root; its death ends the process, as does a failure of the raft core.

use super::root::end_process;
use super::{certifier, reconciler, scheduler};
use crate::address_book;
use crate::io::durable::write_atomic;
use crate::members;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_core::Event;
use rota_core::state::host::HostLife;
use rota_protocol::ids::HostId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// How often the membership is looked at when nothing says that it changed: a learner catches up silently.
const TICK: Duration = Duration::from_millis(500);

/// What it is told.
pub enum Msg {
    /// Hosts were admitted, moved or lost, or leadership changed.
    Members,
    /// Time passed.
    Tick,
}

/// The raft actor.
pub struct RaftActor;

/// What it needs.
pub struct State {
    node: Arc<Node>,
    /// What was last made known to the network, and kept on disk.
    book: Vec<(HostId, String)>,
}

impl Actor for RaftActor {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        tokio::spawn(follow_commits(Arc::clone(&node)));
        tokio::spawn(follow_leadership(Arc::clone(&node)));
        tokio::spawn(follow_failure(Arc::clone(&node)));
        myself.send_interval(TICK, || Msg::Tick);
        myself.cast(Msg::Members)?;
        Ok(State { node, book: Vec::new() })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("raft");
        let node = &state.node;
        if let Msg::Members = message {
            node.doors.raft.answered();
            let book: Vec<(HostId, String)> = node
                .consensus
                .read(|replica| replica.hosts().map(|host| (host.id, host.addr.clone())).collect());
            if book != state.book {
                for (host, addr) in book.iter().filter(|(host, _)| *host != node.host) {
                    node.net.set_peer(*host, addr.clone());
                }
                if let Err(error) = address_book::save(&node.config.data_dir, &book) {
                    tracing::warn!(%error, "cannot keep the addresses of the other hosts");
                }
                state.book = book;
            }
            let members = node.consensus.members();
            let gone = node.consensus.read(|replica| {
                // One that is up is still to hear that its work must end: members from the leader, others as followers.
                let is = |host: &&rota_core::Host| {
                    host.belonging.removed.is_some() && host.id != node.host && host.life != HostLife::Up
                };
                replica.hosts().filter(is).map(|host| host.id).collect::<Vec<_>>()
            });
            for host in gone {
                if !members.voters.contains(&host) && !members.learners.contains(&host) {
                    node.net.cut(host);
                }
            }
        }
        if let Some(why) = members::removal_done(node)
            && !node.is_closing()
        {
            // Kept, so that a service manager that starts the agent again hears it at once.
            let path = members::removed_path(&node.config.data_dir);
            if let Err(error) = write_atomic(&path, format!("{why}\n").as_bytes(), 0o644) {
                tracing::warn!(%error, "cannot keep the reason");
            }
            end_process(&why);
        }
        if node.consensus.leadership().borrow().leading
            && let Err(error) = members::step(node).await
        {
            tracing::debug!(%error, "the membership did not change");
        }
        Ok(())
    }
}

/// Wakes whoever acts on what a commit brought.
async fn follow_commits(node: Arc<Node>) {
    let mut notes = node.consensus.events();
    certifier::publish(&node);
    loop {
        let (mut plan, mut own, mut members, mut trust) = (false, false, false, false);
        match notes.recv().await {
            Ok(note) if note.resync => (plan, own, members, trust) = (true, true, true, true),
            Ok(note) => {
                for event in &note.events {
                    match event {
                        Event::PlanNeeded => plan = true,
                        Event::Granted { host, .. }
                        | Event::EndAsked { host, .. }
                        | Event::AttemptEnded { host, .. } => {
                            own |= *host == node.host;
                        }
                        Event::HostChanged(_) => (members, own) = (true, true),
                        Event::TrustChanged => trust = true,
                        Event::JobChanged(_) => {}
                    }
                }
            }
            Err(RecvError::Lagged(_)) => (plan, own, members, trust) = (true, true, true, true),
            Err(RecvError::Closed) => return,
        }
        if trust {
            certifier::publish(&node);
            node.doors.certifier.knock(certifier::Msg::Changed);
        }
        if own {
            node.doors.reconciler.knock(reconciler::Msg::Wake);
        }
        if plan && node.consensus.leadership().borrow().leading {
            node.doors.scheduler.knock(scheduler::Msg::Wake);
        }
        if members {
            node.doors.raft.knock(Msg::Members);
        }
    }
}

/// Wakes those whose work depends on who leads.
async fn follow_leadership(node: Arc<Node>) {
    let mut leadership = node.consensus.leadership();
    let mut last = None;
    loop {
        let now = *leadership.borrow_and_update();
        if now.leader.is_some() && now.leader != last {
            metrics::counter!(crate::meters::LEADER_CHANGES).increment(1);
            last = now.leader;
        }
        tracing::info!(leader = ?now.leader, term = now.term, leading = now.leading, "leadership");
        metrics::gauge!(crate::meters::RAFT_LEADING).set(if now.leading { 1.0 } else { 0.0 });
        node.doors.renewer.knock(super::renewer::Msg::Now);
        if now.leading {
            node.doors.leases.send(super::leases::Msg::Tick);
            node.doors.scheduler.knock(scheduler::Msg::Wake);
            node.doors.raft.knock(Msg::Members);
        }
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

/// A dead raft core is not restarted in place: the process ends and comes back from its log.
async fn follow_failure(node: Arc<Node>) {
    let mut failed = node.consensus.failed();
    let reason = match failed.wait_for(Option::is_some).await {
        Ok(reason) => reason.clone().unwrap_or_default(),
        Err(_) => "its core is gone".to_owned(),
    };
    if !node.is_closing() {
        end_process(&format!("agreement stopped: {reason}"));
    }
}
