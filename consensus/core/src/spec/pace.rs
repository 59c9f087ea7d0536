//! What a user says of a job's pace, within bounds. It does not ask whether such models are there.

use super::check_name;
use rota_protocol::PublicError;
use rota_protocol::job::JobSpec;
use rota_protocol::limits::{PACE_SPEEDS_MAX, TIME_LIMIT_MS_MAX};
use rota_protocol::pace::SPEED_PERMILLE_MAX;

const EXAMPLE: &str = "A100=1,K80=0.12";

pub(super) fn check(spec: &JobSpec) -> Result<(), PublicError> {
    let Some(pace) = spec.pace.as_deref() else {
        return Ok(());
    };
    if let Some(ms) = pace.work_ms.filter(|ms| *ms == 0 || *ms > TIME_LIMIT_MS_MAX) {
        let message = format!("{ms} ms is not between 1 ms and ten years");
        return Err(PublicError::invalid("work", message, "3h"));
    }
    if pace.speeds.len() > PACE_SPEEDS_MAX {
        let message = format!("{} models are above {PACE_SPEEDS_MAX}", pace.speeds.len());
        return Err(PublicError::invalid("speed", message, EXAMPLE));
    }
    for (at, (model, speed)) in pace.speeds.iter().enumerate() {
        check_name("speed", model)?;
        if model.is_empty() || pace.speeds[..at].iter().any(|(other, _)| other == model) {
            let message = format!("'{model}' is no model, or named twice");
            return Err(PublicError::invalid("speed", message, EXAMPLE));
        }
        if !(1..=SPEED_PERMILLE_MAX).contains(speed) {
            let message = format!("{speed} thousandths are not between 1 and {SPEED_PERMILLE_MAX}");
            return Err(PublicError::invalid("speed", message, EXAMPLE));
        }
    }
    Ok(())
}
