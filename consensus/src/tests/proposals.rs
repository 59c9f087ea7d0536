//! Proposals through lost answers, changes of leader, limits.

use super::{Cluster, PATIENCE, create, job};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rota_protocol::ErrorCode;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::ids::{ClusterId, HostId, LeaseEpoch, RequestId};
use rota_protocol::job::Actor;
use rota_protocol::limits::{ENTRY_BYTES_MAX, ENTRY_PROPOSALS_MAX};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::collections::BTreeSet;
use std::time::Duration;

/// Fault R9: the answer is lost, the client asks again elsewhere, and there is one job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_that_is_asked_again_gives_the_same_job() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let follower = cluster.others(leader)[0];
    let request = cluster.request();
    cluster.hub.lose_answers(leader, 1);
    let lost = cluster.peers[&follower].propose(vec![job(request)], Duration::from_millis(300)).await;
    assert_eq!(
        lost.map_err(|e| e.code),
        Err(ErrorCode::Unknown),
        "it was carried out, but nobody here knows"
    );

    let jobs: BTreeSet<_> = [
        cluster.submit(follower, request).await.expect("accepted"),
        cluster.submit(leader, request).await.expect("accepted"),
    ]
    .into();
    assert_eq!(jobs.len(), 1);
    assert_eq!(cluster.peers[&leader].read(|state| state.jobs().count()), 1);
}

/// A frozen leader costs its followers' callers one change of leader, not their whole deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwards_under_way_are_proposed_again_when_the_leader_changes() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let rest = cluster.others(old);
    cluster.hub.freeze(old);
    // With a deadline far beyond the test's patience: only the change of leader can end it.
    let hour = Duration::from_secs(3_600);
    let forwards = rest.iter().map(|id| cluster.peers[id].propose(vec![job(cluster.request())], hour));
    let done = tokio::time::timeout(PATIENCE, futures_util::future::join_all(forwards)).await;
    for outcome in done.expect("promptly") {
        outcome.expect("accepted by the new leader");
    }
    cluster.hub.heal();
    cluster.assert_equal(&cluster.ids()).await;
    assert_eq!(cluster.peers[&old].read(|state| state.jobs().count()), 2);
}

/// The same for what the old leader itself had under way: its entries may or may not have been committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_leaders_own_writes_are_proposed_again() {
    // A submit without a request id must not be tried twice: its caller is told the truth. One with an id is.
    for (request, wanted) in [(false, Err(ErrorCode::Unknown)), (true, Ok(()))] {
        let cluster = Cluster::of(3).await;
        let old = cluster.leader().await;
        let rest = cluster.others(old);
        cluster.hub.isolate(old, rest.clone());
        let peer = cluster.peers[&old].clone();
        let proposal = job(if request { cluster.request() } else { RequestId::NONE });
        let hour = Duration::from_secs(3_600);
        let under_way = tokio::spawn(async move { peer.propose(vec![proposal], hour).await });
        cluster.leader_among(&rest).await;
        cluster.hub.heal();
        let outcome = tokio::time::timeout(PATIENCE, under_way).await.expect("promptly").expect("runs");
        assert_eq!(outcome.map(|_| ()).map_err(|e| e.code), wanted);
        cluster.assert_equal(&cluster.ids()).await;
    }
}

/// A peer that stops says that it leads no more, not that it is busy: followers send what they forward to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_stops_sends_proposals_on() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let stopped = cluster.peers[&leader].clone();
    cluster.stop(leader).await;
    let own = stopped.propose(vec![job(cluster.request())], PATIENCE).await;
    assert_eq!(own.map_err(|e| e.code), Err(ErrorCode::NoLeader));
    let forwarded = PeerRequest::Propose { proposals: vec![job(cluster.request())] };
    let reply = stopped.handle(cluster.others(leader)[0], forwarded).await;
    assert!(matches!(reply, PeerReply::NotLeader { .. }), "{reply:?}");
}

/// What waits behind an entry that is under way was surely not delivered: it goes to the next leader, whatever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_left_is_proposed_to_the_next_leader() {
    let cluster = Cluster::of(3).await;
    let old = cluster.leader().await;
    let rest = cluster.others(old);
    cluster.hub.isolate(old, rest.clone());
    let hour = Duration::from_secs(3_600);
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let peer = cluster.peers[&old].clone();
            tokio::spawn(async move { peer.propose(vec![job(RequestId::NONE)], hour).await })
        })
        .collect();
    cluster.leader_among(&rest).await;
    cluster.hub.heal();
    let mut accepted = 0;
    for call in calls {
        match tokio::time::timeout(PATIENCE, call).await.expect("promptly").expect("runs") {
            Ok(_) => accepted += 1,
            Err(error) => assert_eq!(error.code, ErrorCode::Unknown),
        }
    }
    // Both may have shared the entry that was under way; then neither may be tried again.
    assert!(accepted <= 1);
    cluster.assert_equal(&cluster.ids()).await;
    assert_eq!(cluster.peers[&old].read(|state| state.jobs().count()), accepted);
}

