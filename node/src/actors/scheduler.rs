//! Role: on the leader, turns the state into plans and proposes them. Supervisor: root, which restarts it.
//! Event-driven: a commit that queues work or frees capacity wakes it; the slow tick is only for conditions that
//! time alone ends (back-off, suspension).

use crate::io::clock;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_core::placement::{PlanConfig, Planner, View};
use rota_protocol::RequestId;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::job::Actor as Author;
use rota_protocol::plan::Plan;
use std::sync::Arc;
use std::time::Duration;

/// How often conditions that only time ends are looked at.
const TICK: Duration = Duration::from_millis(1_000);
/// How long a plan may take to commit; after it the next round starts from the state again.
const COMMIT_DEADLINE: Duration = Duration::from_millis(2_000);
/// Rounds in a row before the actor looks at its mailbox again.
const ROUNDS_MAX: usize = 16;

/// What the scheduler is told.
pub enum Msg {
    /// Work was queued, capacity was freed, or this peer came to lead.
    Wake,
    /// Time passed.
    Tick,
}

/// The scheduler actor.
pub struct Scheduler;

/// What it needs.
pub struct State {
    node: Arc<Node>,
    planner: Planner,
}

impl Actor for Scheduler {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        myself.send_interval(TICK, || Msg::Tick);
        Ok(State { node, planner: Planner::default() })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("scheduler");
        if let Msg::Wake = message {
            state.node.doors.scheduler.answered();
        }
        for _ in 0..ROUNDS_MAX {
            if !round(state).await {
                return Ok(());
            }
        }
        state.node.doors.scheduler.knock(Msg::Wake);
        Ok(())
    }
}

/// One round; true when another may find more.
async fn round(state: &mut State) -> bool {
    let node = &state.node;
    if !node.consensus.leadership().borrow().leading {
        return false;
    }
    let now_ms = clock::wall_ms();
    let look = |replica: &rota_core::State| replica.wants_planning(now_ms).then(|| View::of(replica, now_ms));
    let Some(view) = node.consensus.read(look) else {
        return false;
    };
    let config = PlanConfig { avoid_hosts: node.suspected(), ..PlanConfig::default() };
    let started = std::time::Instant::now();
    let is_cut = view.is_cut;
    let plan = state.planner.plan(&view, &config, now_ms);
    // Rows that the copy shares are copied whole when they change: it must not outlive its use.
    drop(view);
    metrics::histogram!(crate::meters::PLAN_SECONDS).record(started.elapsed().as_secs_f64());
    if plan.moves.is_empty() {
        return false;
    }
    let full = is_cut || plan.moves.len() >= config.moves_max;
    metrics::counter!(crate::meters::PLAN_MOVES).increment(plan.moves.len() as u64);
    match commit(node, plan).await {
        // Refused moves mean that the state moved on under the plan: look again at once.
        Some(refused) => full || refused,
        None => false,
    }
}

/// Whether any move was refused; none when the plan was not committed.
async fn commit(node: &Node, plan: Plan) -> Option<bool> {
    let proposal =
        Proposal { request: RequestId::NONE, actor: Author::system(), command: Command::CommitPlan { plan } };
    match node.consensus.propose(vec![proposal], COMMIT_DEADLINE).await {
        Ok(outcomes) => Some(outcomes.iter().any(|outcome| {
            matches!(outcome, rota_protocol::command::Outcome::Planned { refused } if !refused.is_empty())
        })),
        Err(error) => {
            tracing::warn!(%error, "a plan was not committed");
            None
        }
    }
}
