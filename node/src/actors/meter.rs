//! Role: reads the state into gauges once a second. Supervisor: root, which restarts it.
//! Labels are bounded: job states and nothing that a tenant can name.

use crate::meters;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_core::view;
use std::sync::Arc;
use std::time::Duration;

/// How often gauges are read.
const TICK: Duration = Duration::from_millis(1_000);

/// What it is told.
pub enum Msg {
    /// Time passed.
    Tick,
}

/// The meter actor.
pub struct Meter;

/// What it needs.
pub struct State {
    node: Arc<Node>,
}

impl Actor for Meter {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        myself.send_interval(TICK, || Msg::Tick);
        Ok(State { node })
    }

    async fn handle(&self, _: ActorRef<Msg>, Msg::Tick: Msg, state: &mut State) -> Result<(), ActorProcessingErr> {
        let node = &state.node;
        let (applied, jobs, attempts) = node.consensus.read(|replica| {
            (replica.applied_index(), view::jobs_by_state(replica), replica.attempts_on(node.host).count())
        });
        #[allow(clippy::cast_precision_loss)] // Gauges are floats; 2^52 entries are centuries away.
        {
            metrics::gauge!(meters::RAFT_APPLIED).set(applied as f64);
            metrics::gauge!(meters::ATTEMPTS_LIVE).set(attempts as f64);
            for (name, count) in jobs {
                metrics::gauge!(meters::JOBS, "state" => name).set(count as f64);
            }
        }
        Ok(())
    }
}
