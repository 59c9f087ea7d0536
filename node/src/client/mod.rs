//! The client of the API: many calls at once over one connection, streams of answers, and a steady client that goes
//! on over broken connections with the same request ids.
//!
//! - [`Client`]: one connection. When it breaks, every open call hears [`ErrorCode::Unknown`].
//! - [`steady::Steady`]: connects when needed, tries again and elsewhere; what the command line uses.
//! - [`target`]: where the cluster is to be found.
//!
//! What this is not: it reads no flags and prints nothing.

mod connection;
pub mod steady;
pub mod target;
#[cfg(test)]
mod tests;

pub use connection::{Client, Replies};

use futures_util::future::BoxFuture;
use rota_protocol::{ErrorCode, PublicError, RequestId};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// How long a connection may take to be made and to agree on a version.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The reading side of a connection.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The writing side of a connection.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// A way to reach one peer: its unix socket, or QUIC with a token.
pub trait Dial: Send + Sync {
    /// Opens a connection.
    ///
    /// # Errors
    /// Nothing was sent; the message says what was tried and what to look at.
    fn dial(&self) -> BoxFuture<'_, Result<(ReadHalf, WriteHalf), PublicError>>;

    /// The secret that must be shown first, if the transport does not vouch for the user.
    fn token(&self) -> Option<&str>;

    /// For messages: where it leads.
    fn place(&self) -> String;
}

/// An agent's unix socket; the kernel tells the agent who calls.
#[derive(Debug, Clone)]
pub struct UnixDial {
    /// Where the socket lies.
    pub path: PathBuf,
}

impl Dial for UnixDial {
    fn dial(&self) -> BoxFuture<'_, Result<(ReadHalf, WriteHalf), PublicError>> {
        Box::pin(async move {
            let stream = tokio::net::UnixStream::connect(&self.path)
                .await
                .map_err(|error| no_agent(&self.path, &error))?;
            let (reader, writer) = stream.into_split();
            Ok((Box::new(reader) as ReadHalf, Box::new(writer) as WriteHalf))
        })
    }

    fn token(&self) -> Option<&str> {
        None
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

fn no_agent(path: &Path, error: &io::Error) -> PublicError {
    let path = path.display();
    let message = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("no socket at {path}; is `rota agent` (or `rota dev`) running on this host?")
        }
        io::ErrorKind::ConnectionRefused => {
            format!("no agent listens at {path}; it may be restarting: see `systemctl status rota`")
        }
        io::ErrorKind::PermissionDenied => {
            format!("this user may not open {path}; ask an operator, or use --peer with a token")
        }
        _ => format!("cannot connect to {path}: {error}"),
    };
    PublicError::new(ErrorCode::NoLeader, message)
}

/// A request id that no one else draws.
#[must_use]
pub fn fresh_request() -> RequestId {
    RequestId(rand::random::<u128>().max(1))
}

/// A reply of a kind that does not answer the request.
#[must_use]
pub fn unexpected(reply: &rota_protocol::api::ApiReply) -> PublicError {
    PublicError::new(ErrorCode::Internal, format!("the agent gave an unexpected answer: {reply:?}"))
}
