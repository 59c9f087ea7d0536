//! The simulated cluster: rounds of 120 s, the cost of a start, ends, and what is measured. Policies only say who runs.

use super::trace::{Speeds, TraceJob};
use super::training::Training;
use super::{ShockwaveError, ShockwavePolicy};
use rota_core::placement::hetero::lengths::Lengths;
use rota_core::placement::hetero::table::ClassId;
use rota_core::placement::hetero::time_shares::TimeShares;
use rota_core::placement::hetero::{Job, RoundConfig, Run, who_runs};

/// Length of a round, in seconds.
pub(super) const ROUND_S: f64 = 120.0;
/// What a job loses of a round when it did not run in the one before, in seconds.
pub(super) const START_S: f64 = 20.0;
/// Time between two settings of max-min shares, in seconds.
const RESET_S: f64 = 1000.0;

struct Active {
    id: u64,
    training: Training,
    ran_last: bool,
    crowd: (f64, u32),
}

/// What one run gave.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// End of the last job, in seconds.
    pub(super) makespan_s: f64,
    /// Time from arrival to end of each job, in seconds.
    pub(super) completion_s: Vec<f64>,
    /// Finish-time fairness of each job.
    pub(super) fairness: Vec<f64>,
    /// GPU-seconds in which jobs ran.
    pub(super) held_s: f64,
    /// Rounds.
    pub(super) rounds: u64,
    /// Starts of jobs that did not run in the round before.
    pub(super) starts: u64,
}

struct Cluster<'a> {
    speeds: &'a Speeds,
    gpus: u32,
    policy: ShockwavePolicy,
    jobs: Vec<Active>,
    shares: TimeShares,
    changed: bool,
    reset_at_s: Option<f64>,
    /// Jobs of the trace over GPUs, at least 1: what each job's time is measured against.
    crowd: f64,
    out: Outcome,
}

/// Plays a trace to its end.
///
/// # Errors
/// If the speeds lack a program of the trace, or a job never fits.
pub(super) fn run(
    trace: &[TraceJob],
    speeds: &Speeds,
    gpus: u32,
    policy: ShockwavePolicy,
) -> Result<Outcome, ShockwaveError> {
    let crowd = (trace.len() as f64 / f64::from(gpus)).max(1.0);
    let mut cluster = Cluster {
        speeds,
        gpus,
        policy,
        jobs: Vec::new(),
        shares: TimeShares::default(),
        changed: false,
        reset_at_s: None,
        crowd,
        out: Outcome::default(),
    };
    let mut queue = trace.iter().zip(0..).peekable();
    let mut now_s = 0.0_f64;
    while queue.peek().is_some() || !cluster.jobs.is_empty() {
        if let Some((next, _)) = queue.peek().filter(|_| cluster.jobs.is_empty()) {
            now_s = now_s.max(next.arrival_s);
        }
        while let Some((job, id)) = queue.next_if(|(job, _)| job.arrival_s <= now_s) {
            let training = Training::new(job.clone(), speeds)?;
            cluster.jobs.push(Active { id, training, ran_last: false, crowd: (0.0, 0) });
            cluster.changed = true;
        }
        now_s = cluster.round(now_s).ok_or(ShockwaveError::Slow)?;
    }
    cluster.out.makespan_s = now_s;
    Ok(cluster.out)
}

