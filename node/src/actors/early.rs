//! Renewals of a lease before there is an actor for them: from the moment at which agreement is up, while the agent still
//! looks for its shims. What runs goes on under that; nothing starts by it.
//!
//! No actor: a task of `agent::start`, which ends it when the renewer has taken over.

use super::renewer::OwnLease;
use crate::config::AgentConfig;
use crate::io::clock;
use crate::logic::lease::LeaseHolder;
use crate::net::{Net, PeerLink};
use crate::shim::LeaseFile;
use rota_consensus::Consensus;
use rota_core::state::host::HostLife;
use rota_protocol::BootId;
use rota_protocol::error::ErrorCode;
use rota_protocol::ids::{HostId, LeaseEpoch};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::sync::Arc;
use std::time::Duration;

/// Between two renewals that were not acknowledged.
const AGAIN: Duration = Duration::from_millis(100);

/// The lease of an epoch; a deadline that an earlier agent wrote stays.
pub(super) fn open(config: &AgentConfig, boot: &BootId, epoch: LeaseEpoch) -> Option<OwnLease> {
    match LeaseFile::open(&config.data_dir.join("lease"), boot, epoch) {
        Ok(file) => {
            let mut holder = LeaseHolder::new(config.profile.lease());
            holder.set_epoch(epoch);
            Some(OwnLease { epoch, holder, file })
        }
        Err(error) => {
            tracing::error!(%error, "cannot open the lease file");
            None
        }
    }
}

/// The lease under which this host's attempts run already, as far as its own copy of the state knows. Another boot has
/// none, and what the log let go meanwhile is refused when it is renewed.
pub(super) fn kept(
    consensus: &Consensus,
    (host, boot): (HostId, &BootId),
    config: &AgentConfig,
) -> Option<OwnLease> {
    let epoch = consensus.read(|state| {
        let host = state.host(host)?;
        (host.life == HostLife::Up && host.boot == *boot).then_some(host.epoch)
    })?;
    open(config, boot, epoch)
}

/// Asks the peer that this one follows, or the leader, or any other peer to relay; a peer that has just started does not know who leads.
pub(super) async fn ask_others(
    consensus: &Consensus,
    net: &Net,
    (host, ttl): (HostId, Duration),
    turn: &mut usize,
    epoch: LeaseEpoch,
) -> Option<PeerReply> {
    let leader = consensus.leadership().borrow().leader;
    let request = || PeerRequest::Renew { host, epoch, relayed: false };
    // A host that is no member goes the way of its log: what many of them ask is one request by the time it comes up.
    if let Some(parent) = consensus.following().parent {
        match net.call(parent, request(), ttl / 2).await {
            Ok(PeerReply::Renewed) => return Some(PeerReply::Renewed),
            Ok(PeerReply::Refused(error)) if error.code == ErrorCode::Conflict => {
                return Some(PeerReply::Refused(error));
            }
            other => tracing::debug!(?other, %parent, "the parent did not hand on the renewal"),
        }
    }
    if let Some(leader) = leader {
        match net.call(leader, request(), ttl / 2).await {
            Ok(reply @ (PeerReply::Renewed | PeerReply::Refused(_))) => return Some(reply),
            other => tracing::debug!(?other, "the leader did not take the renewal"),
        }
    }
    let others: Vec<HostId> = consensus.read(|replica| {
        replica.hosts().map(|other| other.id).filter(|id| *id != host && Some(*id) != leader).collect()
    });
    if others.is_empty() {
        return None;
    }
    *turn += 1;
    net.call(others[*turn % others.len()], request(), ttl / 2).await.ok()
}

/// Renews until it is ended, if there is anything to renew.
pub(crate) async fn renew(
    consensus: Consensus,
    net: Arc<Net>,
    (host, boot): (HostId, BootId),
    config: AgentConfig,
) {
    let Some(mut own) = kept(&consensus, (host, &boot), &config) else { return };
    let every = Duration::from_millis(config.profile.lease().renew_ms);
    let mut turn = 0;
    while let Some(renewal) = own.holder.send(clock::boottime_ms()) {
        let reply = ask_others(&consensus, &net, (host, every), &mut turn, renewal.epoch).await;
        let renewed = matches!(reply, Some(PeerReply::Renewed));
        if renewed {
            own.acknowledge(renewal);
        }
        tokio::time::sleep(if renewed { every } else { AGAIN }).await;
    }
}
