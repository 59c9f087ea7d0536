//! The server side of the one UDP port: who may connect, how many at once, and which protocol they speak.
//!
//! Strangers get little: a bounded number of handshakes at once, address validation (QUIC Retry) when many are
//! half-open, small windows and few streams until it is known who came. Limits come before memory.

use super::dial::HELLO_BYTES_MAX;
use super::live::Listed;
use super::{ApiStream, CloseCode, Inner, ca, live, tls, transport, wire};
use crate::framing;
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, Incoming, ServerConfig, VarInt};
use rota_protocol::frame::{self, FrameKind, HELLO_VERSION, Hello, VERSION_MIN};
use rota_protocol::{HostId, PublicError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Handshakes at once; past this, new ones are refused.
const HANDSHAKES_MAX: usize = 512;
/// From this many half-open handshakes on, a newcomer must first show that it can read at its address.
pub(super) const RETRY_FROM: usize = 64;
/// Connections whose first packets wait to be looked at.
const INCOMING_MAX: usize = 1_024;
/// Bytes buffered for one of those, and for all.
const INCOMING_BYTES: u64 = 16 << 10;
const INCOMING_BYTES_ALL: u64 = 8 << 20;
/// A handshake and a greeting must be done by then.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Connections of one peer: three classes, twice over for a restart, and room.
const CONNECTIONS_PER_PEER: usize = 16;
/// Connections of clients.
const API_CONNECTIONS_MAX: usize = 1_024;
/// A client's connection without a stream is closed after this long: a stranger must not hold a place for nothing.
const API_UNUSED_TIME: Duration = Duration::from_secs(10);
/// Streams of one client connection.
const API_STREAMS_MAX: u32 = 16;
/// Hosts that join at once.
const JOINS_MAX: usize = 16;

/// Counts of what is open.
pub(super) struct Doors {
    handshakes: Arc<Semaphore>,
    api: Arc<Semaphore>,
    joins: Arc<Semaphore>,
    peers: Mutex<BTreeMap<HostId, usize>>,
}

impl Doors {
    pub(super) fn new() -> Self {
        Self {
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            api: Arc::new(Semaphore::new(API_CONNECTIONS_MAX)),
            joins: Arc::new(Semaphore::new(JOINS_MAX)),
            peers: Mutex::new(BTreeMap::new()),
        }
    }

    /// Handshakes under way.
    pub(super) fn half_open(&self) -> usize {
        HANDSHAKES_MAX - self.handshakes.available_permits()
    }

    fn peers(&self) -> std::sync::MutexGuard<'_, BTreeMap<HostId, usize>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts one connection of a peer for as long as it lives.
struct PeerSlot<'a> {
    doors: &'a Doors,
    host: HostId,
}

impl<'a> PeerSlot<'a> {
    fn take(doors: &'a Doors, host: HostId) -> Option<Self> {
        let mut peers = doors.peers();
        let count = peers.entry(host).or_default();
        if *count >= CONNECTIONS_PER_PEER {
            return None;
        }
        *count += 1;
        drop(peers);
        Some(Self { doors, host })
    }
}

impl Drop for PeerSlot<'_> {
    fn drop(&mut self) {
        let mut peers = self.doors.peers();
        if let Some(count) = peers.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&self.host);
            }
        }
    }
}

/// The QUIC side of the server's settings.
pub(super) fn config(
    identity: &super::Identity,
    timings: &super::NetTimings,
) -> Result<ServerConfig, tls::TlsError> {
    let mut config = ServerConfig::with_crypto(tls::server_config(identity)?);
    config
        .transport_config(transport::server(timings))
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES_ALL)
        // Hosts do not roam in the middle of a connection; a new address is a new connection.
        .migration(false);
    Ok(config)
}

/// Takes connections until the endpoint is closed.
pub(super) async fn accept(inner: Arc<Inner>) {
    while let Some(incoming) = inner.endpoint.accept().await {
        let Ok(permit) = inner.doors.handshakes.clone().try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let open = inner.doors.half_open();
        if open > RETRY_FROM && !incoming.remote_address_validated() && incoming.may_retry() {
            // The error would mean that the address is validated, which was just ruled out.
            let _ = incoming.retry();
            continue;
        }
        tokio::spawn(admit(inner.clone(), incoming, permit));
    }
}

async fn admit(inner: Arc<Inner>, incoming: Incoming, permit: OwnedSemaphorePermit) {
    let remote = incoming.remote_address();
    let handshake = async { incoming.accept()?.await };
    let connection = match timeout(GREETING_TIME, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::debug!(%remote, %error, "handshake failed");
            return;
        }
        Err(_) => return,
    };
    let alpn = connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok())
        .and_then(|data| data.protocol);
    match alpn.as_deref() {
        Some(tls::ALPN_PEER) => admit_peer(&inner, connection, permit).await,
        Some(tls::ALPN_JOIN) => admit_joiner(&inner, connection, permit).await,
        Some(tls::ALPN_API) => admit_client(&inner, connection, permit).await,
        _ => CloseCode::Malformed.close(&connection, "unknown protocol"),
    }
}

