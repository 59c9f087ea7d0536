//! Role: owns the host's inventory, looks at it again and again, and supervises one actor per device.
//! Supervisor: root, which restarts it; devices are then discovered anew.
//!
//! New or changed facts go to the renewer, which registers the host anew: a card that appears later is offered
//! without a restart, a card that is gone is no longer.

use super::{device, health, renewer, warden};
use crate::devices::Inventory;
use crate::node::Node;
use crate::warden::look::raw_look;
use crate::warden::mig;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use rota_protocol::device::{DeviceHealth, HostFacts};
use rota_protocol::ids::DeviceUuid;
use rota_protocol::limits::HOST_DEVICES_MAX;
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
    /// Look at once, with live values: cards are on their way back.
    LookNow,
    /// The warden marks other cards than before.
    Marks,
}

/// The devices actor.
pub struct Devices;

/// The inventory and one actor for each device in it.
pub struct State {
    node: Arc<Node>,
    inventory: Inventory,
    /// As the drivers say.
    seen: Option<HostFacts>,
    /// As offered.
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
        let mut state = State {
            node,
            inventory,
            seen: None,
            facts: None,
            told: None,
            actors: BTreeMap::new(),
            drained: false,
        };
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
            Msg::LookNow => {
                let readings = state.inventory.readings().await;
                *state.node.own_readings.write().unwrap_or_else(PoisonError::into_inner) = readings;
                look(&myself, state).await?;
            }
            Msg::Marks => offer(&myself, state).await?,
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
    state.node.shims.place().looked_at();
    paint(state, &mut facts);
    let stuck = u32::try_from(state.inventory.stuck()).unwrap_or(u32::MAX);
    metrics::gauge!(crate::meters::PROBES_STUCK).set(f64::from(stuck));
    let looked = Box::new((facts.clone(), state.inventory.signs().clone()));
    state.node.doors.health.send(health::Msg::Looked(looked));
    state.seen = Some(facts);
    offer(myself, state).await?;
    tell_warden(state);
    Ok(())
}

/// The warden hears who is on the cards, where the driver tells.
fn tell_warden(state: &State) {
    let Some(facts) = &state.seen else { return };
    let processes: BTreeMap<_, _> = state
        .inventory
        .signs()
        .iter()
        .map(|(uuid, signs)| {
            let all = signs.processes.as_ref();
            (uuid.clone(), all.map(|all| all.iter().map(|p| (p.pid, p.vram_mib)).collect()))
        })
        .collect();
    let readings = state.node.own_readings.read().unwrap_or_else(PoisonError::into_inner);
    let raw = raw_look(&facts.devices, &readings, &processes);
    state.node.watched.write().unwrap_or_else(PoisonError::into_inner).extend(raw.keys().cloned());
    let devices = Arc::new(facts.devices.clone());
    state.node.doors.warden.send(warden::Msg::Looked(Arc::new(raw), devices));
}

/// What was seen, with what the warden and the declared slices say of it, is offered if it is not what was.
async fn offer(myself: &ActorRef<Msg>, state: &mut State) -> Result<(), ActorProcessingErr> {
    let Some(mut facts) = state.seen.clone() else { return Ok(()) };
    {
        let marks = state.node.marks.lock().unwrap_or_else(PoisonError::into_inner);
        for device in facts.devices.iter_mut().filter(|device| device.health.is_healthy()) {
            if let Some(reason) = marks.get(&device.uuid) {
                device.health = DeviceHealth::Dirty { reason: reason.clone() };
            }
        }
    }
    let lacks = mig::lacking(&state.node.config.sharing, &facts.devices);
    facts.devices.extend(lacks.iter().flat_map(mig::Lack::stand_ins));
    facts.devices.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    facts.devices.truncate(HOST_DEVICES_MAX);
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
