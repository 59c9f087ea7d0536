//! Role: one device: its facts, its last live values, and word of each change of its health. Supervisor: devices,
//! which starts it again: facts and values are told anew within a second.

use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::device::{DeviceFacts, DeviceReading};
use std::time::{Duration, Instant};

/// How often a change of its health is worth a line in the log (R016).
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What it is told.
pub enum Msg {
    /// Its facts changed.
    Facts(DeviceFacts),
    /// Its live values.
    Reading(DeviceReading),
}

/// A device's actor.
pub struct Device;

/// What is known of it.
pub struct State {
    facts: DeviceFacts,
    reading: Option<DeviceReading>,
    told: Option<Instant>,
}

impl Actor for Device {
    type Msg = Msg;
    type State = State;
    type Arguments = DeviceFacts;

    async fn pre_start(&self, _: ActorRef<Msg>, facts: DeviceFacts) -> Result<State, ActorProcessingErr> {
        Ok(State { facts, reading: None, told: None })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("device");
        match message {
            Msg::Facts(now) => {
                let due = state.told.is_none_or(|at| at.elapsed() >= TELL_EVERY);
                if now.health != state.facts.health && due {
                    state.told = Some(Instant::now());
                    let (from, to, last) = (&state.facts.health, &now.health, &state.reading);
                    tracing::warn!(device = %now.uuid, ?from, ?to, ?last, "a device's health changed");
                }
                state.facts = now;
            }
            Msg::Reading(reading) => state.reading = Some(reading),
        }
        Ok(())
    }
}
