//! The network of a peer: one UDP port, QUIC, TLS 1.3 with certificates of the cluster's own authority.
//!
//! [`Net`] dials peers and serves peers, joining hosts and API clients; what they ask is the business of a
//! [`PeerHandler`]. Who a caller is comes from its certificate alone. Nothing here knows raft, jobs or devices.
//!
//! Map: `ca`, `identity`, `family`, `pem`, `files`, `secret` (who is who, on disk) - `tls`, `transport` (settings) - `addresses`, `link`, `dial`,
//! `hail`, `call`, `counted` (to others) - `server`, `serve`, `authorize` (from others) - `join`, `client`, `api_stream` (those who are
//! no peers) - `wire` (messages on streams) - `gossip` (membership and status, sans-io, and its driver).

mod addresses;
mod api_stream;
mod authorize;
mod ca;
mod call;
mod client;
mod counted;
mod dial;
mod family;
mod files;
pub mod gossip;
mod hail;
mod identity;
mod join;
mod link;
mod live;
mod names;
mod pem;
mod renewal;
mod secret;
mod serve;
mod server;
mod tls;
mod transport;
mod trusted;
mod validity;
mod way_back;
mod wire;

#[cfg(test)]
mod tests;

pub use api_stream::ApiStream;
pub use authorize::authorize;
pub use ca::{CaError, Fingerprint, host_name, parse_host_name};
pub use client::{ConnectError, connect_api};
pub use family::family;
pub use files::FileError;
pub use identity::{Identity, IdentityError, found_as, found_cluster, keep_keys_out_of_dumps};
pub use join::{JoinError, admitted, issue, join, join_listening, join_request_id};
pub use names::is_addr;
pub use renewal::{new_authority, print_of_key};
pub use rota_consensus::{LinkError, PeerLink};
pub use secret::{TokenError, TokenKind, TokenText, hash_secret, mint_secret, same_secret};
pub use tls::{ALPN_API, ALPN_JOIN, ALPN_PEER, TlsError};
pub use transport::NetTimings;
pub use trusted::Trusted;
pub use validity::{stamp, validity_s};

use addresses::{Addresses, By};
use bytes::Bytes;
use counted::counted;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use link::{Class, Link};
use quinn::{AsyncUdpSocket, Connection, Endpoint, VarInt};
use rota_protocol::frame::{FrameKind, VERSION_MAX};
use rota_protocol::gossip::GossipPacket;
use rota_protocol::limits::GOSSIP_BYTES_MAX;
use rota_protocol::members::{Admission, NotLetIn, PeerLife};
use rota_protocol::peer::{JoinReply, JoinRequest, PeerReply, PeerRequest};
use rota_protocol::{ClusterId, HostId};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Datagrams that wait for a dial; more are dropped, as a network would.
const GOSSIP_WAITING_MAX: usize = 64;
/// How long they wait.
const GOSSIP_DIAL_TIME: Duration = Duration::from_secs(1);
/// How often unused connections are looked for.
const SWEEP_TIME: Duration = Duration::from_secs(10);

/// What a peer does with what comes in. Calls run concurrently; an identity given to them is authenticated.
pub trait PeerHandler: Send + Sync + 'static {
    /// A request of a fellow peer, already authorised by [`authorize`]. The future is run to its end even when the
    /// caller has given up, but for `ReadLog`, which is dropped then.
    fn peer(&self, from: HostId, request: PeerRequest) -> BoxFuture<'static, PeerReply>;

    /// A host asks to join; its token is unchecked: commit `AdmitHost` under [`join_request_id`], then [`issue`], soon.
    fn join(&self, request: JoinRequest) -> BoxFuture<'static, JoinReply>;

    /// Whether a join token is one, as far as is known here: for others nobody is called. Admission asks the log.
    fn invites(&self, _request: &JoinRequest) -> BoxFuture<'static, bool> {
        std::future::ready(true).boxed()
    }

    /// A gossip datagram of a fellow peer. Must not block; a full queue drops it.
    fn gossip(&self, from: HostId, bytes: Vec<u8>);

    /// Who this process is, said on each fresh connection of peers. Without it nothing is said and nothing asked.
    fn hail(&self) -> Option<PeerLife> {
        None
    }

    /// A fellow peer said who it is: may it speak for its host?
    fn admit(&self, _from: HostId, life: &PeerLife) -> Admission {
        Admission::LetIn(life.clone())
    }

    /// A fellow peer let this process in.
    fn let_in(&self, _by: HostId) {}

    /// A fellow peer did not, for good.
    fn turned_away(&self, _by: HostId, _why: NotLetIn, _text: &str) {}

    /// A client's stream, not yet authenticated. Must not block: start a task. The stream's end frees its slot.
    fn api(&self, stream: ApiStream);
}

