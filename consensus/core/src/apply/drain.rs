//! DrainHost: nothing new is placed there; what runs goes on. Draining twice replaces the reason.

use super::{Answer, Event, Step, cut, no_host};
use crate::state::State;
use rota_protocol::HostId;
use rota_protocol::command::Outcome;

pub(super) fn apply(state: &mut State, step: &mut Step, id: HostId, reason: &str) -> Answer {
    let Some(host) = state.hosts.get_mut(id) else {
        return Err(no_host(id));
    };
    host.drain = Some(cut(reason));
    step.note(Event::HostChanged(id));
    Ok(Outcome::Done)
}
