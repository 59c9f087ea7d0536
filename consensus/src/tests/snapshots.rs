//! Short logs: snapshots at home, and on their way to a peer that is behind.

use super::{CLUSTER, Cluster, HostId, PATIENCE, job};
use crate::config::{CHUNK_BYTES, Tuning, Vote};
use crate::snapshot_file::current_path;
use crate::wire::{self, Chunk, ChunkReply};
use crate::{AppliedNote, StartError};
use rota_protocol::command::Command;
use rota_protocol::ids::ClusterId;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn tiny() -> Tuning {
    Tuning { segment_bytes: 64 << 10, snapshot_entries: 20, keep_entries: 2, ..Tuning::default() }
}

async fn submit_many(cluster: &Cluster, at: HostId, count: usize) {
    for _ in 0..count {
        cluster.submit(at, cluster.request()).await.expect("accepted");
    }
}

/// Fault R4: a follower that slept through a purge catches up by a snapshot, and says so to its watchers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_behind_the_purge_catches_up_by_snapshot() {
    let mut cluster = Cluster::found_with(tiny()).await;
    cluster.grow(3).await;
    let leader = cluster.leader().await;
    let late = cluster.others(leader)[0];
    let asleep = cluster.hub.remove(late).expect("it was there");
    let mut events = asleep.events();
    let first_kept = || cluster.peers[&leader].0.log.0.memory().first_index();
    while first_kept() <= Some(asleep.status().last_log + 1) {
        cluster.submit(leader, cluster.request()).await.expect("accepted");
    }
    cluster.hub.put(late, asleep);
    cluster.assert_equal(&cluster.ids()).await;
    let mut resynced = false;
    while let Ok(note) = events.try_recv() {
        let note: Arc<AppliedNote> = note;
        resynced |= note.resync;
    }
    assert!(resynced, "the state was replaced, and watchers must know");
    // It goes on from there, also after a restart.
    submit_many(&cluster, leader, 5).await;
    cluster.stop(late).await;
    cluster.start(late).await.expect("starts again");
    cluster.assert_equal(&cluster.ids()).await;
}

/// Fault R4: messages of the transfer are lost one after the other, and it arrives all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_arrives_through_lost_messages() {
    let mut cluster = Cluster::found_with(tiny()).await;
    let heavy = || {
        let mut heavy = job(cluster.request());
        if let Command::Submit { spec } = &mut heavy.command {
            spec.argv.push(vec![b'x'; 40_000]);
        }
        heavy
    };
    for _ in 0..30 {
        let accepted = cluster.peer(1).propose(vec![heavy()], PATIENCE).await;
        accepted.expect("accepted");
    }
    let seen = Arc::new(AtomicU64::new(0));
    let counting = seen.clone();
    cluster.hub.lose(move |request| {
        // Every second piece, so that each has to be sent again.
        matches!(request, PeerRequest::Raft { call: RaftCall::Snapshot, .. })
            && counting.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
    });
    cluster.grow(2).await;
    cluster.assert_equal(&cluster.ids()).await;
    let pieces = cluster.peer(1).0.machine.snapshot_bytes() / CHUNK_BYTES as u64;
    assert!(pieces >= 5, "it was not large enough: {pieces}");
    assert!(seen.load(Ordering::SeqCst) > 2 * pieces);
}

/// Fault R5: from a snapshot and the log behind it a peer comes back to the very same state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_from_snapshot_and_log_gives_the_same_state() {
    let mut cluster = Cluster::found_with(tiny()).await;
    let me = HostId(1);
    for round in 0..4 {
        submit_many(&cluster, me, 33).await;
        let before = cluster.peer(1).read(|state| state.jobs().count());
        assert_eq!(before, 33 * (round + 1));
        cluster.stop(me).await;
        cluster.start(me).await.expect("starts again");
        cluster.leader().await;
        cluster.peer(1).read_barrier(PATIENCE).await.expect("a quorum of one");
        assert_eq!(cluster.peer(1).read(|state| state.jobs().count()), before);
    }
    let status = cluster.peer(1).status();
    assert!(status.snapshot > 100, "{status:?}");
}

/// A log that is heavy rather than long is cut as well: memory is bounded by bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heavy_log_is_cut_by_its_bytes() {
    let tuning =
        Tuning { segment_bytes: 1 << 20, snapshot_log_bytes: 64 << 10, keep_entries: 1, ..Tuning::default() };
    let cluster = Cluster::found_with(tuning).await;
    let submit = async || {
        let mut heavy = job(cluster.request());
        if let Command::Submit { spec } = &mut heavy.command {
            spec.argv.push(vec![b'x'; 20_000]);
        }
        let accepted = cluster.peer(1).propose(vec![heavy], PATIENCE).await;
        accepted.expect("accepted");
        (cluster.peer(1).0.log.0.memory().bytes(), cluster.peer(1).0.machine.snapshot_bytes())
    };
    for _ in 0..30 {
        submit().await;
    }
    // A snapshot is not worth less than its own weight of log; when the log weighs more, it is cut soon.
    let cut = async {
        let mut heaviest = 0;
        loop {
            let (bytes, snapshot) = submit().await;
            if bytes < heaviest && snapshot > 0 {
                return;
            }
            heaviest = bytes;
        }
    };
    tokio::time::timeout(PATIENCE, cut).await.expect("cut");
}

