//! Rows of machines that go off: P1, P2, P9.

use super::super::lab::{Failure, Lab};
use super::Attempt;
use super::net::{at_work, until_written};
use rota_consensus::disk::Step;
use std::time::Duration;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn leader_again_and_again(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, _) = at_work(attempt, 3, 3).await?;
    for _ in 0..6 {
        let leader = lab.leader(PATIENCE).await?;
        let rest = lab.others(leader);
        lab.crash(leader)?;
        let took = until_written(&lab, &rest).await?;
        attempt.took(took);
        sleep(Duration::from_millis(500)).await;
        lab.start(leader).await.map_err(|error| error.to_string())?;
        sleep(Duration::from_millis(1_500)).await;
    }
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn follower(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 3, 0).await?;
    let follower = lab.others(leader)[lab.rng.below(2) as usize];
    let rest = lab.others(follower);
    lab.load_at(3, &rest);
    sleep(Duration::from_millis(500)).await;
    let from = lab.now_ms();
    lab.crash(follower)?;
    sleep(Duration::from_secs(3)).await;
    lab.start(follower).await.map_err(|error| error.to_string())?;
    sleep(Duration::from_secs(3)).await;
    attempt.took(lab.clients.history.longest_gap(from, lab.now_ms()));
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn two_of_five(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 5, 3).await?;
    let mut victims = lab.ids();
    victims.swap_remove(lab.rng.below(5) as usize);
    victims.truncate(2);
    let from = lab.now_ms();
    for victim in &victims {
        lab.crash(*victim)?;
    }
    lab.ground.trace.note(format_args!("{victims:?} are off, {leader} led"));
    sleep(Duration::from_secs(6)).await;
    attempt.took(lab.clients.history.longest_gap(from, lab.now_ms()));
    for victim in victims {
        lab.start(victim).await.map_err(|error| error.to_string())?;
    }
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn everybody(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, _) = at_work(attempt, 3, 3).await?;
    let took = all_off_and_on(&mut lab).await?;
    attempt.took(took);
    attempt.close(lab).await.map(|_| ())
}

/// All off at one moment, all on a second later; from then until a write is acknowledged, in virtual ms.
pub(super) async fn all_off_and_on(lab: &mut Lab) -> Result<u64, Failure> {
    for host in lab.ids() {
        lab.crash(host)?;
    }
    sleep(Duration::from_secs(1)).await;
    for host in lab.ids() {
        lab.start(host).await.map_err(|error| error.to_string())?;
    }
    until_written(lab, &lab.ids()).await
}

pub(super) async fn at_each_step(attempt: &mut Attempt) -> Result<(), Failure> {
    const STEPS: [Step; 10] = [
        Step::Vote,
        Step::Append,
        Step::Truncate,
        Step::Purge,
        Step::Spare,
        Step::Activate,
        Step::Recycle,
        Step::Export,
        Step::Promote,
        Step::Import,
    ];
    let mut plan = attempt.plan(3);
    plan.snapshot_entries = (25, 5);
    plan.segment_bytes = 16 << 10;
    let mut lab = Lab::of(&plan).await?;
    lab.load(4);
    let mut died = 0;
    for step in STEPS {
        let leader = lab.leader(PATIENCE).await?;
        let victim = lab.ids()[lab.rng.below(3) as usize];
        let times = 1 + lab.rng.below(2) as u32;
        let Some(disk) = lab.peers.get(&victim).and_then(|peer| peer.disk()).cloned() else {
            return Err(format!("host {victim} is not on"));
        };
        disk.ail(|ills| ills.dies_at = Some((step, times)));
        if step == Step::Vote {
            // Somebody must ask for votes.
            lab.ground.air.isolate(leader, &lab.others(leader));
            sleep(Duration::from_secs(2)).await;
            lab.ground.air.heal();
        }
        let dies = || disk.died().then_some(());
        if lab.until(Duration::from_secs(8), "death", dies).await.is_err() {
            disk.ail(|ills| ills.dies_at = None);
            continue;
        }
        died += 1;
        lab.crash(victim)?;
        sleep(Duration::from_millis(300)).await;
        lab.start(victim).await.map_err(|error| format!("after {step:?}: {error}"))?;
        let began = lab.now_ms();
        let goal = lab.ground.doors.all().iter().map(|door| door.peer.status().committed).max().unwrap_or(0);
        let door = lab.door(victim)?;
        let follows = || (door.peer.status().applied >= goal).then_some(());
        lab.until(PATIENCE, "host that follows again", follows).await?;
        attempt.took(lab.now_ms() - began);
    }
    attempt.must(died >= 6, || format!("not exercised: only {died} of {} steps were met", STEPS.len()));
    attempt.close(lab).await.map(|_| ())
}
