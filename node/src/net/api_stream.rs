//! One two-way stream between an API client and a peer over QUIC: plain bytes; frames, greeting and authentication
//! are the business of whoever holds it.

use super::client;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads and writes one stream; the connection lives as long as it does.
#[derive(Debug)]
pub struct ApiStream {
    send: SendStream,
    recv: RecvStream,
    connection: Connection,
    /// The client's own; a server's endpoint lives elsewhere.
    endpoint: Option<Endpoint>,
    /// The server counts the open streams of a connection by it.
    _open: Arc<()>,
}

impl ApiStream {
    pub(super) fn serving(send: SendStream, recv: RecvStream, connection: Connection, open: Arc<()>) -> Self {
        Self { send, recv, connection, endpoint: None, _open: open }
    }

    pub(super) fn calling(
        send: SendStream,
        recv: RecvStream,
        connection: Connection,
        endpoint: Endpoint,
    ) -> Self {
        Self { endpoint: Some(endpoint), ..Self::serving(send, recv, connection, Arc::new(())) }
    }

    /// The address of the other side, for logs: not an identity.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Resolves when the other side is gone.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }

    /// A client's goodbye: waits a moment until the server knows. Dropping works too; the server then notices by
    /// its idle timeout if the process ends at once.
    pub async fn close(self) {
        let Self { send, recv, connection, endpoint, .. } = self;
        drop((send, recv));
        if let Some(endpoint) = endpoint {
            super::CloseCode::Done.close(&connection, "");
            drop(connection);
            client::flush(&endpoint).await;
        }
    }
}

impl AsyncRead for ApiStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, buf)
    }
}

impl AsyncWrite for ApiStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_shutdown(cx)
    }
}
