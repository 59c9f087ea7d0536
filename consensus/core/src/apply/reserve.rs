//! Reserve, Unreserve: hosts kept for a time. What runs on them when the time comes is not touched here; it is not
//! started if it might run into it.

use super::{Answer, Event, Step, no_host};
use crate::spec::{check_name, twice};
use crate::state::State;
use rota_protocol::command::Outcome;
use rota_protocol::limits::RESERVATIONS_MAX;
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::{ErrorCode, PublicError};

pub(super) fn apply(state: &mut State, step: &mut Step, spec: &ReservationSpec) -> Answer {
    check_name("reservation.name", &spec.name)?;
    if spec.name.is_empty() {
        return Err(PublicError::invalid("reservation.name", "is empty", "maintenance-7"));
    }
    check_name("reservation.reason", &spec.reason)?;
    if spec.end_ms <= spec.start_ms || spec.end_ms <= step.now_ms {
        let message = "ends before it begins, or has ended";
        return Err(PublicError::invalid("reservation.end", message, "a time after the start"));
    }
    if spec.hosts.is_empty() || spec.hosts.len() > RESERVATIONS_MAX {
        let message = format!("{} hosts is not between 1 and {RESERVATIONS_MAX}", spec.hosts.len());
        return Err(PublicError::invalid("reservation.hosts", message, "gpu-1,gpu-2"));
    }
    if let Some(unknown) = spec.hosts.iter().find(|id| state.host(**id).is_none()) {
        return Err(no_host(*unknown));
    }
    if let Some(host) = twice(&spec.hosts).and_then(|id| state.host(*id)) {
        let message = format!("'{}' is given twice", host.name);
        return Err(PublicError::invalid("reservation.hosts", message, "each host once"));
    }
    if let ReservedFor::Queues(names) = &spec.kept_for {
        if let Some(name) = twice(names) {
            let message = format!("'{name}' is given twice");
            return Err(PublicError::invalid("reservation.for", message, "each queue once"));
        }
        if let Some(unknown) = names.iter().find(|name| state.queues.named(name).is_none()) {
            let message = format!("there is no queue '{unknown}'");
            return Err(PublicError::invalid("reservation.for", message, "a queue's path"));
        }
        if names.is_empty() {
            return Err(PublicError::invalid("reservation.for", "names no queue", "research"));
        }
    }
    if !state.reservations.contains(&spec.name) && state.reservations.len() >= RESERVATIONS_MAX {
        let message = format!("{RESERVATIONS_MAX} reservations are the most");
        return Err(PublicError::new(ErrorCode::TooLarge, message));
    }
    if let Some(other) = state.reservations.iter().find(|other| are_at_odds(spec, other)) {
        let message =
            format!("reservation '{}' keeps a host of it for other queues at that time", other.name);
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    state.reservations.insert(spec.clone());
    for host in &spec.hosts {
        step.note(Event::HostChanged(*host));
    }
    step.plan_needed = true;
    Ok(Outcome::Done)
}

/// Both would keep one host for different queues at once, and so for none. Maintenance may come in between.
fn are_at_odds(spec: &ReservationSpec, other: &ReservationSpec) -> bool {
    let at_once = spec.meets(other.start_ms, Some(other.end_ms));
    let queues = |row: &ReservationSpec| row.kept_for != ReservedFor::Nobody;
    let common = || spec.hosts.iter().any(|host| other.hosts.contains(host));
    let differ = spec.kept_for != other.kept_for && queues(spec) && queues(other);
    spec.name != other.name && at_once && differ && common()
}

pub(super) fn remove(state: &mut State, step: &mut Step, name: &str) -> Answer {
    if !state.reservations.remove(name) {
        return Err(PublicError::new(ErrorCode::NotFound, format!("no reservation '{name}'")));
    }
    step.plan_needed = true;
    Ok(Outcome::Done)
}
