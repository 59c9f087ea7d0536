//! Changes of whom the cluster trusts, and of its version, as administrators ask for them.

use super::caller::Caller;
use super::write::{done, host_named, one};
use crate::net::new_authority;
use crate::node::Node;
use rota_protocol::api::ApiReply;
use rota_protocol::command::Command;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, RequestId};
use rota_protocol::job::Role;
use rota_protocol::trust::{CaStage, TrustAsk, TrustChange};
use rota_protocol::version;
use std::sync::PoisonError;
use std::time::SystemTime;

pub(super) async fn change(
    node: &Node,
    caller: &Caller,
    request: RequestId,
    ask: TrustAsk,
) -> Result<ApiReply, PublicError> {
    caller.at_least(Role::Admin)?;
    let command = match ask {
        TrustAsk::Revoke { host, reason } => {
            let host = host_named(node, &host)?;
            keeps_a_majority(node, host)?;
            Command::Trust { change: TrustChange::Revoke { host, reason } }
        }
        TrustAsk::RotateCa => match next_authority(node)? {
            Some(change) => Command::Trust { change },
            // A change that is under way goes on by itself.
            None => return Ok(ApiReply::Done),
        },
        TrustAsk::RevokeToken { id } => Command::Trust { change: TrustChange::RevokeToken { id } },
        TrustAsk::RaiseVersion { to } => {
            Command::RaiseVersion { to: to.unwrap_or_else(|| common_version(node)) }
        }
    };
    done(one(node, caller, request, command).await?)
}

/// The newest version that all hosts read.
fn common_version(node: &Node) -> u16 {
    node.consensus.read(|state| {
        let common =
            (state.version()..=version::NEWEST).rev().find(|to| state.behind_in_version(*to).is_empty());
        common.unwrap_or_else(|| state.version())
    })
}

/// A new authority, made here; none if a change is under way that a host has taken part in.
fn next_authority(node: &Node) -> Result<Option<TrustChange>, PublicError> {
    let (version, stage, taken) = node.consensus.read(|state| {
        let table = state.trust();
        let taken = state.hosts().any(|host| table.took(host.id) && table.revoked(host.id).is_none());
        (table.version(), table.stage(), taken)
    });
    if version < 3 {
        let message = "changing the authority needs version 3 of the cluster: `rota cluster version --raise`";
        return Err(PublicError::new(ErrorCode::Version, message));
    }
    if stage == CaStage::Issuing || (stage == CaStage::Trusting && taken) {
        return Ok(None);
    }
    let made = new_authority(node.cluster, SystemTime::now())
        .map_err(|error| PublicError::new(ErrorCode::Internal, error.to_string()))?;
    *node.next_authority.lock().unwrap_or_else(PoisonError::into_inner) = Some((made.ca, made.key_pem));
    let (ca, ends_ms) = (made.ca, made.ends_ms);
    Ok(Some(TrustChange::OfferCa { certificate_pem: made.certificate_pem, ca, ends_ms }))
}

/// A revoked voter is as good as dead until another takes its place: what is left must still decide.
fn keeps_a_majority(node: &Node, revoked: HostId) -> Result<(), PublicError> {
    let voters = node.consensus.status().voters;
    if !voters.contains(&revoked) {
        return Ok(());
    }
    let left = node.consensus.read(|state| {
        let counts = |host: &&HostId| **host != revoked && state.trust().revoked(**host).is_none();
        voters.iter().filter(counts).count()
    });
    if left * 2 > voters.len() {
        return Ok(());
    }
    let message = format!(
        "without host {revoked} only {left} of {} voters would be left, no majority: add hosts first, or wait until the \
         hosts that were revoked before are replaced (`rota cluster status`)",
        voters.len()
    );
    Err(PublicError::new(ErrorCode::Conflict, message))
}
