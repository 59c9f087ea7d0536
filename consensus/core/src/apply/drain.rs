//! DrainHost, DrainWith: nothing new is placed there; what runs goes on, or is asked to end from a stated time on.
//! Draining twice replaces reason and time.

use super::{Answer, Event, Step, cut, no_host};
use crate::state::State;
use rota_protocol::HostId;
use rota_protocol::command::Outcome;

pub(super) fn apply(
    state: &mut State,
    step: &mut Step,
    id: HostId,
    reason: &str,
    evict_at_ms: Option<u64>,
) -> Answer {
    let Some(host) = state.hosts.get_mut(id) else {
        return Err(no_host(id));
    };
    host.drain = Some(cut(reason));
    host.evict_at_ms = evict_at_ms;
    step.note(Event::HostChanged(id));
    // Emptying a host is the planner's work. A plain drain leaves it nothing to do, and old logs did not wake it.
    step.plan_needed |= evict_at_ms.is_some();
    Ok(Outcome::Done)
}
