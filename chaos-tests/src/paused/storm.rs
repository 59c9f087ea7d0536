//! One seed: a cluster under load, faults one on top of the other, then healing, after which everything must be well.

use super::air::Weather;
use super::lab::{Failure, Lab, Plan, in_virtual_time};
use super::linear::{Ask, Got};
use super::peer::Way;
use super::plant::Plant;
use super::rows::row;
use crate::world::rng::Rng;
use rota_protocol::HostId;
use std::collections::BTreeMap;
use std::time::Duration;

/// After the last fault one leader, the same members everywhere, and a fresh submission accepted (I20).
const CONVERGED: Duration = Duration::from_secs(10);

/// What a run must have met in all seeds together (I23).
pub const MUST: [&str; 17] = [
    "leader changed",
    "host crashed",
    "host cut off",
    "one-way cut",
    "lost",
    "delivered twice",
    "overtaken",
    "what was not synced was lost or torn",
    "died at a write",
    "disk slow",
    "disk failed",
    "disk full",
    "snapshot taken",
    "snapshot installed",
    "segment recycled",
    "answer unknown",
    "asked again under one request id",
];

/// What became of a seed.
#[derive(Debug, Clone)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// Equal for equal runs.
    pub trace: u64,
    /// Virtual time, in ms.
    pub virtual_ms: u64,
    /// From the end of all faults to a fresh submission accepted, in ms.
    pub recovery_ms: Option<u64>,
    /// What does not hold; empty if all does.
    pub violations: Vec<String>,
    /// What was met.
    pub reach: BTreeMap<String, u64>,
    /// Lines, if it was asked to talk.
    pub lines: Vec<String>,
}

impl Run {
    /// A run of which nothing else is known.
    #[must_use]
    pub fn failed(seed: u64, why: &str) -> Self {
        Self {
            seed,
            trace: 0,
            virtual_ms: 0,
            recovery_ms: None,
            violations: vec![why.to_owned()],
            reach: BTreeMap::new(),
            lines: Vec::new(),
        }
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "seed": self.seed,
            "trace": format!("{:016x}", self.trace),
            "virtual_ms": self.virtual_ms,
            "recovery_ms": self.recovery_ms,
            "violations": self.violations,
        })
    }
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, plant: Option<Plant>, way: Option<Way>, talks: bool) -> Run {
    if let Some(plant) = plant
        && let rows = plant.rows()
        && !rows.is_empty()
    {
        return by_row(rows[usize::try_from(seed).unwrap_or(0) % rows.len()], seed, plant, talks);
    }
    in_virtual_time(storm(seed, plant, way, talks))
}

/// Storms rarely meet some faults: a row that does each time takes their place.
fn by_row(id: &str, seed: u64, plant: Plant, talks: bool) -> Run {
    let tried = row(id).map(|row| row.attempt_with(seed, Some(plant), talks));
    let Some(tried) = tried else { return Run::failed(seed, "there is no such row") };
    Run { trace: tried.trace, violations: tried.wrong, lines: tried.lines, ..Run::failed(seed, "") }
}

async fn storm(seed: u64, plant: Option<Plant>, way: Option<Way>, talks: bool) -> Run {
    let mut rng = Rng::new(seed);
    let hosts = if rng.chance(300) { 5 } else { 3 };
    let drawn = if seed.is_multiple_of(2) { Way::Quic } else { Way::Direct };
    let mut plan = Plan::new(seed, hosts, way.unwrap_or(drawn));
    plan.plant = plant;
    plan.talks = talks;
    if rng.chance(600) {
        plan.snapshot_entries = (30, 5);
        plan.segment_bytes = 16 << 10;
    }
    let mut run = Run { violations: Vec::new(), ..Run::failed(seed, "") };
    match Lab::of(&plan).await {
        Ok(mut lab) => {
            let outcome = weather_it(&mut lab, &mut run, &mut rng).await;
            run.violations.extend(outcome.err());
            close(lab, &mut run);
        }
        Err(failure) => run.violations.push(failure),
    }
    run
}

async fn weather_it(lab: &mut Lab, run: &mut Run, rng: &mut Rng) -> Result<(), Failure> {
    if lab.ground.plant == Some(Plant::DisorderedApply) {
        // Entries of several proposals, of which there are few otherwise.
        lab.clients.gap_ms = (0, 4);
        lab.load(9);
    }
    lab.load(3);
    if lab.ground.plant == Some(Plant::VoteNotSynced) {
        voters_off(lab).await?;
    }
    let faults = rng.range(4, 7);
    for _ in 0..faults {
        tokio::time::sleep(Duration::from_millis(rng.range(100, 900))).await;
        fault(lab, run, rng).await?;
        tokio::time::sleep(Duration::from_millis(rng.range(200, 1_500))).await;
        bury(lab, run, rng).await?;
    }
    lab.heal().await?;
    let healed = lab.now_ms();
    lab.ground.trace.note("healed");
    let deadline = tokio::time::Instant::now() + CONVERGED;
    fresh(lab, deadline).await?;
    run.recovery_ms = Some(lab.now_ms() - healed);
    lab.rest().await;
    let left = deadline.saturating_duration_since(tokio::time::Instant::now());
    lab.settled(left.max(Duration::from_secs(1))).await.map_err(|failure| format!("I20: {failure}"))?;
    super::verdict::final_states(lab).await
}

