//! Role: one device's facts and live values, and its series in the metrics. Supervisor: devices, which starts it
//! again: a reading is worth nothing after a second.

use crate::meters;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::device::{DeviceFacts, DeviceReading};

/// What it is told.
pub enum Msg {
    /// Its facts changed.
    Facts(DeviceFacts),
    /// Its live values.
    Reading(DeviceReading),
}

/// A device's actor.
pub struct Device;

impl Actor for Device {
    type Msg = Msg;
    type State = DeviceFacts;
    type Arguments = DeviceFacts;

    async fn pre_start(&self, _: ActorRef<Msg>, facts: DeviceFacts) -> Result<DeviceFacts, ActorProcessingErr> {
        tell_health(&facts);
        Ok(facts)
    }

    async fn handle(&self, _: ActorRef<Msg>, message: Msg, facts: &mut DeviceFacts) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Facts(now) => {
                if now.health != facts.health {
                    tracing::warn!(device = %now.uuid, from = ?facts.health, to = ?now.health, "a device's health changed");
                }
                *facts = now;
                tell_health(facts);
            }
            Msg::Reading(reading) => {
                let uuid = reading.uuid.0.clone();
                if let Some(permille) = reading.busy_permille {
                    metrics::gauge!(meters::DEVICE_BUSY, "device" => uuid.clone()).set(f64::from(permille) / 1_000.0);
                }
                if let Some(mib) = reading.vram_used_mib {
                    #[allow(clippy::cast_precision_loss)] // 2^52 MiB of one card are far away.
                    metrics::gauge!(meters::DEVICE_MEMORY_USED, "device" => uuid).set(mib as f64 * 1_048_576.0);
                }
            }
        }
        Ok(())
    }
}

fn tell_health(facts: &DeviceFacts) {
    let healthy = if facts.health.is_healthy() { 1.0 } else { 0.0 };
    metrics::gauge!(meters::DEVICE_HEALTHY, "device" => facts.uuid.0.clone()).set(healthy);
}
