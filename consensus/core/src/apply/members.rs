//! Members: a host is removed for good, shall vote, tells of its start; and the leader's notes on the voters.
//!
//! Removing a host takes nothing away at once: it gets no new work, its lease is no longer renewed and runs out as any
//! lease does, so that what ran there runs nowhere else before it has ended.

use super::{Answer, Event, Step, cut, no_host};
use crate::Host;
use crate::state::State;
use crate::state::host::HostLife;
use rota_protocol::command::Outcome;
use rota_protocol::job::Actor;
use rota_protocol::members::{DataLife, MemberChange, NotLetIn, Removal};
use rota_protocol::{ErrorCode, HostId, PublicError};

pub(super) fn apply(state: &mut State, step: &mut Step, actor: &Actor, change: &MemberChange) -> Answer {
    match change {
        MemberChange::Remove { host, reason } => remove(state, step, actor, *host, reason),
        MemberChange::Promote { host } => promote(state, step, *host),
        MemberChange::Started { host, life } => started(state, *host, life),
        MemberChange::Note { text } => {
            state.members.note(step.now_ms, cut(text));
            Ok(Outcome::Done)
        }
    }
}

/// Refuses what a host that was removed asks.
pub(super) fn still_here(host: &Host) -> Result<(), PublicError> {
    match &host.belonging.removed {
        None => Ok(()),
        Some(removal) => Err(refusal(host, NotLetIn::Removed, Some(removal))),
    }
}

fn remove(state: &mut State, step: &mut Step, actor: &Actor, id: HostId, reason: &str) -> Answer {
    let left = state.hosts().filter(|host| host.id != id && host.belonging.removed.is_none()).count();
    let Some(host) = state.hosts.get_mut(id) else {
        return Err(no_host(id));
    };
    if host.belonging.removed.is_some() {
        return Ok(Outcome::Done);
    }
    if left == 0 {
        return Err(PublicError::new(ErrorCode::Conflict, format!("host {id} is the cluster's last")));
    }
    let removal = Removal { at_ms: step.now_ms, by: actor.user.clone(), reason: cut(reason) };
    host.belonging.removed = Some(removal);
    host.belonging.wished = false;
    if host.life == HostLife::Joining {
        // It holds no lease that could run out.
        host.life = HostLife::Lost;
    }
    // What runs is asked to end while its lease still lasts.
    host.drain = Some(format!("removed: {}", cut(reason)));
    host.evict_at_ms = Some(step.now_ms);
    let text = format!("host {id} `{}` was removed by {}: {}", host.name, actor.user, cut(reason));
    state.members.note(step.now_ms, text);
    step.note(Event::HostChanged(id));
    step.plan_needed = true;
    Ok(Outcome::Done)
}

fn promote(state: &mut State, step: &mut Step, id: HostId) -> Answer {
    let Some(host) = state.hosts.get_mut(id) else {
        return Err(no_host(id));
    };
    still_here(host)?;
    host.belonging.wished = true;
    step.note(Event::HostChanged(id));
    Ok(Outcome::Done)
}

fn started(state: &mut State, id: HostId, life: &DataLife) -> Answer {
    let Some(host) = state.hosts.get_mut(id) else {
        return Err(no_host(id));
    };
    if let Err(why) = host.belonging.check(life) {
        return Err(refusal(host, why, host.belonging.removed.as_ref()));
    }
    host.belonging.life = *life;
    Ok(Outcome::Done)
}

fn refusal(host: &Host, why: NotLetIn, removal: Option<&Removal>) -> PublicError {
    PublicError::new(ErrorCode::Forbidden, text(host, why, removal))
}

fn text(host: &Host, why: NotLetIn, removal: Option<&Removal>) -> String {
    let (id, name) = (host.id, &host.name);
    match (why, removal) {
        (NotLetIn::Removed, Some(removal)) => {
            format!("host {id} `{name}` was removed by {}: {}", removal.by, removal.reason)
        }
        (NotLetIn::Removed, None) => format!("host {id} `{name}` was removed"),
        (NotLetIn::InUse, _) => format!("another agent speaks as host {id} `{name}` just now"),
        (NotLetIn::Copied, _) => format!("a copy of the data of host {id} `{name}` was started since"),
        (NotLetIn::Older, _) => {
            format!("the data of host {id} `{name}` is older than what the cluster knows of it")
        }
        (NotLetIn::OtherData, _) => {
            format!("the identity of host {id} `{name}` stands beside other data than the cluster knows")
        }
    }
}

impl Host {
    /// Why an agent may not speak for this host, with the next step.
    #[must_use]
    pub fn not_let_in(&self, why: NotLetIn) -> String {
        let reason = text(self, why, self.belonging.removed.as_ref());
        format!("{reason}; `rota join --replace` makes this machine a new host under a new id")
    }
}
