//! How a batch of facts goes to the log: beside the reconciler, which goes on meanwhile. No actor.

use super::reconciler::Msg;
use crate::node::Node;
use ractor::ActorRef;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::ids::RequestId;
use rota_protocol::job::Actor as Author;
use rota_protocol::report::AttemptReport;
use std::sync::Arc;
use std::time::Duration;

/// How long one batch of reports may take to commit before it is told again.
const DEADLINE: Duration = Duration::from_millis(5_000);

/// Tells it; what became of it comes as a message.
pub(super) fn tell_log(myself: &ActorRef<Msg>, node: &Arc<Node>, reports: Vec<AttemptReport>) {
    let (myself, node) = (myself.clone(), Arc::clone(node));
    tokio::spawn(async move {
        let command = Command::Report { host: node.host, reports };
        let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
        let told = match node.consensus.propose(vec![proposal], DEADLINE).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "reports were not committed; they are told again");
                false
            }
        };
        // The actor behind may have been restarted; its successor finds the same facts with the shims.
        let _ = myself.cast(Msg::Reported(told));
    });
}
