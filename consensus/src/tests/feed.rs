//! The feed of changes, and reads whose age has a bound.

use super::{Cluster, HostId, PATIENCE};
use rota_protocol::ErrorCode;
use rota_protocol::change::StateChange;
use std::time::Duration;

fn all_after(cluster: &Cluster, peer: HostId, mut after: u64) -> Vec<StateChange> {
    let mut all = Vec::new();
    loop {
        let piece = cluster.peers[&peer].changes_since(after).expect("known");
        if piece.upto == after {
            return all;
        }
        after = piece.upto;
        all.extend(piece.changes);
    }
}

/// A reader that leaves off at one peer goes on at another, over a change of leader, and misses nothing (I10).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_goes_on_at_another_peer_without_a_gap() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let [first, second] = cluster.others(old)[..] else { panic!("three peers") };
    for _ in 0..20 {
        cluster.submit(old, cluster.request()).await.expect("accepted");
    }
    cluster.peers[&first].read_barrier(PATIENCE).await.expect("a quorum");
    let mut seen = all_after(&cluster, first, 0);
    let left_off = seen.last().expect("some").index;
    cluster.hub.isolate(old, [first, second]);
    let new = cluster.leader_among(&[first, second]).await;
    for _ in 0..20 {
        cluster.submit(new, cluster.request()).await.expect("accepted");
    }
    cluster.peers[&second].read_barrier(PATIENCE).await.expect("a quorum");
    seen.extend(all_after(&cluster, second, left_off));
    assert_eq!(seen.len(), 40, "each once");
    assert!(seen.is_sorted_by(|a, b| (a.index, a.job) < (b.index, b.job)), "in order: {seen:?}");
    cluster.hub.heal();
    cluster.assert_equal(&cluster.ids()).await;
    for peer in cluster.ids() {
        assert_eq!(all_after(&cluster, peer, 0), seen, "every peer tells the same");
    }
}

/// A state that was confirmed lately will do without a quorum, and says how old it may be; an older one will not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_age_has_a_bound_and_is_told() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let follower = cluster.others(leader)[0];
    let peer = &cluster.peers[&follower];
    let hour = Duration::from_secs(3_600);
    peer.read_within(Duration::ZERO, PATIENCE).await.expect("confirmed");
    cluster.hub.isolate(follower, cluster.ids());
    let short = Duration::from_millis(50);
    let pause = Duration::from_millis(20);
    tokio::time::sleep(pause).await;
    let age = peer.read_within(hour, short).await.expect("known lately");
    assert!(age >= pause && age < hour, "{age:?}");
    let refused = peer.read_within(pause / 2, short).await.expect_err("older than that");
    assert!(refused.code == ErrorCode::NoLeader && refused.message.contains("ms old"), "{refused}");
    cluster.hub.heal();
    let again = peer.read_within(Duration::ZERO, PATIENCE).await.expect("confirmed anew");
    assert!(again < PATIENCE);
}
