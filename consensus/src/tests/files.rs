//! Peers whose files are gone, swapped, failing, or newer than their build.

use super::{Cluster, HostId, PATIENCE};
use crate::config::{Payload, Tuning};
use crate::disk::SyncsBy;
use crate::log::LogError;
use crate::{AppliedNote, StartError};
use rota_protocol::ask::Ask;
use rota_protocol::command::Entry;
use rota_protocol::job::{Actor, ArraySpec, JobSpec, Role};
use rota_protocol::{ErrorCode, version};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Faults D12, R6: a wiped host does not come back under its old id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_host_does_not_start() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let wiped = cluster.others(leader)[0];
    cluster.stop(wiped).await;
    std::fs::remove_dir_all(cluster.path(wiped)).expect("wiped");
    let refused = cluster.start(wiped).await;
    assert!(matches!(refused, Err(StartError::Log(LogError::Wiped { .. }))), "{refused:?}");
    cluster.submit(leader, cluster.request()).await.expect("the others go on");
}

/// Fault D13: two hosts' files were swapped; neither takes part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swapped_files_are_refused() {
    let mut cluster = Cluster::of(3).await;
    let (a, b) = (HostId(2), HostId(3));
    cluster.stop(a).await;
    cluster.stop(b).await;
    let (path_a, path_b) = (cluster.path(a), cluster.path(b));
    let aside = path_a.with_extension("aside");
    std::fs::rename(&path_a, &aside).expect("moves");
    std::fs::rename(&path_b, &path_a).expect("moves");
    std::fs::rename(&aside, &path_b).expect("moves");
    for id in [a, b] {
        let refused = cluster.start(id).await;
        assert!(matches!(refused, Err(StartError::Log(LogError::Foreign { .. }))), "{refused:?}");
    }
}

/// Fault D5: a leader whose fsync fails acknowledges nothing more and reports that it is done for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fsync_is_reported_and_nothing_is_acknowledged() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = fails.clone();
    let tuning = Tuning {
        segment_bytes: 1 << 20,
        disk: Arc::new(SyncsBy(move |file: &File| {
            if failing.load(Ordering::SeqCst) {
                return Err(io::Error::other("planted"));
            }
            file.sync_data()
        })),
        ..Tuning::default()
    };
    let cluster = Cluster::found_with(tuning).await;
    let peer = cluster.peer(1);
    cluster.submit(HostId(1), cluster.request()).await.expect("accepted");
    fails.store(true, Ordering::SeqCst);
    let mut failed = peer.failed();
    let refused = peer.propose(vec![super::job(cluster.request())], PATIENCE).await;
    assert!(matches!(refused.map_err(|e| e.code), Err(ErrorCode::Unknown | ErrorCode::NoLeader)));
    let told = tokio::time::timeout(PATIENCE, failed.wait_for(Option::is_some)).await;
    assert!(told.expect("told").is_ok());
}

/// Fault D6: without room for the next segment, proposals are refused by name, the rest goes on, and so do
/// proposals once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_proposals_until_there_is_room() {
    let tuning = Tuning { segment_bytes: 64 << 10, ..Tuning::default() };
    let cluster = Cluster::found_with(tuning).await;
    let peer = cluster.peer(1);
    // Directories where the next segments would be: as far as the log can see, the disk refuses them.
    let dir = cluster.path(HostId(1));
    let blocks: Vec<_> = (2..200).map(|n| dir.join(format!("spare-{n}.seg"))).collect();
    for block in &blocks {
        std::fs::create_dir(block).expect("made");
    }
    let submit = async || {
        let accepted = peer.propose(vec![super::job(cluster.request())], PATIENCE).await;
        accepted.map(|_| ()).map_err(|e| e.code)
    };
    let full = async {
        loop {
            match submit().await {
                Ok(()) => {}
                Err(code) => return code,
            }
        }
    };
    let code = tokio::time::timeout(PATIENCE, full).await.expect("full");
    assert_eq!(code, ErrorCode::StorageFull);
    assert!(peer.status().storage_full);
    peer.read_barrier(PATIENCE).await.expect("it still leads");
    assert_eq!(*peer.failed().borrow(), None);
    for block in &blocks {
        std::fs::remove_dir(block).expect("removed");
    }
    let again = async {
        while submit().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("room again");
}

