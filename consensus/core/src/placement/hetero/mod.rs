//! Unlike GPUs and uneven work: which job runs on which model in the next round. Pure functions over numbers, without
//! state of the cluster, hosts or clock; `seats` alone knows hosts. The production planner and `rota sim` call the same
//! functions.

pub mod assign;
pub mod lengths;
pub mod rank;
pub mod shares;
pub mod table;
pub mod time_shares;

/// One job as a round sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its place in the order of submission.
    pub id: u64,
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
