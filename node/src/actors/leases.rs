//! Role: on the leader, lets leases run out. Supervisor: root, which restarts it.
//! The book itself lives in the node, because renewals arrive on peer connections; this actor is its clock.
//! An expiry is a log entry, proposed only after a quorum confirmation that began after the timer, and only in the
//! term of the leader that counted: its successor may have acknowledged renewals since (faults C2, P3).

use crate::io::clock;
use crate::logic::lease_book::DueLease;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::RequestId;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::job::Actor as Author;
use std::sync::Arc;
use std::time::Duration;

/// How often due leases are looked for: adds at most this much to an expiry.
const TICK: Duration = Duration::from_millis(50);
/// How long an expiry may take to commit before it is proposed again.
const COMMIT_DEADLINE: Duration = Duration::from_millis(1_000);

/// What the lease clock is told.
pub enum Msg {
    /// Time passed.
    Tick,
}

/// The lease clock.
pub struct Leases;

/// What it needs.
pub struct State {
    node: Arc<Node>,
    /// The term in which the book was opened: a new one starts every lease anew.
    term: Option<u64>,
}

impl Actor for Leases {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        myself.send_interval(TICK, || Msg::Tick);
        Ok(State { node, term: None })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        Msg::Tick: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("leases");
        let leadership = *state.node.consensus.leadership().borrow();
        if !leadership.leading {
            if state.term.take().is_some() {
                let tickets = state.node.lease_book().on_deposed();
                state.node.renewals.answer(&tickets, false);
            }
            return Ok(());
        }
        let held = state.node.lease_holders();
        let now_ms = clock::boottime_ms();
        let due = {
            let mut book = state.node.lease_book();
            if state.term == Some(leadership.term) {
                book.set_hosts(held, now_ms);
            } else {
                state.term = Some(leadership.term);
                book.on_elected(held, now_ms);
            }
            book.due(now_ms)
        };
        if !due.is_empty() {
            expire(&state.node, leadership.term, due).await;
        }
        Ok(())
    }
}

async fn expire(node: &Node, term: u64, due: Vec<DueLease>) {
    let confirmed = node.consensus.confirm_quorum().await.is_ok();
    // A renewal that arrived while the quorum was asked wins.
    let proposals: Vec<_> = node
        .lease_book()
        .still_due(&due, confirmed)
        .into_iter()
        .map(|(host, epoch)| {
            tracing::warn!(%host, %epoch, "a lease ran out");
            metrics::counter!(crate::meters::LEASES_EXPIRED).increment(1);
            Proposal {
                request: RequestId::NONE,
                actor: Author::system(),
                command: Command::Expire { host, epoch },
            }
        })
        .collect();
    if proposals.is_empty() {
        return;
    }
    if let Err(error) = node.consensus.propose_in_term(term, proposals, COMMIT_DEADLINE).await {
        tracing::warn!(%error, "expiries were not committed");
    }
}