/// Fault D6: a peer that has no room for what it lacks tells readers so at once, who ask another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_behind_a_full_disk_sends_readers_away() {
    let mut cluster = Cluster::found_with(Tuning { segment_bytes: 64 << 10, ..Tuning::default() }).await;
    cluster.grow(3).await;
    let leader = cluster.leader().await;
    let full = cluster.others(leader)[0];
    let dir = cluster.path(full);
    for n in 2..200 {
        // What is there already is in use; the next ones cannot be made.
        let _ = std::fs::create_dir(dir.join(format!("spare-{n}.seg")));
    }
    let behind = async {
        loop {
            cluster.submit(leader, cluster.request()).await.expect("two of three have room");
            if cluster.peers[&full].status().storage_full {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, behind).await.expect("full");
    let last = cluster.submit(leader, cluster.request()).await.expect("accepted");
    let peer = &cluster.peers[&full];
    let read = peer.read_barrier(PATIENCE).await;
    assert_eq!(read.map_err(|e| e.code), Err(ErrorCode::StorageFull));
    assert!(peer.read(|state| state.job(last).is_none()));
}

/// Fault R7: an entry of a newer format halts the peer; it is never skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_a_newer_format_halts_the_peer() {
    let cluster = Cluster::found().await;
    let peer = cluster.peer(1);
    let before = peer.fingerprint();
    let newer = Entry { format: version::NEWEST + 1, at_ms: 1, proposals: Vec::new() };
    let bytes = rota_protocol::codec::encode(&newer).expect("encodes");
    let written = peer.0.raft.client_write(Payload(bytes.into())).await;
    assert!(written.is_err());
    let mut failed = peer.failed();
    let told = tokio::time::timeout(PATIENCE, failed.wait_for(Option::is_some)).await;
    assert!(told.expect("told").is_ok());
    assert_eq!(peer.fingerprint(), before, "nothing was applied in its place");
}

/// Fault R7: what a peer wrote in the first format is applied as it was meant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_the_first_format_is_applied() {
    let cluster = Cluster::found().await;
    let peer = cluster.peer(1);
    // By hand, field by field: nothing writes that format any more.
    let (devices, labels) = (BTreeMap::<String, u32>::new(), BTreeMap::<String, String>::new());
    let ask = (2_000_u32, vec!["H100"], 0_u64, 3_000_u32, 4_u64, devices, labels);
    let (env, array) = (Vec::<(Vec<u8>, Vec<u8>)>::new(), None::<ArraySpec>);
    let bounds = (70_u16, Some(60_000_u64), None::<u32>, 1_u16, None::<(u32, u32)>);
    let spec = ("old", vec![b"true".to_vec()], env, b"/tmp".to_vec(), ask, array, bounds);
    let actor = Actor { tenant: "lab".into(), user: "ann".into(), role: Role::Submitter };
    let submit = 6_u32;
    let (format, at_ms, count) = (1_u16, 1_u64, 1_u64);
    let fields = (format, at_ms, count, cluster.request(), actor, submit, spec);
    let bytes = rota_protocol::codec::encode(&fields).expect("encodes");
    peer.0.raft.client_write(Payload(bytes.into())).await.expect("applied");
    let spec = peer.read(|state| state.jobs().last().map(|job| job.spec.whole())).expect("accepted");
    let want = JobSpec {
        name: "old".into(),
        argv: vec![b"true".to_vec()],
        workdir: b"/tmp".to_vec(),
        ask: Ask {
            gpu_milli: 2_000,
            gpu_models: vec!["H100".into()],
            cpus_milli: 3_000,
            mem_mib: 4,
            ..Ask::default()
        },
        priority: 70,
        time_limit_ms: Some(60_000),
        retries: 1,
        ..JobSpec::default()
    };
    assert_eq!(spec, want);
}

/// Everyone who watches hears of what an entry changed, once, in order.
#[tokio::test]
async fn watchers_hear_of_changes_in_order() {
    let cluster = Cluster::found().await;
    let mut events = cluster.peer(1).events();
    let mut last = 0;
    for _ in 0..5 {
        let job = cluster.submit(HostId(1), cluster.request()).await.expect("accepted");
        let note: Arc<AppliedNote> = events.recv().await.expect("a note");
        assert!(note.index > last && !note.resync);
        last = note.index;
        assert!(note.events.contains(&crate::Event::JobChanged(job)));
    }
}
