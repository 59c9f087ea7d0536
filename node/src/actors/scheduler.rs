//! Role: on the leader, turns the state into plans and proposes them. Supervisor: root, which restarts it.
//! Event-driven: a commit that queues work or frees capacity wakes it; the slow tick is only for conditions that
//! time alone ends (back-off, suspension).

use crate::io::clock;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_core::placement::{PlanConfig, Planner, View};
use rota_protocol::command::{Command, Proposal};
use rota_protocol::job::Actor as Author;
use rota_protocol::plan::Plan;
use rota_protocol::{HostId, RequestId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How often conditions that only time ends are looked at.
const TICK: Duration = Duration::from_millis(1_000);
/// How long a plan may take to commit; after it the next round starts from the state again.
const COMMIT_DEADLINE: Duration = Duration::from_millis(2_000);
/// Plans in a row of which every move was refused; after them the next tick is waited for.
const REFUSED_MAX: u32 = 3;
/// From so many rounds in a row on that found nothing to do, each is followed by a rest: while jobs stream in that
/// cannot start, every entry would ask for another round, and planning would take the processor that accepting them
/// needs.
const FRUITLESS_MAX: u32 = 4;
/// That rest, in lengths of the round: planning takes a tenth of a processor then, and nobody waits noticeably longer.
const REST_TIMES: u32 = 9;
/// Longest such rest.
const REST_MAX: Duration = Duration::from_millis(50);
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
    /// Hosts that the last round was to avoid.
    avoided: BTreeSet<HostId>,
    /// Rounds in a row of which every move was refused.
    refused: u32,
    /// Rounds in a row that found nothing to do, and how long the last one took.
    fruitless: u32,
    took: Duration,
}

impl Actor for Scheduler {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        myself.send_interval(TICK, || Msg::Tick);
        let (planner, avoided) = (Planner::default(), BTreeSet::new());
        Ok(State { node, planner, avoided, refused: 0, fruitless: 0, took: Duration::ZERO })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("scheduler");
        match message {
            Msg::Wake => state.node.doors.scheduler.answered(),
            Msg::Tick => state.refused = 0,
        }
        for _ in 0..ROUNDS_MAX {
            if !round(state).await {
                let rest = rest(state.fruitless, state.took);
                if !rest.is_zero() {
                    tokio::time::sleep(rest).await;
                }
                return Ok(());
            }
        }
        state.node.doors.scheduler.knock(Msg::Wake);
        Ok(())
    }
}

/// How long to rest after a round that found nothing.
fn rest(fruitless: u32, took: Duration) -> Duration {
    if fruitless < FRUITLESS_MAX { Duration::ZERO } else { (took * REST_TIMES).min(REST_MAX) }
}

/// One round; true when another may find more.
async fn round(state: &mut State) -> bool {
    let node = &state.node;
    let leadership = *node.consensus.leadership().borrow();
    if !leadership.leading || state.refused >= REFUSED_MAX {
        return false;
    }
    let now_ms = clock::wall_ms();
    let config = PlanConfig { avoid_hosts: node.suspected(), ..PlanConfig::default() };
    let same_hosts = state.avoided == config.avoid_hosts;
    let look = |replica: &rota_core::State| {
        let quiet = same_hosts && state.planner.is_quiet(replica.applied_index(), now_ms);
        (!quiet && replica.wants_planning(now_ms)).then(|| View::of(replica, now_ms))
    };
    let started = std::time::Instant::now();
    let Some(view) = node.consensus.read(look) else {
        // Nothing was looked at, so there is nothing to rest from.
        state.took = Duration::ZERO;
        return false;
    };
    state.avoided.clone_from(&config.avoid_hosts);
    let is_cut = view.is_cut;
    let plan = state.planner.plan(&view, &config, now_ms);
    // Rows that the copy shares are copied whole when they change: it must not outlive its use.
    drop(view);
    state.took = started.elapsed();
    metrics::histogram!(crate::meters::PLAN_SECONDS).record(state.took.as_secs_f64());
    if plan.moves.is_empty() {
        state.fruitless = state.fruitless.saturating_add(1);
        return false;
    }
    state.fruitless = 0;
    let moves = plan.moves.len();
    metrics::counter!(crate::meters::PLAN_MOVES).increment(moves as u64);
    let Some(refused) = commit(node, leadership.term, plan).await else {
        return false;
    };
    // Once may be the state that moved on under the plan; again and again is a plan that apply will never take.
    state.refused = if refused == moves { state.refused + 1 } else { 0 };
    // Refused moves mean that the state moved on under the plan: look again at once.
    is_cut || moves >= config.moves_max || refused > 0
}

/// How many moves were refused; none when the plan was not committed: it may be so only in the term it was made in.
async fn commit(node: &Node, term: u64, plan: Plan) -> Option<usize> {
    let proposal =
        Proposal { request: RequestId::NONE, actor: Author::system(), command: Command::CommitPlan { plan } };
    match node.consensus.propose_in_term(term, vec![proposal], COMMIT_DEADLINE).await {
        Ok(outcomes) => Some(
            outcomes
                .iter()
                .map(|outcome| match outcome {
                    rota_protocol::command::Outcome::Planned { refused } => refused.len(),
                    _ => 0,
                })
                .sum(),
        ),
        Err(error) => {
            tracing::warn!(%error, "a plan was not committed");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planning_rests_only_while_it_finds_nothing_again_and_again() {
        let took = Duration::from_millis(2);
        assert_eq!(rest(0, took), Duration::ZERO);
        assert_eq!(rest(FRUITLESS_MAX - 1, took), Duration::ZERO);
        assert_eq!(rest(FRUITLESS_MAX, took), Duration::from_millis(18));
        assert_eq!(rest(FRUITLESS_MAX, Duration::from_secs(1)), REST_MAX);
    }
}
