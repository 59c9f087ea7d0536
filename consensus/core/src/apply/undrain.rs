//! UndrainHost: ends a drain, a suspension after failed launches, and whatever else keeps work off the host itself. What
//! is held against its devices stays. Doing it twice is the same as once.

use super::{Answer, Event, Step, no_host};
use crate::state::State;
use rota_protocol::command::Outcome;
use rota_protocol::{ErrorCode, HostId, PublicError};

pub(super) fn apply(state: &mut State, step: &mut Step, id: HostId) -> Answer {
    if state.trust().revoked(id).is_some() {
        let message = format!("host {id} was revoked, which cannot be taken back: let the machine join anew");
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    let Some(host) = state.hosts.get_mut(id) else {
        return Err(no_host(id));
    };
    let drained = host.drain.take().is_some();
    host.evict_at_ms = None;
    // Each of them, whatever the others were.
    let forgiven = host.care.forgive();
    if host.clear_launch_failures() || drained || forgiven {
        step.note(Event::HostChanged(id));
        step.plan_needed = true;
    }
    Ok(Outcome::Done)
}
