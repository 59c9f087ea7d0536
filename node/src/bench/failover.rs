//! The gap that a plain client sees when the leader is killed: one client submits steadily, the leader gets SIGKILL,
//! the time from the last acknowledged submit before to the first after it is the gap. Then the old leader comes
//! back and the next one dies. Every second kill falls while jobs are handed out, every other while they end.

use super::figures::{Figures, percentile_ms};
use super::{BenchLab, planned};
use crate::cli::ops::{BenchFailoverArgs, FailoverKind};
use crate::lab::{Lab, LabError, new_request};
use crate::lab_work::{Stubborn, Witness, as_array, shell_job};
use rota_protocol::ids::JobId;
use rota_protocol::job::JobState;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long all jobs may take at the end.
const DONE_LIMIT: Duration = Duration::from_secs(120);
/// Tasks that are handed out, or end, while the leader dies.
const TASKS_AT_KILL: u32 = 100;

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct FailoverPlan {
    /// How often the leader is killed.
    pub kills: usize,
    /// Tasks that are handed out, or end, while it dies.
    pub tasks_at_kill: u32,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Acknowledged jobs.
    pub accepted: u64,
    /// Of those, how many did not succeed in the end.
    pub lost: u64,
    /// Job numbers that were given twice.
    pub ids_reused: u64,
    /// Tasks that started more than once.
    pub run_twice: u64,
    /// Tasks that started and never ended.
    pub ends_lost: u64,
    /// 1 when the peers' state hashes differ.
    pub hashes_differ: u64,
    /// One gap for each kill, in ms.
    pub gaps_ms: Vec<u64>,
}

/// Kills the leader of a cluster of its own and tells the figures.
///
/// # Errors
/// The cluster does not start, or a killed peer does not come back.
pub async fn run(args: &BenchFailoverArgs) -> Result<Figures, LabError> {
    if args.kind == FailoverKind::Planned {
        return planned::run(args).await;
    }
    let profile = args.profile.clone();
    let mut bench = BenchLab::start(args.peers, |options| {
        options.cpus = Some("64".into());
        options.profile = profile;
    })
    .await?;
    let dir = bench.dir.clone();
    let plan = FailoverPlan { kills: args.kills, tasks_at_kill: TASKS_AT_KILL };
    let found = kill_leaders(bench.lab(), &dir, &plan).await?;
    let mut gaps: Vec<_> = found.gaps_ms.iter().copied().map(Duration::from_millis).collect();
    gaps.sort_unstable();
    let mut figures = Figures::default();
    figures.count("kills", args.kills as u64);
    figures.value("gap_median_ms", percentile_ms(&gaps, 500));
    figures.value("gap_p99_ms", percentile_ms(&gaps, 990));
    figures.value("gap_max_ms", percentile_ms(&gaps, 1_000));
    found.tell(&mut figures);
    Ok(figures)
}

impl Found {
    /// Adds the counts.
    pub(super) fn tell(&self, figures: &mut Figures) {
        for (name, count) in [
            ("accepted", self.accepted),
            ("lost", self.lost),
            ("ids_reused", self.ids_reused),
            ("run_twice", self.run_twice),
            ("ends_lost", self.ends_lost),
            ("hashes_differ", self.hashes_differ),
        ] {
            figures.count(name, count);
        }
    }

    /// Waits for all jobs to end, and counts what is wrong with them.
    pub(super) async fn judge(
        &mut self,
        lab: &Lab,
        client: &mut Stubborn,
        witness: &Witness,
        jobs: &[JobId],
    ) -> Result<(), LabError> {
        let rows = client.until_done(jobs, DONE_LIMIT, |_, _| {}).await?;
        let succeeded: BTreeSet<JobId> =
            rows.iter().filter(|row| row.state == JobState::Succeeded).map(|row| row.job).collect();
        let distinct: BTreeSet<JobId> = jobs.iter().copied().collect();
        let digests = lab.digests().await?;
        let agree = digests.windows(2).all(|pair| (pair[0].2, pair[0].3) == (pair[1].2, pair[1].3));
        self.accepted = jobs.len() as u64;
        self.lost = jobs.iter().filter(|job| !succeeded.contains(job)).count() as u64;
        self.ids_reused = (jobs.len() - distinct.len()) as u64;
        self.run_twice = witness.run_twice();
        self.ends_lost = witness.counts().values().filter(|(starts, ends)| starts != ends).count() as u64;
        self.hashes_differ = u64::from(!agree);
        Ok(())
    }
}

/// Kills the leader of a running cluster as often as the plan says, then waits for everything to end.
///
/// # Errors
/// The cluster stops answering, or a killed peer does not come back.
pub async fn kill_leaders(lab: &mut Lab, dir: &Path, plan: &FailoverPlan) -> Result<Found, LabError> {
    let witness = Witness::new(dir);
    let mut client = Stubborn::new(lab, 0);
    let mut jobs = Vec::new();
    let mut found = Found::default();
    for number in 0..plan.kills {
        let leader = lab.leader().await?;
        // Handing out: the tasks are submitted just before the kill. Ending: they all end about when it falls.
        let body = if number % 2 == 0 { "sleep 1" } else { "sleep 0.3" };
        let spec = as_array(shell_job("at the kill", &witness.script(body)), plan.tasks_at_kill);
        jobs.push(client.submit(spec).await?);
        if number % 2 == 1 {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let gap = gap_of_one_kill(lab, leader, &mut client, &witness, &mut jobs).await?;
        found.gaps_ms.push(u64::try_from(gap.as_millis()).unwrap_or(u64::MAX));
        lab.spawn(leader)?;
        lab.until_back(leader).await?;
    }
    found.judge(lab, &mut client, &witness, &jobs).await?;
    Ok(found)
}

/// Submits through one kill; the largest time between two acknowledgements is its gap.
async fn gap_of_one_kill(
    lab: &mut Lab,
    leader: usize,
    client: &mut Stubborn,
    witness: &Witness,
    jobs: &mut Vec<JobId>,
) -> Result<Duration, LabError> {
    let spec = || shell_job("stream", &witness.script("true"));
    let limit = Duration::from_secs(30);
    for _ in 0..5 {
        jobs.push(client.submit_as(new_request(), spec(), limit).await?);
    }
    let last = Instant::now();
    lab.signal(leader, Signal::KILL)?;
    jobs.push(client.submit_as(new_request(), spec(), limit).await?);
    let gap = last.elapsed();
    for _ in 0..5 {
        jobs.push(client.submit_as(new_request(), spec(), limit).await?);
    }
    Ok(gap)
}