async fn admit_peer(inner: &Arc<Inner>, connection: Connection, permit: OwnedSemaphorePermit) {
    let Some(from) = caller(inner, &connection) else {
        CloseCode::Unauthenticated.close(&connection, "a certificate of a host of this cluster is needed");
        return;
    };
    let Some(_slot) = PeerSlot::take(&inner.doors, from) else {
        CloseCode::Busy.close(&connection, "too many connections of this host");
        return;
    };
    let check = |hello: &Hello| {
        if hello.cluster != Some(inner.cluster) {
            return Err((CloseCode::WrongCluster, "this is another cluster".to_owned()));
        }
        if hello.host != Some(from) {
            let text = format!("the certificate is that of host {from}");
            return Err((CloseCode::Unauthenticated, text));
        }
        match inner.credentials.trusted().too_old(hello.version_max) {
            Some(text) => Err((CloseCode::Version, text)),
            None => Ok(()),
        }
    };
    let _listed = match Listed::new(&inner.credentials, from, &connection) {
        Ok(listed) => listed,
        Err((code, why)) => {
            tracing::info!(host = %from, why, "a connection is refused");
            return code.close(&connection, &why);
        }
    };
    let left = live::certificate_of(&connection).map_or(Duration::ZERO, |shown| live::left_of(&shown));
    let Some(version) = greeted(inner, &connection, check).await else {
        return;
    };
    let hailed = timeout(GREETING_TIME, super::hail::answer(inner, &connection, from, version)).await;
    if !matches!(hailed, Ok(true)) {
        return;
    }
    drop(permit);
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(transport::PEER_STREAMS_MAX));
    connection.set_receive_window(VarInt::from_u32(transport::PEER_WINDOW));
    if timeout(left, super::serve::peer(inner, &connection, from, version)).await.is_err() {
        CloseCode::Unauthenticated.close(&connection, "the certificate of this connection has ended");
    }
}

async fn admit_joiner(inner: &Arc<Inner>, connection: Connection, permit: OwnedSemaphorePermit) {
    let Ok(_join) = inner.doors.joins.clone().try_acquire_owned() else {
        CloseCode::Busy.close(&connection, "too many hosts join at once");
        return;
    };
    let Some(version) = greeted(inner, &connection, |_| Ok(())).await else {
        return;
    };
    drop(permit);
    super::serve::joiner(inner, &connection, version).await;
}

/// Clients greet on each stream, as they do on the unix socket; whoever holds the stream does that.
async fn admit_client(inner: &Arc<Inner>, connection: Connection, permit: OwnedSemaphorePermit) {
    let Ok(_client) = inner.doors.api.clone().try_acquire_owned() else {
        CloseCode::Busy.close(&connection, "too many clients");
        return;
    };
    drop(permit);
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(API_STREAMS_MAX));
    connection.set_receive_window(VarInt::from_u32(transport::API_WINDOW));
    // Each stream holds a copy for as long as it lives.
    let streams = Arc::new(());
    loop {
        match timeout(API_UNUSED_TIME, connection.accept_bi()).await {
            Ok(Ok((send, recv))) => {
                let stream = ApiStream::serving(send, recv, connection.clone(), streams.clone());
                inner.handler.api(stream);
            }
            Ok(Err(_)) => return,
            Err(_) if Arc::strong_count(&streams) > 1 => {}
            Err(_) => {
                CloseCode::Unused.close(&connection, "no stream is open");
                return;
            }
        }
    }
}

/// The host that a connection's certificate names, if it has one of ours. The handshake has checked the chain and
/// the validity.
fn caller(inner: &Inner, connection: &Connection) -> Option<HostId> {
    let (cluster, host) = ca::named_host(&live::certificate_of(connection)?)?;
    (cluster == inner.cluster).then_some(host)
}

/// The server's side of the greeting, on the connection's first stream. `None`: the connection was closed.
async fn greeted(
    inner: &Inner,
    connection: &Connection,
    check: impl Fn(&Hello) -> Result<(), (CloseCode, String)>,
) -> Option<u16> {
    let greet = async {
        let (send, mut recv) = connection.accept_bi().await.ok()?;
        let theirs =
            match wire::read_only::<_, Hello>(&mut recv, FrameKind::Hello, HELLO_VERSION, HELLO_BYTES_MAX)
                .await
            {
                Ok(hello) => hello,
                Err(error) => {
                    CloseCode::Malformed.close(connection, &error.to_string());
                    return None;
                }
            };
        let range = (theirs.version_min, theirs.version_max);
        let version = match frame::negotiate((VERSION_MIN, inner.newest), range) {
            Ok(version) => version,
            Err(PublicError { message, .. }) => {
                CloseCode::Version.close(connection, &message);
                return None;
            }
        };
        if let Err((code, text)) = check(&theirs) {
            code.close(connection, &text);
            return None;
        }
        let bytes = framing::encode_message(HELLO_VERSION, FrameKind::Hello, &inner.hello()).ok()?;
        wire::WholeSend::new(send).send(&bytes).await.ok()?;
        Some(version)
    };
    match timeout(GREETING_TIME, greet).await {
        Ok(version) => version,
        Err(_) => {
            CloseCode::Malformed.close(connection, "no greeting in time");
            None
        }
    }
}
