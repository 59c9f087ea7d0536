//! Tests over real endpoints on loopback. This file has what they share: clusters of identities, a recording handler.

mod calls;
mod flood;
mod frames;
mod gossiping;
mod joining;
mod renewing;
mod replay;
mod restart;
mod trust;
mod twelve;

use super::*;
use super::{ca, identity};
use rota_protocol::peer::JoinGrant;
use rota_protocol::{ErrorCode, PublicError};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Long enough for a busy machine; no test waits for it unless it fails.
pub(super) const TTL: Duration = Duration::from_secs(20);

/// A founded cluster, and more identities of it on request.
pub(super) struct Cluster {
    pub(super) founder: Arc<Identity>,
    pub(super) data: TempDir,
}

impl Cluster {
    pub(super) fn new() -> Self {
        let data = TempDir::new().unwrap();
        let founder = Arc::new(found_cluster(data.path(), "test", "h1").unwrap());
        Self { founder, data }
    }

    pub(super) fn host(&self, host: u64) -> Arc<Identity> {
        if host == 1 {
            return self.founder.clone();
        }
        let year = Duration::from_secs(365 * 24 * 3_600);
        let now = SystemTime::now();
        let name = host_name(self.founder.cluster, HostId(host));
        Arc::new(self.identity(host, &name, (now - year, now + year), now).unwrap())
    }

    /// An identity with a certificate of any name and validity, checked as if it were `now`.
    pub(super) fn identity(
        &self,
        host: u64,
        name: &str,
        valid: (SystemTime, SystemTime),
        now: SystemTime,
    ) -> Result<Identity, IdentityError> {
        let key = ca::new_key().unwrap();
        let pems = self.founder.pems();
        let certificate =
            ca::certify_for(&pems.ca_key, self.founder.cluster, name, &ca::public_key_der(&key), valid)
                .unwrap();
        let draft = identity::Draft {
            host: HostId(host),
            cluster: self.founder.cluster,
            cluster_name: "test".into(),
            host_name: format!("h{host}"),
            seeds: Vec::new(),
            pems: identity::Pems {
                ca: pems.ca.clone(),
                ca_key: pems.ca_key.clone(),
                host: certificate,
                host_key: key.serialize_pem(),
            },
        };
        Identity::check(draft, self.data.path(), now)
    }
}

/// Answers by fixed rules and records what came.
pub(super) struct Recorder {
    pub(super) identity: Arc<Identity>,
    pub(super) calls: AtomicU32,
    pub(super) joins: AtomicU32,
    pub(super) dropped_waits: Arc<AtomicU32>,
    gossip: mpsc::Sender<(HostId, Vec<u8>)>,
    api: mpsc::Sender<ApiStream>,
    /// The one join token that it takes, until used.
    token: Mutex<Option<String>>,
}

/// Counts its own drop, unless it was told not to.
struct OnDrop(Option<Arc<AtomicU32>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl PeerHandler for Recorder {
    fn peer(&self, from: HostId, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let dropped = self.dropped_waits.clone();
        async move {
            match request {
                // Says who asked, and gives the body back.
                PeerRequest::Raft { body, .. } => {
                    let mut answer = from.0.to_le_bytes().to_vec();
                    answer.extend(body);
                    PeerReply::Raft { body: answer }
                }
                PeerRequest::ReadLog { .. } => {
                    let mut guard = OnDrop(Some(dropped));
                    std::future::pending::<()>().await;
                    guard.0 = None;
                    PeerReply::Done
                }
                PeerRequest::Session { .. }
                | PeerRequest::Lead(_)
                | PeerRequest::Authority { .. }
                | PeerRequest::Clock
                | PeerRequest::Data(_)
                | PeerRequest::Hail(_) => PeerReply::Done,
                PeerRequest::ReadIndex => PeerReply::ReadIndex { index: from.0 },
                PeerRequest::Renew { .. } | PeerRequest::Renewals { .. } => PeerReply::Renewed,
                // Too large for a frame.
                PeerRequest::Signal { .. } => {
                    PeerReply::Raft { body: vec![0; rota_protocol::limits::FRAME_BYTES_MAX] }
                }
                PeerRequest::Propose { .. } | PeerRequest::FindLog { .. } | PeerRequest::FindTask { .. } => {
                    std::future::pending().await
                }
            }
        }
        .boxed()
    }

    fn invites(&self, request: &JoinRequest) -> BoxFuture<'static, bool> {
        std::future::ready(self.token.lock().unwrap().as_deref() == Some(&request.token)).boxed()
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'static, JoinReply> {
        self.joins.fetch_add(1, Ordering::SeqCst);
        let mut token = self.token.lock().unwrap();
        if token.as_deref() != Some(&request.token) {
            let refused = PublicError::new(ErrorCode::Unauthenticated, "the token is used up");
            return std::future::ready(JoinReply::Refused(refused)).boxed();
        }
        *token = None;
        let peers = vec![(HostId(1), request.addr.clone())];
        let grant: JoinGrant = issue(&self.identity, &request, HostId(7), peers).unwrap();
        std::future::ready(JoinReply::Granted(Box::new(grant))).boxed()
    }

    fn gossip(&self, from: HostId, bytes: Vec<u8>) {
        let _ = self.gossip.try_send((from, bytes));
    }

    fn api(&self, stream: ApiStream) {
        let _ = self.api.try_send(stream);
    }
}

