//! Role: the root of the actor tree. It starts every child of the table and answers deaths by it.
//! Supervisor: none. Its own death ends the process, because nobody else would notice the next one.

use super::restart::{Deaths, Verdict};
use super::{
    api, auditor, certifier, devices, gossip, health, leases, meter, raft, reconciler, renewer, scheduler,
    warden,
};
use crate::boot::{OnDeath, row};
use crate::io::clock;
use crate::node::Node;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// What the root is told.
pub enum Msg {
    /// Start the child of this name again; sent to itself after a pause.
    Start(&'static str),
}

/// The root actor.
pub struct Root;

/// Its children and their deaths.
pub struct State {
    node: Arc<Node>,
    children: HashMap<ActorId, &'static str>,
    deaths: BTreeMap<&'static str, Deaths>,
}

/// In the order of their start: state first, then what acts on it, then what lets others in.
const CHILDREN: [&str; 13] = [
    "raft",
    "gossip",
    "warden",
    "devices",
    "health",
    "certifier",
    "renewer",
    "reconciler",
    "leases",
    "scheduler",
    "meter",
    "auditor",
    "api",
];

impl Actor for Root {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let mut state = State { node, children: HashMap::new(), deaths: BTreeMap::new() };
        for name in CHILDREN {
            let cell = start(name, &state.node, myself.get_cell()).await?;
            state.children.insert(cell.get_id(), name);
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let Msg::Start(name) = message;
        match start(name, &state.node, myself.get_cell()).await {
            Ok(cell) => {
                state.children.insert(cell.get_id(), name);
            }
            Err(error) => died(&myself, state, name, &error.to_string()),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (id, reason) = match event {
            SupervisionEvent::ActorFailed(cell, error) => (cell.get_id(), error.to_string()),
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                (cell.get_id(), reason.unwrap_or_else(|| "stopped".into()))
            }
            _ => return Ok(()),
        };
        if state.node.is_closing() {
            return Ok(());
        }
        if let Some(name) = state.children.remove(&id) {
            died(&myself, state, name, &reason);
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Msg>, state: &mut State) -> Result<(), ActorProcessingErr> {
        if !state.node.is_closing() {
            end_process("the root of the actor tree stopped");
        }
        Ok(())
    }
}

fn died(myself: &ActorRef<Msg>, state: &mut State, name: &'static str, reason: &str) {
    tracing::error!(actor = name, reason, "an actor died");
    metrics::counter!(crate::meters::ACTOR_DEATHS, "actor" => name).increment(1);
    let on_death = row(name).map_or(OnDeath::EndProcess, |row| row.on_death);
    if on_death == OnDeath::EndProcess {
        end_process(&format!("actor {name} died: {reason}"));
    }
    match state.deaths.entry(name).or_default().note(clock::boottime_ms()) {
        Verdict::RestartAfter(ms) => {
            myself.send_after(Duration::from_millis(ms), move || Msg::Start(name));
        }
        Verdict::GiveUp => end_process(&format!("actor {name} died too often: {reason}")),
    }
}

/// Ends the process; attempts live on under their shims and the next start adopts them.
pub fn end_process(reason: &str) -> ! {
    tracing::error!(reason, "the agent ends");
    // A log file on a full disk takes no words, and must not keep the process.
    let _ = writeln!(std::io::stderr().lock(), "rota agent: {reason}");
    std::process::exit(70)
}

async fn start(name: &'static str, node: &Arc<Node>, root: ActorCell) -> Result<ActorCell, SpawnErr> {
    let node = Arc::clone(node);
    let doors = &Arc::clone(&node).doors;
    macro_rules! child {
        ($door:ident, $module:ident, $actor:expr) => {{
            let (actor, _) = Actor::spawn_linked(None, $actor, node, root).await?;
            doors.$door.open(actor.clone());
            actor.get_cell()
        }};
    }
    Ok(match name {
        "raft" => child!(raft, raft, raft::RaftActor),
        "gossip" => child!(gossip, gossip, gossip::GossipActor),
        "devices" => child!(devices, devices, devices::Devices),
        "health" => child!(health, health, health::HealthActor),
        "renewer" => child!(renewer, renewer, renewer::Renewer),
        "reconciler" => child!(reconciler, reconciler, reconciler::Reconciler),
        "leases" => child!(leases, leases, leases::Leases),
        "scheduler" => child!(scheduler, scheduler, scheduler::Scheduler),
        "warden" => child!(warden, warden, warden::Warden),
        "auditor" => child!(auditor, auditor, auditor::Auditor),
        "certifier" => child!(certifier, certifier, certifier::Certifier),
        "meter" => child!(meter, meter, meter::Meter),
        "api" => child!(api, api, api::Api),
        other => unreachable!("no such child: {other}"),
    })
}
