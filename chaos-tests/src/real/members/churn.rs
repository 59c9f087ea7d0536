//! Hosts that come and go: voters are placed and replaced while agents are killed (R1, R11), and the wrong order of
//! replacing a dead one is harmless (R076).

use super::{PATIENCE, equal, ms, submit, until, until_host, voters};
use crate::real::row::Row;
use crate::real::{Bench, said};
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, true_job};
use rota_protocol::ids::HostId;
use rota_protocol::view::HostState;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Longest gap without an accepted write while members change under kills, in ms.
const GAP_MS: u64 = 2_500;
/// From "lost" to a full set of living voters, in ms.
const REPLACED_MS: u64 = 60_000;

/// Submits without a pause until told to stop, and gives the longest gap between two answers, in ms.
async fn writer(mut client: Stubborn, mut stop: oneshot::Receiver<()>) -> Result<(u64, usize), LabError> {
    let (mut longest, mut count, mut last) = (0, 0, Instant::now());
    while stop.try_recv().is_err() {
        client.submit(true_job("churn")).await?;
        longest = longest.max(ms(last));
        (last, count) = (Instant::now(), count + 1);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((longest, count))
}

async fn told(bench: &Bench, lab: &Lab, args: &[&str]) -> Result<(i32, String), LabError> {
    // At a host that runs: one that does not has no socket.
    let at = lab.peers.iter().position(|peer| peer.pid().is_some()).unwrap_or(0);
    let said = said(&mut bench.rota(lab, at, args)).await?;
    Ok((said.status, format!("{}{}", String::from_utf8_lossy(&said.out), said.err)))
}

/// R1: learners are promoted, members removed and added, agents killed, and writes go on.
pub(super) async fn under_kills(bench: &Bench) -> Result<Row, LabError> {
    let what = "promote, kill, remove, join: longest gap between two accepted writes";
    let mut row = Row::new("R1", what, Some(GAP_MS));
    let mut lab = bench.lab("R1", 4, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    for round in 0..bench.rounds.max(1) {
        let mut client = Stubborn::new(&lab, 0);
        client.patience = Duration::from_millis(1_000);
        let (stop, stopped) = oneshot::channel();
        let writes = tokio::spawn(writer(client, stopped));
        let view = until(&lab, "three voters", |view| voters(view).len() == 3).await?;
        // A follower votes instead of another.
        let learner = view.peers.iter().find(|peer| peer.role == "learner").map(|peer| peer.host);
        if let Some(learner) = learner {
            let (status, text) = told(bench, &lab, &["cluster", "promote", &learner.to_string()]).await?;
            row.must(status == 0, || format!("round {round}: promote: {text}"));
            until(&lab, "the promoted host votes", |view| voters(view).contains(&learner)).await?;
        }
        // A voter that does not lead dies and comes back.
        let leader = lab.leader().await?;
        let running = |lab: &Lab| -> Vec<usize> {
            (0..lab.peers.len()).filter(|at| lab.peers[*at].pid().is_some()).collect()
        };
        let victim = running(&lab).into_iter().find(|at| *at != leader).unwrap_or(0);
        lab.signal(victim, Signal::KILL)?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        lab.spawn(victim)?;
        lab.until_answers(victim).await?;
        // The leader itself dies and comes back.
        let leader = lab.leader().await?;
        lab.signal(leader, Signal::KILL)?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        lab.spawn(leader)?;
        lab.until_answers(leader).await?;
        // A member is removed for good, another one joins.
        let leader = lab.leader().await?;
        let out = running(&lab).into_iter().rev().find(|at| *at != leader).unwrap_or(0);
        let id = lab.peers[out].host;
        let (status, text) =
            told(bench, &lab, &["cluster", "remove", &id.to_string(), "--yes", "--reason", "churn"]).await?;
        row.must(status == 0, || format!("round {round}: remove: {text}"));
        let new = lab.grow(leader).await?;
        lab.spawn(new)?;
        until_host(&lab, lab.peers[new].host, HostState::Up).await?;
        let words = super::until_ended(&mut lab, out).await?;
        row.must(words.contains("was removed"), || format!("round {round}: the removed host said {words}"));
        until(&lab, "three living voters without the removed one", |view| {
            voters(view).len() == 3 && !voters(view).contains(&id) && view.members.tolerates == 1
        })
        .await?;
        let _ = stop.send(());
        let (gap, count) =
            writes.await.map_err(|e| LabError::Io(e.to_string(), std::io::ErrorKind::Other.into()))??;
        row.must(count > 20, || format!("round {round}: only {count} writes"));
        row.ran(gap);
        equal(&lab, &mut row).await?;
    }
    Ok(row)
}

/// R11: a voter's host is gone for good; a follower votes in its stead.
pub(super) async fn voter_gone(bench: &Bench) -> Result<Row, LabError> {
    let what = "voter gone for good: from `lost` to three living voters again";
    let mut row = Row::new("R11", what, Some(REPLACED_MS));
    for round in 0..bench.rounds.max(1) {
        let mut lab = bench.lab("R11", 4, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
        let leader = lab.leader().await?;
        let view = lab.cluster().await?;
        let victim =
            (0..4).find(|at| *at != leader && voters(&view).contains(&lab.peers[*at].host)).unwrap_or(0);
        let id = lab.peers[victim].host;
        lab.signal(victim, Signal::KILL)?;
        until_host(&lab, id, HostState::Lost).await?;
        let lost = Instant::now();
        let view =
            until(&lab, "another one votes", |view| voters(view).len() == 3 && !voters(view).contains(&id))
                .await?;
        row.ran(ms(lost));
        row.must(view.members.tolerates == 1, || format!("round {round}: {:?}", view.members));
        // What was done, and why, is there to be read.
        let view = wait_for("a note of it", PATIENCE, async || {
            let view = lab.cluster().await.ok()?;
            let last = view.members.notes.last()?.text.clone();
            last.contains("which is lost").then_some(view)
        })
        .await?;
        let advice = view.members.advice.join(" | ");
        row.must(advice.contains("is lost") && advice.contains("rota cluster remove"), || {
            format!("round {round}: advice {advice:?}")
        });
    }
    Ok(row)
}

/// R076: a new member is added before the dead one is removed, and never starts. Writes go on at each step.
pub(super) async fn wrong_order(bench: &Bench) -> Result<Row, LabError> {
    let what = "dead member, one that never starts, one that joins, removals in any order: slowest write";
    let mut row = Row::new("R076", what, Some(GAP_MS));
    let mut lab = bench.lab("R076", 3, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let leader = lab.leader().await?;
    let victims: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    let (dead, other) = (victims[0], victims[1]);
    lab.signal(dead, Signal::KILL)?;
    let mut client = Stubborn::without(&lab, dead);
    row.ran(submit(&mut client).await?);
    // Removing one of the two that live would leave no majority: refused, with the safe order.
    until_host(&lab, lab.peers[dead].host, HostState::Lost).await?;
    let id = |lab: &Lab, at: usize| lab.peers[at].host.to_string();
    let (status, text) = told(bench, &lab, &["cluster", "remove", &id(&lab, other), "--yes"]).await?;
    let name = lab.peers[dead].name.clone();
    row.must(status != 0 && text.contains("no majority") && text.contains(&name), || text.clone());
    // Without --yes and without a terminal nothing is removed.
    let (status, text) = told(bench, &lab, &["cluster", "remove", &id(&lab, dead)]).await?;
    row.must(status != 0 && text.contains("nothing was done"), || text.clone());
    let never = lab.grow(leader).await?;
    row.ran(submit(&mut client).await?);
    let new = lab.grow(leader).await?;
    lab.spawn(new)?;
    until_host(&lab, lab.peers[new].host, HostState::Up).await?;
    row.ran(submit(&mut client).await?);
    let gone: [HostId; 2] = [lab.peers[dead].host, lab.peers[never].host];
    for host in gone {
        let (status, text) = told(bench, &lab, &["cluster", "remove", &host.to_string(), "--yes"]).await?;
        row.must(status == 0, || format!("remove {host}: {text}"));
        row.ran(submit(&mut client).await?);
    }
    until(&lab, "three living voters", |view| {
        voters(view).len() == 3
            && gone.iter().all(|host| !voters(view).contains(host))
            && view.peers.len() == 3
    })
    .await?;
    row.ran(submit(&mut client).await?);
    equal(&lab, &mut row).await?;
    Ok(row)
}
