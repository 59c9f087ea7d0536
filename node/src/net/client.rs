//! Connections of those who are no peers: a host that joins, a client of the API. They know the cluster's authority
//! by the fingerprint in their token, and check the server against it before they send anything.

use super::api_stream::ApiStream;
use super::ca::Fingerprint;
use super::secret::{TokenError, TokenKind, TokenText};
use super::{dial, tls, transport};
use quinn::{ClientConfig, Connection, Endpoint};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// One address must answer by then.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// The connection is kept alive at this interval: a watch may be silent for long.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A server that was silent for this long is gone.
const IDLE: Duration = Duration::from_secs(4);
/// Time to say goodbye.
const FLUSH_TIME: Duration = Duration::from_millis(200);

/// Why no connection came about. Nothing was sent but the handshake.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The token's text.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The server belongs to another cluster.
    #[error(
        "the host there belongs to another cluster than the one the token names, or the cluster's authority was changed since: check address and token, or have a new token made"
    )]
    OtherCluster,
    /// No answer, or not the right one.
    #[error("{0}")]
    Unreachable(String),
    /// This host's own side.
    #[error("{0}")]
    Local(String),
}

/// Opens an API stream to the peer at `addr` (`host:port`), whose authority the user token names. The stream is not
/// authenticated yet: after the greeting, the first request must carry the token.
///
/// # Errors
/// The token is malformed, nobody answers, or another cluster does.
pub async fn connect_api(addr: &str, token: &str) -> Result<ApiStream, ConnectError> {
    let token = TokenText::parse(token, TokenKind::User)?;
    let (connection, endpoint) = connect(addr, token.ca(), tls::ALPN_API).await?;
    let (send, recv) = connection.open_bi().await.map_err(|e| ConnectError::Unreachable(e.to_string()))?;
    Ok(ApiStream::calling(send, recv, connection, endpoint))
}

/// A connection to a server of this authority. The endpoint must live as long as the connection is used.
pub(super) async fn connect(
    addr: &str,
    ca: Fingerprint,
    alpn: &[u8],
) -> Result<(Connection, Endpoint), ConnectError> {
    let local = |e: &dyn std::fmt::Display| ConnectError::Local(e.to_string());
    let (crypto, foreign) = tls::pinned_client_config(ca, alpn).map_err(|e| local(&e))?;
    let mut config = ClientConfig::new(crypto);
    config.transport_config(transport::client(Some(KEEP_ALIVE), IDLE));
    let addrs = timeout(CONNECT_TIME, dial::resolve(addr))
        .await
        .unwrap_or_else(|_| Err("no answer of the name service".to_owned()))
        .map_err(ConnectError::Unreachable)?;
    let mut last = ConnectError::Unreachable("the name has no address".to_owned());
    for addr in addrs {
        let endpoint = Endpoint::client(any_port(addr)).map_err(|e| local(&e))?;
        let connecting = endpoint.connect_with(config.clone(), addr, tls::ANY_HOST).map_err(|e| local(&e))?;
        match timeout(CONNECT_TIME, connecting).await {
            Ok(Ok(connection)) => return Ok((connection, endpoint)),
            Ok(Err(_)) if foreign.load(Ordering::Relaxed) => {
                return Err(ConnectError::OtherCluster);
            }
            Ok(Err(error)) => last = ConnectError::Unreachable(error.to_string()),
            Err(_) => last = ConnectError::Unreachable("no answer".to_owned()),
        }
    }
    Err(last)
}

/// Lets the last packets out before the process ends.
pub(super) async fn flush(endpoint: &Endpoint) {
    let _ = timeout(FLUSH_TIME, endpoint.wait_idle()).await;
}

/// Any free port of the same family as the target.
fn any_port(target: SocketAddr) -> SocketAddr {
    let ip = match target {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}
