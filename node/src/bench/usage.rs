//! What all peers of a lab have used so far: processor time, memory, and what their logs wrote.

use crate::io::usage::{cpu_ms, rss_kib};
use crate::lab::{Lab, LabError, Peer};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::view::ClusterView;

/// Sums over all peers of a lab.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) cpu_ms: u64,
    pub(super) rss_kib: u64,
    pub(super) log_bytes: u64,
    pub(super) fsyncs: u64,
}

impl Usage {
    /// As of now.
    pub(super) async fn of(lab: &Lab) -> Result<Self, LabError> {
        let mut all = Self::default();
        for peer in &lab.peers {
            let log = view(peer).await?.log;
            all.log_bytes += log.written_bytes;
            all.fsyncs += log.fsyncs;
        }
        for pid in lab.peers.iter().filter_map(Peer::pid) {
            all.cpu_ms += cpu_ms(pid).unwrap_or(0);
            all.rss_kib += rss_kib(pid).unwrap_or(0);
        }
        Ok(all)
    }

    /// What was used since `before`; memory may have shrunk.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            cpu_ms: self.cpu_ms - before.cpu_ms,
            rss_kib: self.rss_kib.saturating_sub(before.rss_kib),
            log_bytes: self.log_bytes - before.log_bytes,
            fsyncs: self.fsyncs - before.fsyncs,
        }
    }
}

/// The cluster as this very peer sees it, without asking others.
pub(super) async fn view(peer: &Peer) -> Result<ClusterView, LabError> {
    match peer.client().await?.call(ApiRequest::Cluster { freshness: Freshness::Stale }).await? {
        ApiReply::Cluster(view) => Ok(*view),
        other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected {other:?}")).into()),
    }
}
