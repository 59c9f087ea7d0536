//! One call to a peer: a stream, a request, a reply, within a time limit. Knows which failures leave the other side
//! untouched and which leave it unknown.

use super::link::{Class, Link, Up};
use super::wire::{self, WholeSend, WireError};
use super::{CloseCode, Inner, LinkError};
use crate::framing;
use rota_protocol::frame::FrameKind;
use rota_protocol::lead::LeadAsk;
use rota_protocol::limits::FRAME_BYTES_MAX;
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::{ErrorCode, HostId, PublicError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A call is repeated at most this often on a new connection: a peer that restarted costs one repetition.
const REPEATS_MAX: u32 = 2;

/// How an exchange failed.
enum Lost {
    /// Nothing was written.
    Before(String),
    /// The request may have been carried out.
    After(String),
    /// The other side does not speak our protocol.
    Garbled(WireError),
}

impl Inner {
    /// One call, from this host to another.
    pub(super) async fn call_peer(
        self: Arc<Self>,
        to: HostId,
        request: PeerRequest,
        ttl: Duration,
    ) -> Result<PeerReply, LinkError> {
        let deadline = Instant::now() + ttl;
        let link = self.link(to, Class::of(&request));
        let repeatable = is_repeatable(&request);
        let mut encoded: Option<(u16, Vec<u8>)> = None;
        for repeat in 0.. {
            let up = link.connected(&self, deadline).await?;
            // Encoded once; again only if another connection speaks another version.
            let bytes = match encoded.take() {
                Some((version, bytes)) if version == up.version => bytes,
                _ => framing::encode_message(up.version, FrameKind::PeerRequest, &request)
                    .map_err(too_large)?,
            };
            match exchange_within(&link, &up, &bytes, deadline).await? {
                Ok(reply) => return Ok(reply),
                Err(Lost::Before(why)) => {
                    link.forget(&up);
                    if repeat >= REPEATS_MAX {
                        return Err(LinkError::Unreachable(why));
                    }
                }
                Err(Lost::After(why)) => {
                    if up.connection.close_reason().is_some() {
                        link.forget(&up);
                    }
                    tracing::debug!(host = %to, %why, "a call was lost on its way");
                    if !repeatable || repeat >= REPEATS_MAX {
                        return Err(LinkError::Timeout);
                    }
                }
                Err(Lost::Garbled(error)) => {
                    link.forget(&up);
                    CloseCode::Malformed.close(&up.connection, "malformed reply");
                    return Err(LinkError::Refused(PublicError::new(
                        ErrorCode::Internal,
                        format!("host {to} sent a malformed reply: {error}"),
                    )));
                }
            }
            encoded = Some((up.version, bytes));
        }
        Err(LinkError::Timeout)
    }
}

/// The same request twice does no harm: raft's own messages, reads, and steps of sessions, which have offsets.
fn is_repeatable(request: &PeerRequest) -> bool {
    match request {
        PeerRequest::Raft { .. }
        | PeerRequest::ReadIndex
        | PeerRequest::Renew { .. }
        | PeerRequest::Clock
        | PeerRequest::Renewals { .. }
        | PeerRequest::ReadLog { .. }
        | PeerRequest::FindLog { .. }
        | PeerRequest::FindTask { .. }
        | PeerRequest::Authority { .. }
        | PeerRequest::Hail(_)
        | PeerRequest::Session { .. }
        | PeerRequest::Lead(LeadAsk::Fit) => true,
        // A piece comes from another host sooner than from one that is away.
        PeerRequest::Data(_)
        | PeerRequest::Lead(LeadAsk::Move { .. })
        | PeerRequest::Propose { .. }
        | PeerRequest::Signal { .. } => false,
    }
}

/// The exchange, or the error of a call that ran out of time.
async fn exchange_within(
    link: &Link,
    up: &Arc<Up>,
    bytes: &[u8],
    deadline: Instant,
) -> Result<Result<PeerReply, Lost>, LinkError> {
    let written = AtomicBool::new(false);
    let heard = up.connection.stats().udp_rx.datagrams;
    match timeout_at(deadline, exchange(up, bytes, &written)).await {
        Ok(result) => Ok(result),
        Err(_) => {
            // A live peer would at least have acknowledged: one that was silent throughout is dead or cut off.
            if up.connection.stats().udp_rx.datagrams == heard {
                link.forget(up);
            }
            if written.load(Ordering::Relaxed) {
                Err(LinkError::Timeout)
            } else {
                Err(LinkError::Unreachable("every stream of the connection is in use".to_owned()))
            }
        }
    }
}

async fn exchange(up: &Up, bytes: &[u8], written: &AtomicBool) -> Result<PeerReply, Lost> {
    let (send, mut recv) = up.connection.open_bi().await.map_err(|e| Lost::Before(e.to_string()))?;
    let mut send = WholeSend::new(send);
    written.store(true, Ordering::Relaxed);
    if let Err(error) = send.send(bytes).await {
        return Err(match up.connection.close_reason() {
            Some(_) => Lost::After(error.to_string()),
            // The server answers early when it refuses a request before it has read it all.
            None => match read_reply(&mut recv, up.version).await {
                Ok(reply) => return Ok(reply),
                Err(_) => Lost::After(error.to_string()),
            },
        });
    }
    read_reply(&mut recv, up.version).await.map_err(|error| {
        if error.is_broken_stream() { Lost::After(error.to_string()) } else { Lost::Garbled(error) }
    })
}

async fn read_reply(recv: &mut quinn::RecvStream, version: u16) -> Result<PeerReply, WireError> {
    wire::read_only(recv, FrameKind::PeerReply, version, FRAME_BYTES_MAX).await
}

fn too_large(error: framing::FramingError) -> LinkError {
    LinkError::Refused(PublicError::new(ErrorCode::TooLarge, error.to_string()))
}
