//! Hostile bytes on a real peer connection: every prefix, lengths, kinds, left-overs. The peer survives each one.

use super::*;
use crate::net::{serve, wire};
use rota_protocol::frame::{HEADER_BYTES, MAGIC, VERSION_MAX};
use rota_protocol::limits::FRAME_BYTES_MAX;

/// How the other side ended the stream of such bytes.
#[derive(Debug, PartialEq)]
enum End {
    Reply(Vec<u8>),
    StreamOnly,
    Connection(Option<CloseCode>),
}

async fn send_raw(a: &Peer, bytes: &[u8]) -> End {
    let link = a.net.inner.link(HostId(2), Class::Raft);
    let deadline = Instant::now() + TTL;
    let up = link.connected(&a.net.inner, deadline).await.unwrap();
    let (mut send, mut recv) = up.connection.open_bi().await.unwrap();
    // An empty write opens nothing on the other side.
    let _ = send.write_all(bytes).await;
    let _ = send.finish();
    match recv.read_to_end(FRAME_BYTES_MAX * 2).await {
        Ok(reply) => End::Reply(reply),
        Err(_) => match tokio::time::timeout(Duration::from_millis(200), up.connection.closed()).await {
            Ok(quinn::ConnectionError::ApplicationClosed(close)) => {
                End::Connection(CloseCode::from_wire(close.error_code))
            }
            Ok(other) => panic!("{other}"),
            Err(_) => End::StreamOnly,
        },
    }
}

#[tokio::test]
async fn every_prefix_of_a_request_is_dropped_and_the_peer_goes_on() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    let whole = crate::framing::encode_message(VERSION_MAX, FrameKind::PeerRequest, &raft(b"abc")).unwrap();
    let link = a.net.inner.link(HostId(2), Class::Raft);
    for end in 0..whole.len() {
        let up = link.connected(&a.net.inner, Instant::now() + TTL).await.unwrap();
        let (mut send, mut recv) = up.connection.open_bi().await.unwrap();
        send.write_all(&whole[..end]).await.unwrap();
        send.finish().unwrap();
        assert!(recv.read_to_end(100).await.is_err(), "prefix of {end} bytes");
    }
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
    assert!(matches!(send_raw(&a, &whole).await, End::Reply(_)));
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn bytes_that_are_no_request_close_the_connection_and_the_next_call_dials_anew() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    let whole = crate::framing::encode_message(VERSION_MAX, FrameKind::PeerRequest, &raft(b"abc")).unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        bytes
    };
    let hostile = [
        ("length 2^31", with(&|b| b[8..12].copy_from_slice(&(1_u32 << 31).to_le_bytes()))),
        ("length max", with(&|b| b[8..12].copy_from_slice(&u32::MAX.to_le_bytes()))),
        (
            "length max + 1",
            with(&|b| {
                let len = u32::try_from(FRAME_BYTES_MAX).unwrap() + 1;
                b[8..12].copy_from_slice(&len.to_le_bytes());
            }),
        ),
        ("length 0", with(&|b| b[8..12].copy_from_slice(&0_u32.to_le_bytes()))),
        ("one byte too many", with(&|b| b.push(0))),
        ("two requests", with(&|b| b.extend_from_slice(&whole))),
        ("unknown kind", with(&|b| b[6] = 200)),
        ("another kind", with(&|b| b[6] = FrameKind::ApiCall as u8)),
        ("unknown version", with(&|b| b[4] = 9)),
        ("no magic", with(&|b| b[0] ^= 1)),
        ("unknown variant", with(&|b| b[HEADER_BYTES] = 250)),
        ("text", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ];
    for (what, bytes) in hostile {
        let end = send_raw(&a, &bytes).await;
        assert_eq!(end, End::Connection(Some(CloseCode::Malformed)), "{what}");
    }
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
    assert_eq!(a.raft(2, b"fine").await, echoed(1, b"fine"));
}

#[tokio::test]
async fn a_vector_that_claims_2_to_60_elements_allocates_nothing() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    // Raft, Append, then the length of the body as a 64-bit integer.
    let mut body = vec![0, 0, 253];
    body.extend((1_u64 << 60).to_le_bytes());
    let bytes = rota_protocol::frame::frame(VERSION_MAX, FrameKind::PeerRequest, &body).unwrap();
    let end = send_raw(&a, &bytes).await;
    assert_eq!(end, End::Connection(Some(CloseCode::Malformed)));
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_dropped_writer_resets_its_stream_instead_of_finishing_it() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    let link = a.net.inner.link(HostId(2), Class::Raft);
    let up = link.connected(&a.net.inner, Instant::now() + TTL).await.unwrap();
    let (mut send, mut recv) = up.connection.open_bi().await.unwrap();
    send.write_all(&MAGIC).await.unwrap();
    drop(wire::WholeSend::new(send));
    // The other side saw a broken stream, not a short message: it keeps the connection.
    assert!(recv.read_to_end(100).await.is_err());
    assert_eq!(a.raft(2, b"x").await, echoed(1, b"x"));
    assert!(up.connection.close_reason().is_none());
}

#[test]
fn a_datagram_is_one_whole_gossip_frame_or_nothing() {
    let packet = GossipPacket { bytes: vec![1; 40] };
    let good = crate::framing::encode_message(VERSION_MAX, FrameKind::Gossip, &packet).unwrap();
    assert_eq!(serve::gossip_packet(&good, VERSION_MAX), Some(packet));
    for end in 0..good.len() {
        assert_eq!(serve::gossip_packet(&good[..end], VERSION_MAX), None, "{end}");
    }
    let longer = [&good[..], &[0]].concat();
    assert_eq!(serve::gossip_packet(&longer, VERSION_MAX), None);
    for byte in 0..HEADER_BYTES {
        for bit in 0..8 {
            let mut flipped = good.clone();
            flipped[byte] ^= 1 << bit;
            assert_eq!(serve::gossip_packet(&flipped, VERSION_MAX), None, "byte {byte} bit {bit}");
        }
    }
    let large = GossipPacket { bytes: vec![1; 2_000] };
    let large = crate::framing::encode_message(VERSION_MAX, FrameKind::Gossip, &large).unwrap();
    assert_eq!(serve::gossip_packet(&large, VERSION_MAX), None);
}