/// A full disk holds a snapshot up, and ends nothing: the log goes on, and the snapshot is made once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_without_room_is_tried_again() {
    let cluster = Cluster::found_with(tiny()).await;
    let (peer, path) = (cluster.peer(1), cluster.path(HostId(1)).join("snapshot-new.tmp"));
    // What is written there finds no room; the link goes with the attempt.
    std::os::unix::fs::symlink("/dev/full", &path).expect("linked");
    submit_many(&cluster, HostId(1), 30).await;
    let tried = async {
        while path.is_symlink() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, tried).await.expect("tried");
    submit_many(&cluster, HostId(1), 3).await;
    assert_eq!(*peer.failed().borrow(), None);
    let made = async {
        while peer.status().snapshot == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, made).await.expect("made");
}

/// Fault D11: damaged or foreign snapshots at home stop the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_is_refused_at_start() {
    let mut cluster = Cluster::found_with(tiny()).await;
    let me = HostId(1);
    submit_many(&cluster, me, 40).await;
    let mut snapshot = cluster.peer(1).0.raft.watch_snapshot_progress();
    tokio::time::timeout(PATIENCE, snapshot.wait_until(|done| done.is_some()))
        .await
        .expect("taken")
        .expect("runs");
    cluster.stop(me).await;
    let place = current_path(&cluster.path(me));
    let whole = std::fs::read(&place).expect("a snapshot");
    for at in [0, 9, 13, 20, 33, 41, 45, 61, 70, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&place, &bytes).expect("writes");
        let refused = cluster.start(me).await;
        assert!(matches!(refused, Err(StartError::Snapshot(_))), "byte {at}: {refused:?}");
    }
    for len in [0, 10, 64, whole.len() - 1] {
        std::fs::write(&place, &whole[..len]).expect("writes");
        assert!(cluster.start(me).await.is_err(), "cut to {len}");
    }
    std::fs::write(&place, &whole).expect("writes");
    assert!(crate::snapshot_file::parse(&whole, ClusterId(0xbad)).is_err());
    assert!(crate::snapshot_file::parse(&whole, CLUSTER).is_ok());
    cluster.start(me).await.expect("whole again");
}

/// Faults R4, D11: chunks out of order, damaged, or of an impossible length never reach the state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_are_checked_before_anything_is_installed() {
    let mut cluster = Cluster::found_with(tiny()).await;
    cluster.grow(2).await;
    let (leader, learner) = (HostId(1), HostId(2));
    // The learner has heard of the leader's term.
    cluster.assert_equal(&cluster.ids()).await;
    let term = cluster.peer(1).status().term;
    let vote = Vote::new_committed(term, 1);
    let link = cluster.hub.link(leader);
    let send = async |chunk: Chunk| -> Result<ChunkReply, String> {
        let request = PeerRequest::Raft { call: RaftCall::Snapshot, body: wire::encode(&chunk) };
        match link.call(learner, request, PATIENCE).await {
            Ok(PeerReply::Raft { body }) => wire::decode(&body).map_err(|e| e.to_string()),
            other => Err(format!("{other:?}")),
        }
    };
    let total = 3 * CHUNK_BYTES as u64;
    let piece = vec![7; CHUNK_BYTES];
    let next = |reply: Result<ChunkReply, String>| reply.map(|reply| (reply.next, reply.done)).ok();

    let first = Chunk::new(&vote, total, 0, piece.clone());
    let second = Chunk::new(&vote, total, CHUNK_BYTES as u64, piece.clone());
    let third = Chunk::new(&vote, total, 2 * CHUNK_BYTES as u64, piece.clone());
    assert_eq!(next(send(second.clone()).await), Some((0, false)), "begins at the beginning");
    assert_eq!(next(send(first.clone()).await), Some((CHUNK_BYTES as u64, false)));
    assert_eq!(next(send(third.clone()).await), Some((CHUNK_BYTES as u64, false)), "a gap");
    assert_eq!(next(send(second.clone()).await), Some((2 * CHUNK_BYTES as u64, false)));
    assert_eq!(next(send(third).await), Some((total, false)));
    let question = Chunk::new(&vote, total, total, Vec::new());
    assert!(send(question).await.is_err(), "whole, and not a snapshot");
    let mut damaged = first.clone();
    damaged.crc ^= 1;
    assert!(send(damaged).await.is_err());
    let mut bomb = first.clone();
    bomb.total = u64::MAX;
    assert!(send(bomb).await.is_err());
    let late = Chunk::new(&Vote::new_committed(term - 1, 1), total, 0, piece.clone());
    assert_eq!(next(send(late).await), Some((0, true)), "an old leader is told to stop");
    let forged = Chunk::new(&Vote::new_committed(term, 9), total, 0, piece);
    assert!(send(forged).await.is_err(), "in another host's name");

    submit_many(&cluster, leader, 3).await;
    cluster.assert_equal(&cluster.ids()).await;
}
