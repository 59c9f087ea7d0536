//! Snapshots on their way to a follower, asked for by hand: what a slow one gets while the cluster goes on (R4, R084).

use super::tests::{cluster, short, submit, until};
use super::words::{Answer, Ask};
use crate::tests::Cluster;
use crate::wire::{self, Chunk, WireId};
use rota_protocol::ids::HostId;

/// Whom the follower asks.
const PARENT: u64 = 1;
/// The follower.
const CHILD: HostId = HostId(9);

async fn ask(cluster: &Cluster, ask: Ask) -> Answer {
    let answer = cluster.peer(PARENT).0.follow.answer(CHILD, &wire::encode(&ask)).await;
    let Ok(Ok(answer)) = answer.map(|body| wire::decode(&body)) else { panic!("not answered: {ask:?}") };
    answer
}

async fn piece(cluster: &Cluster, of: Option<WireId>, offset: u64) -> (WireId, Chunk) {
    match ask(cluster, Ask::Piece { of, offset }).await {
        Answer::Piece { of, chunk, .. } => (of, chunk),
        other => panic!("no piece: {other:?}"),
    }
}

/// A cluster whose hosts have cut their logs.
async fn cut() -> Cluster {
    let cluster = cluster(0, short()).await;
    submit(&cluster, HostId(PARENT), 80).await;
    until("the log is cut", || cluster.peer(PARENT).0.log.0.memory().first_index() > Some(20)).await;
    cluster
}

/// R084: a snapshot takes longer than the next one is away. What comes behind it is still there when it is whole, so the
/// follower needs no second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_behind_a_slow_snapshot_is_kept() {
    let cluster = cut().await;
    let (of, first) = piece(&cluster, None, 0).await;
    // Twice as many as a snapshot is due after.
    submit(&cluster, HostId(PARENT), 40).await;
    let (same, last) = piece(&cluster, Some(of), first.total).await;
    assert_eq!((same, last.total), (of, first.total), "it stays the same until it is whole");
    let entries = Ask::Entries { after: Some(of), term: 0, wait_ms: 0 };
    let answer = ask(&cluster, entries).await;
    assert!(matches!(answer, Answer::Entries { .. }), "{answer:?}");
}

/// Not for ever: a follower that does not go on costs no more than a bounded log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_does_not_go_on_keeps_no_log_for_ever() {
    let cluster = cut().await;
    let (of, _) = piece(&cluster, None, 0).await;
    submit(&cluster, HostId(PARENT), 120).await;
    let first = || cluster.peer(PARENT).0.log.0.memory().first_index();
    until("it is cut all the same", || first() > Some(of.index + 1)).await;
    let answer = ask(&cluster, Ask::Entries { after: Some(of), term: 0, wait_ms: 0 }).await;
    assert!(matches!(answer, Answer::Gap(_)), "{answer:?}");
}

/// R4: another snapshot is made while one is taken, and the follower loses its place: it begins anew, with the newest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_lost_its_place_begins_with_the_newest() {
    let cluster = cut().await;
    let (of, _) = piece(&cluster, None, 0).await;
    submit(&cluster, HostId(PARENT), 120).await;
    until("the next one", || cluster.peer(PARENT).status().snapshot > of.index).await;
    // Its place in one that is there no more, and nobody keeps for it.
    let unknown = WireId { index: of.index - 1, ..of };
    let (newest, chunk) = piece(&cluster, Some(unknown), 64).await;
    assert!(newest.index > of.index && chunk.offset == 0, "{newest:?} at {}", chunk.offset);
    let (held, _) = piece(&cluster, Some(newest), 0).await;
    assert_eq!(held, newest);
}