/// A running peer.
pub(super) struct Peer {
    pub(super) net: Arc<Net>,
    pub(super) handler: Arc<Recorder>,
    pub(super) gossip: mpsc::Receiver<(HostId, Vec<u8>)>,
    pub(super) api: mpsc::Receiver<ApiStream>,
}

impl Peer {
    pub(super) async fn start(identity: Arc<Identity>) -> Self {
        Self::start_with(identity, "127.0.0.1:0".parse().unwrap(), None).await
    }

    /// As a build that speaks nothing newer.
    pub(super) async fn start_as(identity: Arc<Identity>, newest: u16) -> Self {
        let listen = "127.0.0.1:0".parse().unwrap();
        Self::start_from(NetConfig { newest, ..NetConfig::new(identity, listen) }).await
    }

    pub(super) async fn start_with(
        identity: Arc<Identity>,
        listen: SocketAddr,
        socket: Option<Arc<dyn AsyncUdpSocket>>,
    ) -> Self {
        Self::start_from(NetConfig { socket, ..NetConfig::new(identity, listen) }).await
    }

    async fn start_from(config: NetConfig) -> Self {
        let (gossip_tx, gossip) = mpsc::channel(64);
        let (api_tx, api) = mpsc::channel(64);
        let handler = Arc::new(Recorder {
            identity: config.identity.clone(),
            calls: AtomicU32::new(0),
            joins: AtomicU32::new(0),
            dropped_waits: Arc::default(),
            gossip: gossip_tx,
            api: api_tx,
            token: Mutex::new(None),
        });
        let config = NetConfig { timings: NetTimings::fast(), ..config };
        let net = Net::start(config, handler.clone()).await.unwrap();
        Self { net, handler, gossip, api }
    }

    pub(super) fn addr(&self) -> String {
        self.net.local_addr().unwrap().to_string()
    }

    pub(super) fn knows(&self, host: u64, other: &Self) {
        self.net.set_peer(HostId(host), other.addr());
    }

    pub(super) fn takes_token(&self, text: &str) {
        *self.handler.token.lock().unwrap() = Some(text.to_owned());
    }

    pub(super) async fn raft(&self, to: u64, body: &[u8]) -> Result<PeerReply, LinkError> {
        self.net.call(HostId(to), raft(body), TTL).await
    }
}

pub(super) fn raft(body: &[u8]) -> PeerRequest {
    PeerRequest::Raft { call: rota_protocol::peer::RaftCall::Append, body: body.to_vec() }
}

/// What the recorder answers to `raft(body)` from this host.
pub(super) fn echoed(from: u64, body: &[u8]) -> Result<PeerReply, LinkError> {
    let mut answer = from.to_le_bytes().to_vec();
    answer.extend(body);
    Ok(PeerReply::Raft { body: answer })
}
