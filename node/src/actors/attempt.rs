//! Role: carries out what the reconciler decided for one attempt: launch it, end it, release it, in that order and
//! one at a time. Supervisor: reconciler; when this dies the shim goes on, and the reconciler looks at it again.

use super::reconciler;
use crate::data::{self, Failure};
use crate::io::clock;
use crate::node::Node;
use crate::shim::{LaunchError, ShimNote};
use crate::warden::mps;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::Token;
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::spool::{ExitRecord, LaunchOrder};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// What it is told.
pub enum Msg {
    /// Start the task.
    Launch(Box<LaunchOrder>),
    /// Its inputs are here, or cannot be.
    Staged(Box<LaunchOrder>, Result<(), Failure>),
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
    /// What brings its inputs: until that is done there is no shim. It goes with this actor.
    staging: JoinSet<()>,
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
        Ok(State { node, token, untold: None, staging: JoinSet::new() })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("attempt");
        match message {
            Msg::Launch(order) if order.inputs.is_empty() => begin(state, *order).await,
            Msg::Launch(order) => stage(&myself, state, order),
            // Whatever comes after an end was asked is too late.
            Msg::Staged(..) if state.staging.is_empty() => {}
            Msg::Staged(order, brought) => {
                state.staging.shutdown().await;
                staged(state, *order, brought).await;
            }
            Msg::End(reason) if !state.staging.is_empty() => {
                // Only when it has stopped does it take nothing any more that would have to be let go.
                state.staging.shutdown().await;
                never_ran(state, reason.end());
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

/// Brings its inputs beside this actor, so that an end is heard meanwhile.
fn stage(myself: &ActorRef<Msg>, state: &mut State, order: Box<LaunchOrder>) {
    let (node, myself) = (Arc::clone(&state.node), myself.clone());
    state.staging.spawn(async move {
        let brought = data::stage(&node, &order).await;
        // An actor that is gone has a successor, which begins anew.
        let _ = myself.cast(Msg::Staged(order, brought));
    });
}

/// The lease may be another one by now: what was granted under the old one does not start.
async fn staged(state: &State, order: LaunchOrder, brought: Result<(), Failure>) {
    let may_start = {
        let lease = state.node.lease.lock().unwrap_or_else(PoisonError::into_inner);
        let own = lease.as_ref().map(|own| &own.holder);
        own.is_some_and(|holder| holder.may_start(order.epoch, clock::boottime_ms()))
    };
    match brought {
        Ok(()) if may_start => begin(state, order).await,
        Ok(()) => never_ran(state, AttemptEnd::Fenced),
        Err(Failure { nowhere, reason }) => {
            tracing::warn!(token = %state.token, reason, "an attempt cannot have its inputs");
            never_ran(state, AttemptEnd::InputsMissing { nowhere, reason });
        }
    }
}

/// It ended before there was a shim.
fn never_ran(state: &State, end: AttemptEnd) {
    let record = ExitRecord::never_ran(state.token, end);
    state.node.doors.reconciler.send(reconciler::Msg::Shim(ShimNote::Ended { record }));
}

async fn begin(state: &State, order: LaunchOrder) {
    match launch(&state.node, order).await {
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
