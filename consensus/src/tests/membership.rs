//! Who votes, as hosts come.

use super::Cluster;
use rota_protocol::ids::HostId;
use std::collections::BTreeSet;

/// One votes alone, three vote from three hosts on, five from five; all others follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_grow_with_the_cluster() {
    let mut cluster = Cluster::found().await;
    for (hosts, voters) in [(2, 1), (3, 3), (4, 3), (6, 5)] {
        cluster.grow(hosts).await;
        let leader = cluster.leader().await;
        let status = cluster.peers[&leader].status();
        assert_eq!(status.voters.len(), voters, "of {hosts} hosts");
        let all: BTreeSet<HostId> = status.voters.union(&status.learners).copied().collect();
        assert_eq!(all, cluster.ids().into_iter().collect());
    }
    cluster.assert_equal(&cluster.ids()).await;
}

/// A follower that does not vote serves proposals and reads like any other peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_is_a_full_peer() {
    let cluster = Cluster::of(4).await;
    let leader = cluster.leader().await;
    let learner = *cluster.peers[&leader].status().learners.first().expect("one of four follows");
    let job = cluster.submit(learner, cluster.request()).await.expect("accepted");
    cluster.peers[&learner].read_barrier(super::PATIENCE).await.expect("a quorum");
    assert!(cluster.peers[&learner].read(|state| state.job(job).is_some()));
    let own = cluster.peers[&learner].leadership();
    assert!(!own.borrow().leading);
}
