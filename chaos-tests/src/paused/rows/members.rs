//! Rows of members and snapshots: R1, R2, R4, R5.

use super::super::lab::{Failure, Lab};
use super::Attempt;
use rota_protocol::HostId;
use std::time::Duration;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn churn(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut lab = Lab::of(&attempt.plan(3)).await?;
    lab.load(3);
    sleep(Duration::from_millis(500)).await;
    let from = lab.now_ms();
    for host in 4..=7 {
        lab.admit(HostId(host)).await?;
        sleep(Duration::from_millis(lab.rng.range(100, 1_500))).await;
        let victim = lab.ids()[lab.rng.below(3) as usize];
        if lab.rng.chance(500) {
            lab.ground.air.isolate(victim, &lab.ids());
            sleep(Duration::from_millis(lab.rng.range(300, 1_500))).await;
            lab.ground.air.heal();
        } else {
            lab.crash(victim)?;
            sleep(Duration::from_millis(lab.rng.range(100, 800))).await;
            lab.start(victim).await.map_err(|error| error.to_string())?;
        }
        sleep(Duration::from_millis(1_500)).await;
    }
    attempt.took(lab.clients.history.longest_gap(from, lab.now_ms()));
    lab.rest().await;
    lab.settled(PATIENCE).await?;
    let voters = lab.door(lab.ids()[0])?.peer.status().voters.len();
    attempt.must(voters == 5, || format!("R1: {voters} voters of 7 hosts"));
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn far_behind(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut lab = Lab::of(&attempt.plan(3)).await?;
    lab.load(6);
    sleep(Duration::from_secs(12)).await;
    lab.rest().await;
    let leader = lab.leader(PATIENCE).await?;
    let last = lab.door(leader)?.peer.status().last_log;
    attempt.must(last > 300, || format!("not exercised: the log has only {last} entries"));
    // Two more hosts would make five voters; nothing reaches one of them.
    let ids = lab.ids();
    for host in [HostId(4), HostId(5)] {
        for other in &ids {
            lab.ground.air.cut(*other, host, host == HostId(5));
        }
        lab.ground.air.cut(HostId(4), HostId(5), true);
        lab.admit(host).await?;
    }
    sleep(Duration::from_secs(5)).await;
    let status = lab.door(lab.leader(PATIENCE).await?)?.peer.status();
    attempt.exercised = status.learners.contains(&HostId(5)) && last > 300;
    attempt
        .must(status.voters.len() == 3, || format!("R2: {:?} vote, one of them far behind", status.voters));
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn behind_a_purge(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut plan = attempt.plan(3);
    plan.snapshot_entries = (30, 3);
    let mut lab = Lab::of(&plan).await?;
    let leader = lab.leader(PATIENCE).await?;
    let behind = lab.others(leader)[0];
    lab.crash(behind)?;
    lab.load(4);
    let purged = || {
        let purged = lab.door(leader).ok()?.peer.inspect().purged?;
        (purged.1 > 60).then_some(())
    };
    lab.until(PATIENCE, "purged log", purged).await?;
    lab.start(behind).await.map_err(|error| error.to_string())?;
    // The transfer is cut off at some piece, more than once, while further snapshots are taken.
    for _ in 0..3 {
        sleep(Duration::from_millis(lab.rng.range(1, 40))).await;
        lab.ground.air.isolate(behind, &lab.ids());
        sleep(Duration::from_millis(lab.rng.range(300, 900))).await;
        lab.ground.air.heal();
    }
    let (began, door) = (lab.now_ms(), lab.door(behind)?);
    let goal = lab.door(lab.leader(PATIENCE).await?)?.peer.status().committed;
    lab.until(PATIENCE, "host that is even", || (door.peer.status().applied >= goal).then_some(())).await?;
    attempt.took(lab.now_ms() - began);
    let reach = attempt.close(lab).await?;
    attempt.exercised = reach.contains_key("snapshot installed");
    Ok(())
}

pub(super) async fn purge_and_restart(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut plan = attempt.plan(3);
    plan.snapshot_entries = (15, 2);
    plan.segment_bytes = 16 << 10;
    let mut lab = Lab::of(&plan).await?;
    lab.load(4);
    for _ in 0..8 {
        sleep(Duration::from_millis(lab.rng.range(100, 900))).await;
        let victim = lab.ids()[lab.rng.below(3) as usize];
        lab.crash(victim)?;
        sleep(Duration::from_millis(lab.rng.range(50, 1_500))).await;
        lab.start(victim).await.map_err(|error| error.to_string())?;
    }
    lab.rest().await;
    let began = lab.now_ms();
    lab.settled(PATIENCE).await?;
    attempt.took(lab.now_ms() - began);
    let reach = attempt.close(lab).await?;
    attempt.exercised = reach.contains_key("log purged") && reach.contains_key("snapshot taken");
    Ok(())
}
