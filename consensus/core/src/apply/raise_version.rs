//! RaiseVersion: from now on the log may hold newer words. There is no way back, so it is refused while a host that ever
//! came up could not read them. One that never did is refused later, when it comes up.

use super::{Answer, Event, Step};
use crate::state::State;
use rota_protocol::command::Outcome;
use rota_protocol::version::{FIRST, OLDER_BUILD};
use rota_protocol::{ErrorCode, PublicError};

pub(super) fn apply(state: &mut State, step: &mut Step, to: u16) -> Answer {
    let now = state.version();
    if to == now {
        return Ok(Outcome::Done);
    }
    if to < now {
        let message =
            format!("the version is {now} and cannot go back to {to}: what was written stays written");
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    let behind: Vec<String> = state
        .behind_in_version(to)
        .into_iter()
        .filter_map(|id| state.host(id))
        .map(|host| {
            let reads = host.facts.notes.reads.max(FIRST);
            format!("{} (host {}, rota {}) reads up to {reads}", host.name, host.id, host.facts.version)
        })
        .collect();
    if !behind.is_empty() {
        let message = format!("version {to} needs all hosts: {}; upgrade or remove them", behind.join(", "));
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    state.trust.version = to;
    step.note(Event::TrustChanged);
    Ok(Outcome::Done)
}

/// Refuses a host whose program could not read what the log may hold.
pub(super) fn check_reads(state: &State, reads: u16) -> Result<(), PublicError> {
    let (wanted, reads) = (state.version(), reads.max(FIRST));
    if reads >= wanted {
        return Ok(());
    }
    let message = format!("the cluster is of version {wanted}, this host reads up to {reads}; {OLDER_BUILD}");
    Err(PublicError::new(ErrorCode::Version, message))
}
