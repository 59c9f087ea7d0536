//! Reads that must not be stale.

use super::{Cluster, PATIENCE};
use rota_protocol::ErrorCode;
use std::time::Duration;

/// A read at a follower sees everything that was acknowledged anywhere before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_reads_what_was_acknowledged_elsewhere() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    for follower in cluster.others(leader) {
        for _ in 0..20 {
            let job = cluster.submit(leader, cluster.request()).await.expect("accepted");
            let peer = &cluster.peers[&follower];
            peer.read_barrier(PATIENCE).await.expect("a quorum");
            assert!(peer.read(|state| state.job(job).is_some()));
        }
    }
}

/// Faults N1, P3: an old leader that cannot reach a quorum serves no read and confirms nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_leader_serves_no_read() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let rest = cluster.others(old);
    cluster.peers[&old].confirm_quorum().await.expect("it leads");
    cluster.hub.isolate(old, rest.clone());
    let new = cluster.leader_among(&rest).await;
    let job = cluster.submit(new, cluster.request()).await.expect("accepted");

    let stale = &cluster.peers[&old];
    let confirmed = stale.confirm_quorum().await;
    assert_eq!(confirmed.map_err(|e| e.code), Err(ErrorCode::NoLeader));
    let read = stale.read_barrier(Duration::from_millis(200)).await;
    assert_eq!(read.map_err(|e| e.code), Err(ErrorCode::NoLeader));

    cluster.hub.heal();
    stale.read_barrier(PATIENCE).await.expect("it follows again");
    assert!(stale.read(|state| state.job(job).is_some()));
}

/// A reader at a follower is not held up by a frozen leader beyond the change of leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_goes_on_at_the_next_leader() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let rest = cluster.others(old);
    cluster.hub.freeze(old);
    let hour = Duration::from_secs(3_600);
    let reads = rest.iter().map(|id| cluster.peers[id].read_barrier(hour));
    let done = tokio::time::timeout(PATIENCE, futures_util::future::join_all(reads)).await;
    for read in done.expect("promptly") {
        read.expect("a quorum");
    }
}

/// Readers that come together share rounds: the messages of a thousand reads are those of a few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share_rounds() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let before = cluster.hub.answered();
    let reads = (0..1_000).map(|_| cluster.peers[&leader].read_barrier(PATIENCE));
    for read in futures_util::future::join_all(reads).await {
        read.expect("a quorum");
    }
    let messages = cluster.hub.answered() - before;
    assert!(messages < 500, "{messages} messages for a thousand reads");
}

#[tokio::test]
async fn a_single_peer_reads_alone() {
    let cluster = Cluster::found().await;
    let peer = cluster.peer(1);
    let job = cluster.submit(super::HostId(1), cluster.request()).await.expect("accepted");
    let index = peer.read_barrier(PATIENCE).await.expect("a quorum of one");
    assert!(index > 0);
    assert!(peer.read(|state| state.job(job).is_some()));
    peer.confirm_quorum().await.expect("a quorum of one");
}