/// Fault N2: a minority never acknowledges, and says that nothing was done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_says_that_it_has_no_leader() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let alone = cluster.others(leader)[0];
    cluster.hub.isolate(alone, cluster.others(alone));
    let mut leadership = cluster.peers[&leader].leadership();
    cluster.hub.isolate(leader, cluster.others(leader));
    tokio::time::timeout(PATIENCE, leadership.wait_for(|now| now.leader.is_none()))
        .await
        .expect("lapses")
        .expect("runs");
    let refused =
        cluster.peers[&leader].propose(vec![job(cluster.request())], Duration::from_millis(100)).await;
    assert_eq!(refused.map_err(|e| e.code), Err(ErrorCode::NoLeader));
}

/// Callers that come together share entries; each hears its own outcome, at the leader and through a follower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_submits_share_entries() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    for at in [leader, cluster.others(leader)[0]] {
        let before = *cluster.peers[&leader].applied().borrow();
        let calls = (0..400).map(|_| cluster.submit(at, cluster.request()));
        let jobs = futures_util::future::join_all(calls).await;
        let ids: BTreeSet<_> = jobs.into_iter().map(|job| job.expect("accepted")).collect();
        assert_eq!(ids.len(), 400, "each has its own job");
        let entries = *cluster.peers[&leader].applied().borrow() - before;
        assert!(entries <= 100, "{entries} entries for 400 jobs");
    }
}

/// Fault R10: what can never fit is refused before it is proposed.
#[tokio::test]
async fn too_much_for_one_entry_is_refused() {
    let cluster = Cluster::found().await;
    let peer = cluster.peer(1);
    let many = vec![job(RequestId(1)); ENTRY_PROPOSALS_MAX + 1];
    let error = peer.propose(many, PATIENCE).await.expect_err("too many");
    assert_eq!(error.code, ErrorCode::TooLarge);
    let mut heavy = job(RequestId(2));
    if let Command::Submit { spec } = &mut heavy.command {
        spec.argv = vec![vec![b'a'; 100_000]; ENTRY_BYTES_MAX / 100_000 + 1];
    }
    let error = peer.propose(vec![heavy], PATIENCE).await.expect_err("too large");
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert!(peer.propose(vec![], PATIENCE).await.expect("nothing to do").is_empty());
}

/// An expiry is its leader's own: it is not forwarded, not taken from others, and not carried into another term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_stays_in_its_leaders_term() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let follower = cluster.others(leader)[0];
    let expire = Proposal {
        request: RequestId::NONE,
        actor: Actor::system(),
        command: Command::Expire { host: HostId(3), epoch: LeaseEpoch(0) },
    };
    let code = |result: Result<Vec<_>, rota_protocol::PublicError>| result.map(|_| ()).map_err(|e| e.code);
    let refused = cluster.peers[&follower].propose(vec![expire.clone()], PATIENCE).await;
    assert_eq!(code(refused), Err(ErrorCode::NoLeader));
    let term = cluster.peers[&leader].leadership().borrow().term;
    let past = cluster.peers[&leader].propose_in_term(term - 1, vec![expire.clone()], PATIENCE).await;
    assert_eq!(code(past), Err(ErrorCode::NoLeader));
    let now = cluster.peers[&leader].propose_in_term(term, vec![expire.clone()], PATIENCE).await;
    assert_eq!(code(now), Ok(()));
    let link = cluster.hub.link(follower);
    let forged = link.call(leader, PeerRequest::Propose { proposals: vec![expire] }, PATIENCE).await;
    assert!(matches!(forged, Ok(PeerReply::Refused(error)) if error.code == ErrorCode::Forbidden));
}

#[tokio::test]
async fn founding_is_idempotent_and_only_once() {
    let cluster = Cluster::found().await;
    let peer = cluster.peer(1);
    peer.found(create(super::CLUSTER)).await.expect("the same again");
    let other = peer.found(create(ClusterId(0xbad))).await.expect_err("another");
    assert_eq!(other.code, ErrorCode::Conflict);
    assert_eq!(peer.read(|state| state.hosts().count()), 1);
}

/// A peer that cannot get rid of its proposals takes no more of them, and says so at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_whose_queue_is_full_says_that_it_is_busy() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    cluster.hub.isolate(leader, cluster.others(leader));
    // More than the queue and all entries that may be under way can hold.
    let mut calls: FuturesUnordered<_> =
        (0..20_000).map(|_| cluster.peers[&leader].propose(vec![job(cluster.request())], PATIENCE)).collect();
    let first = tokio::time::timeout(PATIENCE, calls.next()).await.expect("at once");
    let error = first.expect("20,000 calls").expect_err("a minority acknowledges nothing");
    assert_eq!(error.code, ErrorCode::Busy);
    assert!(error.retry_after_ms.is_some());
}
