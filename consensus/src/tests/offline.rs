//! A peer's files without the peer: read as they are, and a cluster that begins anew from them.

use super::{CLUSTER, Cluster, PATIENCE, TIMINGS};
use crate::memory_link::Hub;
use crate::{ConsensusConfig, StartError, offline, start};
use rota_core::state::members::Rebirth;
use rota_protocol::ids::{ClusterId, HostId};

/// Fault R3: one of three goes on alone, with all that it knew, in a term above all that were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_survivor_becomes_the_first_of_a_new_cluster() {
    let mut cluster = Cluster::of(3).await;
    for _ in 0..5 {
        cluster.submit(HostId(1), cluster.request()).await.expect("accepted");
    }
    cluster.assert_equal(&cluster.ids()).await;
    let term = cluster.peer(2).status().term;
    for id in cluster.ids() {
        cluster.stop(id).await;
    }
    let found = offline::read(&cluster.path(HostId(2)), CLUSTER, HostId(2)).expect("sound");
    assert_eq!((found.state.jobs().count(), found.voters.len()), (5, 3));
    assert!(found.term >= term);
    // Not as another host, not of another cluster.
    assert!(offline::read(&cluster.path(HostId(2)), CLUSTER, HostId(3)).is_err());
    assert!(offline::read(&cluster.path(HostId(2)), ClusterId(9), HostId(2)).is_err());

    let new = ClusterId(0xbeef);
    let rebirth = Rebirth {
        cluster: new,
        survivor: Some(HostId(2)),
        founder: None,
        at_ms: 1,
        reason: "majority lost".into(),
    };
    let (state, host) = found.state.reborn(&rebirth);
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("raft");
    offline::begin(&place, new, host, &state, found.term).await.expect("made");
    assert!(offline::begin(&place, new, host, &state, found.term).await.is_err(), "there is one already");
    let config = ConsensusConfig { host, cluster: new, dir: place, timings: TIMINGS };
    let hub = Hub::new();
    let peer = start::start(config, cluster.tuning.clone(), hub.link(host)).await.expect("starts");
    peer.read_barrier(PATIENCE).await.expect("it leads alone");
    assert!(peer.status().term > found.term);
    assert_eq!(peer.read(|state| (state.jobs().count(), state.members().epoch)), (5, 1));
    let (index, bytes) = peer.backup().expect("small");
    peer.shutdown().await;

    // The same state as a file: whole or nothing.
    let backup = offline::read_backup(&bytes).expect("sound");
    assert_eq!((backup.cluster, backup.state.applied_index(), backup.state.jobs().count()), (new, index, 5));
    for at in (0..bytes.len()).step_by(97) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        assert!(offline::read_backup(&flipped).is_err(), "byte {at}");
        assert!(offline::read_backup(&bytes[..at]).is_err(), "{at} bytes");
    }
}

/// Fault D2: a log that was cut does without its snapshot as little as a snapshot without its log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_log_without_its_snapshot_does_not_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("raft");
    let mut state = crate::State::new();
    state.skip(7);
    offline::begin(&place, CLUSTER, HostId(1), &state, 3).await.expect("made");
    std::fs::remove_file(crate::snapshot_file::current_path(&place)).expect("there");
    let missing = offline::read(&place, CLUSTER, HostId(1)).expect_err("nothing to begin with");
    assert!(matches!(&missing, StartError::Raft(why) if why.contains("entry 7")), "{missing}");
    let config = ConsensusConfig { host: HostId(1), cluster: CLUSTER, dir: place, timings: TIMINGS };
    let started = start::start(config, crate::config::Tuning::default(), Hub::new().link(HostId(1))).await;
    assert!(started.is_err_and(|error| error.to_string().contains("entry 7")));
}
