//! Clusters that begin anew: from one survivor after the majority is lost for good (R3), and from a backup (O6). Jobs are
//! there, nobody of the old epoch is let in, and what ran is treated by its lease.

use super::{PATIENCE, ms, submit, until, until_host};
use crate::real::row::Row;
use crate::real::{Bench, said};
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, Witness, shell_job, true_job};
use rota_protocol::view::HostState;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// From the command to an accepted write, in ms.
const BACK_MS: u64 = 15_000;

async fn told(bench: &Bench, lab: &Lab, args: &[&str]) -> Result<(i32, String), LabError> {
    let said = said(&mut bench.rota(lab, 0, args)).await?;
    Ok((said.status, format!("{}{}", String::from_utf8_lossy(&said.out), said.err)))
}

/// A task that leaves a witness and can be told to end by a file.
async fn long_job(lab: &Lab, witness: &Witness) -> Result<rota_protocol::ids::JobId, LabError> {
    let mut spec = shell_job("long", &witness.script("sleep 600"));
    spec.retries = 3;
    Ok(Stubborn::new(lab, 0).submit(spec).await?)
}

/// R3: two of three hosts are gone for good; the third goes on under a new epoch.
pub(super) async fn majority_lost(bench: &Bench) -> Result<Row, LabError> {
    let what = "majority gone, recovered from one host: from the command to an accepted write";
    let mut row = Row::new("R3", what, Some(BACK_MS));
    let mut lab = bench.lab("R3", 3, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let mut client = Stubborn::new(&lab, 0);
    for _ in 0..10 {
        submit(&mut client).await?;
    }
    // All have heard of all before the majority dies.
    lab.digests().await?;
    for at in [1, 2] {
        lab.signal(at, Signal::KILL)?;
    }
    let mut alone = Stubborn::new(&lab, 2);
    let refused =
        alone.submit_as(rota_node::lab::new_request(), true_job("none"), Duration::from_secs(2)).await;
    row.must(refused.is_err(), || "a minority accepted a job".into());
    let dir = lab.peers[0].dir.display().to_string();
    let (status, text) =
        told(bench, &lab, &["cluster", "recover", "--data-dir", &dir, "--confirm", "lab"]).await?;
    row.must(status != 0 && text.contains("another agent runs"), || format!("under a running agent: {text}"));
    lab.stop(0).await?;
    let (status, text) =
        told(bench, &lab, &["cluster", "recover", "--data-dir", &dir, "--confirm", "other"]).await?;
    row.must(status != 0 && text.contains("nothing was done"), || format!("a wrong name: {text}"));
    let started = Instant::now();
    let (status, text) =
        told(bench, &lab, &["cluster", "recover", "--data-dir", &dir, "--confirm", "lab"]).await?;
    row.must(status == 0 && text.contains("epoch 1"), || format!("recover: {text}"));
    lab.spawn(0)?;
    lab.until_answers(0).await?;
    let mut client = Stubborn::new(&lab, 2);
    submit(&mut client).await?;
    row.ran(ms(started));
    let known = client.all_jobs().await?.len();
    // The refused one may have been written down here, and its caller never heard that it was not accepted.
    row.must((11..=12).contains(&known), || format!("{known} jobs of 11"));
    // One of the old epoch comes back: it finds nobody, and is told how to join.
    lab.spawn(1)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let view = lab.cluster().await?;
    row.must(view.peers.len() == 1 && view.members.epoch == 1, || format!("{:?}", view.peers));
    lab.signal(1, Signal::KILL)?;
    lab.join_again(1, 0).await?;
    lab.spawn(1)?;
    until_host(&lab, lab.peers[1].host, HostState::Up).await?;
    super::equal(&lab, &mut row).await?;
    Ok(row)
}

/// O6: a backup becomes a new cluster; what ran on old hosts runs again only after their leases.
pub(super) async fn from_a_backup(bench: &Bench) -> Result<Row, LabError> {
    let what = "backup restored on a new host: from the command to an accepted write";
    let mut row = Row::new("O6", what, Some(BACK_MS));
    let mut lab = bench.lab("O6", 2, |options| options.sim_gpus = Some("1xH100:80GiB".into())).await?;
    let witness = Witness::new(&bench.dir.join("O6"));
    let job = long_job(&lab, &witness).await?;
    let mut client = Stubborn::new(&lab, 0);
    for _ in 0..10 {
        submit(&mut client).await?;
    }
    wait_for("the task runs", PATIENCE, async || (!witness.counts().is_empty()).then_some(())).await?;
    let file = bench.dir.join("O6").join("backup").display().to_string();
    let (status, text) = told(bench, &lab, &["cluster", "backup", &file]).await?;
    row.must(status == 0 && text.contains("11 jobs"), || format!("backup: {text}"));
    // A backup with one bit changed, or cut, is no backup.
    let whole = std::fs::read(&file).map_err(super::io("no backup"))?;
    let bad = format!("{file}.bad");
    let place = bench.dir.join("O6").join("n3").display().to_string();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for wrong in [&flipped[..], &whole[..whole.len() - 9]] {
        std::fs::write(&bad, wrong).map_err(super::io("cannot write"))?;
        let (status, text) = told(bench, &lab, &["cluster", "restore", &bad, "--data-dir", &place]).await?;
        row.must(status != 0 && text.contains("damaged"), || format!("a bad backup: {text}"));
    }
    // The old cluster dies whole, its tasks with its leases.
    for at in [0, 1] {
        lab.signal(at, Signal::KILL)?;
    }
    let started = Instant::now();
    let new = lab.place()?;
    let addr = format!("127.0.0.1:{}", lab.peers[new].port);
    let place = lab.peers[new].dir.display().to_string();
    let args = ["cluster", "restore", &file, "--data-dir", &place, "--name", "n3", "--listen", &addr];
    let (status, text) = told(bench, &lab, &args).await?;
    row.must(status == 0 && text.contains("epoch 1"), || format!("restore: {text}"));
    lab.spawn(new)?;
    lab.until_answers(new).await?;
    let mut client = Stubborn::new(&lab, new - 1);
    submit(&mut client).await?;
    row.ran(ms(started));
    let known = client.all_jobs().await?.len();
    row.must(known == 12, || format!("{known} jobs of 12"));
    // The task comes again, once the old lease is over, and never beside its first run.
    wait_for("the task runs again", PATIENCE, async || {
        let (starts, _) = witness.counts().get(&(job.0, 0)).copied().unwrap_or_default();
        (starts == 2).then_some(())
    })
    .await?;
    row.must(ms(started) >= 4_000, || {
        format!("the task ran again after {} ms, within the old lease", ms(started))
    });
    // An agent of the old cluster is not let in: its certificates are another authority's.
    lab.spawn(1)?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    lab.signal(1, Signal::KILL)?;
    lab.forget(1);
    let view = until(&lab, "only the restored host", |view| view.peers.len() == 1).await;
    row.must(view.is_ok(), || "an old host is a peer of the restored cluster".into());
    let again = lab.join_again(1, new).await;
    row.must(again.is_ok(), || format!("joining again: {again:?}"));
    lab.spawn(1)?;
    until_host(&lab, lab.peers[1].host, HostState::Up).await?;
    Ok(row)
}
