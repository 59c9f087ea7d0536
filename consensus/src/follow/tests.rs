//! Whole peers over the memory link, of which only the first three are members: the others follow.

use super::light::{LightFollower, LightLog, LightSite};
use super::words::{Answer, Ask, Mark};
use crate::tests::{Cluster, PATIENCE};
use crate::{MemberChange, Tuning, wire};
use rota_protocol::command::{Command, Proposal};
use rota_protocol::ids::{HostId, RequestId};
use rota_protocol::job::Actor;
use rota_protocol::version;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Three members, which keep few entries, and so many followers.
pub(super) async fn cluster(followers: u64, tuning: Tuning) -> Cluster {
    let mut cluster = Cluster::found_with(tuning).await;
    let command = Command::RaiseVersion { to: version::NEWEST };
    let raise = Proposal { request: RequestId::NONE, actor: Actor::system(), command };
    cluster.peer(1).propose(vec![raise], PATIENCE).await.expect("raised");
    cluster.grow(3).await;
    for id in 4..4 + followers {
        follower(&mut cluster, id).await;
    }
    cluster
}

async fn follower(cluster: &mut Cluster, id: u64) {
    assert_eq!(cluster.admit(id).await, HostId(id));
    start(cluster, id).await;
}

async fn start(cluster: &mut Cluster, id: u64) {
    cluster.start(HostId(id)).await.expect("starts");
    let seeds = [1, 2, 3].map(HostId).to_vec();
    cluster.peer(id).follow(seeds, cluster.hub.link(HostId(id)));
}

fn small() -> Tuning {
    Tuning { segment_bytes: 1 << 20, ..Tuning::default() }
}

pub(super) fn short() -> Tuning {
    Tuning { segment_bytes: 64 << 10, snapshot_entries: 20, keep_entries: 5, ..Tuning::default() }
}

pub(super) async fn submit(cluster: &Cluster, at: HostId, count: u64) {
    for _ in 0..count {
        cluster.submit(at, cluster.request()).await.expect("accepted");
    }
}

/// Waits until a peer's figures are so.
pub(super) async fn until(what: &str, is: impl Fn() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

fn members(cluster: &Cluster, leader: HostId) -> BTreeSet<HostId> {
    let members = cluster.peers[&leader].members();
    members.voters.union(&members.learners).copied().collect()
}

/// Followers have all that is committed, write through the leader, read what is certain, and are no members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_are_no_members_have_the_log() {
    let cluster = cluster(3, small()).await;
    let leader = cluster.leader().await;
    submit(&cluster, leader, 5).await;
    cluster.assert_equal(&cluster.ids()).await;
    submit(&cluster, HostId(5), 5).await;
    cluster.peer(6).read_barrier(PATIENCE).await.expect("certain");
    assert_eq!(cluster.peer(6).read(|state| state.jobs().count()), 10);
    cluster.assert_equal(&cluster.ids()).await;
    assert_eq!(members(&cluster, leader), [1, 2, 3].map(HostId).into());
    for id in 4..=6 {
        let following = || cluster.peer(id).following();
        // Before it knew the others it asked whoever had let it in.
        until("it asks a member that does not lead", || {
            following().parent.is_some_and(|parent| parent != leader && parent.0 <= 3)
                && following().depth == 2
        })
        .await;
        assert_eq!(following().snapshots, 0);
    }
}

/// A parent that dies costs its child one question; a restarted child goes on where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_dies_is_replaced_and_a_child_goes_on_where_it_was() {
    let mut cluster = cluster(2, small()).await;
    let leader = cluster.leader().await;
    submit(&cluster, leader, 5).await;
    cluster.assert_equal(&cluster.ids()).await;
    let parent = cluster.peer(4).following().parent.expect("a parent");
    cluster.stop(parent).await;
    let died = Instant::now();
    let leader = cluster.leader().await;
    submit(&cluster, leader, 3).await;
    cluster.assert_equal(&cluster.ids()).await;
    let took = died.elapsed();
    assert!(took < Duration::from_secs(5), "visible after {took:?}");
    assert!(cluster.peer(4).following().parent.is_some_and(|now| now != parent));
    cluster.stop(HostId(5)).await;
    submit(&cluster, leader, 3).await;
    start(&mut cluster, 5).await;
    cluster.assert_equal(&cluster.ids()).await;
    assert_eq!(cluster.peer(5).following().snapshots, 0, "the log was enough");
}

