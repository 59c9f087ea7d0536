//! Laws of what is held against devices (I17): what a host shows of a device is what its mark says, a time of trial has
//! an end, and whatever is not well says why.

use super::Violation;
use crate::state::State;
use crate::state::care::shown;
use rota_protocol::health::Stage;

pub(super) fn check(state: &State, broken: &mut Vec<Violation>) {
    for host in state.hosts() {
        for device in &host.facts.devices {
            if shown(&device.health, state.care.mark(&device.uuid)) != device.health {
                broken.push(Violation::MarkDiffers { device: device.uuid.clone(), host: host.id });
            }
        }
    }
    for (uuid, mark) in state.care.marks() {
        let on_trial = matches!(mark.stage, Stage::Trial | Stage::Probation);
        let has_reason = mark.stage == Stage::Well || !mark.reasons.is_empty();
        if on_trial != mark.until_ms.is_some() || !has_reason {
            broken.push(Violation::Mark { device: uuid.clone() });
        }
    }
}
