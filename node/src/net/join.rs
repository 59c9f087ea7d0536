//! How a host becomes a member: the joiner's side (`rota join`), and what the admitting peer needs.
//!
//! The joiner makes its key, dials any peer, checks that the server's authority is the one its token names, and only
//! then sends the token. The peer commits `AdmitHost` (which uses the token up and hands out an id), then certifies
//! the key with [`issue`]. The joiner checks all that it got before it writes anything.

use super::ca::{self, CaError};
use super::client::{self, ConnectError};
use super::dial::{self, GreetError};
use super::identity::{self, Draft, Identity, IdentityError, Pems};
use super::secret::{TokenError, TokenKind, TokenText};
use super::way_back::Listening;
use super::{CloseCode, tls, wire};
use crate::framing;
use rota_protocol::frame::FrameKind;
use rota_protocol::limits::{FRAME_BYTES_MAX, NAME_BYTES_MAX};
use rota_protocol::peer::{JoinGrant, JoinReply, JoinRequest};
use rota_protocol::{ErrorCode, HostId, PublicError, RequestId};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep, timeout};

/// One try: the admission has to be committed by a quorum.
const TRY_TIME: Duration = Duration::from_secs(10);
/// Tries with the same key before giving up; the peer recognises a repeated request.
const TRIES_MAX: u32 = 4;
/// Pause between tries.
const TRY_PAUSE: Duration = Duration::from_millis(500);
/// The first version of the wire in which whoever is joined calls back; older builds admit without.
const WAY_BACK_SINCE: u16 = 3;
/// Longest token text that is looked at.
const TOKEN_BYTES_MAX: usize = 256;

/// Why a host could not join. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The token's text.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The peer's or this host's address.
    #[error("`{0}` is not an address: give `host:port`, for example `10.0.0.1:7600`")]
    Addr(String),
    /// No answer.
    #[error(
        "cannot reach {addr}: {why}; check that the address is a host of the cluster, that `rota agent` runs there, and that udp passes the firewall"
    )]
    Unreachable {
        /// Where.
        addr: String,
        /// Why.
        why: String,
    },
    /// The port is taken, or the address is none of this host's.
    #[error("cannot listen on {addr}: {why}; give another with --listen, for example `10.0.0.1:7420`")]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// Why.
        why: String,
    },
    /// The server belongs to another cluster.
    #[error(
        "the host at {0} belongs to another cluster than the one the token names, or the cluster's authority was changed since: check address and token, or make a new token; the token was not sent"
    )]
    OtherCluster(String),
    /// The cluster refused.
    #[error("the cluster refused: {0}")]
    Refused(PublicError),
    /// The answer was lost; the token may be used up.
    #[error(
        "the answer of {0} was lost, the host may already be admitted: try again, and if the token is refused, make a new one"
    )]
    Lost(String),
    /// The grant is not sound, or could not be stored.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The grant names things that were not asked for.
    #[error("the grant is not sound: {0}")]
    Unsound(String),
}

/// Joins the cluster that the token names, through the peer at `peer_addr` (`host:port`), and stores the identity
/// under `data`. `my_addr` is where peers will reach this host.
///
/// # Errors
/// See [`JoinError`]; nothing is stored then.
pub async fn join(
    data: &Path,
    token: &str,
    peer_addr: &str,
    host_name: &str,
    my_addr: &str,
) -> Result<Identity, JoinError> {
    Identity::check_absent(data)?;
    let identity = admitted(data, token, peer_addr, host_name, my_addr).await?;
    identity.store(data)?;
    Ok(identity)
}

/// As [`join`], by a host that listens at `listen` meanwhile: the peer admits it only if it is reached at `my_addr`.
///
/// # Errors
/// See [`JoinError`]; nothing is stored then.
pub async fn join_listening(
    data: &Path,
    token: &str,
    peer_addr: &str,
    (host_name, my_addr): (&str, &str),
    listen: SocketAddr,
) -> Result<Identity, JoinError> {
    Identity::check_absent(data)?;
    let listening = Listening::at(listen)
        .await
        .map_err(|error| JoinError::Listen { addr: listen, why: error.to_string() })?;
    let admitted = admitted_as(data, token, peer_addr, (host_name, my_addr), Some(&listening)).await;
    listening.stop().await;
    let identity = admitted?;
    identity.store(data)?;
    Ok(identity)
}