/// Fault R4: what was cut away comes as a snapshot, from a parent that is no leader, and through lost answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_is_filled_by_a_snapshot() {
    let mut cluster = cluster(0, short()).await;
    let leader = cluster.leader().await;
    submit(&cluster, leader, 80).await;
    until("all have cut their logs", || cluster.peers.values().all(|peer| peer.status().snapshot > 0)).await;
    follower(&mut cluster, 4).await;
    cluster.assert_equal(&cluster.ids()).await;
    assert_eq!(cluster.peer(4).following().snapshots, 1);
    cluster.stop(HostId(4)).await;
    submit(&cluster, leader, 80).await;
    let mut lost = 0;
    cluster.hub.lose(move |request| {
        let follows = matches!(
            request,
            rota_protocol::peer::PeerRequest::Raft { call: rota_protocol::peer::RaftCall::Follow, .. }
        );
        lost += u32::from(follows);
        follows && lost.is_multiple_of(3)
    });
    start(&mut cluster, 4).await;
    cluster.assert_equal(&cluster.ids()).await;
    submit(&cluster, HostId(4), 3).await;
    cluster.hub.heal();
    cluster.assert_equal(&cluster.ids()).await;
}

/// Word of a new leader goes the same way: a follower's writes reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_hear_of_a_new_leader() {
    let mut cluster = cluster(2, small()).await;
    let old = cluster.leader().await;
    submit(&cluster, HostId(4), 1).await;
    cluster.stop(old).await;
    let new = cluster.leader().await;
    assert_ne!(new, old);
    until("the word came", || cluster.peer(4).leadership().borrow().leader == Some(new)).await;
    submit(&cluster, HostId(4), 1).await;
    cluster.assert_equal(&cluster.ids()).await;
}

/// A follower becomes a member, votes, and is let go again: its log goes on without a snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_becomes_a_member_and_is_one_no_more() {
    let cluster = cluster(2, small()).await;
    let leader = cluster.leader().await;
    submit(&cluster, leader, 5).await;
    let four = BTreeSet::from([HostId(4)]);
    let change = async |change: MemberChange| {
        let changed = cluster.peers[&leader].change_members(&change).await;
        assert_eq!(changed, Ok(true), "{change:?}");
    };
    cluster.assert_equal(&cluster.ids()).await;
    change(MemberChange::Follow(four.clone())).await;
    until("the leader feeds it", || cluster.peer(4).following().parent.is_none()).await;
    change(MemberChange::Vote([1, 2, 3, 4].map(HostId).into())).await;
    submit(&cluster, HostId(4), 5).await;
    change(MemberChange::Vote([1, 2, 3].map(HostId).into())).await;
    change(MemberChange::Forget(four)).await;
    submit(&cluster, leader, 5).await;
    until("it asks again", || cluster.peer(4).following().parent.is_some()).await;
    cluster.assert_equal(&cluster.ids()).await;
    assert_eq!(cluster.peer(4).status().snapshot, 0);
}

