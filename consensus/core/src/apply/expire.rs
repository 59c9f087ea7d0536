//! Expire: a host was silent past its lease, says a leader that confirmed its quorum after the timer. Void if the
//! epoch moved meanwhile or the host is lost already.

use super::{Answer, Event, Step, end, no_host};
use crate::state::State;
use crate::state::host::HostLife;
use rota_protocol::command::Outcome;
use rota_protocol::{ErrorCode, HostId, LeaseEpoch, PublicError};

pub(super) fn apply(state: &mut State, step: &mut Step, id: HostId, epoch: LeaseEpoch) -> Answer {
    let Some(host) = state.host(id) else {
        return Err(no_host(id));
    };
    if host.life != HostLife::Up || host.epoch != epoch {
        let message = format!("host {id} has no live lease of epoch {epoch}, its epoch is {}", host.epoch);
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    end::lose_all(state, step, id);
    if let Some(host) = state.hosts.get_mut(id) {
        host.life = HostLife::Lost;
        host.epoch = LeaseEpoch(host.epoch.0.saturating_add(1));
    }
    step.note(Event::HostChanged(id));
    step.plan_needed = true;
    Ok(Outcome::Done)
}
