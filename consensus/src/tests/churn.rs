//! Faults one after the other under load. Whatever happens, each request becomes one job, and all peers agree.

use super::{Cluster, HostId, PATIENCE, job};
use crate::Consensus;
use rota_protocol::command::Outcome;
use rota_protocol::ids::{JobId, RequestId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CLIENTS: u64 = 6;
const FAULTS: u64 = 8;
/// Long enough for an election under most faults, short enough that they overlap with one.
const FAULT_TIME: Duration = Duration::from_millis(400);

type Peers = Arc<Mutex<BTreeMap<HostId, Consensus>>>;

struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Submits one job after the other, each until it is accepted, always under the same request id.
async fn client(number: u64, peers: Peers, over: Arc<AtomicBool>) -> Vec<(RequestId, JobId)> {
    let mut draw = Draw(number + 1);
    let mut accepted = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let request = RequestId(u128::from(number + 1) << 64 | (accepted.len() as u128 + 1));
        let job = loop {
            let peer = {
                let peers = peers.lock().expect("not poisoned");
                let at = HostId(1 + draw.below(3));
                peers.get(&at).cloned()
            };
            let Some(peer) = peer else {
                tokio::task::yield_now().await;
                continue;
            };
            let answer = peer.propose(vec![job(request)], Duration::from_millis(500)).await;
            match answer.as_deref() {
                Ok([Outcome::Submitted { job }]) => break *job,
                Ok(other) => panic!("{other:?}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        accepted.push((request, job));
    }
    accepted
}

async fn one_fault(cluster: &mut Cluster, peers: &Peers, draw: &mut Draw) {
    let victim = HostId(1 + draw.below(3));
    match draw.below(4) {
        0 => cluster.hub.isolate(victim, cluster.others(victim)),
        1 => cluster.hub.freeze(victim),
        2 => cluster.hub.cut_one_way(victim, cluster.others(victim)[0]),
        _ => {
            peers.lock().expect("not poisoned").remove(&victim);
            cluster.stop(victim).await;
            tokio::time::sleep(FAULT_TIME / 2).await;
            cluster.start(victim).await.expect("starts again");
            let peer = cluster.peers[&victim].clone();
            peers.lock().expect("not poisoned").insert(victim, peer);
        }
    }
    tokio::time::sleep(FAULT_TIME).await;
    cluster.hub.heal();
}

/// Faults N1, N3, P2, P3, R9 in a row: no acknowledged job is lost, none is there twice, all states are equal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_becomes_one_job_whatever_happens() {
    let mut cluster = Cluster::of(3).await;
    let peers: Peers = Arc::new(Mutex::new(cluster.peers.clone()));
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| tokio::spawn(client(number, peers.clone(), over.clone()))).collect();
    let mut draw = Draw(0x5eed);
    for _ in 0..FAULTS {
        one_fault(&mut cluster, &peers, &mut draw).await;
    }
    over.store(true, Ordering::Relaxed);
    let mut accepted = Vec::new();
    for client in clients {
        let done = tokio::time::timeout(PATIENCE, client).await;
        accepted.extend(done.expect("clients get through").expect("runs"));
    }
    cluster.assert_equal(&cluster.ids()).await;
    let jobs: BTreeSet<JobId> = accepted.iter().map(|(_, job)| *job).collect();
    assert_eq!(jobs.len(), accepted.len(), "two requests share a job");
    let held = cluster.peer(1).read(|state| state.jobs().map(|job| job.id).collect::<BTreeSet<_>>());
    assert_eq!(held, jobs, "jobs were lost, or are there twice");
    assert!(accepted.len() > 50, "hardly anything happened: {}", accepted.len());
}
