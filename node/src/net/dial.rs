//! Dialling: addresses of a peer tried in turn, the handshake, the greeting. The certificate decides who answered;
//! an address is only a hint.

use super::link::{Class, Up};
use super::transport::GOSSIP_IDLE;
use super::{CloseCode, Inner, ca, live, tls, transport, wire};
use quinn::{ClientConfig, ConnectionError};
use rota_protocol::frame::{self, FrameKind, HELLO_VERSION, Hello, VERSION_MIN};
use rota_protocol::{ErrorCode, HostId, PublicError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// Largest greeting, in bytes.
pub(super) const HELLO_BYTES_MAX: usize = 1_024;
/// Most addresses of one name that are tried.
const RESOLVED_MAX: usize = 4;

/// Why a peer could not be dialled. Nothing was delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("no address of host {0} is known")]
    NoAddress(HostId),
    #[error("{addr}: {why}")]
    Failed { addr: String, why: String },
    #[error("{addr}: whoever answers there is not host {wanted} of this cluster ({why})")]
    NotTheHost { addr: String, wanted: HostId, why: String },
    /// It is not dialled. Whoever wanted it there asks another host, as of one that is gone: it may have led a moment ago.
    #[error("host {0} was revoked: {1}")]
    Revoked(HostId, String),
    #[error("{0}")]
    Refused(PublicError),
    #[error("the dial ended early")]
    Ended,
}

/// Client settings of each class.
pub(super) struct Dialler {
    calls: ClientConfig,
    gossip: ClientConfig,
}

impl Dialler {
    pub(super) fn new(
        identity: &super::Identity,
        timings: &super::NetTimings,
    ) -> Result<Self, tls::TlsError> {
        let crypto = tls::peer_client_config(identity)?;
        let mut calls = ClientConfig::new(crypto.clone());
        calls.transport_config(transport::client(Some(timings.keep_alive), timings.idle));
        let mut gossip = ClientConfig::new(crypto);
        gossip.transport_config(transport::client(None, timings.idle.max(GOSSIP_IDLE)));
        Ok(Self { calls, gossip })
    }

    fn config(&self, class: Class) -> ClientConfig {
        match class {
            Class::Raft | Class::Rest | Class::Bulk => self.calls.clone(),
            Class::Gossip => self.gossip.clone(),
        }
    }
}

impl Inner {
    /// A connection to this very host, greeted.
    pub(super) async fn dial(self: &Arc<Self>, to: HostId, class: Class) -> Result<Up, DialError> {
        if let Some(why) = self.credentials.trusted().revoked.get(&to) {
            return Err(DialError::Revoked(to, why.clone()));
        }
        let mut last = DialError::NoAddress(to);
        for text in self.addresses_of(to) {
            let resolved = timeout(self.timings.dial, resolve(&text)).await;
            let addrs = match resolved.unwrap_or_else(|_| Err("no answer of the name service".into())) {
                Ok(addrs) => addrs,
                Err(why) => {
                    last = DialError::Failed { addr: text, why };
                    continue;
                }
            };
            for addr in addrs {
                match timeout(self.timings.dial, self.dial_at(to, class, addr)).await {
                    Ok(Ok(up)) => {
                        self.found_at(to, &text);
                        return Ok(up);
                    }
                    Ok(Err(refused @ DialError::Refused(_))) => return Err(refused),
                    Ok(Err(error)) => last = error,
                    Err(_) => {
                        last = DialError::Failed { addr: addr.to_string(), why: "no answer".to_owned() };
                    }
                }
            }
        }
        Err(last)
    }

    /// This side's greeting of a peer.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            version_min: VERSION_MIN,
            version_max: self.newest,
            cluster: Some(self.cluster),
            host: Some(self.host),
            build: BUILD.to_owned(),
        }
    }

    async fn dial_at(&self, to: HostId, class: Class, addr: SocketAddr) -> Result<Up, DialError> {
        let failed = |why: String| DialError::Failed { addr: addr.to_string(), why };
        let name = ca::host_name(self.cluster, to);
        let generation = self.credentials.generation();
        let connection = self
            .endpoint
            .connect_with(self.credentials.dialler().config(class), addr, &name)
            .map_err(|e| failed(e.to_string()))?
            .await
            .map_err(|e| lost(&e, addr, to))?;
        let trusted = self.credentials.trusted();
        if let Some((code, why)) = trusted.refuse(to, live::certificate_of(&connection).as_ref()) {
            code.close(&connection, &why);
            return Err(DialError::NotTheHost { addr: addr.to_string(), wanted: to, why });
        }
        match greet(&connection, &self.hello()).await {
            Ok((theirs, version)) if theirs.cluster == Some(self.cluster) && theirs.host == Some(to) => {
                if let Some(old) = trusted.too_old(theirs.version_max) {
                    CloseCode::Version.close(&connection, &old);
                    return Err(DialError::Refused(PublicError::new(ErrorCode::Version, old)));
                }
                let up = Up::new(connection, version, generation);
                match super::hail::call(self, to, &up).await {
                    Ok(()) => Ok(up),
                    Err(error) if error.code == ErrorCode::Forbidden => Err(DialError::Refused(error)),
                    Err(error) => Err(failed(error.message)),
                }
            }
            Ok((theirs, _)) => {
                CloseCode::WrongCluster.close(&connection, "another host was wanted");
                Err(DialError::NotTheHost {
                    addr: addr.to_string(),
                    wanted: to,
                    why: format!("it says it is host {:?}", theirs.host),
                })
            }
            Err(GreetError::Refused(refused)) => Err(DialError::Refused(refused)),
            Err(GreetError::Lost(why)) => match connection.close_reason() {
                Some(reason) => Err(lost(&reason, addr, to)),
                None => Err(failed(why)),
            },
        }
    }
}