/// One that voted when it went away, and does not any more, learns of it from others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_was_let_go_while_it_was_away_follows() {
    let mut cluster = cluster(1, small()).await;
    let leader = cluster.leader().await;
    let gone = cluster.others(leader).into_iter().find(|id| id.0 <= 3).expect("another voter");
    cluster.assert_equal(&cluster.ids()).await;
    cluster.stop(gone).await;
    let voters: BTreeSet<HostId> = (1..=4).map(HostId).filter(|id| *id != gone).collect();
    for change in [
        MemberChange::Follow([HostId(4)].into()),
        MemberChange::Vote(voters),
        MemberChange::Forget([gone].into()),
    ] {
        let wait = async {
            while cluster.peers[&leader].change_members(&change).await != Ok(true) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, wait).await.expect("changed");
    }
    start(&mut cluster, gone.0).await;
    submit(&cluster, leader, 1).await;
    cluster.assert_equal(&cluster.ids()).await;
    assert!(cluster.peers[&gone].following().parent.is_some());
    assert_eq!(cluster.peers[&leader].status().leader, Some(leader), "nobody was unseated");
}

/// Invariant I8: a copy that is another one than its parent's at the same index takes no further part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_differs_stops() {
    let cluster = cluster(1, small()).await;
    let leader = cluster.leader().await;
    cluster.assert_equal(&cluster.ids()).await;
    let next = *cluster.peer(4).applied().borrow() + 1;
    // What a parent would have to say for the copies to differ: its real word comes with the entry and is right.
    let peer = cluster.peer(4).clone();
    submit(&cluster, leader, 1).await;
    cluster.assert_equal(&cluster.ids()).await;
    assert_eq!(*peer.failed().borrow(), None, "equal copies are not stopped at {next}");
    cluster.hub.isolate(HostId(4), cluster.others(HostId(4)));
    until("its question has ended", || peer.following().moves > 0).await;
    peer.0.machine.must_become(Some(Mark { index: next + 1, hash: 7 }));
    let entry =
        cluster.peers[&leader].0.log.0.memory().behind(None, u64::MAX).expect("all").pop().expect("one");
    let mut entry = entry;
    entry.log_id.index = next + 1;
    let vote = crate::config::Vote::new_committed(entry.log_id.leader_id.term, leader.0);
    let id = entry.log_id;
    let rpc = openraft::raft::AppendEntriesRequest {
        vote,
        prev_log_id: peer.0.machine.standing().0,
        entries: vec![entry],
        leader_commit: Some(id),
    };
    let _ = peer.0.inbound.feed(rpc).await;
    let mut failed = peer.failed();
    let why = timeout(PATIENCE, failed.wait_for(Option::is_some)).await.expect("it stops").expect("told");
    assert!(why.is_some());
}

/// Nobody is asked in a cluster whose older hosts would not know the words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_an_older_version_has_no_followers() {
    let mut cluster = Cluster::found_with(small()).await;
    cluster.grow(2).await;
    cluster.assert_equal(&cluster.ids()).await;
    let learner = cluster.peer(2);
    learner.follow(vec![HostId(1)], cluster.hub.link(HostId(2)));
    cluster.hub.isolate(HostId(1), [HostId(2)]);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(learner.following().parent, None);
    assert_eq!(learner.following().moves, 0);
}

/// A parent has no more children than it can feed, and one that went away makes room.
#[tokio::test(start_paused = true)]
async fn children_are_bounded() {
    let site = LightSite { members: BTreeSet::new(), hosts: [].into(), fan_out: 16 };
    let parent = LightFollower::new(HostId(1), LightLog::default(), site, Box::new(|_, _| {}));
    let ask = async |from: u64| -> Answer {
        let ask = Ask::Entries { after: None, term: 0, wait_ms: 0 };
        let body = parent.answer(HostId(from), &wire::encode(&ask)).await.expect("answered");
        wire::decode(&body).expect("an answer")
    };
    for from in 2..66 {
        assert!(matches!(ask(from).await, Answer::Nothing(_)), "{from}");
    }
    assert!(matches!(ask(66).await, Answer::Full));
    assert!(matches!(ask(2).await, Answer::Nothing(_)), "those that are there stay");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(matches!(ask(66).await, Answer::Nothing(_)));
    assert_eq!(parent.following().children, 1);
    assert!(parent.answer(HostId(2), &[9, 9]).await.is_err(), "no words");
}
