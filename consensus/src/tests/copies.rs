//! Copies of the state that part (fault R8): the one that most others contradict stops, and both sides say who differs.

use super::{Cluster, PATIENCE, job};
use crate::config::Tuning;
use rota_protocol::command::Command;
use rota_protocol::ids::HostId;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_applies_in_another_order_stops_and_is_named() {
    let tuning = Tuning { whole_entries: 4, compare_ms: 100, ..Tuning::default() };
    let mut cluster = Cluster::found_with(tuning).await;
    cluster.grow(3).await;
    let leader = cluster.leader().await;
    let victim = cluster.others(leader)[0];
    cluster.stop(victim).await;
    cluster.tuning.faults.disorder = true;
    cluster.start(victim).await.expect("starts");
    let failed = cluster.peers[&victim].failed();
    let told = async {
        for number in 0_u64.. {
            if let Some(why) = failed.borrow().clone() {
                return why;
            }
            // Whether it turns one of these round is drawn anew each time.
            let mut pair = [job(cluster.request()), job(cluster.request())];
            for (at, one) in pair.iter_mut().enumerate() {
                if let Command::Submit { spec } = &mut one.command {
                    spec.name = format!("{number}-{at}");
                }
            }
            cluster.peers[&leader].propose(pair.to_vec(), PATIENCE).await.expect("proposes");
        }
        String::new()
    };
    let why = tokio::time::timeout(PATIENCE, told).await.expect("halts");
    assert!(why.contains("is not that of the hosts") && why.contains("the entry at"), "{why}");
    let named = async |id: HostId| {
        let mut differs = cluster.peers[&id].differs();
        let told = tokio::time::timeout(PATIENCE, differs.wait_for(Option::is_some)).await;
        told.expect("told").expect("runs").clone().map(|told| told.others)
    };
    for id in cluster.others(victim) {
        assert_eq!(named(id).await, Some([victim].into()), "by host {id}");
        assert_eq!(*cluster.peers[&id].failed().borrow(), None);
    }
}
