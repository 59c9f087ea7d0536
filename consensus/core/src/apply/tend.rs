//! Tend: an operator's word about the health of a device, or about the breaker. Saying it twice is the same as once.

use super::{Answer, Step, cut, health};
use crate::state::State;
use rota_protocol::command::Outcome;
use rota_protocol::health::{Cause, Reason, Source, Tending};
use rota_protocol::job::Actor;
use rota_protocol::{DeviceUuid, ErrorCode, HostId, PublicError};

pub(super) fn apply(state: &mut State, step: &mut Step, actor: &Actor, tending: &Tending) -> Answer {
    let reason = |cause: Cause, text: String| Reason {
        cause,
        source: Source::Operator,
        text: cut(&text),
        at_ms: step.now_ms,
    };
    match tending {
        Tending::Cordon { uuid, reason: text } => {
            let host = host_of(state, uuid)?;
            let cordon = reason(Cause::Cleared, format!("{text} ({})", actor.user));
            let noted = state.care.change(uuid, step.now_ms, |mark| mark.cordon = Some(cordon));
            if noted.is_none() {
                return Err(PublicError::new(ErrorCode::Busy, "too many devices are marked"));
            }
            if let Some(host) = host {
                health::show(state, step, host, uuid);
            }
        }
        Tending::Clear { uuid } => {
            let host = host_of(state, uuid)?;
            let cleared = reason(Cause::Cleared, format!("cleared by {}", actor.user));
            health::turn(state, step, host, uuid, cleared);
            state.care.change(uuid, step.now_ms, |mark| {
                mark.cordon = None;
                mark.resets.clear();
                mark.jobs.clear();
                mark.reasons.clear();
            });
            if let Some(host) = host {
                health::show(state, step, host, uuid);
            }
        }
        Tending::BreakerCap { hosts: Some(0) } => {
            let example = "1 host, or none for the rule";
            return Err(PublicError::invalid("breaker cap", "0 hosts would let no fault act", example));
        }
        Tending::BreakerCap { hosts } => state.care.breaker.set_cap(*hosts),
        Tending::BreakerReset => state.care.breaker.reset(),
    }
    Ok(Outcome::Done)
}

/// The host that has a device, or had it last; none for a device that only its mark knows.
fn host_of(state: &State, uuid: &DeviceUuid) -> Result<Option<HostId>, PublicError> {
    let listed = || state.hosts().find(|host| host.device(uuid).is_some()).map(|host| host.id);
    let host = state.hosts.owner(uuid).or_else(listed);
    if host.is_none() && state.care.mark(uuid).is_none() {
        return Err(PublicError::new(ErrorCode::NotFound, format!("no device {uuid}")));
    }
    Ok(host)
}
