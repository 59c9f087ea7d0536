//! A host that drains itself, and takes work again: deciders (`logic::storage`, `logic::drift`) say what, this carries it to
//! the log.

use crate::logic::own_drain::Change;
use crate::node::Node;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::ids::RequestId;
use rota_protocol::job::Actor;
use std::time::Duration;

/// Proposes the change for this host. `cause` is what decided it; a decider asks again for what the log was not told.
pub(crate) async fn tell(node: &Node, change: Change, cause: &str, deadline: Duration) {
    let command = match change {
        Change::Drain(reason) => Command::DrainHost { host: node.host, reason },
        Change::Undrain => Command::UndrainHost { host: node.host },
    };
    tracing::warn!(?command, "{cause} decides whether work comes");
    let proposal = Proposal { request: RequestId::NONE, actor: Actor::system(), command };
    if let Err(error) = node.consensus.propose(vec![proposal], deadline).await {
        tracing::warn!(%error, cause, "the log was not told of the drain; it is tried again");
    }
}
