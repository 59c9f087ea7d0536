//! The audit log (S16): one line for each command of an operator or administrator, in the state itself, so that whoever
//! has it done cannot keep it out.

use super::Step;
use crate::state::State;
use rota_protocol::PublicError;
use rota_protocol::command::{Command, Outcome, TokenUse, least_role};
use rota_protocol::job::{Actor, Role};
use rota_protocol::members::MemberChange;
use rota_protocol::trust::{AuditRow, TrustChange};

/// What the line is to say, if the command is one that people answer for.
pub(super) fn line(state: &State, actor: &Actor, command: &Command) -> Option<String> {
    let wanted = state.version() >= 3 && is_audited(command, *actor == Actor::system());
    wanted.then(|| words(command)).flatten()
}

/// Writes the line.
pub(super) fn note(
    state: &mut State,
    step: &Step,
    actor: &Actor,
    line: Option<String>,
    result: &Result<Outcome, PublicError>,
) {
    let Some(mut what) = line else { return };
    let mut result = match result {
        Ok(_) => "done".to_owned(),
        Err(refused) => refused.message.clone(),
    };
    for text in [&mut what, &mut result] {
        *text = super::cut(&text.chars().filter(|c| !c.is_control()).collect::<String>());
    }
    let actor = match *actor == Actor::system() {
        true => "rota".to_owned(),
        false => format!("{}/{}", actor.tenant, actor.user),
    };
    let (index, at_ms) = (step.index, step.now_ms);
    state.trust.note(AuditRow { index, at_ms, actor, what, result, hash: 0 });
}

fn is_audited(command: &Command, own: bool) -> bool {
    match command {
        // Made in the cluster's name, on behalf of somebody whose token is the proof.
        Command::AdmitHost { .. } => true,
        Command::Trust { change } => matches!(change, TrustChange::AdvanceCa { .. }) || !own,
        other => !own && least_role(other) >= Role::Operator,
    }
}

fn words(command: &Command) -> Option<String> {
    Some(match command {
        Command::AdmitHost { host_name, addr, .. } => format!("admit host {host_name} at {addr}"),
        Command::DrainHost { host, reason } | Command::DrainWith { host, reason, .. } => {
            format!("drain host {host}: {reason}")
        }
        Command::UndrainHost { host } => format!("undrain host {host}"),
        Command::MintToken { usage: TokenUse::Join { host_name }, .. } => {
            format!("make a join token for {}", host_name.as_deref().unwrap_or("any host"))
        }
        Command::MintToken { usage: TokenUse::User { actor }, .. } => {
            format!("make a user token for {}/{} as {:?}", actor.tenant, actor.user, actor.role)
        }
        Command::SetQueue { queue } => format!("set queue {}", queue.name),
        Command::RemoveQueue { name } => format!("remove queue {name}"),
        Command::Reserve { reservation } => format!("reserve {}", reservation.name),
        Command::Unreserve { name } => format!("give back reservation {name}"),
        Command::Tend { tending } => format!("tend {tending:?}"),
        Command::RaiseVersion { to } => format!("raise the version to {to}"),
        Command::Trust { change } => match change {
            TrustChange::Revoke { host, reason } => format!("revoke host {host}: {reason}"),
            TrustChange::OfferCa { .. } => "offer an authority".to_owned(),
            TrustChange::AdvanceCa { from } => format!("end stage {from} of the change of authorities"),
            TrustChange::RevokeToken { id } => format!("revoke token {id}"),
            TrustChange::Key { .. } | TrustChange::TookCa { .. } | TrustChange::Seen { .. } => return None,
        },
        Command::Members(MemberChange::Remove { host, reason }) => format!("remove host {host}: {reason}"),
        Command::Members(MemberChange::Promote { host }) => format!("let host {host} vote"),
        _ => return None,
    })
}