/// Joins the cluster, and keeps nothing: for hosts that live as long as this process. `data` is named in errors alone.
///
/// # Errors
/// See [`JoinError`].
pub async fn admitted(
    data: &Path,
    token: &str,
    peer_addr: &str,
    host_name: &str,
    my_addr: &str,
) -> Result<Identity, JoinError> {
    admitted_as(data, token, peer_addr, (host_name, my_addr), None).await
}

async fn admitted_as(
    data: &Path,
    token: &str,
    peer_addr: &str,
    (host_name, my_addr): (&str, &str),
    listening: Option<&Listening>,
) -> Result<Identity, JoinError> {
    let token = TokenText::parse(token, TokenKind::Join)?;
    identity::check_name("host name", host_name)?;
    for addr in [peer_addr, my_addr] {
        if !identity::is_addr(addr) {
            return Err(JoinError::Addr(addr.chars().take(80).collect()));
        }
    }
    let key = ca::new_key().map_err(IdentityError::from)?;
    let request = JoinRequest {
        token: token.text().to_owned().into(),
        host_name: host_name.to_owned(),
        addr: my_addr.to_owned(),
        public_key_der: ca::public_key_der(&key),
    };
    let grant = ask(&token, peer_addr, &request, listening).await?;
    accept(data, &token, &request, grant, key.serialize_pem(), peer_addr)
}

/// Asks, and asks again with the same request when the answer was lost or the cluster has no leader just now.
async fn ask(
    token: &TokenText,
    peer_addr: &str,
    request: &JoinRequest,
    listening: Option<&Listening>,
) -> Result<JoinGrant, JoinError> {
    let mut tries = 1;
    loop {
        let result = match timeout(TRY_TIME, ask_once(token, peer_addr, request, listening)).await {
            Ok(result) => result,
            Err(_) => Err(JoinError::Lost(peer_addr.to_owned())),
        };
        let again = match &result {
            Err(JoinError::Lost(_)) => true,
            Err(JoinError::Refused(refused)) => {
                matches!(refused.code, ErrorCode::NoLeader | ErrorCode::Busy | ErrorCode::Unknown)
            }
            _ => false,
        };
        if !again || tries >= TRIES_MAX {
            return result;
        }
        tries += 1;
        sleep(TRY_PAUSE).await;
    }
}

pub(super) async fn ask_once(
    token: &TokenText,
    peer_addr: &str,
    request: &JoinRequest,
    listening: Option<&Listening>,
) -> Result<JoinGrant, JoinError> {
    let unreachable = |why: String| JoinError::Unreachable { addr: peer_addr.to_owned(), why };
    let lost = || JoinError::Lost(peer_addr.to_owned());
    let (connection, endpoint) =
        client::connect(peer_addr, token.ca(), tls::ALPN_JOIN).await.map_err(|error| match error {
            ConnectError::OtherCluster => JoinError::OtherCluster(peer_addr.to_owned()),
            other => unreachable(other.to_string()),
        })?;
    let (_, version) =
        dial::greet(&connection, &framing::client_hello()).await.map_err(|error| match error {
            GreetError::Refused(refused) => JoinError::Refused(refused),
            GreetError::Lost(why) => unreachable(why),
        })?;
    let bytes = match listening.filter(|_| version >= WAY_BACK_SINCE) {
        Some(listening) => {
            framing::encode_message(version, FrameKind::JoinListening, &listening.asks(request.clone()))
        }
        None => framing::encode_message(version, FrameKind::JoinRequest, request),
    };
    let bytes = bytes.map_err(|e| unreachable(e.to_string()))?;
    let (send, mut recv) = connection.open_bi().await.map_err(|e| unreachable(e.to_string()))?;
    let mut send = wire::WholeSend::new(send);
    send.send(&bytes).await.map_err(|_| lost())?;
    let reply = wire::read_only(&mut recv, FrameKind::JoinReply, version, FRAME_BYTES_MAX)
        .await
        .map_err(|_| lost())?;
    CloseCode::Done.close(&connection, "");
    client::flush(&endpoint).await;
    match reply {
        JoinReply::Granted(grant) => Ok(*grant),
        JoinReply::Refused(refused) => Err(JoinError::Refused(refused)),
    }
}