impl Cluster<'_> {
    /// Plays one round and gives its end; none if nothing can run.
    fn round(&mut self, now_s: f64) -> Option<f64> {
        let crowd = self.jobs.len() as f64 / f64::from(self.gpus);
        for job in &mut self.jobs {
            job.crowd = (job.crowd.0 + crowd, job.crowd.1 + 1);
        }
        let runs = self.choose(now_s);
        let mut took_s = vec![None; self.jobs.len()];
        let mut end_s = now_s;
        for run in &runs {
            took_s[run.job] = Some(self.play(run.job, now_s, &mut end_s));
        }
        for (job, took_s) in self.jobs.iter_mut().zip(&took_s) {
            job.ran_last = took_s.is_some();
        }
        self.out.rounds += 1;
        self.leave(now_s, &took_s);
        for job in &mut self.jobs {
            job.training.look();
        }
        (end_s > now_s).then_some(end_s)
    }

    /// Runs one job for the round; gives the time it held its GPUs.
    fn play(&mut self, at: usize, now_s: f64, end_s: &mut f64) -> f64 {
        let first_round = self.out.rounds == 0;
        let job = &mut self.jobs[at];
        let rate = job.training.rate(self.speeds);
        let mut steps = ((rate * ROUND_S) as u64).min(job.training.steps_left());
        let held_s = if rate > 0.0 { steps as f64 / rate } else { 0.0 };
        *end_s = end_s.max(now_s + held_s);
        let mut worked_s = held_s;
        if !job.ran_last {
            self.out.starts += 1;
            if !first_round && held_s > ROUND_S - 5.0 {
                steps = (steps as f64 * (held_s - START_S) / held_s) as u64;
                worked_s -= START_S;
            }
        }
        job.training.ran(steps, worked_s);
        let gpus = f64::from(job.training.asked.gpus);
        self.shares.ran(job.id, 0, worked_s * 1000.0);
        self.out.held_s += worked_s * gpus;
        held_s
    }

    /// Measures and takes out the jobs that ended. As published, a job that ran half as long again as foreseen ends.
    fn leave(&mut self, now_s: f64, took_s: &[Option<f64>]) {
        let before = self.jobs.len();
        let mut at = 0;
        let (speeds, crowd, out) = (self.speeds, self.crowd, &mut self.out);
        self.jobs.retain_mut(|job| {
            let took_s = took_s[at];
            at += 1;
            let Some(took_s) = took_s else { return true };
            let over = job.training.ran_s > (job.training.alone_s().floor() * 1.5).floor();
            if job.training.steps_left() > 0 {
                job.training.adapt(speeds);
            }
            // Whole epochs are kept when the batch changes, which can leave no step to do.
            let ended = job.training.steps_left() == 0 || over;
            if ended {
                let completion_s = now_s + took_s - job.training.asked.arrival_s;
                out.completion_s.push(completion_s);
                out.fairness.push(completion_s / (job.training.alone_s() * crowd));
            }
            !ended
        });
        self.changed |= self.jobs.len() != before;
    }

    fn choose(&mut self, now_s: f64) -> Vec<Run> {
        let (fleet, now_ms) = ([self.gpus], (now_s * 1000.0) as u64);
        let views: Vec<Job> =
            self.jobs.iter().map(|job| view(job, self.speeds, self.policy, now_s)).collect();
        match self.policy {
            ShockwavePolicy::MaxMin => {
                let waited = self.reset_at_s.is_none_or(|at| now_s >= at + RESET_S);
                let round_ms = (ROUND_S * 1000.0) as u64;
                if self.changed && waited {
                    self.shares.set(&views, &fleet, true, round_ms, now_ms);
                    (self.changed, self.reset_at_s) = (false, Some(now_s));
                } else {
                    self.shares.meet(&views, &fleet, round_ms);
                }
                self.shares.round(&views, &fleet, &[0])
            }
            _ => {
                let indices = Lengths::default().indices();
                who_runs(&views, &fleet, &indices, None, &RoundConfig::default())
            }
        }
    }
}

fn view(job: &Active, speeds: &Speeds, policy: ShockwavePolicy, now_s: f64) -> Job {
    let left_s = match policy {
        ShockwavePolicy::EngineForeseen => job.training.left_foreseen_s(),
        _ => job.training.left_at_this_batch_s(speeds),
    };
    Job {
        id: job.id,
        class: ClassId(0),
        workers: job.training.asked.gpus,
        weight: 1,
        speeds: vec![1000],
        attained_ms: (job.training.ran_s * 1000.0) as u64,
        remaining_ms: Some((left_s * 1000.0) as u64),
        age_ms: ((now_s - job.training.asked.arrival_s) * 1000.0) as u64,
        crowd_permille: (job.crowd.0 / f64::from(job.crowd.1.max(1)) * 1000.0) as u32,
        on: job.ran_last.then_some(0),
    }
}
