//! Serving a greeted connection: the requests and datagrams of a peer, the one request of a host that joins.

use super::wire::{self, RESET_MALFORMED, WholeSend};
use super::{CloseCode, Inner, authorize, join, transport, way_back};
use crate::framing;
use quinn::{Connection, RecvStream, SendStream};
use rota_protocol::frame::{self, FrameKind, HEADER_BYTES};
use rota_protocol::gossip::GossipPacket;
use rota_protocol::limits::{FRAME_BYTES_MAX, GOSSIP_BYTES_MAX};
use rota_protocol::peer::{JoinListening, JoinReply, JoinRequest, PeerReply, PeerRequest};
use rota_protocol::session::SessionAsk;
use rota_protocol::{ErrorCode, HostId, PublicError, codec};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// A request must have come in by then: a slow one must not hold its stream for ever.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Largest request to join, in bytes.
const JOIN_BYTES_MAX: usize = 16 << 10;
/// Attempts to join that are answered, per second: enough for a rack, too few to guess a token (fault S3).
const JOINS_PER_SECOND: u32 = 20;
/// How long a joiner may take to fetch its answer.
const FAREWELL_TIME: Duration = Duration::from_secs(2);

/// Serves a peer's connection until it ends.
pub(super) async fn peer(inner: &Arc<Inner>, connection: &Connection, from: HostId, version: u16) {
    let datagrams = tokio::spawn(datagrams(inner.clone(), connection.clone(), (from, version)));
    // Streams are counted until their handler is done, not until the caller loses interest.
    let streams = Arc::new(Semaphore::new(transport::PEER_STREAMS_MAX as usize));
    while let Ok(permit) = streams.clone().acquire_owned().await {
        let Ok((send, recv)) = connection.accept_bi().await else {
            break;
        };
        let (inner, connection) = (inner.clone(), connection.clone());
        tokio::spawn(async move {
            request(&inner, &connection, (from, version), send, recv).await;
            drop(permit);
        });
    }
    datagrams.abort();
}

async fn datagrams(inner: Arc<Inner>, connection: Connection, (from, version): (HostId, u16)) {
    while let Ok(bytes) = connection.read_datagram().await {
        match gossip_packet(&bytes, version) {
            Some(packet) => inner.handler.gossip(from, packet.bytes),
            None => tracing::debug!(host = %from, "malformed datagram dropped"),
        }
    }
}

/// Reads a datagram: one frame of the agreed version, and nothing after it.
pub(super) fn gossip_packet(bytes: &[u8], agreed: u16) -> Option<GossipPacket> {
    let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let header = frame::Header::from_bytes(*header).ok()?;
    if header.kind != FrameKind::Gossip || header.version != agreed || header.len as usize != body.len() {
        return None;
    }
    // The list's own length stands before it: at most nine bytes.
    codec::decode(body, GOSSIP_BYTES_MAX + 9).ok()
}

async fn request(
    inner: &Arc<Inner>,
    connection: &Connection,
    (from, version): (HostId, u16),
    send: SendStream,
    mut recv: RecvStream,
) {
    let mut send = WholeSend::new(send);
    let read = wire::read_only::<_, PeerRequest>(&mut recv, FrameKind::PeerRequest, version, FRAME_BYTES_MAX);
    let request = match timeout(REQUEST_TIME, read).await {
        Ok(Ok(request)) => request,
        Ok(Err(error)) if error.is_broken_stream() => return,
        Ok(Err(error)) => {
            tracing::warn!(host = %from, %error, "malformed request, connection closed");
            send.reset(RESET_MALFORMED);
            CloseCode::Malformed.close(connection, &error.to_string());
            return;
        }
        Err(_) => {
            wire::refuse(&mut recv, RESET_MALFORMED);
            return;
        }
    };
    let reply = match authorize::authorize(from, &request) {
        Err(refused) => {
            tracing::warn!(host = %from, %refused, "request refused");
            PeerReply::Refused(refused)
        }
        Ok(()) => {
            // A wait for output may be long, and is pointless once nobody listens. All else runs to its end.
            let waits = matches!(
                request,
                PeerRequest::ReadLog { .. } | PeerRequest::Session { ask: SessionAsk::Read { .. }, .. }
            );
            let handled = inner.handler.peer(from, request);
            tokio::select! {
                biased;
                reply = handled => reply,
                () = send.stopped(), if waits => return,
            }
        }
    };
    let bytes = framing::encode_message(version, FrameKind::PeerReply, &reply).or_else(|error| {
        let refused = PublicError::new(ErrorCode::TooLarge, error.to_string());
        framing::encode_message(version, FrameKind::PeerReply, &PeerReply::Refused(refused))
    });
    if let Ok(bytes) = bytes {
        // Whoever asked may be gone by now.
        let _ = send.send(&bytes).await;
    }
}

/// What a joiner asks, and by which key one answers that listens at its address meanwhile.
async fn asked_to_join(
    recv: &mut quinn::RecvStream,
    version: u16,
) -> Result<(JoinRequest, Option<[u8; 32]>), wire::WireError> {
    let kinds = [FrameKind::JoinRequest, FrameKind::JoinListening];
    let (kind, body) = wire::read_only_of(recv, &kinds, version, JOIN_BYTES_MAX).await?;
    if kind == FrameKind::JoinRequest {
        return Ok((wire::decoded(&body, JOIN_BYTES_MAX)?, None));
    }
    let JoinListening { request, key } = wire::decoded(&body, JOIN_BYTES_MAX)?;
    Ok((request, Some(key)))
}

/// Serves a host that joins: one request, one answer.
pub(super) async fn joiner(inner: &Arc<Inner>, connection: &Connection, version: u16) {
    let exchange = async {
        let (send, mut recv) = connection.accept_bi().await.ok()?;
        let send = WholeSend::new(send);
        Some((asked_to_join(&mut recv, version).await.ok()?, send))
    };
    let Ok(Some(((request, key), mut send))) = timeout(REQUEST_TIME, exchange).await else {
        CloseCode::Malformed.close(connection, "a request to join was due");
        return;
    };
    let remote = connection.remote_address();
    let reply = match join::check_request(&request) {
        Err(refused) => JoinReply::Refused(refused),
        Ok(()) if !inner.joins.take(JOINS_PER_SECOND) => JoinReply::Refused(
            PublicError::new(ErrorCode::Busy, "too many attempts to join").retry_after(1_000),
        ),
        Ok(()) => {
            let reached = match &key {
                // A stranger makes nobody call anywhere; the log refuses it.
                Some(key) if inner.handler.invites(&request).await => {
                    way_back::check(&request.addr, key, remote).await
                }
                _ => Ok(()),
            };
            match reached {
                Ok(()) => inner.handler.join(request.clone()).await,
                Err(refused) => JoinReply::Refused(refused),
            }
        }
    };
    match &reply {
        JoinReply::Granted(grant) => {
            tracing::info!(%remote, host = %grant.host, name = %request.host_name, "host admitted");
        }
        JoinReply::Refused(refused) => {
            inner.credentials.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tracing::warn!(%remote, name = %request.host_name, %refused, "host refused");
        }
    }
    if let Ok(bytes) = framing::encode_message(version, FrameKind::JoinReply, &reply)
        && send.send(&bytes).await.is_ok()
    {
        // The joiner closes when it has read the answer.
        tokio::select! {
            biased;
            _ = connection.closed() => {}
            () = sleep(FAREWELL_TIME) => {}
        }
    }
    CloseCode::Done.close(connection, "");
}
