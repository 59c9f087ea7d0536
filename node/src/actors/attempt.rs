//! Role: carries out what the reconciler decided for one attempt: launch it, end it, release it, in that order and
//! one at a time. Supervisor: reconciler; when this dies the shim goes on, and the reconciler looks at it again.

use super::reconciler;
use crate::node::Node;
use crate::shim::{LaunchError, ShimNote};
use crate::warden::mps;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::Token;
use rota_protocol::job::EndReason;
use rota_protocol::spool::LaunchOrder;
use std::sync::Arc;
use std::time::Duration;

/// What it is told.
pub enum Msg {
    /// Start the task.
    Launch(Box<LaunchOrder>),
    /// End it.
    End(EndReason),
    /// Tell the task who is in its gang now.
    Gang(String),
    /// Tell it again: it was not started yet.
    GangAgain,
    /// The log has its end: forget it, and stop.
    Release,
}

/// An attempt's actor.
pub struct Attempt;

/// Which attempt.
pub struct State {
    node: Arc<Node>,
    token: Token,
    /// What the task was not told of its gang yet.
    untold: Option<String>,
}

impl Actor for Attempt {
    type Msg = Msg;
    type State = State;
    type Arguments = (Arc<Node>, Token);

    async fn pre_start(
        &self,
        _: ActorRef<Msg>,
        (node, token): (Arc<Node>, Token),
    ) -> Result<State, ActorProcessingErr> {
        Ok(State { node, token, untold: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("attempt");
        match message {
            Msg::Launch(order) => {
                match launch(&state.node, *order).await {
                    Ok(()) => {}
                    // Ordered before, by an earlier actor: its notes come as if this one had ordered it.
                    Err(LaunchError::Known(_)) => {}
                    Err(error) => {
                        tracing::warn!(token = %state.token, %error, "a launch failed");
                        let note = ShimNote::LaunchFailed { token: state.token, reason: error.to_string() };
                        state.node.doors.reconciler.send(reconciler::Msg::Shim(note));
                    }
                }
            }
            Msg::End(reason) => state.node.shims.end(state.token, reason).await,
            Msg::Gang(text) => {
                state.untold = Some(text);
                tell_gang(&myself, state).await;
            }
            Msg::GangAgain => tell_gang(&myself, state).await,
            Msg::Release => {
                state.node.shims.release(state.token).await;
                myself.stop(None);
            }
        }
        Ok(())
    }
}

/// Says that the gang's file is another: `WINCH`, "the size changed". It is the one signal of that meaning, and whoever
/// does not catch it is not ended by it.
const GANG_SIGNAL: u8 = 28;

/// Through the card's sharing service, if it asked for that: the service listens before it starts.
async fn launch(node: &Node, order: LaunchOrder) -> Result<(), LaunchError> {
    let token = order.token;
    let through_mps = node
        .consensus
        .read(|replica| replica.attempt(token).and_then(|attempt| mps::card_of(replica, attempt)));
    if let Some(card) = through_mps
        && let Err(reason) = node.mps.lock().await.ensure(&card).await
    {
        return Err(LaunchError::Order { token, reason });
    }
    node.shims.launch(order).await
}

/// The shim makes the file a moment after its order; until then, and while the disk refuses, it is tried again.
async fn tell_gang(myself: &ActorRef<Msg>, state: &mut State) {
    const PAUSE: Duration = Duration::from_millis(200);
    let Some(text) = state.untold.clone() else { return };
    match state.node.shims.tell_gang(state.token, text).await {
        Ok(changed) => {
            state.untold = None;
            if changed {
                state.node.shims.signal(state.token, GANG_SIGNAL).await;
            }
        }
        Err(error) => {
            tracing::debug!(token = %state.token, %error, "a task cannot be told of its gang");
            myself.send_after(PAUSE, || Msg::GangAgain);
        }
    }
}
