//! Leaders that vanish, and what must survive them.

use super::{Cluster, PATIENCE};
use rota_protocol::ids::HostId;
use std::time::Duration;

/// Faults N1, P1: the rest goes on, nothing that was acknowledged is lost, and the old leader comes back as a follower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolated_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let before = cluster.submit(old, cluster.request()).await.expect("accepted");
    let rest = cluster.others(old);
    cluster.hub.isolate(old, rest.clone());

    let new = cluster.leader_among(&rest).await;
    let after = cluster.submit(new, cluster.request()).await.expect("accepted");
    assert!(after > before, "ids are never used twice");
    for job in [before, after] {
        assert!(cluster.peers[&new].read(|state| state.job(job).is_some()));
    }

    cluster.hub.heal();
    cluster.assert_equal(&cluster.ids()).await;
}

/// The old leader itself says that it leads no more, without hearing from anyone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_a_quorum_says_so() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    cluster.hub.isolate(old, cluster.others(old));
    let mut leadership = cluster.peers[&old].leadership();
    let lapsed = leadership.wait_for(|now| !now.leading && now.leader.is_none());
    tokio::time::timeout(PATIENCE, lapsed).await.expect("lapses").expect("runs");
}

/// A planned change of leader is far quicker than an election, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_on_request() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let to = cluster.others(old)[0];
    cluster.peers[&old].transfer_leader(Some(to)).await.expect("handed over");
    assert_eq!(cluster.leader_among(&[to]).await, to);
    cluster.submit(old, cluster.request()).await.expect("accepted");
    let stranger = cluster.peers[&to].transfer_leader(Some(HostId(99))).await;
    assert_eq!(stranger.map_err(|e| e.code), Err(rota_protocol::ErrorCode::Conflict));
}

/// Fault P2: all stop, all start, all agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_stopped_whole_comes_back_whole() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let mut jobs = Vec::new();
    for _ in 0..20 {
        jobs.push(cluster.submit(leader, cluster.request()).await.expect("accepted"));
    }
    let ids = cluster.ids();
    for id in &ids {
        cluster.stop(*id).await;
    }
    for id in &ids {
        cluster.start(*id).await.expect("starts again");
    }
    let leader = cluster.leader().await;
    cluster.assert_equal(&ids).await;
    assert!(cluster.peers[&leader].read(|state| jobs.iter().all(|job| state.job(*job).is_some())));
    for id in &ids {
        let mut recovered = cluster.peers[id].recovered();
        let done = recovered.wait_for(|done| *done);
        tokio::time::timeout(Duration::from_secs(10), done).await.expect("recovers").expect("runs");
    }
}

/// An idle leader stays one: nothing is mistaken for a lost quorum, and no election is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_leader_stays() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let mut leadership = cluster.peers[&leader].leadership();
    let held = *leadership.borrow_and_update();
    let lost = leadership.wait_for(|now| *now != held);
    let waited = tokio::time::timeout(Duration::from_secs(2), lost).await;
    assert!(waited.is_err(), "{waited:?}");
}

/// A planned stop is no failure.
#[tokio::test]
async fn a_stop_is_not_reported_as_a_failure() {
    let mut cluster = Cluster::found().await;
    let failed = cluster.peer(1).failed();
    cluster.stop(HostId(1)).await;
    assert_eq!(*failed.borrow(), None);
}
