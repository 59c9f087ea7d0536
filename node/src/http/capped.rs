//! A TCP listener with bounds: so many connections at once, each for so long. Without them a caller that sends one
//! byte a minute would hold sockets for ever. What waits beyond the bound waits in the kernel's backlog.

use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Most connections at once: a few scrapers and probes per host.
const CONNECTIONS_MAX: usize = 64;
/// Longest life of a connection; a scrape takes some milliseconds and may come again.
const LIFE_MAX: Duration = Duration::from_secs(30);

/// The bounded listener.
pub(super) struct Capped {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Capped {
    /// Bounds a listener.
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Capped {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed; if it were, an unbounded connection is still better than none.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, addr) = Listener::accept(&mut self.listener).await;
        (Connection { stream, end: Box::pin(sleep(LIFE_MAX)), _place: place }, addr)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends by itself.
pub(super) struct Connection {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn ended(&mut self, context: &mut Context<'_>) -> bool {
        self.end.as_mut().poll(context).is_ready()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.ended(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test(start_paused = true)]
    async fn a_silent_caller_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let addr = listener.local_addr().expect("bound");
        let mut capped = Capped::new(listener);
        let _caller = TcpStream::connect(addr).await.expect("it listens");
        let (mut connection, _) = Listener::accept(&mut capped).await;
        let error = connection.read_u8().await.expect_err("nobody sends");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_place_is_free_again_when_its_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let addr = listener.local_addr().expect("bound");
        let mut capped = Capped { listener, places: Arc::new(Semaphore::new(1)) };
        let _callers = (
            TcpStream::connect(addr).await.expect("it listens"),
            TcpStream::connect(addr).await.expect("the backlog takes it"),
        );
        let (first, _) = Listener::accept(&mut capped).await;
        assert!(futures_util::FutureExt::now_or_never(Listener::accept(&mut capped)).is_none());
        drop(first);
        Listener::accept(&mut capped).await;
    }
}
