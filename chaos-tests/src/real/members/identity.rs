//! Who a host is: wiped under its old id (R6, R077), copied while it runs and while it does not (R082), put back from an
//! old copy of its data (D12). It is refused, told how to go on, and the others work on.

use super::{PATIENCE, copy, doctor, equal, io, ms, submit, until_ended, until_host};
use crate::real::Bench;
use crate::real::row::Row;
use rota_node::lab::{Lab, LabError};
use rota_node::lab_work::Stubborn;
use rota_protocol::view::HostState;
use std::time::Instant;

/// From the start under the wrong identity to the end of the process, in ms.
const REFUSED_MS: u64 = 15_000;
/// From joining again to a host that is up, with a state equal to the others', in ms.
const BACK_MS: u64 = 60_000;

async fn three(bench: &Bench, name: &str) -> Result<Lab, LabError> {
    bench.lab(name, 3, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await
}

/// Starts a host, expects it to end by itself, and gives how long that took and what it said.
async fn refused(lab: &mut Lab, at: usize) -> Result<(u64, String), LabError> {
    let started = Instant::now();
    lab.spawn(at)?;
    let words = until_ended(lab, at).await?;
    Ok((ms(started), words))
}

/// R6: the log and everything beside it are gone, the identity is not.
pub(super) async fn wiped_under_its_old_id(bench: &Bench) -> Result<Row, LabError> {
    let what = "wiped host under its old id: from its start to its end with a message";
    let mut row = Row::new("R6", what, Some(REFUSED_MS));
    let mut lab = three(bench, "R6").await?;
    let mut client = Stubborn::without(&lab, 1);
    for round in 0..bench.rounds.max(1) {
        lab.stop(1).await?;
        let dir = lab.peers[1].dir.clone();
        // What is left is found and refused by the host itself ..
        std::fs::remove_dir_all(dir.join("raft")).map_err(io("cannot wipe"))?;
        let (took, words) = refused(&mut lab, 1).await?;
        row.must(words.contains("is gone"), || format!("round {round}: {words}"));
        row.ran(took);
        let told = doctor(bench, &lab, 1).await?;
        row.must(told.contains("--replace"), || format!("round {round}: doctor: {told}"));
        // .. and if nothing is left, by the others: it must not vote as who it was.
        for name in ["raft.voted", "life"] {
            std::fs::remove_file(dir.join(name)).map_err(io("cannot wipe"))?;
        }
        let (took, words) = refused(&mut lab, 1).await?;
        row.must(words.contains("stands beside other data") && words.contains("--replace"), || {
            format!("round {round}: {words}")
        });
        row.ran(took);
        submit(&mut client).await?;
        let leader = lab.leader().await?;
        lab.join_again(1, leader).await?;
        lab.spawn(1)?;
        until_host(&lab, lab.peers[1].host, HostState::Up).await?;
    }
    equal(&lab, &mut row).await?;
    Ok(row)
}

/// R077: a wiped host joins again as a new one, while jobs change the state.
pub(super) async fn wiped_and_back(bench: &Bench) -> Result<Row, LabError> {
    let what = "wiped host joins again as a new one: until it is up and its state equals the others'";
    let mut row = Row::new("R077", what, Some(BACK_MS));
    let mut lab = three(bench, "R077").await?;
    for round in 0..bench.rounds.max(1) {
        lab.stop(2).await?;
        let dir = lab.peers[2].dir.clone();
        for name in ["raft", "identity"] {
            std::fs::remove_dir_all(dir.join(name)).map_err(io("cannot wipe"))?;
        }
        let mut client = Stubborn::without(&lab, 2);
        for _ in 0..20 {
            submit(&mut client).await?;
        }
        let started = Instant::now();
        let (old, leader) = (lab.peers[2].host, lab.leader().await?);
        lab.join_again(2, leader).await?;
        let new = lab.peers[2].host;
        row.must(new > old, || format!("round {round}: host {old} came back as {new}"));
        lab.spawn(2)?;
        until_host(&lab, new, HostState::Up).await?;
        equal(&lab, &mut row).await?;
        row.ran(ms(started));
        let logs = rota_node::lab::violations(&bench.dir.join("R077"));
        row.must(logs.is_empty(), || format!("round {round}: {logs:?}"));
    }
    Ok(row)
}

/// R082: two hosts with one identity. The second is refused while the first runs, and the first when the copy ran on.
pub(super) async fn copied(bench: &Bench) -> Result<Row, LabError> {
    let what = "copy of a running host: from its start to its end; the first one works on";
    let mut row = Row::new("R082", what, Some(REFUSED_MS));
    let mut lab = three(bench, "R082").await?;
    let leader = lab.leader().await?;
    let at = (0..3).find(|at| *at != leader).unwrap_or(0);
    let spare = lab.grow(leader).await?;
    let (first, second) = (lab.peers[at].dir.clone(), lab.peers[spare].dir.clone());
    std::fs::remove_dir_all(&second).map_err(io("cannot clear"))?;
    copy(&first, &second).map_err(io("cannot copy"))?;
    let (took, words) = refused(&mut lab, spare).await?;
    row.must(words.contains("is not let in") || words.contains("speaks from the machine"), || words.clone());
    row.ran(took);
    row.must(lab.exited(at).is_none(), || "the first one ended".into());
    lab.until_answers(at).await?;
    let told = doctor(bench, &lab, spare).await?;
    row.must(told.contains("did not let the last agent in"), || format!("doctor: {told}"));
    // With the first one down the copy is a machine that moved; then the first one is the copy.
    lab.stop(at).await?;
    std::fs::remove_dir_all(&second).map_err(io("cannot clear"))?;
    copy(&first, &second).map_err(io("cannot copy"))?;
    lab.spawn(spare)?;
    lab.until_answers(spare).await?;
    lab.peers[spare].host = lab.peers[at].host;
    rota_node::lab::wait_for("the moved host is registered at its new place", PATIENCE, async || {
        let rows = lab.hosts().await.ok()?;
        let port = lab.peers[spare].port.to_string();
        rows.iter()
            .any(|row| {
                row.host == lab.peers[spare].host && row.addr.ends_with(&port) && row.state == HostState::Up
            })
            .then_some(())
    })
    .await?;
    let (took, words) = refused(&mut lab, at).await?;
    row.must(words.contains("copy") || words.contains("is not let in"), || words.clone());
    row.ran(took);
    Ok(row)
}

/// D12: a data directory is put back from a copy that was made earlier.
pub(super) async fn older_backup(bench: &Bench) -> Result<Row, LabError> {
    let what = "data directory put back from an older copy: from its start to its end with a message";
    let mut row = Row::new("D12", what, Some(REFUSED_MS));
    let mut lab = three(bench, "D12").await?;
    let leader = lab.leader().await?;
    let at = (0..3).find(|at| *at != leader).unwrap_or(0);
    let (dir, kept) = (lab.peers[at].dir.clone(), bench.dir.join("D12").join("kept"));
    lab.stop(at).await?;
    copy(&dir, &kept).map_err(io("cannot copy"))?;
    for _ in 0..2 {
        lab.spawn(at)?;
        until_host(&lab, lab.peers[at].host, HostState::Up).await?;
        lab.until_answers(at).await?;
        lab.stop(at).await?;
    }
    std::fs::remove_dir_all(&dir).map_err(io("cannot clear"))?;
    copy(&kept, &dir).map_err(io("cannot put back"))?;
    let (took, words) = refused(&mut lab, at).await?;
    row.must(words.contains("older than what the cluster knows") && words.contains("--replace"), || {
        words.clone()
    });
    row.ran(took);
    submit(&mut Stubborn::without(&lab, at)).await?;
    Ok(row)
}
