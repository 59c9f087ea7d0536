//! Captured packets, played again (fault S23): whoever saw all of a connection can repeat it to nobody.

use super::*;
use std::io::IoSliceMut;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A socket that keeps a copy of all it sends.
#[derive(Debug)]
struct Tapped {
    inner: Arc<dyn AsyncUdpSocket>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl AsyncUdpSocket for Tapped {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn quinn::UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &quinn::udp::Transmit<'_>) -> io::Result<()> {
        let mut sent = self.sent.lock().unwrap();
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        sent.extend(transmit.contents.chunks(size).map(<[u8]>::to_vec));
        drop(sent);
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

#[tokio::test]
async fn s23_captured_packets_do_nothing_when_they_come_again() {
    let cluster = Cluster::new();
    let server = Peer::start(cluster.host(2)).await;
    let sent = Arc::new(Mutex::new(Vec::new()));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = socket.local_addr().unwrap();
    let inner = quinn::default_runtime().unwrap().wrap_udp_socket(socket).unwrap();
    let tapped = Arc::new(Tapped { inner, sent: sent.clone() });
    let client = Peer::start_with(cluster.host(1), listen, Some(tapped)).await;
    client.knows(2, &server);
    for round in 0..5_u8 {
        assert_eq!(client.raft(2, &[round]).await, echoed(1, &[round]));
    }
    let calls = server.handler.calls.load(Ordering::SeqCst);
    assert_eq!(calls, 5);
    let captured = sent.lock().unwrap().clone();
    assert!(captured.len() > 10, "{} packets were captured", captured.len());
    let target = server.net.local_addr().unwrap();
    let elsewhere = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let again = |captured: &[Vec<u8>]| {
        for packet in captured {
            elsewhere.send_to(packet, target).unwrap();
        }
    };
    // While the connection lives, and after it; in order, backwards, and each alone.
    again(&captured);
    let backwards: Vec<_> = captured.iter().rev().cloned().collect();
    again(&backwards);
    assert_eq!(client.raft(2, b"in between").await, echoed(1, b"in between"), "the connection goes on");
    client.net.close();
    client.net.closed().await;
    again(&captured);
    again(&backwards);
    // A fresh peer gets through, so whatever the packets did is done.
    let fresh = Peer::start(cluster.host(3)).await;
    fresh.knows(2, &server);
    assert_eq!(fresh.raft(2, b"after").await, echoed(3, b"after"));
    assert_eq!(server.handler.calls.load(Ordering::SeqCst), calls + 2, "nothing was carried out twice");
}

/// 0-RTT is what would make captured data worth playing again: a client that would use it never gets the chance.
#[tokio::test]
async fn s23_no_client_is_given_the_means_for_early_data() {
    let cluster = Cluster::new();
    let server = Peer::start(cluster.host(2)).await;
    let print = cluster.founder.ca_fingerprint();
    let crypto = crate::net::tls::willing_client_config(print, ALPN_API).unwrap();
    let mut config = quinn::ClientConfig::new(crypto);
    config.transport_config(crate::net::transport::client(None, Duration::from_secs(5)));
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let target = server.net.local_addr().unwrap();
    for _ in 0..3 {
        let connecting = endpoint.connect_with(config.clone(), target, "any.rota").unwrap();
        let Err(connecting) = connecting.into_0rtt() else { panic!("early data could be sent") };
        let connection = connecting.await.unwrap();
        // A ticket would come by now.
        tokio::time::sleep(Duration::from_millis(50)).await;
        connection.close(0_u32.into(), b"");
    }
}
