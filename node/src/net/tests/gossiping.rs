//! Gossip over real endpoints: three peers that know only the first one find each other's addresses, and status.

use super::*;
use crate::net::gossip::{Gossip, GossipHandle, Seen, driver};
use rota_protocol::BootId;
use rota_protocol::gossip::{GossipMember, StatusDigest};

struct Member {
    peer: Peer,
    handle: GossipHandle,
}

async fn start(cluster: &Cluster, host: u64, first: Option<&Member>) -> Member {
    let mut peer = Peer::start(cluster.host(host)).await;
    let me = GossipMember { host: HostId(host), incarnation: 1, addr: peer.addr() };
    let (handle, driver) = driver(Gossip::new(me, host));
    if let Some(first) = first {
        peer.knows(1, &first.peer);
        handle.set_seeds(vec![(HostId(1), first.peer.addr())]);
    }
    tokio::spawn(driver.run(peer.net.clone()));
    let (_, empty) = mpsc::channel(1);
    let mut packets = std::mem::replace(&mut peer.gossip, empty);
    let feed = handle.clone();
    tokio::spawn(async move {
        while let Some((from, bytes)) = packets.recv().await {
            feed.datagram(from, bytes);
        }
    });
    Member { peer, handle }
}

async fn eventually(mut met: impl FnMut() -> bool) {
    let wait = async {
        while !met() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TTL, wait).await.unwrap();
}

#[tokio::test]
async fn peers_learn_of_each_other_by_gossip_alone_and_a_goodbye_is_heard() {
    let cluster = Cluster::new();
    let a = start(&cluster, 1, None).await;
    let b = start(&cluster, 2, Some(&a)).await;
    let c = start(&cluster, 3, Some(&a)).await;
    let mut changes = a.handle.changes();
    for member in [&a, &b, &c] {
        eventually(|| member.handle.members().len() == 2).await;
    }
    // Nobody told b where c is but gossip.
    assert_eq!(b.peer.raft(3, b"found you").await, echoed(2, b"found you"));
    b.handle.set_status(StatusDigest {
        host: HostId(0),
        incarnation: 0,
        version: 0,
        boot: BootId(2),
        at_ms: 1,
        addr: b.peer.addr(),
        applied: 77,
        attempts: 0,
        load_milli: 0,
        devices: Vec::new(),
    });
    for member in [&a, &b, &c] {
        eventually(|| {
            let status = member.handle.status(HostId(2));
            status.is_some_and(|status| status.digest.applied == 77)
        })
        .await;
    }
    while changes.try_recv().is_ok() {}
    c.handle.leave().await;
    let down = tokio::time::timeout(TTL, changes.recv()).await.unwrap();
    assert!(matches!(down, Ok(crate::net::gossip::Change::Down(m)) if m.host == HostId(3)));
    assert_eq!(a.handle.seen(HostId(3)), Seen::Down);
}
