//! What operators ask of the membership: `rota cluster remove`, `promote`, `address`. Refused before the log hears of it
//! where it would lose the majority, with what to do instead.

use super::look;
use crate::api::caller::Caller;
use crate::api::{WRITE_DEADLINE, not_found};
use crate::logic::autopilot::{Look, refusal, tolerates};
use crate::node::Node;
use rota_protocol::RequestId;
use rota_protocol::api::ApiReply;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::HostId;
use rota_protocol::job::Role;
use rota_protocol::members::{MemberChange, MembersAnswer, MembersAsk};

/// Answers one of them.
///
/// # Errors
/// Too few rights, no such host, or it would be unsafe.
pub async fn answer(node: &Node, caller: &Caller, ask: MembersAsk) -> Result<ApiReply, PublicError> {
    caller.at_least(Role::Admin)?;
    let told = match ask {
        MembersAsk::Remove { request, host, reason, only_look } => {
            // Who lives and who votes must be what the cluster knows now.
            node.consensus.read_barrier(WRITE_DEADLINE).await?;
            let host = named(node, &host)?;
            let seen = look(node);
            refusal(&seen, host).map_err(|why| PublicError::new(ErrorCode::Conflict, why))?;
            let told = consequences(node, &seen, host);
            if !only_look {
                change(node, caller, request, MemberChange::Remove { host, reason }).await?;
            }
            told
        }
        MembersAsk::Promote { request, host } => {
            node.consensus.read_barrier(WRITE_DEADLINE).await?;
            let host = named(node, &host)?;
            let seen = look(node);
            let lost = seen.peers.iter().any(|peer| peer.id == host && !peer.up);
            if lost {
                let message = format!("host {host} is not up: start its agent first");
                return Err(PublicError::new(ErrorCode::Conflict, message));
            }
            change(node, caller, request, MemberChange::Promote { host }).await?;
            let votes = seen.voters().contains(&host);
            vec![if votes {
                format!("host {host} votes, and stays before others")
            } else {
                format!("host {host} votes as soon as it is caught up, instead of another")
            }]
        }
        MembersAsk::Address { host, addr } => {
            // By number also on a host that has just started and knows no names yet.
            let host = host.parse().map(HostId).or_else(|_| named(node, &host))?;
            if !addr
                .rsplit_once(':')
                .is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok())
            {
                let message = format!("{addr:?} is no address and port");
                return Err(PublicError::invalid("address", message, "10.0.0.9:7420"));
            }
            node.net.tell_peer(host, addr.clone());
            vec![format!("host {host} is looked for at {addr} first")]
        }
        MembersAsk::Backup { .. } => {
            return Err(PublicError::new(ErrorCode::Internal, "a backup is a stream of answers"));
        }
    };
    Ok(ApiReply::Members(MembersAnswer::Told(told)))
}

/// What removing a host means, one line each.
fn consequences(node: &Node, seen: &Look, host: HostId) -> Vec<String> {
    let (name, up, attempts) = node.consensus.read(|state| {
        let row = state.host(host);
        let name = row.map(|row| row.name.clone()).unwrap_or_default();
        let up = seen.peers.iter().any(|peer| peer.id == host && peer.up);
        (name, up, state.attempts_on(host).count())
    });
    let mut lines = vec![format!("host {host} `{name}` leaves the cluster; its id is never used again")];
    if attempts > 0 {
        lines.push(format!(
            "{attempts} attempts of it are ended and queued again, at the latest when its lease is over"
        ));
    }
    if up {
        lines.push("its agent stops, and its certificate is not let in any more".to_owned());
    }
    if seen.voters().contains(&host) {
        lines.push(format!("it votes; the cluster tolerates the loss of {} voters now", tolerates(seen)));
    }
    lines
}

async fn change(
    node: &Node,
    caller: &Caller,
    request: RequestId,
    change: MemberChange,
) -> Result<(), PublicError> {
    let command = Command::Members(change);
    caller.may(&command)?;
    let proposal = Proposal { request, actor: caller.actor.clone(), command };
    match node.consensus.propose(vec![proposal], WRITE_DEADLINE).await?.pop() {
        Some(Outcome::Done) => Ok(()),
        Some(Outcome::Refused(error)) => Err(error),
        other => Err(PublicError::new(ErrorCode::Internal, format!("an unexpected outcome: {other:?}"))),
    }
}

/// A host of the cluster by number or name; of several of one name the newest that was not removed.
fn named(node: &Node, name: &str) -> Result<HostId, PublicError> {
    node.consensus
        .read(|state| {
            let here = |host: &&rota_core::Host| host.belonging.removed.is_none();
            let by_name = state.hosts().filter(here).filter(|host| host.name == name).last();
            by_name.or_else(|| state.host_by_name_or_id(name)).map(|host| host.id)
        })
        .ok_or_else(|| not_found("host", name))
}
