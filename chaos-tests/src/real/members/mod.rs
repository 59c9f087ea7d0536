//! Who belongs to the cluster, tried on real processes: hosts that come, go, are wiped, copied, restored and mixed up,
//! and clusters that lost their majority. One line for each row, measured beside the stated bound.

mod addresses;
mod churn;
mod data;
mod follow;
mod identity;
mod power;
mod recovery;

use super::row::Row;
use super::{Bench, said};
use rota_node::lab::{Lab, LabError, io, wait_for};
use rota_node::lab_work::{Stubborn, true_job};
use rota_protocol::ids::HostId;
use rota_protocol::view::{ClusterView, HostState};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest that anything here may take; only what is broken waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A row at work.
pub type Running<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Row, LabError>> + 'a>>;
/// What tries a row.
pub type Try = for<'a> fn(&'a Bench) -> Running<'a>;

/// All rows, in the order of the table.
pub const ROWS: [(&str, Try); 15] = [
    ("R1", |bench| Box::pin(churn::under_kills(bench))),
    ("R4", |bench| Box::pin(follow::parent_killed(bench))),
    ("R11", |bench| Box::pin(churn::voter_gone(bench))),
    ("R076", |bench| Box::pin(churn::wrong_order(bench))),
    ("R6", |bench| Box::pin(identity::wiped_under_its_old_id(bench))),
    ("R077", |bench| Box::pin(identity::wiped_and_back(bench))),
    ("R082", |bench| Box::pin(identity::copied(bench))),
    ("D12", |bench| Box::pin(identity::older_backup(bench))),
    ("D13", |bench| Box::pin(data::swapped(bench))),
    ("D2", |bench| Box::pin(data::flipped(bench))),
    ("R074", |bench| Box::pin(power::other_addresses(bench))),
    ("R083", |bench| Box::pin(addresses::several(bench))),
    ("R085", |bench| Box::pin(power::any_order(bench))),
    ("R3", |bench| Box::pin(recovery::majority_lost(bench))),
    ("O6", |bench| Box::pin(recovery::from_a_backup(bench))),
];

/// Tries one row; a lab that fails is a row that did not hold.
pub async fn row(id: &str, bench: &Bench) -> Option<Row> {
    let (_, attempt) = ROWS.iter().find(|(known, _)| *known == id)?;
    Some(attempt(bench).await.unwrap_or_else(|error| {
        let mut row = Row::new(id, "the lab failed", None);
        row.wrong(error.to_string());
        row
    }))
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Hosts that vote, by a confirmed answer.
fn voters(view: &ClusterView) -> BTreeSet<HostId> {
    view.peers.iter().filter(|peer| peer.votes()).map(|peer| peer.host).collect()
}

/// Waits until the cluster's confirmed view is so.
async fn until(lab: &Lab, what: &str, is: impl Fn(&ClusterView) -> bool) -> Result<ClusterView, LabError> {
    wait_for(what, PATIENCE, async || lab.cluster().await.ok().filter(|view| is(view))).await
}

/// Waits until a host is in this state.
async fn until_host(lab: &Lab, host: HostId, wanted: HostState) -> Result<(), LabError> {
    wait_for(&format!("host {host} {wanted:?}"), PATIENCE, async || {
        let rows = lab.hosts().await.ok()?;
        rows.iter().any(|row| row.host == host && row.state == wanted).then_some(())
    })
    .await
}

/// Submits one small job and gives how long it took.
async fn submit(client: &mut Stubborn) -> Result<u64, LabError> {
    let started = Instant::now();
    client.submit(true_job("one")).await?;
    Ok(ms(started))
}

/// What the agent of a host that ended said last.
fn last_words(lab: &Lab, at: usize) -> String {
    let log = std::fs::read_to_string(lab.peers[at].dir.join("agent.log")).unwrap_or_default();
    log.lines().rev().take(12).collect::<Vec<_>>().join(" | ")
}

/// Waits until the agent of a host has ended by itself, and gives what it said.
async fn until_ended(lab: &mut Lab, at: usize) -> Result<String, LabError> {
    let deadline = Instant::now() + PATIENCE;
    while lab.exited(at).is_none() {
        if Instant::now() > deadline {
            return Err(LabError::Late(format!("the end of n{}", at + 1), PATIENCE.as_millis()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let words = last_words(lab, at);
    lab.forget(at);
    Ok(words)
}

/// Rows of `rota doctor` on a host without an agent, as text.
async fn doctor(bench: &Bench, lab: &Lab, at: usize) -> Result<String, LabError> {
    let dir = lab.peers[at].dir.display().to_string();
    let told = said(&mut bench.rota(lab, at, &["doctor", "--data-dir", &dir])).await?;
    Ok(String::from_utf8_lossy(&told.out).into_owned())
}

/// Copies a folder of plain files; sockets and locks are no data.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    std::fs::set_permissions(to, std::fs::metadata(from)?.permissions())?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let there = to.join(entry.file_name());
        if kind.is_dir() {
            copy(&entry.path(), &there)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), there)?;
        }
    }
    Ok(())
}

/// The states of all running hosts are one.
async fn equal(lab: &Lab, row: &mut Row) -> Result<(), LabError> {
    let digests = lab.digests().await?;
    let differ = digests.windows(2).any(|pair| (pair[0].2, pair[0].3) != (pair[1].2, pair[1].3));
    row.must(!differ, || format!("state hashes differ: {digests:?}"));
    Ok(())
}
