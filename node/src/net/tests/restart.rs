//! Peers that die without a word and come back on the same port.

use super::*;
use std::io::IoSliceMut;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

/// A peer on threads of its own, which can vanish like a killed process: its socket falls silent, then it is gone.
struct Killable {
    runtime: tokio::runtime::Runtime,
    peer: Peer,
    addr: SocketAddr,
    silent: Arc<AtomicBool>,
}

impl Killable {
    fn start(identity: Arc<Identity>, listen: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let silent = Arc::new(AtomicBool::new(false));
        let std_socket = bind_when_free(listen);
        let addr = std_socket.local_addr().unwrap();
        let peer = runtime.block_on(async {
            let inner = quinn::default_runtime().unwrap().wrap_udp_socket(std_socket).unwrap();
            let silent = silent.clone();
            Peer::start_with(identity, addr, Some(Arc::new(Mutable { inner, silent }))).await
        });
        Self { runtime, peer, addr, silent }
    }

    fn kill(self) -> SocketAddr {
        self.silent.store(true, Ordering::SeqCst);
        drop(self.peer);
        self.runtime.shutdown_background();
        self.addr
    }
}

/// The dead one's socket goes with its tasks, a moment after the kill.
fn bind_when_free(addr: SocketAddr) -> std::net::UdpSocket {
    loop {
        match std::net::UdpSocket::bind(addr) {
            Ok(socket) => return socket,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A socket that can be made to send nothing more.
#[derive(Debug)]
struct Mutable {
    inner: Arc<dyn AsyncUdpSocket>,
    silent: Arc<AtomicBool>,
}

impl AsyncUdpSocket for Mutable {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn quinn::UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &quinn::udp::Transmit<'_>) -> io::Result<()> {
        if self.silent.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [quinn::udp::RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

#[test]
fn a_peer_killed_and_restarted_on_its_port_is_reached_by_the_next_call() {
    let cluster = Cluster::new();
    let caller = tokio::runtime::Runtime::new().unwrap();
    let a = caller.block_on(Peer::start(cluster.host(1)));
    // The same keys before and after.
    let second = cluster.host(2);
    let mut b = Killable::start(second.clone(), "127.0.0.1:0".parse().unwrap());
    a.net.set_peer(HostId(2), b.addr.to_string());
    for round in 0..3_u8 {
        let propose = PeerRequest::Signal { attempt: rota_protocol::Token(1), signal: round };
        caller.block_on(async {
            assert_eq!(a.raft(2, &[round]).await, echoed(1, &[round]));
            // The other class has a connection of its own.
            assert!(a.net.call(HostId(2), propose.clone(), TTL).await.is_ok());
        });
        let addr = b.kill();
        b = Killable::start(second.clone(), addr);
        // A call that may be repeated does not even notice, and in far less than the idle timeout: the restarted
        // peer answers the first packet of the dead connection with a reset.
        let ttl = Duration::from_millis(1_400);
        caller.block_on(async {
            let reply = a.net.call(HostId(2), raft(b"again"), ttl).await;
            assert_eq!(reply, echoed(1, b"again"));
            // One that may not is of unknown fate at worst once; its next try goes through.
            let first = a.net.call(HostId(2), propose.clone(), ttl).await;
            assert!(matches!(first, Ok(_) | Err(LinkError::Timeout)), "{first:?}");
            assert!(a.net.call(HostId(2), propose, ttl).await.is_ok());
        });
    }
    b.kill();
}

#[test]
fn a_call_to_a_dead_peer_ends_in_time_and_drops_the_dead_connection() {
    let cluster = Cluster::new();
    let caller = tokio::runtime::Runtime::new().unwrap();
    let a = caller.block_on(Peer::start(cluster.host(1)));
    let b = Killable::start(cluster.host(2), "127.0.0.1:0".parse().unwrap());
    a.net.set_peer(HostId(2), b.addr.to_string());
    caller.block_on(async {
        assert_eq!(a.raft(2, b"x").await, echoed(1, b"x"));
    });
    let addr = b.kill();
    // Nobody may take the port meanwhile.
    let silent = bind_when_free(addr);
    caller.block_on(async {
        let ttl = Duration::from_millis(200);
        let reply = a.net.call(HostId(2), raft(b"y"), ttl).await;
        assert_eq!(reply, Err(LinkError::Timeout), "it may have been delivered");
        assert!(a.net.inner.link(HostId(2), Class::Raft).up().is_none());
        let reply = a.net.call(HostId(2), raft(b"z"), ttl).await;
        assert!(matches!(reply, Err(LinkError::Unreachable(_))), "{reply:?}");
    });
    drop(silent);
    // It comes back elsewhere, and the replicated state says where.
    let b = Killable::start(cluster.host(2), "127.0.0.1:0".parse().unwrap());
    a.net.set_peer(HostId(2), b.addr.to_string());
    caller.block_on(async {
        assert_eq!(a.raft(2, b"back").await, echoed(1, b"back"));
    });
    b.kill();
}

#[tokio::test]
async fn a_peer_that_stops_in_order_says_so_at_once() {
    let cluster = Cluster::new();
    let a = Peer::start(cluster.host(1)).await;
    let b = Peer::start(cluster.host(2)).await;
    a.knows(2, &b);
    assert_eq!(a.raft(2, b"x").await, echoed(1, b"x"));
    let up = a.net.inner.link(HostId(2), Class::Raft).up().unwrap();
    b.net.close();
    b.net.closed().await;
    let reason = up.connection.closed().await;
    assert!(matches!(reason, quinn::ConnectionError::ApplicationClosed(_)), "{reason}");
    assert!(a.net.inner.link(HostId(2), Class::Raft).up().is_none());
}
