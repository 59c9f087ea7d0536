//! A lead that moves: by plan, in turn after a death, away from a slow disk; and a leader that is none any more.

use super::{Cluster, PATIENCE};
use crate::Timings;
use crate::config::Tuning;
use rota_protocol::ErrorCode;
use rota_protocol::ids::HostId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Proposals that are under way at all peers while the lead moves round are answered, each once (R084).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lead_moves_under_proposals_and_each_is_answered_once() {
    let cluster = Arc::new(Cluster::of(3).await);
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..24 {
        let cluster = Arc::clone(&cluster);
        callers.spawn(async move {
            let at = HostId(caller % 3 + 1);
            let mut jobs = Vec::new();
            for _ in 0..40 {
                jobs.push(cluster.submit(at, cluster.request()).await.expect("accepted"));
            }
            jobs
        });
    }
    for _ in 0..6 {
        let from = cluster.leader().await;
        match cluster.peers[&from].transfer_leader(None).await {
            Ok(moved) => assert!(moved.from == from && moved.to != from, "{moved:?}"),
            // An election came first, or all the others lag just now.
            Err(error) => assert!(matches!(error.code, ErrorCode::NoLeader | ErrorCode::Conflict), "{error}"),
        }
    }
    let mut jobs = Vec::new();
    while let Some(done) = callers.join_next().await {
        jobs.extend(done.expect("ends"));
    }
    assert_eq!(jobs.iter().collect::<BTreeSet<_>>().len(), 24 * 40, "no id twice");
    cluster.assert_equal(&cluster.ids()).await;
    let known = cluster.peer(1).read(|state| jobs.iter().filter(|job| state.job(**job).is_some()).count());
    assert_eq!(known, 24 * 40);
}

/// A voter that does not answer is not named: it would cost an election.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_voter_is_not_handed_the_lead() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let [silent, other] = cluster.others(old)[..] else { panic!("three peers") };
    let leader = &cluster.peers[&old];
    cluster.hub.isolate(silent, cluster.ids());
    tokio::time::timeout(PATIENCE, async {
        while leader.successors() != [other] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("its silence is noticed");
    let refused = leader.transfer_leader(Some(silent)).await.expect_err("silent");
    assert!(refused.code == ErrorCode::Conflict && refused.message.contains("not answered"), "{refused}");
    assert!(leader.leadership().borrow().leading, "a refusal moves nothing");
    assert_eq!(leader.transfer_leader(None).await.map(|moved| moved.to), Ok(other));
}

/// Who leads alone has nobody to hand over to, and says so.
#[tokio::test]
async fn a_lone_leader_stays() {
    let cluster = Cluster::found().await;
    let refused = cluster.peer(1).transfer_leader(None).await.expect_err("alone");
    assert!(refused.message.contains("no other voter"), "{refused}");
    cluster.submit(HostId(1), cluster.request()).await.expect("it still leads");
}

/// When the leader dies the voters stand in turn: half a shortest wait after its lease, where the lots of openraft begin
/// a whole one after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_is_replaced_before_the_first_lot_falls() {
    let mut cluster = Cluster::found().await;
    let leader = cluster.peers.remove(&HostId(1)).expect("the founder");
    leader.shutdown().await;
    cluster.timings = Timings { heartbeat_ms: 40, election_min_ms: 3_000, election_max_ms: 3_050 };
    cluster.start(HostId(1)).await.expect("starts again");
    cluster.grow(3).await;
    let old = cluster.leader().await;
    cluster.stop(old).await;
    let died = Instant::now();
    cluster.leader_among(&cluster.ids()).await;
    let took = died.elapsed();
    assert!(took > Duration::from_millis(3_000), "not within the old leader's lease: {took:?}");
    assert!(took < Duration::from_millis(6_000), "before any lot: {took:?}");
}

/// A peer that rests votes, and leaves the lead to another; where nobody else can, it leads all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_rests_leads_only_where_nobody_else_can() {
    let mut cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let [rests, other] = cluster.others(old)[..] else { panic!("three peers") };
    cluster.peers[&rests].rest(Duration::from_secs(3_600));
    // It must know before the leader dies: it looks at least once in an election wait.
    tokio::time::sleep(Duration::from_millis(2 * cluster.timings.election_max_ms)).await;
    cluster.stop(old).await;
    assert_eq!(cluster.leader_among(&cluster.ids()).await, other);
    cluster.start(old).await.expect("comes back");
    cluster.assert_equal(&[old, rests, other]).await;
    cluster.peers[&old].rest(Duration::from_secs(3_600));
    tokio::time::sleep(Duration::from_millis(2 * cluster.timings.election_max_ms)).await;
    cluster.stop(other).await;
    let leader = cluster.leader_among(&[old, rests]).await;
    cluster.submit(leader, cluster.request()).await.expect("accepted");
}

/// Check-quorum: a leader that no quorum answers refuses writes and linearizable reads within its lease and one call,
/// and what it refuses was surely not done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_a_quorum_refuses_within_its_lease_and_one_call() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let timings = cluster.timings;
    cluster.hub.isolate(old, cluster.others(old));
    let cut = Instant::now();
    // One call to a peer, and what a busy machine makes of it.
    let bound = Duration::from_millis(timings.election_max_ms + 4 * timings.heartbeat_ms);
    let slack = Duration::from_millis(500);
    tokio::time::sleep(bound + slack).await;
    let leader = &cluster.peers[&old];
    let (asked, request) = (Instant::now(), cluster.request());
    let short = Duration::from_millis(20);
    let read = leader.read_barrier(short).await;
    assert_eq!(read.map_err(|e| e.code), Err(ErrorCode::NoLeader));
    let write = leader.propose(vec![super::job(request)], short).await;
    assert_eq!(write.map_err(|e| e.code), Err(ErrorCode::NoLeader), "surely not carried out");
    assert!(asked.elapsed() < slack, "at once: {:?}", asked.elapsed());
    assert!(!leader.leadership().borrow().leading && cut.elapsed() > bound);
    cluster.hub.heal();
    cluster.assert_equal(&cluster.ids()).await;
    let other = cluster.others(old)[0];
    let jobs = cluster.peers[&other].read(|state| state.jobs().count());
    assert_eq!(jobs, 0, "the refused write was not done");
}

/// Fault D8: what a disk takes is known while it happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_disk_is_seen() {
    let delay_ms = Arc::new(AtomicU64::new(0));
    let slow = Arc::clone(&delay_ms);
    let disk = Arc::new(crate::disk::SyncsBy(move |file: &std::fs::File| {
        std::thread::sleep(Duration::from_millis(slow.load(Ordering::Relaxed)));
        file.sync_data()
    }));
    let cluster = Cluster::found_with(Tuning { segment_bytes: 1 << 20, disk, ..Tuning::default() }).await;
    let peer = cluster.peer(1);
    let limit = Duration::from_millis(150);
    // What the disk itself did meanwhile is its own affair.
    let before = peer.disk(limit).slow;
    delay_ms.store(200, Ordering::Relaxed);
    for count in 1..=3 {
        cluster.submit(HostId(1), cluster.request()).await.expect("accepted");
        assert!(peer.disk(limit).slow >= before + count);
    }
    let pace = peer.disk(limit);
    assert!(pace.p99 >= Duration::from_millis(200) && !pace.full, "{pace:?}");
}
