//! Role: reads the state into gauges once a second. Supervisor: root, which restarts it.
//! Labels are bounded: job states and nothing that a tenant can name. Once a minute it also audits: a copy of the state
//! is held against the laws, and what breaks one is counted and logged.

use crate::io::clock;
use crate::meters;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_core::{invariant, view};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often gauges are read.
const TICK: Duration = Duration::from_millis(1_000);
/// Least ticks between two audits: each looks at the whole state.
const AUDIT_TICKS: u64 = 60;
/// An audit takes at most one part in so many of a processor: of a large state there are fewer.
const AUDIT_SHARE: u64 = 100;

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
    /// Ticks until the next audit.
    ticks: u64,
}

impl Actor for Meter {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        myself.send_interval(TICK, || Msg::Tick);
        Ok(State { node, ticks: AUDIT_TICKS })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        Msg::Tick: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("meter");
        state.ticks = state.ticks.saturating_sub(1);
        if state.ticks == 0 {
            let begun = std::time::Instant::now();
            audit(&state.node).await;
            state.ticks = AUDIT_TICKS.max(begun.elapsed().as_secs() * AUDIT_SHARE);
        }
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
            metrics::gauge!(meters::RAFT_TERM).set(node.consensus.leadership().borrow().term as f64);
            metrics::gauge!(meters::LEASE_REMAINING_SECONDS).set(lease_left_ms(node) as f64 / 1_000.0);
        }
        let states = node.gossip_states();
        for seen in ["alive", "suspect", "down"] {
            let count =
                u32::try_from(states.values().filter(|state| **state == seen).count()).unwrap_or(u32::MAX);
            metrics::gauge!(meters::GOSSIP_MEMBERS, "state" => seen).set(f64::from(count));
        }
        Ok(())
    }
}

/// Until the host's own lease ends; zero without one.
fn lease_left_ms(node: &Node) -> u64 {
    let lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline_ms = lease.as_ref().and_then(|own| own.holder.deadline_ms()).unwrap_or(0);
    deadline_ms.saturating_sub(clock::boottime_ms())
}

async fn audit(node: &Node) {
    let copy = node.consensus.read(Clone::clone);
    let broken = tokio::task::spawn_blocking(move || invariant::check(&copy)).await.unwrap_or_default();
    for violation in broken {
        tracing::error!(%violation, "a law of the state is broken: report this as a bug");
        // The variant's name: a word from a fixed set.
        let law = format!("{violation:?}").split([' ', '{', '(']).next().unwrap_or_default().to_owned();
        metrics::counter!(meters::VIOLATIONS, "law" => law).increment(1);
    }
}
