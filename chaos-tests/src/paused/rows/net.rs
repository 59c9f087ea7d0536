//! Rows of the network: N1 to N10, N13.

use super::super::air::Weather;
use super::super::lab::{Failure, Lab};
use super::super::linear::{Ask, Got};
use super::super::peer::Way;
use super::Attempt;
use rota_protocol::HostId;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster at work, and who leads it.
pub(super) async fn at_work(attempt: &Attempt, hosts: u64, clients: u64) -> Result<(Lab, HostId), Failure> {
    let mut lab = Lab::of(&attempt.plan(hosts)).await?;
    lab.load(clients);
    sleep(Duration::from_millis(1_000 + lab.rng.below(500))).await;
    let leader = lab.leader(PATIENCE).await?;
    Ok((lab, leader))
}

/// From now until a fresh submission is acknowledged at one of these, in virtual ms.
pub(super) async fn until_written(lab: &Lab, hosts: &[HostId]) -> Result<u64, Failure> {
    let began = lab.now_ms();
    let key = 2_000_000 + began;
    while lab.now_ms() < began + 20_000 {
        for host in hosts {
            if let Some(door) = lab.ground.doors.at(*host)
                && let Some(Got::Job(_)) = lab.clients.once(&door, key, Ask::Submit).await
            {
                return Ok(lab.now_ms() - began);
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    Err("I20: no write was acknowledged within 20 s".into())
}

/// Cuts the leader off and heals later; says when it was cut off and who led, and what others needed.
pub(super) async fn leader_cut_off(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, leader) = at_work(attempt, 3, 2).await?;
    let rest = lab.others(leader);
    lab.ground.air.isolate(leader, &lab.ids());
    let took = until_written(&lab, &rest).await?;
    attempt.took(took);
    lab.ground.air.heal();
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn old_leader_refuses(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, leader) = at_work(attempt, 3, 0).await?;
    let rest = lab.others(leader);
    let door = lab.door(leader)?;
    lab.ground.air.isolate(leader, &rest);
    let began = lab.now_ms();
    // It may serve reads for as long as its quorum may still be there, and not a moment longer than it knows better.
    let read = door.chance.scope(door.peer.confirm_quorum()).await;
    attempt.must(read.is_err(), || "I10: a leader without a quorum confirmed one".into());
    attempt.took(lab.now_ms() - began);
    let write = lab.clients.once(&door, 77, Ask::Submit).await;
    attempt.must(!matches!(write, Some(Got::Job(_))), || format!("I3: it acknowledged {write:?}"));
    lab.ground.air.heal();
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn old_leader_rejoins(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, leader) = at_work(attempt, 3, 2).await?;
    let rest = lab.others(leader);
    lab.ground.air.isolate(leader, &rest);
    let new = lab.leader_among(&rest, PATIENCE).await?;
    sleep(Duration::from_millis(500)).await;
    lab.ground.air.heal();
    let began = lab.now_ms();
    let door = lab.door(leader)?;
    let follows = || {
        let now = *door.peer.leadership().borrow();
        now.leader.filter(|who| *who != leader).map(|_| now.term)
    };
    lab.until(PATIENCE, "follower", follows).await?;
    attempt.took(lab.now_ms() - began);
    let held = lab.leader(PATIENCE).await?;
    attempt.must(held == new, || format!("N1: {new} led, and after the healing {held} does"));
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn minority_refuses(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 5, 0).await?;
    let friend = lab.others(leader)[0];
    let minority = [leader, friend];
    let majority: Vec<HostId> = lab.ids().into_iter().filter(|host| !minority.contains(host)).collect();
    for host in minority {
        lab.ground.air.isolate(host, &majority);
    }
    lab.load_at(2, &minority);
    lab.load_at(2, &majority);
    // Once the old leader's lease is over, nothing more is acknowledged there, and refusals come soon.
    sleep(Duration::from_millis(1_500)).await;
    let mut longest = 0;
    for round in 0..10 {
        let door = lab.door(minority[round % 2])?;
        let began = lab.now_ms();
        let got = lab.clients.once(&door, 3_000_000 + round as u64, Ask::Submit).await;
        attempt.must(!matches!(got, Some(Got::Job(_))), || format!("I3: a minority acknowledged {got:?}"));
        longest = longest.max(lab.now_ms() - began);
    }
    attempt.took(longest);
    lab.ground.air.heal();
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn followers_hear_nothing(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, leader) = at_work(attempt, 3, 2).await?;
    let rest = lab.others(leader);
    for host in &rest {
        lab.ground.air.cut(leader, *host, true);
    }
    let took = until_written(&lab, &rest).await?;
    attempt.took(took);
    no_endless_elections(attempt, &lab).await;
    lab.ground.air.heal();
    attempt.close(lab).await.map(|_| ())
}

/// Over QUIC, whose connections need both ways: within its idle time of 1,500 ms the leader is not heard either. Whole
/// messages that need no answer would keep the followers loyal for ever.
pub(super) async fn leader_hears_nothing(attempt: &mut Attempt) -> Result<(), Failure> {
    attempt.way = Way::Quic;
    let (lab, leader) = at_work(attempt, 3, 2).await?;
    let rest = lab.others(leader);
    for host in &rest {
        lab.ground.air.cut(*host, leader, true);
    }
    let took = until_written(&lab, &rest).await?;
    attempt.took(took);
    no_endless_elections(attempt, &lab).await;
    lab.ground.air.heal();
    attempt.close(lab).await.map(|_| ())
}

/// At most three changes of term in 10 s.
async fn no_endless_elections(attempt: &mut Attempt, lab: &Lab) {
    let term = || lab.ground.doors.all().iter().map(|door| door.peer.status().term).max().unwrap_or(0);
    let before = term();
    sleep(Duration::from_secs(10)).await;
    let rises = term() - before;
    attempt.must(rises <= 3, || format!("N3: {rises} changes of term in 10 s"));
}

pub(super) async fn bridge(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 3, 0).await?;
    let other = lab.others(leader)[0];
    // Of clients that ask anybody all may happen to wait at the one that hears no leader.
    lab.load_at(3, &lab.others(other));
    lab.load_at(1, &[other]);
    let (calm, under) = (Duration::from_secs(5), Duration::from_secs(10));
    let from = lab.now_ms();
    sleep(calm).await;
    let before = lab.clients.history.done_within(from, lab.now_ms());
    lab.ground.air.cut(leader, other, true);
    lab.ground.air.cut(other, leader, true);
    let from = lab.now_ms();
    gap_over(attempt, &lab, under).await;
    let now = lab.clients.history.done_within(from, lab.now_ms());
    let enough = now as f64 / under.as_secs_f64() >= before as f64 / calm.as_secs_f64() / 2.0;
    attempt
        .must(before > 0 && enough, || format!("N4: {before} writes in {calm:?}, then {now} in {under:?}"));
    lab.ground.air.heal();
    attempt.close(lab).await.map(|_| ())
}

/// Waits for so long, and measures the longest gap of writes meanwhile.
pub(super) async fn gap_over(attempt: &mut Attempt, lab: &Lab, time: Duration) {
    let from = lab.now_ms();
    sleep(time).await;
    let gap = lab.clients.history.longest_gap(from, lab.now_ms());
    attempt.took(gap);
}

async fn under(attempt: &mut Attempt, weather: Weather, secs: u64) -> Result<Lab, Failure> {
    let (lab, _) = at_work(attempt, 3, 4).await?;
    lab.ground.air.weather(weather);
    gap_over(attempt, &lab, Duration::from_secs(secs)).await;
    lab.ground.air.heal();
    Ok(lab)
}

async fn met(attempt: &mut Attempt, lab: Lab, what: &str) -> Result<(), Failure> {
    let reach = attempt.close(lab).await?;
    attempt.exercised &= reach.get(what).is_some_and(|times| *times > 0);
    Ok(())
}

pub(super) async fn lossy(attempt: &mut Attempt) -> Result<(), Failure> {
    attempt.way = Way::Quic;
    let lab = under(attempt, Weather { loss_permille: 200, ..Weather::FAIR }, 10).await?;
    met(attempt, lab, "lost").await
}

pub(super) async fn very_lossy(attempt: &mut Attempt) -> Result<(), Failure> {
    attempt.way = Way::Quic;
    let lab = under(attempt, Weather { loss_permille: 500, ..Weather::FAIR }, 10).await?;
    met(attempt, lab, "lost").await
}

pub(super) async fn slow(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, leader) = at_work(attempt, 3, 4).await?;
    lab.ground.air.weather(Weather { delay_us: (25_000, 125_000), ..Weather::FAIR });
    let term = lab.door(leader)?.peer.status().term;
    gap_over(attempt, &lab, Duration::from_secs(10)).await;
    let now = lab.door(leader)?.peer.status();
    attempt.must(now.term == term, || format!("N6: term {term} became {} at 125 ms of delay", now.term));
    lab.ground.air.heal();
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn very_slow(attempt: &mut Attempt) -> Result<(), Failure> {
    let lab = under(attempt, Weather { delay_us: (225_000, 275_000), ..Weather::FAIR }, 10).await?;
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn disordered(attempt: &mut Attempt) -> Result<(), Failure> {
    let lab =
        under(attempt, Weather { late_permille: 250, twice_permille: 500, ..Weather::FAIR }, 10).await?;
    met(attempt, lab, "overtaken").await
}

/// Only datagrams can be damaged unseen by their sender: always over QUIC.
pub(super) async fn flipped(attempt: &mut Attempt) -> Result<(), Failure> {
    attempt.way = Way::Quic;
    let lab = under(attempt, Weather { flip_permille: 10, ..Weather::FAIR }, 10).await?;
    met(attempt, lab, "a bit turned").await
}

pub(super) async fn narrow(attempt: &mut Attempt) -> Result<(), Failure> {
    attempt.way = Way::Quic;
    let (mut lab, leader) = at_work(attempt, 3, 2).await?;
    lab.ground.air.weather(Weather { bytes_max: Some(1_200), ..Weather::FAIR });
    // New connections too: a follower comes back over the narrow path.
    let follower = lab.others(leader)[0];
    lab.crash(follower)?;
    lab.start(follower).await.map_err(|error| error.to_string())?;
    let took = until_written(&lab, &[follower]).await?;
    attempt.took(took);
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn clogged(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, _) = at_work(attempt, 5, 2).await?;
    let ids = lab.ids();
    let mut links: Vec<(HostId, HostId)> = ids
        .iter()
        .flat_map(|from| ids.iter().map(|to| (*from, *to)))
        .filter(|(from, to)| from != to)
        .collect();
    for cut in [true, false] {
        for at in (1..links.len()).rev() {
            links.swap(at, lab.rng.below(at as u64 + 1) as usize);
        }
        for (from, to) in &links {
            lab.ground.air.cut(*from, *to, cut);
            sleep(Duration::from_millis(120)).await;
        }
    }
    let mended = Instant::now();
    lab.rest().await;
    lab.settled(Duration::from_secs(20)).await?;
    attempt.took(u64::try_from(mended.elapsed().as_millis()).unwrap_or(u64::MAX));
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn capped_snapshot(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut plan = attempt.plan(3);
    plan.snapshot_entries = (40, 5);
    let mut lab = Lab::of(&plan).await?;
    let leader = lab.leader(PATIENCE).await?;
    let behind = lab.others(leader)[0];
    lab.crash(behind)?;
    lab.load(4);
    let snapshot = || lab.door(leader).ok().filter(|door| door.peer.status().snapshot > 80).map(|_| ());
    lab.until(PATIENCE, "snapshot", snapshot).await?;
    let capped = Weather { bytes_per_s: Some(64_000), ..Weather::FAIR };
    lab.ground.air.weather_on(leader, behind, capped);
    lab.start(behind).await.map_err(|error| error.to_string())?;
    let term = lab.door(leader)?.peer.status().term;
    let (began, door) = (lab.now_ms(), lab.door(behind)?);
    let goal = lab.door(leader)?.peer.status().applied;
    lab.until(PATIENCE, "catching up", || (door.peer.status().applied >= goal).then_some(())).await?;
    attempt.took(lab.now_ms() - began);
    let now = lab.door(leader)?.peer.status().term;
    attempt.must(now == term, || format!("N13: term {term} became {now}: heartbeats were starved"));
    attempt.exercised = door.peer.status().snapshot > 0;
    attempt.close(lab).await.map(|_| ())
}
