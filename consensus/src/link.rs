//! The one way to other peers: a call with a deadline. The product's is QUIC; tests have one in memory.

use futures_util::future::BoxFuture;
use rota_protocol::PublicError;
use rota_protocol::ids::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::time::Duration;

/// Calls peers by their host id.
pub trait PeerLink: Send + Sync + 'static {
    /// Asks one peer, once. The future ends within `ttl`, whatever the peer does.
    fn call(
        &self,
        to: HostId,
        request: PeerRequest,
        ttl: Duration,
    ) -> BoxFuture<'static, Result<PeerReply, LinkError>>;
}

/// Why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The request was surely not delivered.
    #[error("the peer cannot be reached: {0}")]
    Unreachable(String),
    /// The request may have been carried out.
    #[error("the peer did not answer in time")]
    Timeout,
    /// The link itself refused: too large, or no common version. Surely not delivered.
    #[error("refused: {0}")]
    Refused(PublicError),
}