/// A leader goes off, and whoever gives its vote to another goes off the moment it has: few storms have that.
async fn voters_off(lab: &mut Lab) -> Result<(), Failure> {
    let patience = Duration::from_secs(5);
    let leader = lab.leader(patience).await?;
    let before = lab.ground.laws.votes().0;
    lab.crash(leader)?;
    let laws = lab.ground.laws.clone();
    let given = || Some(laws.votes()).filter(|(count, _)| *count > before).and_then(|(_, voter)| voter);
    let voter = lab.until(patience, "vote", given).await?;
    lab.crash(voter)?;
    for host in [leader, voter] {
        lab.start(host).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A fresh submission, tried at anybody until it is accepted.
pub(super) async fn fresh(lab: &mut Lab, deadline: tokio::time::Instant) -> Result<(), Failure> {
    let key = 1_000_000 + lab.now_ms();
    while tokio::time::Instant::now() < deadline {
        for door in lab.ground.doors.all() {
            if let Some(Got::Job(_)) = lab.clients.once(&door, key, Ask::Submit).await {
                return Ok(());
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("I20: no fresh submission was accepted within 10 s after the faults".into())
}

/// One more fault.
async fn fault(lab: &mut Lab, run: &mut Run, rng: &mut Rng) -> Result<(), Failure> {
    let ids = lab.ids();
    let leader = lab.ground.doors.all().into_iter().find(|door| door.peer.leadership().borrow().leading);
    let anybody = ids[rng.below(ids.len() as u64) as usize];
    // The leader is where faults hurt most.
    let victim = match leader {
        Some(door) if rng.chance(500) => door.host,
        _ => anybody,
    };
    let mut hit = |what: &str| *run.reach.entry(what.into()).or_default() += 1;
    let air = lab.ground.air.clone();
    match rng.below(10) {
        0 | 1 => {
            hit("host cut off");
            air.isolate(victim, &ids);
        }
        2 => {
            hit("one-way cut");
            let other = lab.others(victim)[0];
            air.cut(victim, other, true);
        }
        3 => {
            let weather = Weather {
                delay_us: (300, rng.range(1_000, 60_000)),
                loss_permille: [0, 50, 200][rng.below(3) as usize],
                twice_permille: [0, 200, 500][rng.below(3) as usize],
                late_permille: [0, 100, 250][rng.below(3) as usize],
                flip_permille: if rng.chance(300) { 20 } else { 0 },
                ..Weather::FAIR
            };
            air.weather(weather);
        }
        4 | 5 => {
            hit("host crashed");
            lab.ground.trace.note(format_args!("crash {victim}"));
            lab.crash(victim)?;
        }
        6 => {
            for host in ids {
                hit("host crashed");
                lab.crash(host)?;
            }
        }
        _ => ail(lab, victim, rng, &mut hit),
    }
    Ok(())
}

fn ail(lab: &Lab, victim: HostId, rng: &mut Rng, hit: &mut dyn FnMut(&str)) {
    use rota_consensus::disk::Step;
    let Some(disk) = lab.peers.get(&victim).and_then(|peer| peer.disk()) else { return };
    match rng.below(4) {
        0 => {
            hit("disk slow");
            disk.ail(|ills| ills.sync_us = Some((50_000, 400_000)));
        }
        1 => {
            hit("disk failed");
            disk.ail(|ills| ills.sync_fails = true);
        }
        2 => {
            hit("disk full");
            disk.ail(|ills| ills.full = true);
        }
        _ => {
            let steps = [Step::Vote, Step::Append, Step::Activate, Step::Export, Step::Promote, Step::Purge];
            let step = steps[rng.below(steps.len() as u64) as usize];
            disk.ail(|ills| ills.dies_at = Some((step, 1 + rng.below(4) as u32)));
        }
    }
}

/// Starts some of those that are off, and mends some of what is broken.
async fn bury(lab: &mut Lab, run: &mut Run, rng: &mut Rng) -> Result<(), Failure> {
    if rng.chance(600) {
        lab.ground.air.heal();
    }
    for host in lab.ids() {
        let Some(peer) = lab.peers.get(&host) else { continue };
        let died = peer.disk().is_some_and(|disk| disk.died());
        let failed = lab.ground.doors.at(host).is_some_and(|door| door.peer.failed().borrow().is_some());
        if died {
            *run.reach.entry("died at a write".into()).or_default() += 1;
        }
        if died || failed {
            lab.crash(host)?;
        }
        let off = lab.ground.doors.at(host).is_none();
        if off && rng.chance(700) {
            lab.start(host).await.map_err(|error| format!("host {host} does not start again: {error}"))?;
        }
    }
    Ok(())
}

/// Judges what was seen, and ends the lab.
fn close(lab: Lab, run: &mut Run) {
    super::verdict::judge(&lab, &mut run.violations, &mut run.reach);
    run.trace = lab.ground.trace.hash();
    run.virtual_ms = lab.now_ms();
    run.lines = lab.ground.trace.lines();
    lab.end();
}
