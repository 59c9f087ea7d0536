//! Role: owns the host's inventory, looks at it again and again, and supervises one actor per device.
//! Supervisor: root, which restarts it; devices are then discovered anew.
//!
//! New or changed facts go to the renewer, which registers the host anew: a card that appears later is offered
//! without a restart, a card that is gone is no longer.

use super::{device, health, renewer};
use crate::devices::Inventory;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use rota_protocol::device::HostFacts;
use rota_protocol::ids::DeviceUuid;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How often the hardware is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2_000);
/// How often live values are read.
const READ_EVERY: Duration = Duration::from_millis(1_000);

/// How often a change of the hardware is worth a line in the log.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What it is told.
pub enum Msg {
    /// Look at the hardware.
    Look,
    /// Look at it out of turn: something was said of it. Coalesced by the door.
    Advice,
    /// Read the live values.
    Read,
}

/// The devices actor.
pub struct Devices;

/// The inventory and one actor for each device in it.
pub struct State {
    node: Arc<Node>,
    inventory: Inventory,
    facts: Option<HostFacts>,
    told: Option<Instant>,
    actors: BTreeMap<DeviceUuid, ActorRef<device::Msg>>,
    /// At the last look the host was being drained.
    drained: bool,
}

impl Actor for Devices {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let inventory = Inventory::new(&node.config.devices(&node.identity.host_name)?)?;
        let mut state =
            State { node, inventory, facts: None, told: None, actors: BTreeMap::new(), drained: false };
        look(&myself, &mut state).await?;
        myself.send_interval(LOOK_EVERY, || Msg::Look);
        myself.send_interval(READ_EVERY, || Msg::Read);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("devices");
        match message {
            Msg::Look => look(&myself, state).await?,
            Msg::Advice => {
                state.node.doors.devices.answered();
                look(&myself, state).await?;
            }
            Msg::Read => {
                let readings = state.inventory.readings().await;
                for reading in &readings {
                    if let Some(actor) = state.actors.get(&reading.uuid) {
                        // A device actor that just died is started again at the next look.
                        let _ = actor.cast(device::Msg::Reading(reading.clone()));
                    }
                }
                let known = state.facts.as_ref().map_or(&[][..], |facts| &facts.devices);
                crate::meters::record_devices(known, &readings);
                *state.node.own_readings.write().unwrap_or_else(PoisonError::into_inner) = readings;
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(cell, _) | SupervisionEvent::ActorTerminated(cell, _, _) = event
        {
            state.actors.retain(|_, actor| actor.get_id() != cell.get_id());
            start_missing(&myself, state).await?;
        }
        Ok(())
    }
}

async fn look(myself: &ActorRef<Msg>, state: &mut State) -> Result<(), ActorProcessingErr> {
    let mut facts = state.inventory.refresh().await;
    paint(state, &mut facts);
    let stuck = u32::try_from(state.inventory.stuck()).unwrap_or(u32::MAX);
    metrics::gauge!(crate::meters::PROBES_STUCK).set(f64::from(stuck));
    let looked = Box::new((facts.clone(), state.inventory.signs().clone()));
    state.node.doors.health.send(health::Msg::Looked(looked));
    if state.facts.as_ref() == Some(&facts) {
        return Ok(());
    }
    // A card that comes and goes changes the facts at each look.
    if state.told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
        state.told = Some(Instant::now());
        tracing::info!(devices = facts.devices.len(), notes = ?state.inventory.notes(), "the hardware changed");
    }
    state.facts = Some(facts.clone());
    start_missing(myself, state).await?;
    for facts in &facts.devices {
        if let Some(actor) = state.actors.get(&facts.uuid) {
            let _ = actor.cast(device::Msg::Facts(facts.clone()));
        }
    }
    *state.node.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
    state.node.doors.renewer.send(renewer::Msg::FactsChanged);
    Ok(())
}

/// Devices that are well and must not be granted. A host that is let work again after a drain was looked at by somebody.
fn paint(state: &mut State, facts: &mut HostFacts) {
    let drains = state
        .node
        .consensus
        .read(|replica| replica.host(state.node.host).is_some_and(|host| host.drain.is_some()));
    let mut dirt = state.node.dirt();
    if std::mem::replace(&mut state.drained, drains) && !drains && dirt.cleared() {
        tracing::info!("the host was drained and takes work again: failed epilogs are forgotten");
    }
    dirt.paint(&mut facts.devices);
    let dirty = u32::try_from(dirt.count()).unwrap_or(u32::MAX);
    metrics::gauge!(crate::meters::DEVICES_DIRTY).set(f64::from(dirty));
}

async fn start_missing(myself: &ActorRef<Msg>, state: &mut State) -> Result<(), ActorProcessingErr> {
    let known: Vec<_> = state.facts.iter().flat_map(|facts| &facts.devices).cloned().collect();
    for facts in known {
        if !state.actors.contains_key(&facts.uuid) {
            let uuid = facts.uuid.clone();
            let (actor, _) = Actor::spawn_linked(None, device::Device, facts, myself.get_cell()).await?;
            state.actors.insert(uuid, actor);
        }
    }
    Ok(())
}
