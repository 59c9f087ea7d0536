//! Strangers that open handshakes and never finish them (fault S17).

use super::*;
use crate::net::{tls, transport};
use std::io::IoSliceMut;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A socket that sends and never hears.
#[derive(Debug)]
struct Deaf(Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for Deaf {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn quinn::UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &quinn::udp::Transmit<'_>) -> io::Result<()> {
        self.0.try_send(transmit)
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        _: &mut [IoSliceMut<'_>],
        _: &mut [quinn::udp::RecvMeta],
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[tokio::test]
async fn fault_s17_half_open_handshakes_stay_few_and_honest_peers_get_through() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    let runtime = quinn::default_runtime().unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = Arc::new(Deaf(runtime.wrap_udp_socket(socket).unwrap()));
    let flood = Endpoint::new_with_abstract_socket(Default::default(), None, socket, runtime).unwrap();
    let ca = cluster.founder.ca_fingerprint();
    let mut config = quinn::ClientConfig::new(tls::pinned_client_config(ca, ALPN_API).unwrap().0);
    config.transport_config(transport::client(None, Duration::from_secs(30)));
    let target = b.net.local_addr().unwrap();
    let half_open: Vec<_> =
        (0..400).map(|_| flood.connect_with(config.clone(), target, "x.rota").unwrap()).collect();
    let doors = &b.net.inner.doors;
    while doors.half_open() < server::RETRY_FROM {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Whoever can read at its address is let in, flood or not; a busy machine may need a second dial.
    let honest = async { while a.raft(2, b"honest").await != echoed(1, b"honest") {} };
    tokio::time::timeout(TTL, honest).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(doors.half_open() <= server::RETRY_FROM + 2, "{}", doors.half_open());
    drop(half_open);
}
