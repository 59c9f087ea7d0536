//! A rolling restart (fault O1): every agent of a cluster under load is stopped in order and started again, the leader
//! first, then once more with the leader last. Long tasks run through all of it; clients are at work throughout.

use super::BenchLab;
use super::failover::Found;
use super::figures::Figures;
use super::pulse::{Pulse, Span, pair};
use crate::cli::ops::BenchRollingArgs;
use crate::lab::lives::{Lived, Lives};
use crate::lab::{Lab, LabError, wait_for};
use crate::lab_work::{Stubborn, Witness, as_array, shell_job};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use std::path::Path;
use std::time::{Duration, Instant};

/// Tasks that run from the beginning to the end.
const LONG_TASKS: u32 = 20;
/// How long is looked on before and after each restart.
const BESIDE: Duration = Duration::from_millis(200);

/// When the next agent is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// When the one before takes part again.
    Careful,
    /// When all hosts are up by the log, which they never cease to be in so short a time: on a slow machine several agents are
    /// then away at once, and perhaps a majority. That may cost attempts, and must never double one.
    Hasty,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Rolled {
    /// As for kills; one gap for each restart.
    pub found: Found,
    /// Gaps at restarts of a leader, in ms.
    pub leader_gaps_ms: Vec<u64>,
    /// Gaps at restarts of others, in ms.
    pub follower_gaps_ms: Vec<u64>,
    /// The same at restarts of others whom no client was connected to, in ms.
    pub unseen_gaps_ms: Vec<u64>,
    /// From the order to stop until the process was gone, in ms.
    pub stops_ms: Vec<u64>,
    /// Attempts of the long tasks beyond one each.
    pub attempts_restarted: u64,
    /// Lives of the long tasks: whether two attempts of one ever lived at once.
    pub lived: Lived,
}

/// Restarts all agents of a cluster of its own twice and tells the figures.
///
/// # Errors
/// The cluster does not start, or an agent does not come back.
pub async fn run(args: &BenchRollingArgs) -> Result<Figures, LabError> {
    let profile = args.profile.clone();
    let mut bench = BenchLab::start(args.peers, |options| {
        options.cpus = Some("64".into());
        options.profile = profile;
    })
    .await?;
    let dir = bench.dir.clone();
    let pace = if args.hasty { Pace::Hasty } else { Pace::Careful };
    let rolled = roll(bench.lab(), &dir, pace).await?;
    let mut figures = Figures::default();
    figures.count("restarts", rolled.found.gaps_ms.len() as u64);
    figures.count("gap_total_ms", rolled.found.gaps_ms.iter().sum());
    for (name, gaps) in [
        ("gap_leader", &rolled.leader_gaps_ms),
        ("gap_follower", &rolled.follower_gaps_ms),
        ("gap_follower_unconnected", &rolled.unseen_gaps_ms),
        ("stop", &rolled.stops_ms),
    ] {
        let mut times: Vec<_> = gaps.iter().copied().map(Duration::from_millis).collect();
        figures.percentiles(&format!("{name}_"), &mut times);
    }
    figures.count("attempts_restarted", rolled.attempts_restarted);
    figures.count("attempts_at_once", rolled.lived.overlaps.len() as u64);
    rolled.found.tell(&mut figures);
    Ok(figures)
}

/// Restarts all agents of a running cluster, the leader first, then again with the leader last.
///
/// # Errors
/// The cluster stops answering, or an agent does not come back.
pub async fn roll(lab: &mut Lab, dir: &Path, pace: Pace) -> Result<Rolled, LabError> {
    let witness = Witness::new(dir);
    let over = dir.join("over");
    let lives = Lives::new(dir, "lives");
    let wait = lives.until(&over);
    let mut client = Stubborn::new(lab, 0);
    let long = client.submit(as_array(shell_job("long", &witness.script(&wait)), LONG_TASKS)).await?;
    wait_for("the long tasks", Duration::from_secs(30), async || {
        (witness.counts().len() >= LONG_TASKS as usize).then_some(())
    })
    .await?;
    let (submits, runs) = pair(lab, &witness.script("true"), 0);
    submits.warm(5).await;
    let mut rolled = Rolled::default();
    for leader_first in [true, false] {
        let leader = lab.leader().await?;
        let others = (0..lab.peers.len()).filter(|number| *number != leader);
        let mut order: Vec<usize> = others.collect();
        if leader_first {
            order.insert(0, leader);
        } else {
            order.push(leader);
        }
        for number in order {
            restart(lab, number, pace, (&submits, &mut rolled)).await?;
        }
    }
    std::fs::write(&over, "").map_err(|e| LabError::Io("cannot end the long tasks".into(), e))?;
    let mut jobs = vec![long];
    jobs.extend(submits.finish().await?);
    jobs.extend(runs.finish().await?);
    rolled.found.judge(lab, &mut client, &witness, &jobs).await?;
    rolled.lived = lives.judge();
    let show = ApiRequest::Show { job: long, freshness: Freshness::Linearizable };
    if let ApiReply::Job(view) = client.ask(show, Duration::from_secs(10)).await? {
        rolled.attempts_restarted = (view.attempts.len() as u64).saturating_sub(u64::from(LONG_TASKS));
    }
    Ok(rolled)
}

async fn restart(
    lab: &mut Lab,
    number: usize,
    pace: Pace,
    (submits, rolled): (&Pulse, &mut Rolled),
) -> Result<(), LabError> {
    tokio::time::sleep(BESIDE).await;
    let (leads, connected) = (lab.leader().await? == number, submits.asks(&lab.peers[number].socket()));
    let began = Instant::now();
    lab.stop(number).await?;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    rolled.stops_ms.push(ms(began.elapsed()));
    lab.spawn(number)?;
    match pace {
        Pace::Careful => lab.until_back(number).await?,
        Pace::Hasty => lab.until_up(lab.peers.len()).await?,
    }
    tokio::time::sleep(BESIDE).await;
    let gap = ms(submits.gap(Span::since(began)));
    rolled.found.gaps_ms.push(gap);
    match (leads, connected) {
        (true, _) => rolled.leader_gaps_ms.push(gap),
        (false, true) => rolled.follower_gaps_ms.push(gap),
        (false, false) => {
            rolled.follower_gaps_ms.push(gap);
            rolled.unseen_gaps_ms.push(gap);
        }
    }
    Ok(())
}