/// How to start.
pub struct NetConfig {
    /// Who this host is.
    pub identity: Arc<Identity>,
    /// The UDP address to listen on; it is also the source of every dial.
    pub listen: SocketAddr,
    /// Timers.
    pub timings: NetTimings,
    /// The newest version that this peer says it speaks: an older build's, where one is tried out.
    pub newest: u16,
    /// Addresses at which some peer may be, tried after all others.
    pub anybody: Vec<String>,
    /// A socket to use in place of one bound to `listen`: fault injection, simulation.
    pub socket: Option<Arc<dyn AsyncUdpSocket>>,
    /// Makes connection ids and timers' jitter repeatable: simulation only, they become guessable.
    pub rng_seed: Option<u64>,
}

impl NetConfig {
    /// With default timers and a real socket.
    #[must_use]
    pub fn new(identity: Arc<Identity>, listen: SocketAddr) -> Self {
        let (timings, newest) = (NetTimings::default(), VERSION_MAX);
        Self { identity, listen, timings, newest, anybody: Vec::new(), socket: None, rng_seed: None }
    }
}

/// Why the network could not start.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The port.
    #[error(
        "cannot listen on udp {addr}: {source}; check that the address is this host's and that no other agent runs on it"
    )]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Certificates and keys.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No async runtime around the call.
    #[error("the network must be started inside a tokio runtime")]
    NoRuntime,
}

/// The running network of one peer. Closing it, or dropping the last handle, ends its connections and tasks.
pub struct Net {
    inner: Arc<Inner>,
}

struct Inner {
    host: HostId,
    cluster: ClusterId,
    newest: u16,
    credentials: live::Credentials,
    endpoint: Endpoint,
    timings: NetTimings,
    handler: Arc<dyn PeerHandler>,
    doors: server::Doors,
    joins: join::PerSecond,
    sessions: hail::Sessions,
    links: Mutex<BTreeMap<(HostId, Class), Arc<Link>>>,
    addresses: Mutex<BTreeMap<HostId, Addresses>>,
    /// Where some host may be, whichever it is.
    anybody: Vec<String>,
    gossip_waiting: Arc<Semaphore>,
    /// Bytes that left by the port.
    sent: Arc<AtomicU64>,
}

impl Net {
    /// Listens, and serves until closed. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// The port cannot be had, or the identity is not usable.
    pub async fn start(config: NetConfig, handler: Arc<dyn PeerHandler>) -> Result<Arc<Self>, NetError> {
        let NetConfig { identity, listen, timings, newest, anybody, socket, rng_seed } = config;
        let server_config = server::config(&identity, &timings)?;
        let dialler = dial::Dialler::new(&identity, &timings)?;
        let runtime = quinn::default_runtime().ok_or(NetError::NoRuntime)?;
        let settings = transport::endpoint(&identity, rng_seed);
        let sent = Arc::new(AtomicU64::new(0));
        let endpoint = match socket {
            Some(socket) => Ok(socket),
            None => std::net::UdpSocket::bind(listen).and_then(|socket| runtime.wrap_udp_socket(socket)),
        }
        .and_then(|socket| {
            let socket = counted(socket, sent.clone());
            Endpoint::new_with_abstract_socket(settings, Some(server_config), socket, runtime)
        })
        .map_err(|source| NetError::Listen { addr: listen, source })?;
        let inner = Arc::new(Inner {
            host: identity.host,
            cluster: identity.cluster,
            newest: newest.min(VERSION_MAX),
            credentials: live::Credentials::new(identity.clone(), dialler),
            endpoint,
            timings,
            handler,
            doors: server::Doors::new(),
            joins: join::PerSecond::new(),
            sessions: hail::Sessions::default(),
            links: Mutex::default(),
            addresses: Mutex::default(),
            anybody,
            gossip_waiting: Arc::new(Semaphore::new(GOSSIP_WAITING_MAX)),
            sent,
        });
        for (host, addr) in &identity.seeds {
            inner.set_address(*host, addr.clone(), By::State);
        }
        tokio::spawn(server::accept(inner.clone()));
        tokio::spawn(sweep(Arc::downgrade(&inner)));
        Ok(Arc::new(Self { inner }))
    }

