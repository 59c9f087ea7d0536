//! `rota cluster transfer`: who leads, changed by plan. The leader itself looks whether the host can take over; what it
//! refuses moves nothing.

use super::context::{Context, document, say};
use super::failure::Failure;
use crate::client::unexpected;
use clap::Args;
use rota_protocol::HostId;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::lead::LeadMoved;
use rota_protocol::view::PeerRow;
use serde_json::json;

/// Who is to lead.
#[derive(Debug, Args)]
pub struct TransferArgs {
    /// Its name or number [default: the best of the voters that are caught up and fit]
    pub host: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota cluster transfer`.
///
/// # Errors
/// No such host, one that cannot take over just now, too few rights, or no cluster.
pub async fn transfer(context: &Context, args: &TransferArgs) -> Result<u8, Failure> {
    let moved = match context.client.call(ApiRequest::MoveLead { to: args.host.clone() }).await? {
        ApiReply::LeadMoved(moved) => moved,
        other => return Err(unexpected(&other).into()),
    };
    // For the names alone: whatever this host knows will do.
    let peers = match context.client.call(ApiRequest::Cluster { freshness: Freshness::Stale }).await? {
        ApiReply::Cluster(view) => view.peers,
        other => return Err(unexpected(&other).into()),
    };
    if args.json {
        let LeadMoved { from, to, took_ms } = moved;
        let (from, to) = (name_of(&peers, from), name_of(&peers, to));
        document(&json!({ "from": from, "to": to, "moved": from != to, "took_ms": took_ms }))?;
    } else {
        say(&moved_text(&peers, moved))?;
    }
    Ok(0)
}

fn name_of(peers: &[PeerRow], host: HostId) -> String {
    let peer = peers.iter().find(|peer| peer.host == host);
    peer.map_or(host.to_string(), |peer| crate::table::clean(&peer.name).into_owned())
}

fn moved_text(peers: &[PeerRow], moved: LeadMoved) -> String {
    let to = name_of(peers, moved.to);
    if moved.from == moved.to {
        return format!("host {to} leads already\n");
    }
    format!("host {to} leads now; host {} handed over in {} ms\n", name_of(peers, moved.from), moved.took_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_who_leads_now_and_who_did() {
        let peer = |id, name: &str| PeerRow {
            host: HostId(id),
            name: name.into(),
            addr: String::new(),
            role: String::new(),
            seen: String::new(),
        };
        let peers = [peer(1, "n1"), peer(2, "n2")];
        let moved =
            |from, to| moved_text(&peers, LeadMoved { from: HostId(from), to: HostId(to), took_ms: 31 });
        assert_eq!(moved(1, 2), "host n2 leads now; host n1 handed over in 31 ms\n");
        assert_eq!(moved(3, 2), "host n2 leads now; host 3 handed over in 31 ms\n");
        assert_eq!(moved(2, 2), "host n2 leads already\n");
    }
}
