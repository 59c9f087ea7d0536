//! Unlike GPUs and uneven work: which job runs on which model in the next round. Pure functions over numbers, without
//! state of the cluster or clock; `seats` alone knows hosts. The production planner and `rota sim` call the same
//! `who_runs`. Phases, in order: `rank` values, `assign` chooses, `pair` shares, `seats` names GPUs.

pub mod assign;
pub mod fair;
pub mod lengths;
pub mod pair;
pub mod rank;
pub mod seats;
pub mod shares;
pub mod table;
pub mod time_shares;

use lengths::Indices;
use pair::PairTable;
use table::ClassId;

/// One job as a round sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its place in the order of submission.
    pub id: u64,
    /// What it runs like.
    pub class: ClassId,
    /// GPUs it needs at a time, all of one model.
    pub workers: u32,
    /// Its claim beside others; 1 is usual.
    pub weight: u32,
    /// Its speed on each model in permille of its best one, from the `table`; 0 where it cannot run.
    pub speeds: Vec<u32>,
    /// Work done so far, as time alone on its best model.
    pub attained_ms: u64,
    /// Work left, as time alone on its best model; none if nobody can tell.
    pub remaining_ms: Option<u64>,
    /// Time since it was submitted.
    pub age_ms: u64,
    /// Mean of jobs per GPU in the cluster while it was there, in permille; its fair time is its time alone times that.
    pub crowd_permille: u32,
    /// The model it ran on in the last round.
    pub on: Option<usize>,
}

/// A decision for one job: it runs on this model for the round. Jobs are named by their place in the round's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Which job.
    pub job: usize,
    /// On which model.
    pub model: usize,
    /// The job with which it shares its GPUs.
    pub partner: Option<usize>,
}

/// How a round decides. The defaults are one set for mixed fleets and for adaptive jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundConfig {
    /// What staying on its model adds to a job's value: the price of a stop, a checkpoint and a start.
    pub stay_permille: u32,
    /// How early a job presses because it is long: at 1500, once it is two thirds of all work's remaining time.
    pub long_permille: u32,
}

impl Default for RoundConfig {
    fn default() -> Self {
        Self { stay_permille: 100, long_permille: 1500 }
    }
}

/// Who runs where in the next round. `fleet` is workers by model; `pairs` is none where GPUs are not shared. The cost
/// is about jobs x models^2; no job appears twice and no model is overbooked (pairs count once).
#[must_use]
pub fn who_runs(
    jobs: &[Job],
    fleet: &[u32],
    indices: &Indices,
    pairs: Option<&PairTable>,
    config: &RoundConfig,
) -> Vec<Run> {
    let bids = rank::bids(jobs, fleet, indices, config);
    let seats = assign::assign(&bids, fleet);
    let run = |(job, seat): (usize, Option<usize>)| seat.map(|model| Run { job, model, partner: None });
    let mut runs: Vec<Run> = seats.into_iter().enumerate().filter_map(run).collect();
    if let Some(pairs) = pairs {
        pair::pair(jobs, &bids, pairs, &mut runs);
    }
    debug_assert!(within(jobs, fleet, &runs), "a round must not overbook");
    runs
}

/// The post-condition of a round.
fn within(jobs: &[Job], fleet: &[u32], runs: &[Run]) -> bool {
    let mut used = vec![0; fleet.len()];
    let mut seen = vec![false; jobs.len()];
    for run in runs {
        if std::mem::replace(&mut seen[run.job], true) {
            return false;
        }
        // Of two partners the one named first holds the seat.
        if run.partner.is_none_or(|partner| !seen[partner]) {
            used[run.model] += jobs[run.job].workers;
        }
    }
    used.iter().zip(fleet).all(|(used, have)| used <= have)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::lengths::Lengths;
    use super::*;

    /// A job on one model, with work left and an age.
    pub(crate) fn job(id: u64, workers: u32, remaining_ms: u64, age_ms: u64) -> Job {
        Job {
            id,
            class: ClassId(0),
            workers,
            weight: 1,
            speeds: vec![1000],
            attained_ms: 0,
            remaining_ms: Some(remaining_ms),
            age_ms,
            crowd_permille: 1000,
            on: None,
        }
    }

    fn round(jobs: &[Job], fleet: &[u32]) -> Vec<Run> {
        who_runs(jobs, fleet, &Lengths::default().indices(), None, &RoundConfig::default())
    }

    /// An unchanged world gives the same round; a job slightly ahead of a running one does not push it off.
    #[test]
    fn running_jobs_stay() {
        let mut jobs = vec![job(0, 1, 600_000, 60_000), job(1, 1, 590_000, 60_000)];
        let first = round(&jobs, &[1]);
        assert_eq!(first, vec![Run { job: 1, model: 0, partner: None }]);
        jobs[0].on = Some(0);
        assert_eq!(round(&jobs, &[1]), vec![Run { job: 0, model: 0, partner: None }]);
        jobs[1].age_ms = 6_000_000;
        assert_eq!(round(&jobs, &[1])[0].job, 1, "but one that is much later does");
    }

    #[test]
    fn gangs_run_whole_or_not_at_all() {
        let jobs = [job(0, 4, 600_000, 900_000), job(1, 2, 600_000, 0), job(2, 1, 600_000, 0)];
        let runs = round(&jobs, &[3]);
        assert_eq!(runs.iter().map(|run| run.job).collect::<Vec<_>>(), vec![1, 2]);
        assert!(round(&jobs, &[0]).is_empty());
        assert!(round(&[], &[3]).is_empty());
    }

    #[test]
    fn a_job_of_unknown_length_counts_by_what_others_took() {
        let mut lengths = Lengths::default();
        for _ in 0..200 {
            lengths.observe(300_000);
        }
        let mut jobs = vec![job(0, 1, 0, 0), job(1, 1, 0, 0)];
        for job in &mut jobs {
            (job.remaining_ms, job.age_ms) = (None, 7_300_000);
        }
        jobs[0].attained_ms = 7_200_000;
        let runs = who_runs(&jobs, &[1], &lengths.indices(), None, &RoundConfig::default());
        assert_eq!(runs[0].job, 1, "the new one is likely to be short, the other has outlived all");
    }
}