    /// The address that the port is bound to.
    ///
    /// # Errors
    /// The socket does not know.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.endpoint.local_addr()
    }

    /// Bytes that have left by the port, headers of UDP and below left out.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.inner.sent.load(Ordering::Relaxed)
    }

    /// Sends a gossip datagram, if it can be had without waiting: unreliable, as a network is. Longer ones than
    /// [`GOSSIP_BYTES_MAX`] are dropped.
    pub fn gossip_send(&self, to: HostId, bytes: Vec<u8>) {
        if to == self.inner.host || bytes.len() > GOSSIP_BYTES_MAX {
            return;
        }
        let packet = GossipPacket { bytes };
        let framed = move |version: u16| {
            crate::framing::encode_message(version, FrameKind::Gossip, &packet).map(Bytes::from)
        };
        let link = self.inner.link(to, Class::Gossip);
        if let Some(up) = link.up() {
            if let Ok(frame) = framed(up.version) {
                // Too large or gone: the packet is lost, and gossip bears that.
                let _ = up.connection.send_datagram(frame);
            }
            return;
        }
        let Ok(permit) = self.inner.gossip_waiting.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.inner.clone();
        tokio::spawn(async move {
            let deadline = Instant::now() + GOSSIP_DIAL_TIME;
            if let Ok(up) = link.connected(&inner, deadline).await
                && let Ok(frame) = framed(up.version)
            {
                let _ = up.connection.send_datagram(frame);
            }
            drop(permit);
        });
    }

    /// Ends every connection and stops listening; calls under way fail.
    pub fn close(&self) {
        self.inner.endpoint.close(CloseCode::ShuttingDown.to_wire(), b"shutting down");
    }

    /// After [`Self::close`]: waits until the peers were told, at most a moment.
    pub async fn closed(&self) {
        client::flush(&self.inner.endpoint).await;
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.close();
    }
}

impl PeerLink for Net {
    fn call(
        &self,
        to: HostId,
        request: PeerRequest,
        ttl: Duration,
    ) -> BoxFuture<'static, Result<PeerReply, LinkError>> {
        let inner = self.inner.clone();
        if to == inner.host {
            // A call to itself needs no network, and obeys the same rules.
            return async move {
                authorize(to, &request).map_err(LinkError::Refused)?;
                tokio::time::timeout(ttl, inner.handler.peer(to, request))
                    .await
                    .map_err(|_| LinkError::Timeout)
            }
            .boxed();
        }
        inner.call_peer(to, request, ttl).boxed()
    }
}

impl Inner {
    fn link(&self, to: HostId, class: Class) -> Arc<Link> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.entry((to, class)).or_insert_with(|| Arc::new(Link::new(to, class))).clone()
    }

    fn all_links(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.values().cloned().collect()
    }
}

/// Closes pooled connections that nobody uses, for as long as the network lives.
async fn sweep(inner: std::sync::Weak<Inner>) {
    loop {
        tokio::time::sleep(SWEEP_TIME).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        for link in inner.all_links() {
            link.close_if_unused(inner.timings.unused);
        }
    }
}

/// Why a side closed a connection, as the other side sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum CloseCode {
    /// Nothing more to say.
    Done = 0,
    /// Bytes that are no message of ours.
    Malformed = 1,
    /// No common protocol version.
    Version = 2,
    /// Another cluster, or another host than was wanted.
    WrongCluster = 3,
    /// No certificate where one is needed, or that of another host.
    Unauthenticated = 4,
    /// A limit on connections is reached.
    Busy = 5,
    /// The process ends.
    ShuttingDown = 6,
    /// No call for a long time.
    Unused = 7,
    /// The cluster trusts this host no more.
    Revoked = 8,
}

impl CloseCode {
    fn to_wire(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    fn from_wire(code: VarInt) -> Option<Self> {
        Some(match code.into_inner() {
            0 => Self::Done,
            1 => Self::Malformed,
            2 => Self::Version,
            3 => Self::WrongCluster,
            4 => Self::Unauthenticated,
            5 => Self::Busy,
            6 => Self::ShuttingDown,
            7 => Self::Unused,
            8 => Self::Revoked,
            _ => return None,
        })
    }

    fn close(self, connection: &Connection, reason: &str) {
        connection.close(self.to_wire(), reason.as_bytes());
    }
}