/// This build, as greetings say it.
pub(super) const BUILD: &str = concat!("rota ", env!("CARGO_PKG_VERSION"));

/// Why a greeting failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum GreetError {
    #[error("{0}")]
    Refused(PublicError),
    #[error("{0}")]
    Lost(String),
}

/// The client's side of the greeting, on the first stream of a connection.
pub(super) async fn greet(connection: &quinn::Connection, ours: &Hello) -> Result<(Hello, u16), GreetError> {
    let exchange = async {
        let (send, mut recv) = connection.open_bi().await.map_err(|e| e.to_string())?;
        let bytes = crate::framing::encode_message(HELLO_VERSION, FrameKind::Hello, ours)
            .map_err(|e| e.to_string())?;
        let mut send = wire::WholeSend::new(send);
        send.send(&bytes).await.map_err(|e| e.to_string())?;
        wire::read_only::<_, Hello>(&mut recv, FrameKind::Hello, HELLO_VERSION, HELLO_BYTES_MAX)
            .await
            .map_err(|e| e.to_string())
    };
    match exchange.await {
        Ok(theirs) => {
            let version = frame::negotiate(
                (ours.version_min, ours.version_max),
                (theirs.version_min, theirs.version_max),
            )
            .map_err(GreetError::Refused)?;
            Ok((theirs, version))
        }
        Err(why) => match connection.close_reason() {
            Some(ConnectionError::ApplicationClosed(close)) => {
                match refusal(close.error_code, &close.reason) {
                    Some(refused) => Err(GreetError::Refused(refused)),
                    None => Err(GreetError::Lost(format!("{why}: {close}"))),
                }
            }
            _ => Err(GreetError::Lost(why)),
        },
    }
}

/// What a close by the other side means, if it was a refusal for good.
fn refusal(code: quinn::VarInt, reason: &[u8]) -> Option<PublicError> {
    let text = String::from_utf8_lossy(reason).into_owned();
    let code = match CloseCode::from_wire(code)? {
        CloseCode::Version => ErrorCode::Version,
        CloseCode::WrongCluster | CloseCode::Unauthenticated | CloseCode::Revoked => {
            ErrorCode::Unauthenticated
        }
        CloseCode::Busy
        | CloseCode::Done
        | CloseCode::Malformed
        | CloseCode::ShuttingDown
        | CloseCode::Unused => return None,
    };
    Some(PublicError::new(code, text))
}

fn lost(error: &ConnectionError, addr: SocketAddr, wanted: HostId) -> DialError {
    let addr = addr.to_string();
    match error {
        // Certificate trouble, on either side, is a TLS alert.
        ConnectionError::TransportError(e) => {
            DialError::NotTheHost { addr, wanted, why: with_clock(e.code, e.to_string()) }
        }
        ConnectionError::ConnectionClosed(e)
            if e.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED =>
        {
            DialError::Failed { addr, why: "it takes no more connections right now".to_owned() }
        }
        ConnectionError::ConnectionClosed(e) => {
            let why = with_clock(e.error_code, format!("it refused this host: {e}"));
            DialError::NotTheHost { addr, wanted, why }
        }
        other => DialError::Failed { addr, why: other.to_string() },
    }
}

/// Says what a certificate outside its validity means (fault C1): TLS has one alert for those of yesterday and of
/// tomorrow.
fn with_clock(code: quinn::TransportErrorCode, why: String) -> String {
    if code != quinn::TransportErrorCode::crypto(u8::from(rustls::AlertDescription::CertificateExpired)) {
        return why;
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = super::validity::stamp(i64::try_from(now_s).unwrap_or(i64::MAX));
    format!(
        "{why}; one of the two hosts has a certificate that is not valid by the other's clock: check both clocks, this \
         host's says {now}"
    )
}

/// The addresses of `host:port`; a name is looked up.
pub(super) async fn resolve(text: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(addr) = text.parse() {
        return Ok(vec![addr]);
    }
    let found = tokio::net::lookup_host(text).await.map_err(|e| e.to_string())?;
    Ok(found.take(RESOLVED_MAX).collect())
}
