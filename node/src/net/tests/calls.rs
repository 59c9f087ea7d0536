//! Calls between healthy peers: who asked is known, many at once, cancellation, sizes, datagrams, classes.

use super::*;
use rota_protocol::Token;
use rota_protocol::api::OutputStream;
use rota_protocol::limits::FRAME_BYTES_MAX;

#[tokio::test]
async fn a_call_reaches_the_peer_under_the_callers_own_name() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    b.knows(1, &a);
    assert_eq!(a.raft(2, b"ping").await, echoed(1, b"ping"));
    assert_eq!(b.raft(1, b"pong").await, echoed(2, b"pong"));
    // Both classes.
    let signal = PeerRequest::Signal { attempt: Token(1), signal: 15 };
    match a.net.call(HostId(2), signal, TTL).await {
        Ok(PeerReply::Refused(error)) => assert_eq!(error.code, ErrorCode::TooLarge),
        other => panic!("a reply larger than a frame gave {other:?}"),
    }
    let index = a.net.call(HostId(2), PeerRequest::ReadIndex, TTL).await;
    assert_eq!(index, Ok(PeerReply::ReadIndex { index: 1 }));
    // Itself, without a network.
    assert_eq!(a.raft(1, b"me").await, echoed(1, b"me"));
}

#[tokio::test]
async fn two_hundred_concurrent_calls_share_one_dial_and_all_are_answered() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    let calls = (0..200_u32).map(|i| {
        let net = a.net.clone();
        async move {
            let body = vec![u8::try_from(i % 251).unwrap(); usize::try_from(i).unwrap() * 300];
            (net.call(HostId(2), raft(&body), TTL).await, body)
        }
    });
    for (reply, body) in futures_util::future::join_all(calls).await {
        assert_eq!(reply, echoed(1, &body));
    }
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 200);
    assert_eq!(b.net.inner.endpoint.open_connections(), 1);
}

#[tokio::test]
async fn more_calls_than_the_librarys_hundred_streams_can_wait_at_once() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    // 150 calls that never end, of the same class as the one that must get through beside them.
    let waits: Vec<_> = (0..150).map(|i| tokio::spawn(a.net.call(HostId(2), read_log(i), TTL))).collect();
    while b.handler.calls.load(Ordering::SeqCst) < 150 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let signal = PeerRequest::Signal { attempt: Token(1), signal: 1 };
    assert!(a.net.call(HostId(2), signal, TTL).await.is_ok());
    // A caller that gives up is noticed, and its wait on the other side ends.
    for wait in waits {
        wait.abort();
    }
    while b.handler.dropped_waits.load(Ordering::SeqCst) < 150 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_call_ends_within_its_time_and_is_then_of_unknown_fate() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    let propose = PeerRequest::Propose { proposals: Vec::new() };
    let ttl = Duration::from_millis(300);
    let reply = a.net.call(HostId(2), propose, ttl).await;
    assert_eq!(reply, Err(LinkError::Timeout));
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_larger_than_a_frame_is_refused_before_it_is_sent() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    match a.raft(2, &vec![0; FRAME_BYTES_MAX + 1]).await {
        Err(LinkError::Refused(error)) => assert_eq!(error.code, ErrorCode::TooLarge),
        other => panic!("{other:?}"),
    }
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn gossip_datagrams_arrive_under_the_senders_name_and_large_ones_are_dropped() {
    let cluster = Cluster::new();
    let (a, mut b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    a.net.gossip_send(HostId(2), vec![7; GOSSIP_BYTES_MAX + 1]);
    let full = vec![9; GOSSIP_BYTES_MAX];
    a.net.gossip_send(HostId(2), full.clone());
    assert_eq!(b.gossip.recv().await, Some((HostId(1), full)));
    a.net.gossip_send(HostId(2), b"second".to_vec());
    assert_eq!(b.gossip.recv().await, Some((HostId(1), b"second".to_vec())));
}

#[tokio::test]
async fn a_dead_peer_costs_only_those_who_call_it() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    // A port where nobody answers: bound, never read.
    let hole = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    a.net.set_peer(HostId(3), hole.local_addr().unwrap().to_string());
    let dead = tokio::spawn(a.net.call(HostId(3), raft(b"x"), Duration::from_secs(4)));
    for i in 0..20_u8 {
        assert_eq!(a.raft(2, &[i]).await, echoed(1, &[i]));
    }
    assert!(!dead.is_finished(), "the dial of the dead peer still waits");
    match dead.await.unwrap() {
        Err(LinkError::Unreachable(text)) => assert!(text.contains("no answer"), "{text}"),
        other => panic!("{other:?}"),
    }
    // One nobody ever told about.
    match a.raft(4, b"x").await {
        Err(LinkError::Unreachable(text)) => assert!(text.contains("no address"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_host_that_speaks_for_another_is_refused() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    let renew = |host, relayed| PeerRequest::Renew {
        host: HostId(host),
        epoch: rota_protocol::LeaseEpoch(1),
        relayed,
    };
    match a.net.call(HostId(2), renew(9, false), TTL).await {
        Ok(PeerReply::Refused(error)) => assert_eq!(error.code, ErrorCode::Forbidden),
        other => panic!("{other:?}"),
    }
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
    let own = a.net.call(HostId(2), renew(1, false), TTL).await;
    assert_eq!(own, Ok(PeerReply::Renewed));
}

fn read_log(attempt: u64) -> PeerRequest {
    PeerRequest::ReadLog { attempt: Token(attempt), stream: OutputStream::Stdout, offset: 0, wait_ms: 60_000 }
}