/// Checks a grant against what was asked.
fn accept(
    data: &Path,
    token: &TokenText,
    request: &JoinRequest,
    grant: JoinGrant,
    host_key: String,
    peer_addr: &str,
) -> Result<Identity, JoinError> {
    let mut seeds: Vec<_> = grant
        .peers
        .into_iter()
        .filter(|(host, addr)| *host != grant.host && identity::is_addr(addr))
        .collect();
    seeds.truncate(identity::SEEDS_MAX);
    let draft = Draft {
        host: grant.host,
        cluster: grant.cluster,
        cluster_name: grant.cluster_name,
        host_name: request.host_name.clone(),
        seeds,
        pems: Pems { ca: grant.ca_pem, ca_key: grant.ca_key_pem.0, host: grant.certificate_pem, host_key },
    };
    let identity = Identity::check(draft, &Identity::dir(data), SystemTime::now())?;
    if identity.ca_fingerprint() != token.ca() {
        return Err(JoinError::Unsound("its authority is not the one the token names".to_owned()));
    }
    if identity.seeds.is_empty() {
        return Err(JoinError::Unsound(format!("it names no peer, not even the one at {peer_addr}")));
    }
    Ok(identity)
}

/// What the admitting peer makes for a joiner once `AdmitHost` is committed: the new host's certificate and all it
/// needs to take part. `peers` are the hosts it should dial first.
///
/// # Errors
/// The joiner's key is of the wrong kind, or no certificate can be made.
pub fn issue(
    identity: &Identity,
    request: &JoinRequest,
    host: HostId,
    peers: Vec<(HostId, String)>,
) -> Result<JoinGrant, CaError> {
    let certificate_pem = ca::certify(
        identity.signing_key(),
        identity.cluster,
        host,
        &request.public_key_der,
        SystemTime::now(),
        ca::HOST_LIFE,
    )?;
    Ok(JoinGrant {
        cluster: identity.cluster,
        cluster_name: identity.cluster_name.clone(),
        host,
        certificate_pem,
        ca_pem: identity.pems().ca.clone(),
        ca_key_pem: identity.pems().ca_key.clone().into(),
        peers,
    })
}

/// The request id of an admission: the same for each repetition of one join, so that a lost answer is given again;
/// another key gets another id, and with it a refusal of the used token.
#[must_use]
pub fn join_request_id(request: &JoinRequest) -> RequestId {
    let hash = ca::sha256(&[
        b"rota join\0",
        request.token.trim().as_bytes(),
        b"\0",
        request.host_name.as_bytes(),
        b"\0",
        &request.public_key_der,
    ]);
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    RequestId(u128::from_le_bytes(id))
}

/// The form of a request, before the handler sees it.
pub(super) fn check_request(request: &JoinRequest) -> Result<(), PublicError> {
    let sized = request.token.len() <= TOKEN_BYTES_MAX;
    if !sized || TokenText::parse(&request.token, TokenKind::Join).is_err() {
        return Err(PublicError::new(ErrorCode::Unauthenticated, "the join token is not valid"));
    }
    if identity::check_name("host name", &request.host_name).is_err() {
        return Err(PublicError::invalid(
            "host_name",
            format!("must be 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`"),
            "gpu-01",
        ));
    }
    if !identity::is_addr(&request.addr) {
        return Err(PublicError::invalid(
            "addr",
            "must be `host:port`, where peers reach the new host",
            "10.0.0.7:7600",
        ));
    }
    if !ca::is_p256(&request.public_key_der) {
        return Err(PublicError::new(ErrorCode::Invalid, "the public key is not an ECDSA P-256 key"));
    }
    Ok(())
}

/// A count per second.
pub(super) struct PerSecond(Mutex<Option<(Instant, u32)>>);

impl PerSecond {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether one more is allowed in this second.
    pub(super) fn take(&self, allowed: u32) -> bool {
        let mut window = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        match &mut *window {
            Some((began, count)) if now.duration_since(*began) < Duration::from_secs(1) => {
                *count += 1;
                *count <= allowed
            }
            other => {
                *other = Some((now, 1));
                true
            }
        }
    }
}
