//! QUIC settings: timers, stream limits, windows, and the keys that let a restarted peer say so.

use super::identity::Identity;
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, TransportConfig, VarInt};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use std::sync::Arc;
use std::time::Duration;

/// First guess of the round trip: the default of 333 ms makes the first resend on a LAN slow.
const INITIAL_RTT: Duration = Duration::from_millis(10);
/// Streams that a stranger may open before it is known.
pub(super) const STREAMS_BEFORE_AUTH: u32 = 4;
/// Streams that a peer may have open on one connection; the library's 100 makes the 101st call wait in silence.
pub(super) const PEER_STREAMS_MAX: u32 = 4_096;
/// Unread bytes that a stranger may make this host hold.
pub(super) const WINDOW_BEFORE_AUTH: u32 = 64 << 10;
/// Unread bytes of one connection of a peer.
pub(super) const PEER_WINDOW: u32 = 16 << 20;
/// Unread bytes of one connection of a client.
pub(super) const API_WINDOW: u32 = 4 << 20;
/// Unread bytes of one stream: one frame fits with room.
const STREAM_WINDOW: u32 = 2 << 20;
/// Unsent bytes of one connection.
const SEND_WINDOW: u64 = 16 << 20;
/// Unread datagrams of one connection, in bytes: older ones are dropped.
const DATAGRAM_BUFFER: usize = 256 << 10;

/// The timers of the transport.
#[derive(Debug, Clone, Copy)]
pub struct NetTimings {
    /// A connection in use is kept alive at this interval.
    pub keep_alive: Duration,
    /// A connection over which nothing came for this long is dead.
    pub idle: Duration,
    /// A dial, its handshake and its greeting take no longer than this for one address.
    pub dial: Duration,
    /// Longest pause between two dials of a peer that does not answer.
    pub backoff_max: Duration,
    /// A pooled connection without calls is closed after this long.
    pub unused: Duration,
}

impl Default for NetTimings {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_millis(250),
            idle: Duration::from_millis(3_000),
            dial: Duration::from_millis(1_000),
            backoff_max: Duration::from_millis(500),
            unused: Duration::from_secs(60),
        }
    }
}

impl NetTimings {
    /// Shorter ones, for fault injection and demos on one machine.
    #[must_use]
    pub fn fast() -> Self {
        Self { idle: Duration::from_millis(1_500), ..Self::default() }
    }
}

/// A client's side. Without `keep_alive` a connection without traffic ends after `idle`.
pub(super) fn client(keep_alive: Option<Duration>, idle: Duration) -> Arc<TransportConfig> {
    let mut config = common(idle);
    config
        .keep_alive_interval(keep_alive)
        // Servers open no streams.
        .max_concurrent_bidi_streams(VarInt::from_u32(0));
    Arc::new(config)
}

/// The server's side, as a stranger meets it; `server` raises the limits once it knows who came. The client's idle
/// timeout is the shorter one, so the server's is generous.
pub(super) fn server(timings: &NetTimings) -> Arc<TransportConfig> {
    let mut config = common(timings.idle.max(GOSSIP_IDLE));
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_BEFORE_AUTH))
        .receive_window(VarInt::from_u32(WINDOW_BEFORE_AUTH));
    Arc::new(config)
}

/// Gossip reaches one peer only now and then, and must not keep a connection to each of a thousand alive.
pub(super) const GOSSIP_IDLE: Duration = Duration::from_secs(15);

fn common(idle: Duration) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(IdleTimeout::try_from(idle).ok())
        .initial_rtt(INITIAL_RTT)
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .send_window(SEND_WINDOW)
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_BUFFER);
    config
}

/// The endpoint of a host. Its key for stateless resets comes from the host's own key, so that after a restart it can
/// tell the peers of its former life, at their next packet, that their connections are gone.
pub(super) fn endpoint(identity: &Identity, rng_seed: Option<u64>) -> EndpointConfig {
    let reset = identity.derived_secret("rota quic stateless reset");
    let mut config = EndpointConfig::new(Arc::new(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &reset)));
    if let Some(seed) = rng_seed {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        config.rng_seed(Some(bytes));
    }
    config.cid_generator(move || {
        Box::new(RandomIds(match rng_seed {
            Some(seed) => StdRng::seed_from_u64(seed),
            None => StdRng::from_rng(&mut rand::rng()),
        }))
    });
    config
}

/// Random connection ids, all of them plausible: the library's own generator would call the ids of a former life
/// invalid and drop their packets instead of answering with a reset.
struct RandomIds(StdRng);

impl RandomIds {
    const BYTES: usize = 8;
}

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; Self::BYTES];
        self.0.fill(&mut bytes);
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        Self::BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
