//! From a target to ways of dialling it: the agent's unix socket, or QUIC with a user token.

use crate::client::target::Target;
use crate::client::{Dial, ReadHalf, UnixDial, WriteHalf};
use crate::net::{ConnectError, connect_api};
use futures_util::future::BoxFuture;
use rota_protocol::{ErrorCode, PublicError};
use std::sync::Arc;

/// The ways to reach a target, the first one first.
#[must_use]
pub fn dials(target: &Target) -> Vec<Arc<dyn Dial>> {
    match target {
        Target::Socket(path) => vec![Arc::new(UnixDial { path: path.clone() })],
        Target::Peers { addrs, token } => addrs
            .iter()
            .map(|addr| Arc::new(QuicDial { addr: addr.clone(), token: token.clone() }) as Arc<dyn Dial>)
            .collect(),
    }
}

/// One peer over the network. The token names the cluster's authority, which is checked before the token is shown.
struct QuicDial {
    addr: String,
    token: String,
}

impl Dial for QuicDial {
    fn dial(&self) -> BoxFuture<'_, Result<(ReadHalf, WriteHalf), PublicError>> {
        Box::pin(async move {
            let stream = connect_api(&self.addr, &self.token).await.map_err(|error| self.refusal(&error))?;
            let (reader, writer) = tokio::io::split(stream);
            Ok((Box::new(reader) as ReadHalf, Box::new(writer) as WriteHalf))
        })
    }

    fn token(&self) -> Option<&str> {
        Some(&self.token)
    }

    fn place(&self) -> String {
        self.addr.clone()
    }
}

impl QuicDial {
    fn refusal(&self, error: &ConnectError) -> PublicError {
        let code = match error {
            ConnectError::Token(_) | ConnectError::OtherCluster => ErrorCode::Unauthenticated,
            ConnectError::Unreachable(_) => ErrorCode::NoLeader,
            ConnectError::Local(_) => ErrorCode::Internal,
        };
        PublicError::new(code, format!("{}: {error}", self.addr))
    }
}
